"""What a source's confidence is worth: what is believed at first, and what is learned."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from agentspec.calibration.survival import Cell, Survival, context_class, heat
from agentspec.config import SamplingOptions

CONFIDENCES = [0.01, 0.2, 0.3, 0.5, 0.6, 0.75, 0.85, 0.92, 0.97, 0.99]
SURE = Cell.of("lookup", "string", 0.99, 0)


def taught(cell: Cell, outcomes: list[bool]) -> Survival:
    survival = Survival()
    for accepted in outcomes:
        survival.learn(cell, accepted=accepted)
    return survival


def test_at_first_a_source_is_believed_nearly_what_it_says() -> None:
    cells = [Cell.of("lookup", "string", confidence, 0) for confidence in CONFIDENCES]
    estimates = [Survival().estimate(cell) for cell in cells]
    assert all(left < right for left, right in pairwise(estimates))
    assert estimates == pytest.approx(CONFIDENCES, abs=0.1)


def test_the_past_moves_the_estimate_to_what_happened() -> None:
    good = [taught(SURE, [True] * n).estimate(SURE) for n in range(20)]
    bad = [taught(SURE, [False] * n).estimate(SURE) for n in range(20)]
    assert all(left < right < 1.0 for left, right in pairwise(good))
    assert all(left > right > 0.0 for left, right in pairwise(bad))
    assert bad[5] < 0.4
    assert good[19] > 0.98


def test_it_is_the_share_in_the_long_run() -> None:
    assert taught(SURE, [True, True, True, False] * 100).estimate(SURE) == pytest.approx(0.75, abs=0.02)


def test_it_forgets() -> None:
    """However long a source was right, so many failures count as much after it."""
    for before in (100, 1000):
        assert taught(SURE, [True] * before + [False] * 80).estimate(SURE) < 0.5
        assert taught(SURE, [False] * before + [True] * 80).estimate(SURE) > 0.5


@pytest.mark.parametrize(
    "other",
    [
        Cell.of("history", "string", 0.99, 0),
        Cell.of("lookup", "key", 0.99, 0),
        Cell.of("lookup", "string", 0.97, 0),
        Cell.of("lookup", "string", None, 0),
        Cell.of("lookup", "string", 0.99, 1),
    ],
)
def test_what_is_learned_in_one_place_says_nothing_of_another(other: Cell) -> None:
    assert taught(SURE, [False] * 50).estimate(other) == Survival().estimate(other)


def test_confidences_that_are_near_each_other_are_learned_together() -> None:
    assert Cell.of("lookup", "string", 0.56, 0) == Cell.of("lookup", "string", 0.69, 0)
    assert Cell.of("lookup", "string", 0.56, 0) != Cell.of("lookup", "string", 0.71, 0)


def test_a_string_with_few_ways_to_go_on_is_a_choice() -> None:
    assert context_class("string", np.arange(64)) == "enum"
    assert context_class("string", np.arange(65)) == "string"
    assert context_class("string", None) == "string"
    assert context_class("key", np.arange(3)) == "key"


def test_heat_rises_with_the_temperature() -> None:
    temperatures = [0.0, 0.3, 0.5, 0.7, 1.0, 1.5]
    assert [heat(SamplingOptions(temperature=value)) for value in temperatures] == [0, 1, 1, 2, 2, 3]
