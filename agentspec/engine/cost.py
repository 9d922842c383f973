"""What a pass costs on this machine: seconds by the number of its tokens.

The tables are measured when an engine starts and refreshed by every pass it makes, so they follow longer
contexts, other loads and other clocks. A planner reads them; nothing here decides. It must not know what the
tokens are, nor which of them are drafts.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["CostTable", "Costs"]

_BINS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)
"""Upper bounds of the sizes that are measured together."""

_KEPT = 9
"""Passes of one bin whose median counts: few, to follow changes, and enough to outvote a stall."""

_SLOPE = 0.15
"""What a token more is taken to cost, in single passes, before a second size was measured."""


class CostTable:
    """Seconds of a pass of n tokens: medians of recent passes, made monotone, linear in between.

    fixed: a law in place of measurements, such as for tests, which must not depend on a clock
    """

    def __init__(self, fixed: Callable[[int], float] | None = None) -> None:
        self._fixed = fixed
        self._samples: dict[int, deque[tuple[int, float]]] = {}
        self._knots: list[tuple[float, float]] | None = None

    @property
    def known(self) -> bool:
        """Whether there is anything to go by."""
        return self._fixed is not None or bool(self._samples)

    def record(self, n: int, seconds: float) -> None:
        """Notes a pass of n tokens."""
        bin_ = bisect_left(_BINS, n)
        self._samples.setdefault(bin_, deque(maxlen=_KEPT)).append((n, seconds))
        self._knots = None

    def seconds(self, n: float) -> float:
        """What a pass of n tokens takes; 0 for none. Raises ValueError where nothing was recorded."""
        if n <= 0:
            return 0.0
        if self._fixed is not None:
            return self._fixed(max(1, round(n)))
        knots = self._measured()
        if len(knots) == 1:
            at, cost = knots[0]
            one = cost / (1.0 + _SLOPE * (at - 1.0))
            return one * (1.0 + _SLOPE * (n - 1.0)) if n >= 1.0 else one
        index = min(max(1, bisect_left(knots, (n, 0.0))), len(knots) - 1)
        (left, low), (right, high) = knots[index - 1], knots[index]
        slope = (high - low) / (right - left)
        if n > right:  # a flat end is a tile that was filled, and does not go on
            return high + max(slope, 0.5 * high / right) * (n - right)
        return max(low + slope * (n - left), 0.5 * knots[0][1])

    def _measured(self) -> list[tuple[float, float]]:
        """(size, seconds) of each bin that has samples, ascending in both."""
        if self._knots is None:
            if not self._samples:
                raise ValueError("no pass has been measured yet")
            knots = []
            for bin_ in sorted(self._samples):
                sizes, times = zip(*self._samples[bin_], strict=True)
                knots.append((statistics.fmean(sizes), statistics.median(times), len(times)))
            self._knots = _monotone(knots)
        return self._knots


@dataclass(slots=True)
class Costs:
    """The tables of one engine: the target's, and one for each source that runs a model.

    frozen:  True where passes are not to change them
    nothing: True where no pass costs more by another token
    """

    target: CostTable = field(default_factory=CostTable)
    sources: dict[str, CostTable] = field(default_factory=dict)
    frozen: bool = False
    nothing: bool = False

    @classmethod
    def given(
        cls, target: Callable[[int], float], sources: Mapping[str, Callable[[int], float]] | None = None
    ) -> Costs:
        """Costs that are laws, and never measured."""
        return cls(
            CostTable(target), {name: CostTable(law) for name, law in (sources or {}).items()}, frozen=True
        )

    @classmethod
    def free(cls) -> Costs:
        """Costs under which whatever is offered is proposed: for proofs and tests of the rules, which are to
        meet as many proposals as there can be, whatever has become of earlier ones."""
        costs = cls.given(lambda _: 1.0)
        costs.nothing = True
        return costs

    def source(self, name: str) -> CostTable:
        """The table of a source; where the costs are given, and not of this one, it is free."""
        if name not in self.sources:
            self.sources[name] = CostTable((lambda _: 0.0) if self.frozen else None)
        return self.sources[name]

    def record(self, n: int, seconds: float, source: str | None = None) -> float:
        """Notes a pass of the target, or of a source's model. Returns its seconds: those that are given,
        where they are."""
        table = self.target if source is None else self.source(source)
        if self.frozen:
            return table.seconds(n)
        table.record(n, seconds)
        return seconds


def _monotone(knots: list[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """The nearest ascending times, by pooling neighbours that are out of order (isotonic regression)."""
    pools: list[tuple[float, int, list[float]]] = []  # mean seconds, weight, sizes
    for size, seconds, weight in knots:
        pools.append((seconds, weight, [size]))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            late, early = pools.pop(), pools.pop()
            total = early[1] + late[1]
            mean = (early[0] * early[1] + late[0] * late[1]) / total
            pools.append((mean, total, early[2] + late[2]))
    points = [(size, seconds) for seconds, _, sizes in pools for size in sizes]
    assert all(left[0] < right[0] for left, right in pairwise(points))
    return points
