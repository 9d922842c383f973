"""The seeded source of chance: frequencies within binomial bounds, and seeds that mean something.

Every bound is 6 standard deviations of a binomial count, which a right implementation exceeds with
probability 2e-9; there are fewer than 30 of them. The seeds are fixed, so a test that passes stays so.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentspec.law import point_mass
from agentspec.types import Distribution
from agentspec.verify import SeededRandomness

TRIALS = 20_000
SKEWED = Distribution(np.array([2, 3, 7, 11]), np.array([0.6, 0.0, 0.3, 0.1]))


def decisions(seed: int, count: int = 64) -> list[tuple[bool, int]]:
    chance = SeededRandomness(seed)
    return [(chance.accept(0.5), chance.draw(SKEWED)) for _ in range(count)]


def assert_frequency(hits: int, probability: float) -> None:
    deviation = math.sqrt(TRIALS * probability * (1.0 - probability))
    assert abs(hits - TRIALS * probability) <= 6.0 * deviation


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("probability", [0.03, 0.3, 0.9])
def test_acceptance_has_the_probability_asked_for(seed: int, probability: float) -> None:
    chance = SeededRandomness(seed)
    assert_frequency(sum(chance.accept(probability) for _ in range(TRIALS)), probability)


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_follow_the_weights(seed: int) -> None:
    chance = SeededRandomness(seed)
    drawn = [chance.draw(SKEWED) for _ in range(TRIALS)]
    assert set(drawn) <= set(SKEWED.ids.tolist())
    for token, probability in zip(SKEWED.ids.tolist(), SKEWED.probs.tolist(), strict=True):
        assert_frequency(drawn.count(token), probability)


def test_successive_decisions_are_independent() -> None:
    chance = SeededRandomness(5)
    pairs = [(chance.accept(0.5), chance.draw(SKEWED)) for _ in range(TRIALS)]
    assert_frequency(sum(accepted and token == 2 for accepted, token in pairs), 0.5 * 0.6)


def test_a_seed_fixes_every_decision_and_another_changes_them() -> None:
    assert decisions(7) == decisions(7)
    assert len({tuple(decisions(seed)) for seed in range(20)}) == 20


def test_certain_decisions_are_certain() -> None:
    chance = SeededRandomness(3)
    assert not any(chance.accept(0.0) for _ in range(1000))
    assert all(chance.accept(1.0) for _ in range(1000))


def test_certain_decisions_use_no_randomness() -> None:
    chance = SeededRandomness(7)
    assert [chance.draw(point_mass(5)) for _ in range(10)] == [5] * 10
    assert not chance.accept(0.0)
    assert [(chance.accept(0.5), chance.draw(SKEWED)) for _ in range(64)] == decisions(7)


def test_weights_that_do_not_quite_sum_to_one_draw_only_listed_tokens() -> None:
    chance = SeededRandomness(1)
    short = Distribution(np.array([4, 9]), np.array([0.3, 0.3]))
    drawn = [chance.draw(short) for _ in range(TRIALS)]
    assert_frequency(drawn.count(4), 0.5)
    assert drawn.count(4) + drawn.count(9) == TRIALS
