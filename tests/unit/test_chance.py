"""The seeded sources of chance: frequencies within binomial bounds, and seeds that mean something.

Every bound is 6 standard deviations of a binomial count, which a right implementation exceeds with
probability 2e-9; there are fewer than 100 of them. The seeds are fixed, so a test that passes stays so.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentspec.chance import GumbelNoise, SeededRandomness
from agentspec.law import point_mass
from agentspec.types import Distribution

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


# ---------------------------------------------------------------------------------------------- noise


def noisy(distribution: Distribution, *, position: int = 0) -> list[int]:
    """The draws of TRIALS seeds at one position."""
    return [GumbelNoise(seed).draw(distribution, position) for seed in range(TRIALS)]


@pytest.mark.parametrize("position", [0, 1, 977])
def test_over_the_seeds_noise_draws_follow_the_weights(position: int) -> None:
    drawn = noisy(SKEWED, position=position)
    for token, probability in zip(SKEWED.ids.tolist(), SKEWED.probs.tolist(), strict=True):
        assert_frequency(drawn.count(token), probability)


def test_over_the_positions_noise_draws_follow_the_weights() -> None:
    noise = GumbelNoise(3)
    drawn = [noise.draw(SKEWED, position) for position in range(TRIALS)]
    for token, probability in zip(SKEWED.ids.tolist(), SKEWED.probs.tolist(), strict=True):
        assert_frequency(drawn.count(token), probability)


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    here, next_position = noisy(SKEWED), noisy(SKEWED, position=1)
    for other in (next_position, here[1:] + here[:1]):
        both = sum(left == right == 2 for left, right in zip(here, other, strict=True))
        assert_frequency(both, 0.6 * 0.6)


def test_noise_over_a_whole_vocabulary_favours_no_id() -> None:
    """Uniform over 150,000 ids: each quarter wins a quarter of the draws, and so does each residue."""
    ids = np.arange(150_000)
    uniform = Distribution(ids, np.full(len(ids), 1 / len(ids)))
    noise = GumbelNoise(11)
    drawn = np.array([noise.draw(uniform, position) for position in range(400)])
    deviation = math.sqrt(400 * 0.25 * 0.75)
    for quarter in range(4):
        assert abs(int(np.sum(drawn // 37_500 == quarter)) - 100) <= 6 * deviation
        assert abs(int(np.sum(drawn % 4 == quarter)) - 100) <= 6 * deviation


def test_noise_is_a_function_of_seed_position_and_law_alone() -> None:
    noise = GumbelNoise(5)
    first = [noise.draw(SKEWED, position) for position in range(200)]
    backwards = [GumbelNoise(5).draw(SKEWED, position) for position in reversed(range(200))]
    assert first == backwards[::-1]
    assert first != [GumbelNoise(6).draw(SKEWED, position) for position in range(200)]


def test_noise_of_a_token_does_not_depend_on_which_others_are_listed() -> None:
    """Taking away a token that did not win changes nothing: dense and truncated laws agree."""
    for seed in range(200):
        winner = GumbelNoise(seed).draw(SKEWED, 4)
        kept = (SKEWED.ids == winner) | (SKEWED.ids == 11)
        fewer = Distribution(SKEWED.ids[kept], SKEWED.probs[kept] / SKEWED.probs[kept].sum())
        assert GumbelNoise(seed).draw(fewer, 4) == winner


def test_near_laws_mostly_draw_the_same_token() -> None:
    """At least (1 - tv) / (1 + tv) of the draws agree (Daliri et al. 2024): here tv is 0.1."""
    near = Distribution(np.array([2, 7, 11]), np.array([0.5, 0.3, 0.2]))
    agreeing = sum(left == right for left, right in zip(noisy(SKEWED), noisy(near), strict=True))
    bound = 0.9 / 1.1
    assert agreeing >= TRIALS * bound - 6 * math.sqrt(TRIALS * bound * (1 - bound))


def test_the_draw_is_the_argmax_of_log_probs_and_noise() -> None:
    law = Distribution(np.array([2, 7, 11]), np.array([0.6, 0.3, 0.1]))
    noise = GumbelNoise(9)
    for position in range(200):
        scores = np.log(law.probs) + noise.gumbel(law.ids, position)
        assert noise.draw(law, position) == int(law.ids[np.argmax(scores)])


def test_noise_and_probabilities_near_zero() -> None:
    """Warnings are errors here."""
    cold = Distribution(np.array([0, 1, 2]), np.array([5e-324, 0.0, 1.0]))
    assert {GumbelNoise(seed).draw(cold, 0) for seed in range(50)} == {2}


def test_noise_of_the_largest_seeds_and_positions() -> None:
    for seed in (0, 2**63 - 1, 2**64 - 1):
        assert GumbelNoise(seed).draw(SKEWED, 10**6) in SKEWED.ids.tolist()
    assert GumbelNoise(1).draw(point_mass(5), 0) == 5
