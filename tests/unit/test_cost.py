"""What passes cost: seconds by size, from measurements that are few, noisy and out of order."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from agentspec.engine.cost import Costs, CostTable


def table(*passes: tuple[int, float]) -> CostTable:
    made = CostTable()
    for n, seconds in passes:
        made.record(n, seconds)
    return made


def test_nothing_is_known_before_the_first_pass() -> None:
    assert not CostTable().known
    with pytest.raises(ValueError, match="no pass has been measured"):
        CostTable().seconds(1)
    assert table((1, 1.0)).known


def test_no_tokens_take_no_time() -> None:
    assert CostTable().seconds(0) == 0.0
    assert table((4, 1.0)).seconds(0) == 0.0


def test_between_two_sizes_it_is_linear() -> None:
    found = table((4, 1.0), (8, 3.0))
    assert [found.seconds(n) for n in (4, 5, 6, 8)] == [1.0, 1.5, 2.0, 3.0]


def test_one_size_says_something_of_the_others() -> None:
    """Until a second one is measured, a token more costs a fixed share of a single pass."""
    one, four = table((1, 2.0)), table((4, 2.9))
    assert one.seconds(1) == 2.0
    for n in (1, 3, 20):
        assert one.seconds(n) == pytest.approx(2.0 * (1 + 0.15 * (n - 1)))
        assert four.seconds(n) == pytest.approx(one.seconds(n))


def test_below_the_smallest_size_a_pass_never_gets_free() -> None:
    assert table((8, 1.0), (16, 3.0)).seconds(1) == 0.5


def test_beyond_the_largest_size_it_goes_on_rising() -> None:
    """Also where the last two sizes took the same time: that is a tile of a kernel, which ends."""
    flat = table((8, 1.0), (16, 1.0 + 1e-9))
    assert flat.seconds(32) > 1.4
    steep = table((8, 1.0), (16, 3.0))
    assert steep.seconds(20) == pytest.approx(4.0)


def test_a_stall_is_outvoted() -> None:
    assert table(*[(1, 1.0)] * 6, (1, 30.0), (1, 40.0)).seconds(1) == 1.0


def test_it_follows_what_passes_take_now() -> None:
    """Longer contexts, other loads: nine passes are enough."""
    assert table(*[(1, 1.0)] * 100, *[(1, 2.0)] * 9).seconds(1) == 2.0


def test_sizes_that_are_near_each_other_are_measured_together() -> None:
    assert table((25, 1.0), (32, 1.0), (31, 9.0)).seconds(88 / 3) == pytest.approx(1.0)


def test_times_that_fall_with_size_are_pooled() -> None:
    """By weight: one pass that was slow does not make three larger ones dear."""
    found = table((1, 4.0), (2, 2.0), (2, 2.0), (2, 2.0))
    assert found.seconds(1) == found.seconds(2) == 2.5


def test_a_larger_pass_never_takes_less() -> None:
    rng = random.Random(0)
    for _ in range(50):
        found = CostTable()
        for _ in range(rng.randrange(1, 40)):
            found.record(rng.randrange(1, 700), rng.expovariate(1.0) + 1e-3)
        seconds = [found.seconds(n / 2) for n in range(2, 1600)]
        assert all(left <= right + 1e-12 for left, right in pairwise(seconds))
        assert min(seconds) > 0.0


def test_given_costs_are_laws_that_no_pass_changes() -> None:
    costs = Costs.given(lambda n: 1.0 + n, {"model": lambda n: 0.5 * n})
    assert costs.target.known
    assert costs.record(3, 99.0) == 4.0
    assert costs.record(4, 99.0, "model") == 2.0
    assert (costs.target.seconds(3), costs.source("model").seconds(4)) == (4.0, 2.0)
    assert costs.target.seconds(2.6) == 4.0  # a law of whole tokens
    assert costs.target.seconds(0) == 0.0
    assert costs.source("another").seconds(100) == 0.0


def test_measured_costs_are_kept_by_model() -> None:
    costs = Costs()
    assert costs.record(1, 2.0) == 2.0
    assert costs.record(1, 5.0, "model") == 5.0
    assert (costs.target.seconds(1), costs.source("model").seconds(1)) == (2.0, 5.0)
    assert not costs.source("another").known


def test_where_costs_are_free_a_token_costs_next_to_nothing() -> None:
    costs = Costs.free()
    assert costs.target.seconds(500) - costs.target.seconds(1) < 1e-5 < costs.target.seconds(1)
    assert costs.source("model").seconds(500) == 0.0
