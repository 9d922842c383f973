"""What is learned of drafts while an agent works: how bold each should be, and how long blocks pay.

For each source that gives laws, each kind of place and each heat of the target's law, sums of the expected
acceptance at every temperature are kept, all of them learned from every verified position, whichever was
used (full information: Cesa-Bianchi and Lugosi 2006, "Prediction, Learning, and Games", section 2). The best
sum is used for what comes next. The same is kept for the mixture of two laws for one position. Sums fade, so
that they follow an agent whose work changes, and a tool set that is new begins with what others have taught.

What is chosen depends on blocks that are over, so the output keeps its law. It must not know engines, files
or how proposals are made.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from agentspec.calibration.survival import Survival
from agentspec.calibration.temper import (
    NEUTRAL,
    TEMPERATURES,
    WEIGHTS,
    alphas,
    mixed,
    mixed_alphas,
    tempered,
)
from agentspec.types import Distribution, FloatArray

__all__ = ["Calibrator", "Scores", "Where", "pair"]

_MEMORY: Final = 200.0
"""Positions that are learned from after which older ones fade."""

_BORROWED: Final = 30.0
"""Positions of other tool sets that count for one of which little is known."""

_MARGIN: Final = 0.5
"""Accepted tokens by which a temperature has to have been better than the draft's own, or a mixture than the
law that costs a pass, before it takes over: where nothing is to be gained, nothing changes."""

_SETTLED: Final = 100
_EACH: Final = 4
"""Positions of one kind from which on only every fourth is learned from: a tenth of a millisecond matters
where a pass takes a few."""

_MAX_TOOL_SETS: Final = 64


class Where(NamedTuple):
    """Where a law was offered.

    tool_set: names what the reply may call
    place:    the context class
    heat:     of the target's law (`agentspec.calibration.survival.heat`)
    """

    tool_set: str
    place: str
    heat: int


@dataclass(slots=True)
class Scores:
    """Faded sums over positions.

    count: positions
    sums:  expected acceptance of each candidate, shape (n,)
    """

    count: float
    sums: FloatArray

    @classmethod
    def none(cls, size: int) -> Scores:
        return cls(0.0, np.zeros(size))

    def add(self, alpha: FloatArray, memory: float = _MEMORY) -> None:
        """Adds a position. memory: positions after which older ones fade"""
        fade = min(1.0, (memory - 1.0) / self.count) if self.count else 1.0
        self.count = self.count * fade + 1.0
        self.sums = self.sums * fade + alpha

    @property
    def means(self) -> FloatArray:
        return self.sums / self.count if self.count else self.sums


_Key = tuple[str, str, int]  # source, or a pair of them; place; heat


@dataclass
class Calibrator:
    """Chooses temperatures and mixtures, and learns what they should be.

    adapts:   whether what happens changes them
    neutral:  leaves every law as it is: calibration is off
    survival: how often proposals are accepted; it learns in any case, for the lengths of blocks
    memory:   positions after which older ones fade

    A tool set's scores are of TEMPERATURES, or, under the name of a pair, of WEIGHTS; those of "" are of all
    tool sets together.
    """

    adapts: bool = True
    neutral: bool = False
    survival: Survival = field(default_factory=Survival)
    memory: float = _MEMORY
    _scores: OrderedDict[str, dict[_Key, Scores]] = field(default_factory=lambda: OrderedDict({"": {}}))
    _chosen: dict[tuple[str, Where], int] = field(default_factory=dict)
    _met: Counter[tuple[str, Where]] = field(default_factory=Counter)

    def calibrated(self, offers: Mapping[str, Distribution], where: Where) -> Distribution:
        """The law to draw from where sources offer these.

        offers: by source, one or two; of two, the first is the one that cost a pass
        """
        laws = {name: tempered(law, self.temperature(name, where)) for name, law in offers.items()}
        if len(laws) == 1:
            return next(iter(laws.values()))
        (one, first), (other, second) = list(laws.items())[:2]
        return mixed(first, second, self.weight(pair(one, other), where))

    def temperature(self, source: str, where: Where) -> float:
        """The one for a source's law; 0 where it is to propose its best token with certainty."""
        return TEMPERATURES[self._best(source, where, len(TEMPERATURES), NEUTRAL)]

    def weight(self, pair: str, where: Where) -> float:
        """The share of the first of two laws in their mixture."""
        return WEIGHTS[self._best(pair, where, len(WEIGHTS), len(WEIGHTS) - 1)]

    def learn(self, offers: Mapping[str, Distribution], where: Where, target_probs: Distribution) -> None:
        """Adds a verified position. offers: as they were made, before calibration"""
        if self.neutral or not self.adapts or not offers or self._knows(next(iter(offers)), where):
            return
        found = {name: alphas(target_probs, law) for name, law in offers.items()}
        if len(offers) > 1:
            (one, first), (other, second) = list(offers.items())[:2]
            first = tempered(first, self.temperature(one, where))
            second = tempered(second, self.temperature(other, where))
            found[pair(one, other)] = mixed_alphas(target_probs, first, second)
        for tool_set in {where.tool_set, ""}:
            kept = self._of(tool_set)
            for name, alpha in found.items():
                scores = kept.setdefault((name, where.place, where.heat), Scores.none(len(alpha)))
                scores.add(alpha, self.memory)
        self._chosen.clear()

    def items(self) -> Iterable[tuple[str, _Key, Scores]]:
        """Everything that was learned, but for survival: (tool set, (source, place, heat), scores)."""
        return [(name, key, scores) for name, kept in self._scores.items() for key, scores in kept.items()]

    def put(self, tool_set: str, key: _Key, scores: Scores) -> None:
        """Sets what was learned earlier."""
        self._of(tool_set)[key] = scores
        self._chosen.clear()

    def _knows(self, source: str, where: Where) -> bool:
        """Whether a position more can be passed over."""
        met = self._met[source, where] = self._met[source, where] + 1
        return self.memory < math.inf and met > _SETTLED and met % _EACH > 0

    def _best(self, name: str, where: Where, size: int, usual: int) -> int:
        if self.neutral:
            return usual
        if (known := self._chosen.get((name, where))) is None:
            known = self._chosen[name, where] = self._best_now(name, where, size, usual)
        return known

    def _best_now(self, name: str, where: Where, size: int, usual: int) -> int:
        key = (name, where.place, where.heat)
        total = np.zeros(size)
        if (shared := self._scores[""].get(key)) is not None:
            total = shared.means * min(shared.count, _BORROWED)
        own = self._scores.get(where.tool_set, {}).get(key) if where.tool_set else None
        if own is not None:
            total = total + own.sums
        total[usual] += _MARGIN
        return int(np.argmax(total))

    def _of(self, tool_set: str) -> dict[_Key, Scores]:
        kept = self._scores.setdefault(tool_set, {})
        if tool_set:
            self._scores.move_to_end(tool_set)
            if len(self._scores) > _MAX_TOOL_SETS + 1:
                oldest = next(name for name in self._scores if name)
                del self._scores[oldest]
                self._met.clear()  # else it would grow with every tool set
        return kept


def pair(first: str, second: str) -> str:
    """Names the mixture of two sources' laws."""
    return f"{first}+{second}"
