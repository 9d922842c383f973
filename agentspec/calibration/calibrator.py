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
from typing import Final, Literal, NamedTuple

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

__all__ = ["Calibrator", "Group", "Key", "Scores", "Where"]

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

_MAX_GROUPS: Final = 65
_MOST_CHOSEN: Final = 4096


class Where(NamedTuple):
    """Where a law was offered.

    tool_set: names what the reply may call
    place:    the context class
    heat:     of the target's law (`agentspec.calibration.survival.heat`)
    made_at:  the temperature that laws are made with; None for that of the target's law
    seeded:   whether the reply is drawn by the seed-invariant rule
    """

    tool_set: str
    place: str
    heat: int
    made_at: float | None = None
    seeded: bool = False


class Key(NamedTuple):
    """What scores are kept by.

    of:     what was tried: TEMPERATURES of a source's law, or WEIGHTS of a mixture
    source: its name; of a mixture, both names with a plus between them
    """

    of: Literal["temperatures", "weights"]
    source: str
    place: str
    heat: int

    @property
    def size(self) -> int:
        """How many candidates were tried."""
        return len(TEMPERATURES if self.of == "temperatures" else WEIGHTS)


class Group(NamedTuple):
    """tool_set: "" for all of them together. made_at: as that of Where"""

    tool_set: str
    made_at: float | None


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


@dataclass
class Calibrator:
    """Chooses temperatures and mixtures, and learns what they should be.

    adapts:   whether what happens changes them
    neutral:  leaves every law as it is: calibration is off
    survival: how often proposals are accepted; it learns in any case, for the lengths of blocks
    memory:   positions after which older ones fade
    """

    adapts: bool = True
    neutral: bool = False
    survival: Survival = field(default_factory=Survival)
    memory: float = _MEMORY
    _scores: OrderedDict[Group, dict[Key, Scores]] = field(default_factory=OrderedDict)
    _chosen: dict[tuple[Key, Where], int] = field(default_factory=dict)
    _met: Counter[tuple[str, Where]] = field(default_factory=Counter)

    def calibrated(self, offers: Mapping[str, Distribution], where: Where) -> Distribution:
        """The law to draw from where sources offer these.

        offers: by source, one or two; of two, the first is the one that cost a pass
        """
        laws = {name: tempered(law, self.temperature(name, where)) for name, law in offers.items()}
        if len(laws) == 1:
            return next(iter(laws.values()))
        (one, first), (other, second) = list(laws.items())[:2]
        return mixed(first, second, self.weight(one, other, where))

    def temperature(self, source: str, where: Where) -> float:
        """The one for a source's law; 0 where it is to propose its best token with certainty."""
        return TEMPERATURES[self._best(Key("temperatures", source, where.place, where.heat), where, NEUTRAL)]

    def weight(self, first: str, second: str, where: Where) -> float:
        """The share of the first of two sources' laws in their mixture."""
        return WEIGHTS[self._best(_mixture(first, second, where), where, len(WEIGHTS) - 1)]

    def learn(self, offers: Mapping[str, Distribution], where: Where, target_probs: Distribution) -> None:
        """Adds a verified position at which there was a choice.

        offers: as they were made, before calibration
        """
        if self.neutral or not self.adapts or all(len(law.ids) == 1 for law in offers.values()):
            return
        if self._knows(next(iter(offers)), where):
            return
        found = {
            Key("temperatures", name, where.place, where.heat): alphas(target_probs, law)
            for name, law in offers.items()
        }
        if len(offers) > 1:
            (one, first), (other, second) = list(offers.items())[:2]
            first = tempered(first, self.temperature(one, where))
            second = tempered(second, self.temperature(other, where))
            found[_mixture(one, other, where)] = mixed_alphas(target_probs, first, second)
        for tool_set in {where.tool_set, ""}:
            kept = self._of(Group(tool_set, where.made_at))
            for key, alpha in found.items():
                kept.setdefault(key, Scores.none(key.size)).add(alpha, self.memory)
        self._chosen.clear()

    def items(self) -> Iterable[tuple[Group, Key, Scores]]:
        """Everything that was learned, but for survival."""
        return [(group, key, scores) for group, kept in self._scores.items() for key, scores in kept.items()]

    def put(self, group: Group, key: Key, scores: Scores) -> None:
        """Sets what was learned earlier. Raises ValueError for scores of another number of candidates."""
        if len(scores.sums) != key.size:
            raise ValueError(f"{len(scores.sums)} scores of {key.size} {key.of}")
        self._of(group)[key] = scores
        self._chosen.clear()

    def _knows(self, source: str, where: Where) -> bool:
        """Whether a position more can be passed over."""
        met = self._met[source, where] = self._met[source, where] + 1
        return self.memory < math.inf and met > _SETTLED and met % _EACH > 0

    def _best(self, key: Key, where: Where, usual: int) -> int:
        if self.neutral:
            return usual
        if (known := self._chosen.get((key, where))) is None:
            if len(self._chosen) > _MOST_CHOSEN:
                self._chosen.clear()
            known = self._chosen[key, where] = self._best_now(key, where, usual)
        return known

    def _best_now(self, key: Key, where: Where, usual: int) -> int:
        shared = self._scores.get(Group("", where.made_at), {}).get(key) or Scores.none(key.size)
        own = Scores.none(key.size)
        if where.tool_set:
            own = self._scores.get(Group(where.tool_set, where.made_at), {}).get(key) or own
        others = max(0.0, shared.count - own.count)
        count = own.count + min(others, _BORROWED)
        if not count:
            return usual
        borrowed = (shared.sums - own.sums).clip(0.0) * (min(others, _BORROWED) / others if others else 0.0)
        means = (own.sums + borrowed) / count
        if where.seeded and key.of == "temperatures":
            # of draws that share their noise as few as this may agree, a certain token's chance is what it is
            means[1:] = means[1:] / (2.0 - means[1:])
        total = means * count
        total[usual] += _MARGIN
        return int(np.argmax(total))

    def _of(self, group: Group) -> dict[Key, Scores]:
        kept = self._scores.setdefault(group, {})
        self._scores.move_to_end(group)
        if len(self._scores) > _MAX_GROUPS and self.memory < math.inf:
            del self._scores[next(one for one in self._scores if one.tool_set)]
            self._met.clear()  # else it would grow with every tool set
        return kept


def _mixture(first: str, second: str, where: Where) -> Key:
    return Key("weights", f"{first}+{second}", where.place, where.heat)
