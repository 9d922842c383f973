"""Rules of draft length: whether a block goes on, by what is known before its next token is drawn.

Each looks at the draft's law for the next token, at how sure the block is so far, and at blocks that are
over; none at the token that is then drawn, so each keeps the law.

    fixed     so many tokens
    p_min     while the best token has this probability (llama.cpp's --spec-draft-p-min)
    svip      while the square root of the law's entropy is below a threshold (Zhang et al. 2024,
              arXiv:2411.18462)
    ada_edl   while 1 - sqrt(gamma * entropy), a lower bound of acceptance, is above a threshold that moves
              with the rate of acceptance (Agrawal et al. 2024, arXiv:2410.18351)
    survival  while a token more is expected to pay, by the acceptance learned of such places and such
              confidence: the planner's

Entropies are in nats. It must not know engines or files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from agentspec.calibration.calibrator import Where
from agentspec.calibration.survival import Cell, Survival, agreement
from agentspec.types import Distribution

__all__ = ["AdaEdl", "Fixed", "LengthRule", "PMin", "Price", "Survived", "Svip", "entropy"]


class LengthRule(Protocol):
    """Decides block by block; `learn` comes when one was verified."""

    def begin(self) -> None:
        """A block begins."""
        ...

    def asks(self, where: Where, length: int) -> bool:
        """Whether the draft is to compute its law for one more token of a block of this length."""
        ...

    def goes_on(self, draft_probs: Distribution, where: Where, length: int) -> bool:
        """Whether a token is drawn from that law. It has been paid for."""
        ...

    def learn(self, accepted: int, proposed: int) -> None:
        """How many of the block's tokens were accepted."""
        ...


@dataclass
class Fixed:
    """most: tokens of a block"""

    most: int

    def begin(self) -> None:
        return

    def asks(self, where: Where, length: int) -> bool:  # noqa: ARG002
        return length < self.most

    def goes_on(self, draft_probs: Distribution, where: Where, length: int) -> bool:  # noqa: ARG002
        return True

    def learn(self, accepted: int, proposed: int) -> None:  # noqa: ARG002
        return


@dataclass
class PMin(Fixed):
    threshold: float

    def goes_on(self, draft_probs: Distribution, where: Where, length: int) -> bool:  # noqa: ARG002
        return float(draft_probs.probs.max()) >= self.threshold


@dataclass
class Svip(Fixed):
    threshold: float

    def goes_on(self, draft_probs: Distribution, where: Where, length: int) -> bool:  # noqa: ARG002
        return math.sqrt(entropy(draft_probs)) <= self.threshold


@dataclass
class AdaEdl(Fixed):
    """gamma, step and the two memories are the paper's; target is the rate of acceptance it steers to."""

    target: float
    gamma: float = 0.2
    step: float = 0.01
    rate_memory: float = 0.5
    threshold_memory: float = 0.9
    threshold: float = 0.4
    _rate: float = 0.5

    def goes_on(self, draft_probs: Distribution, where: Where, length: int) -> bool:  # noqa: ARG002
        return length == 0 or 1.0 - math.sqrt(self.gamma * entropy(draft_probs)) >= self.threshold

    def learn(self, accepted: int, proposed: int) -> None:
        if not proposed:
            return
        self._rate = self.rate_memory * self._rate + (1.0 - self.rate_memory) * accepted / proposed
        moved = self.threshold + (self.step if self._rate < self.target else -self.step)
        self.threshold = self.threshold_memory * self.threshold + (1.0 - self.threshold_memory) * moved


@dataclass(frozen=True)
class Price:
    """What a pass costs, in plain passes of one token.

    draft: a token that is drafted
    check: a token more in the target's pass
    """

    draft: float
    check: float


_SOURCE: Final = "model"

_PROBES: Final = 0.02
"""Share of the plain passes' time that may go to laws that do not pay by what is known."""


@dataclass
class Survived:
    """The planner's rule for one sequence and one source that runs a model."""

    price: Price
    most: int
    survival: Survival = field(default_factory=Survival)
    _cells: list[tuple[Cell, Cell]] = field(default_factory=list)
    _reach: float = 1.0
    _expected: float = 1.0
    _spent: float = 1.0
    _spare: float = 0.0
    _probing: bool = False

    def begin(self) -> None:
        self._cells = []
        self._reach = self._expected = self._spent = 1.0
        self._probing = False
        self._spare = min(self._spare + _PROBES, 4.0)

    def asks(self, where: Where, length: int) -> bool:
        if length >= self.most or self._probing:
            return False
        cost = self.price.draft + self.price.check
        pays = self._pays(self._reach * self.survival.estimate(_cell(where, None)), cost)
        if not pays and self._spare >= cost:
            self._spare -= cost
            self._probing = pays = True
        if pays:
            self._spent += self.price.draft
        return pays

    def goes_on(self, draft_probs: Distribution, where: Where, length: int) -> bool:  # noqa: ARG002
        cell = _cell(where, agreement(draft_probs))
        reach = self._reach * self.survival.estimate(cell)
        if not self._probing and not self._pays(reach, self.price.check):
            return False
        self._cells.append((cell, _cell(where, None)))
        self._reach = reach
        self._expected += reach
        self._spent += self.price.check
        return True

    def learn(self, accepted: int, proposed: int) -> None:  # noqa: ARG002
        for index, cells in enumerate(self._cells[: accepted + 1]):
            for cell in cells:
                self.survival.learn(cell, accepted=index < accepted)

    def _pays(self, gain: float, cost: float) -> bool:
        return gain * self._spent / self._expected > cost


def _cell(where: Where, confidence: float | None) -> Cell:
    return Cell.of(_SOURCE, where.place, confidence, where.heat)


def entropy(law: Distribution) -> float:
    """In nats."""
    probs = law.probs[law.probs > 0.0]
    return max(0.0, -float(np.dot(probs, np.log(probs))))
