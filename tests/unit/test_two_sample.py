"""The two-sample test of `agentspec prove`: it errs as rarely as it says, and sees what it says it sees.

Error rates are counted over simulated experiments with fixed seeds, so a test that passes stays so. Each
bound is 4 standard deviations of a binomial count, which a right implementation would break with
probability 6e-5 for a seed chosen blindly.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from agentspec.proof.two_sample import POWER, Arm, Comparison, compare
from agentspec.types import FloatArray

WORD_LAW = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
END = 0

Tokens = tuple[int, ...]


def draw(rng: np.random.Generator, law: FloatArray, size: int, *, length: int = 3) -> list[Tokens]:
    """Continuations of up to `length` tokens, each from `law`; one ends at the token END."""
    drawn = rng.choice(len(law), size=(size, length), p=law).tolist()
    return [tuple(row[: row.index(END) + 1] if END in row else row) for row in drawn]


def experiment(
    seed: int, left_law: FloatArray, right_law: FloatArray, *, min_count: int = 10, test_seed: int = 0
) -> Comparison:
    """Two contexts, with 80 continuations in the left arm and 120 in the right one."""
    rng = np.random.default_rng(seed)
    left = [draw(rng, left_law, 80) for _ in range(2)]
    right = [draw(rng, right_law, 120) for _ in range(2)]
    return compare(left, right, alpha=0.05, rounds=199, min_count=min_count, seed=test_seed)


def assert_share(hits: int, trials: int, probability: float) -> None:
    deviation = math.sqrt(trials * probability * (1.0 - probability))
    assert abs(hits - trials * probability) <= 4.0 * deviation, f"{hits} of {trials}, expected {probability}"


# ------------------------------------------------------------------------------- under one law


def test_p_values_are_uniform_where_there_is_one_law() -> None:
    p_values = np.array([experiment(seed, WORD_LAW, WORD_LAW).p_value for seed in range(600)])
    for level in (0.05, 0.25, 0.5, 0.9):
        assert_share(int(np.count_nonzero(p_values <= level)), 600, level)


def test_p_values_are_uniform_where_most_tokens_are_rare() -> None:
    """The law of the statistic is not near chi-square here: simulating it is what makes the rate right."""
    law = np.full(200, 0.2 / 199)
    law[1] = 0.8
    p_values = np.array([experiment(seed, law, law, min_count=1).p_value for seed in range(400)])
    for level in (0.05, 0.25, 0.5, 0.9):
        assert_share(int(np.count_nonzero(p_values <= level)), 400, level)


def test_the_p_value_is_that_of_all_permutations() -> None:
    """Of all ways to say which continuations were the left arm's, the share with at least this statistic."""
    left: list[list[Tokens]] = [[(1,), (1,), (1,), (2,), (3,)], [(1,), (2,)]]
    right: list[list[Tokens]] = [[(1,), (2,), (2,), (3,), (3,), (3,)], [(2,), (2,), (2,)]]
    result = compare(left, right, min_count=1)

    statistics = [0.0]
    for one, other in zip(left, right, strict=True):
        pool = one + other
        ways = [pearson([pool[at] for at in chosen], pool) for chosen in all_ways(len(pool), len(one))]
        statistics = [total + way for total, way in itertools.product(statistics, ways)]
    observed = pearson(left[0], left[0] + right[0]) + pearson(left[1], left[1] + right[1])
    exact = sum(statistic >= observed - 1e-9 for statistic in statistics) / len(statistics)

    assert result.statistic == pytest.approx(observed)
    assert result.expected == pytest.approx(sum(statistics) / len(statistics), rel=0.05)
    assert 0.05 < exact < 0.5
    assert_share(round(result.p_value * 20_001), 20_001, exact)


def all_ways(size: int, count: int) -> Iterator[Tokens]:
    return itertools.combinations(range(size), count)


def pearson(chosen: list[Tokens], pool: list[Tokens]) -> float:
    """The textbook formula: observed and expected counts of both rows."""
    total = 0.0
    for cell in set(pool):
        for count, share in (
            (chosen.count(cell), len(chosen) / len(pool)),
            (pool.count(cell) - chosen.count(cell), 1.0 - len(chosen) / len(pool)),
        ):
            expected = pool.count(cell) * share
            total += (count - expected) ** 2 / expected
    return total


def test_equal_arms_do_not_differ() -> None:
    arm = [draw(np.random.default_rng(1), WORD_LAW, 500) for _ in range(3)]
    shuffled = [list(reversed(context)) for context in arm]
    result = compare(arm, shuffled)
    assert (result.statistic, result.p_value) == (0.0, 1.0)
    assert not result.differ


# ------------------------------------------------------------------------------- under two laws


def moved(law: FloatArray, tv: float, tokens: list[int]) -> FloatArray:
    """The law with `tv` of its mass taken from `tokens`, and given to the others, in proportion."""
    taken = np.isin(np.arange(len(law)), tokens)
    mass = law[taken].sum()
    changed: FloatArray = np.where(taken, law * (1.0 - tv / mass), law * (1.0 + tv / (1.0 - mass)))
    return changed


@pytest.mark.parametrize("tokens", [[0, 5], [1, 2, 3], [3, 4, 5]], ids=str)
def test_the_detectable_difference_is_detected(tokens: list[int]) -> None:
    """Single tokens, so that the laws' total variation over the cells is the one that is made."""
    rng = np.random.default_rng(0)

    def run(tv: float) -> Comparison:
        left = [draw(rng, WORD_LAW, 400, length=1) for _ in range(3)]
        right = [draw(rng, moved(WORD_LAW, tv, tokens), 400, length=1) for _ in range(3)]
        return compare(left, right, alpha=0.01, rounds=999)

    stated = float(np.median([run(0.0).detectable_tv for _ in range(9)]))
    assert 0.05 < stated < 0.2
    found = sum(run(stated).differ for _ in range(300))
    assert found >= 300 * POWER - 4.0 * math.sqrt(300 * POWER * (1.0 - POWER))


def test_the_detectable_difference_is_no_more_than_is_needed() -> None:
    """In the direction that is hardest to see, a third less is missed often."""
    rng = np.random.default_rng(0)
    law = np.array([0.3, 0.2, 0.2, 0.3])
    left = [draw(rng, law, 400, length=1) for _ in range(3)]
    right = [draw(rng, law, 400, length=1) for _ in range(3)]
    stated = compare(left, right, alpha=0.01, rounds=999).detectable_tv
    found = 0
    for _ in range(100):
        left = [draw(rng, law, 400, length=1) for _ in range(3)]
        right = [draw(rng, moved(law, stated * 2 / 3, [0, 1]), 400, length=1) for _ in range(3)]
        found += compare(left, right, alpha=0.01, rounds=999).differ
    assert found < 95


def test_more_samples_see_smaller_differences() -> None:
    rng = np.random.default_rng(3)
    stated = []
    for size in (200, 2000, 20_000):
        left, right = ([draw(rng, WORD_LAW, size, length=1)] for _ in range(2))
        stated.append(compare(left, right).detectable_tv)
    assert stated[0] > 2.5 * stated[1] > 2.5 * 2.5 * stated[2] > 0.0


def test_a_difference_in_the_last_token_alone_is_found() -> None:
    rng = np.random.default_rng(5)
    left = [[(1, int(token)) for token in rng.choice(6, 2000, p=WORD_LAW)]]
    right = [[(1, int(token)) for token in rng.choice(6, 2000, p=WORD_LAW[::-1])]]
    assert compare(left, right).p_value == pytest.approx(1 / 20_001)


def test_a_difference_in_who_follows_whom_is_found() -> None:
    """The tokens at each position have one law in both arms; only together do they differ."""
    left = [[(1, 2), (2, 1)] * 200]
    right = [[(1, 1), (2, 2)] * 200]
    assert compare(left, right).differ


def test_ending_early_is_a_difference() -> None:
    """A reply that ended is another reply than one that went on, and than a longer one's prefix."""
    left = [[(1,)] * 100 + [(1, 0)] * 100]
    right = [[(1,)] * 20 + [(1, 0)] * 180]
    assert compare(left, right).differ


def test_a_difference_in_one_context_of_many_is_found() -> None:
    rng = np.random.default_rng(6)
    left = [draw(rng, WORD_LAW, 1000) for _ in range(8)]
    right = [draw(rng, WORD_LAW, 1000) for _ in range(7)] + [draw(rng, WORD_LAW[::-1], 1000)]
    assert compare(left, right).differ


def test_contexts_are_not_pooled() -> None:
    """What one context gains and another loses must not cancel out."""
    left = [[(1,)] * 300 + [(2,)] * 100, [(1,)] * 100 + [(2,)] * 300]
    right = [left[1], left[0]]
    assert compare(left, right).differ


# ---------------------------------------------------------------------------------------- cells


def test_rare_tokens_are_one_cell() -> None:
    """Twelve tokens that came once each: nine at the first position, three after a 1."""
    rare_first = [(10 + token,) for token in range(9)]
    rare_next = [(1, 20 + token) for token in range(3)]
    left = [[(1, 1)] * 50 + [(2,)] * 50 + rare_first[:5] + rare_next[:1]]
    right = [[(1, 1)] * 50 + [(2,)] * 50 + rare_first[5:] + rare_next[1:]]
    assert compare(left, right, min_count=10).cells == 3  # (1, 1), (2,), and all that is rare
    assert compare(left, right, min_count=9).cells == 4  # those at the first position are now enough
    assert compare(left, right, min_count=1).cells == 14


def test_cells_do_not_depend_on_the_arm() -> None:
    """Else what is in the cells would depend on what they are to compare."""
    rng = np.random.default_rng(8)
    left, right = ([draw(rng, WORD_LAW, 300)] for _ in range(2))
    one, other = compare(left, right), compare(right, left)
    assert one.cells == other.cells
    assert one.statistic == pytest.approx(other.statistic)


def test_a_certain_token_is_no_comparison() -> None:
    """Forced text says nothing about the law, and the result says so."""
    result = compare([[(1, 2, 3)] * 500], [[(1, 2, 3)] * 500])
    assert (result.cells, result.detectable_tv, result.p_value) == (1, 1.0, 1.0)


# ----------------------------------------------------------------------------------- its interface


def test_the_same_arguments_give_the_same_result() -> None:
    first = experiment(1, WORD_LAW, WORD_LAW, test_seed=4)
    assert first == experiment(1, WORD_LAW, WORD_LAW, test_seed=4)
    other = experiment(1, WORD_LAW, WORD_LAW, test_seed=5)
    assert first.statistic == other.statistic
    assert first.expected != other.expected


def test_it_says_what_it_compared() -> None:
    result = experiment(1, WORD_LAW, WORD_LAW)
    assert result.samples == (160, 240)
    assert result.alpha == 0.05
    assert 0.0 < result.detectable_tv <= 1.0
    assert abs(result.statistic - result.expected) < 4.0 * result.spread
    assert dataclasses.replace(result, p_value=0.05).differ
    assert not dataclasses.replace(result, p_value=0.051).differ


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ([], [], "no context"),
        ([[(1,)]], [[]], "context 0 has no continuation"),
        ([[(1,)], []], [[(1,)], [(1,)]], "context 1 has no continuation"),
        ([[(1,)]], [[(1,)], [(1,)]], "1 contexts in one arm, 2 in the other"),
    ],
)
def test_nothing_to_compare_is_an_error(left: Arm, right: Arm, message: str) -> None:
    """A context that was lost must not look like one where the arms agree."""
    with pytest.raises(ValueError, match=message):
        compare(left, right)


@pytest.mark.parametrize(("alpha", "rounds"), [(1e-4, 9_000), (0.0, 100), (1.0, 100), (0.05, 0)])
def test_a_level_that_cannot_be_reached_is_an_error(alpha: float, rounds: int) -> None:
    with pytest.raises(ValueError, match="cannot give a p-value"):
        compare([[(1,)]], [[(2,)]], alpha=alpha, rounds=rounds)
