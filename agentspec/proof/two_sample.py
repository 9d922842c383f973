"""Do two sets of sampled continuations have one law? A test with exact error rates, and its power.

The continuations of each context are sorted into *cells*: the longest prefixes that enough of them share,
both arms counted together. If both arms have one law, then, given how many continuations each cell holds, it
is pure chance which of them came from which arm: the counts of one arm are multivariate hypergeometric. The
statistic is Pearson's chi-square, summed over the contexts, and its law under that hypothesis is simulated
rather than approximated.

This module must not know models or drafts: it sees token ids.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from agentspec.types import FloatArray

__all__ = ["Arm", "Comparison", "compare"]

Tokens: TypeAlias = tuple[int, ...]
Arm: TypeAlias = Sequence[Sequence[Tokens]]
"""Sampled continuations: arm[context] are those of one context, each of any length, in any order."""

_Counts: TypeAlias = npt.NDArray[np.int64]

POWER = 0.99
"""The probability with which a difference of `Comparison.detectable_tv` is found."""

_ENDED = -1  # stands after the last token of a continuation that is shorter than the longest
_POWER_DRAWS = 20_000
_MOST_NUMBERS = 1 << 21  # numbers held at once while the null hypothesis is simulated: 16 MB


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the test found.

    p_value:       probability of a statistic at least this large if both arms have one law; at the least
                   1 / (1 + rounds)
    alpha:         the level of the test: p_value <= alpha says that the laws differ
    statistic:     Pearson's chi-square, summed over the contexts
    expected:      its mean under one law; spread: its standard deviation under one law
    cells:         cells in all contexts together
    samples:       continuations in the left and in the right arm
    detectable_tv: laws whose total variation over the cells is at least this in every context are told apart
                   with probability 0.99, whatever the difference is; 1.0 where the samples are too few
    """

    p_value: float
    alpha: float
    statistic: float
    expected: float
    spread: float
    cells: int
    samples: tuple[int, int]
    detectable_tv: float

    @property
    def differ(self) -> bool:
        """Whether the arms have different laws, at the level alpha."""
        return self.p_value <= self.alpha


def compare(
    left: Arm,
    right: Arm,
    *,
    alpha: float = 1e-4,
    rounds: int = 20_000,
    min_count: int = 20,
    seed: int = 0,
) -> Comparison:
    """Tests whether the continuations of two arms have the same law in every context.

    left, right: left[context] and right[context] are sampled continuations of the same context: tuples of
                 token ids. One that is shorter than the longest has ended.
    alpha:       the probability of finding a difference where there is none is at most this
    rounds:      simulations of the statistic under one law
    min_count:   continuations, both arms counted, that must share a prefix for it to be a cell of its own

    The same arguments give the same result. Raises ValueError where a context has no continuation in one of
    the arms, since nothing would be compared there, and where `rounds` are too few to ever reach `alpha`.

    The law of a table given its margins is that of Freeman and Halton (1951, Biometrika 38), the p-value
    that of Phipson and Smyth (2010, arXiv:1603.05766): the error rate holds for any number of rounds and
    samples, rare tokens included.
    """
    _check(left, right, alpha, rounds)
    tables = [_table(one, other, min_count=min_count) for one, other in zip(left, right, strict=True)]
    rng = np.random.default_rng(seed)
    statistic = sum(_pearson(table[:1], table.sum(axis=0))[0] for table in tables)
    null = sum((_null(table, rounds, rng) for table in tables), start=np.zeros(rounds))
    # a tie with the observed table counts against it, also where rounding tells the two apart
    above = int(np.count_nonzero(null >= statistic * (1.0 - 1e-9)))
    return Comparison(
        p_value=(1 + above) / (1 + rounds),
        alpha=alpha,
        statistic=float(statistic),
        expected=float(null.mean()),
        spread=float(null.std()),
        cells=sum(table.shape[1] for table in tables),
        samples=(sum(map(len, left)), sum(map(len, right))),
        detectable_tv=_detectable_tv(tables, _critical(null, alpha), rng),
    )


def _check(left: Arm, right: Arm, alpha: float, rounds: int) -> None:
    if len(left) != len(right):
        raise ValueError(f"{len(left)} contexts in one arm, {len(right)} in the other")
    if not left:
        raise ValueError("no context to compare")
    for context, arms in enumerate(zip(left, right, strict=True)):
        if not all(arms):
            raise ValueError(f"context {context} has no continuation in one of the arms")
    if not 0.0 < alpha < 1.0 or alpha * (1 + rounds) < 1.0:
        raise ValueError(f"{rounds} rounds cannot give a p-value of {alpha} or less")


# --------------------------------------------------------------------------------------------- cells


def _table(left: Sequence[Tokens], right: Sequence[Tokens], *, min_count: int) -> _Counts:
    """How many continuations of each arm are in each cell, shape (2, cells).

    The cells depend on both arms together and not on which arm a continuation is from, as they must.
    """
    cells = _cells(Counter(chain(left, right)), min_count)
    table = np.zeros((2, max(cells.values()) + 1), dtype=np.int64)
    for row, arm in zip(table, (left, right), strict=True):
        for tokens, count in Counter(arm).items():
            row[cells[tokens]] += count
    return table


def _cells(counts: Counter[Tokens], min_count: int) -> dict[Tokens, int]:
    """The cell of each continuation.

    Continuations are divided by their next token as long as min_count of them or more go the same way. Those
    that go rare ways from a prefix are one cell, if they are enough; what is left over anywhere in the
    context is the last.
    """
    longest = max(map(len, counts))
    cells: list[list[Tokens]] = []
    rest: list[Tokens] = []

    def divide(members: list[Tokens], depth: int) -> None:
        if depth > longest:
            cells.append(members)
            return
        ways: defaultdict[int, list[Tokens]] = defaultdict(list)
        for tokens in members:
            ways[tokens[depth] if depth < len(tokens) else _ENDED].append(tokens)
        rare: list[Tokens] = []
        for way in ways.values():
            if size(way) >= min_count:
                divide(way, depth + 1)
            else:
                rare += way
        if size(rare) >= min_count:
            cells.append(rare)
        else:
            rest.extend(rare)

    def size(members: list[Tokens]) -> int:
        return sum(counts[tokens] for tokens in members)

    divide(list(counts), 0)
    if rest:
        cells.append(rest)
    return {tokens: index for index, members in enumerate(cells) for tokens in members}


# --------------------------------------------------------------------------------- statistic and null


def _pearson(counts: _Counts, totals: _Counts) -> FloatArray:
    """Pearson's chi-square of tables of two rows, from their first rows and the sum of both.

    counts: shape (tables, cells), each row of the same sum; totals: shape (cells,). Returns shape (tables,).
    """
    everything = int(totals.sum())
    chosen = int(counts[0].sum())
    deviations = counts - totals * (chosen / everything)
    scale = everything**2 / (chosen * (everything - chosen))
    statistics: FloatArray = np.square(deviations) @ (scale / totals)
    return statistics


def _null(table: _Counts, rounds: int, rng: np.random.Generator) -> FloatArray:
    """The statistic of `rounds` tables of the same margins, drawn under one law, shape (rounds,)."""
    totals = table.sum(axis=0)
    chosen = int(table[0].sum())
    chunk = max(1, _MOST_NUMBERS // len(totals))
    return np.concatenate(
        [
            _pearson(rng.multivariate_hypergeometric(totals, chosen, size=min(chunk, rounds - start)), totals)
            for start in range(0, rounds, chunk)
        ]
    )


# ---------------------------------------------------------------------------------------------- power


def _critical(null: FloatArray, alpha: float) -> float:
    """The statistic above which the p-value is at most alpha."""
    most_above = int(alpha * (1 + len(null)) * (1.0 + 1e-12)) - 1
    return float(np.sort(null)[len(null) - 1 - most_above])


def _detectable_tv(tables: Sequence[_Counts], critical: float, rng: np.random.Generator) -> float:
    """The total variation that the test finds with probability POWER (see Comparison).

    Between laws of total variation d the statistic has, for large counts, a noncentral chi-square law. With
    n and m samples of a context its noncentrality is n m / (n + m) * sum((a - b)^2 / c), where c is the
    mixture of the two laws a and b, and the sum is at least (sum |a - b|)^2 = 4 d^2 by Cauchy and Schwarz.
    """
    freedom = sum(table.shape[1] - 1 for table in tables)
    if freedom == 0:
        return 1.0  # a single cell in each context: there is nothing to tell apart
    per_square = 4.0 * sum(float(np.prod(table.sum(axis=1)) / table.sum()) for table in tables)
    normal = rng.standard_normal(_POWER_DRAWS)
    others = 2.0 * rng.standard_gamma((freedom - 1) / 2.0, _POWER_DRAWS)  # chi-square, also of no freedom

    def found(tv: float) -> bool:
        statistics = np.square(normal + tv * math.sqrt(per_square)) + others  # noncentral chi-square
        return float(np.quantile(statistics, 1.0 - POWER)) > critical

    low, high = 0.0, 1.0
    if not found(high):
        return 1.0
    while high - low > 1e-3:
        middle = (low + high) / 2.0
        low, high = (low, middle) if found(middle) else (middle, high)
    return high
