"""What a pass is worth: against the definition, expected tokens per second, over all that could be done."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from agentspec.config import DraftOptions, SamplingOptions
from agentspec.engine.block import Block
from agentspec.engine.cost import Costs
from agentspec.engine.offers import BlockPlan
from agentspec.engine.worth import Pass
from agentspec.law import point_mass
from agentspec.trace import Trace

Law = Callable[[int], float]


def linear(n: int) -> float:
    return 1.0 + 0.1 * n


def stairs(n: int) -> float:
    """Tiles of four tokens: the first token of a tile pays for all of it."""
    return 1.0 + 0.5 * -(-n // 4)


def plan(survival: Sequence[float], *, drawn: int = 0) -> BlockPlan:
    """A block of so many tokens, the first `drawn` of them drawn."""
    block = Block([0], None, frozenset(), n_vocab=2, limit=len(survival), draw=lambda law, _: int(law.ids[0]))
    for index in range(len(survival)):
        if index < drawn:
            block.draw(point_mass(1), "model")
        else:
            block.propose(1, "lookup")
    made = BlockPlan(
        slot=0,
        block=block,
        n_prompt=1,
        law_sampling=SamplingOptions(),
        draft=DraftOptions(),
        trace=Trace(law="off"),
    )
    made.survival += survival
    return made


def falling(rng: random.Random, size: int, *, certain: bool = False) -> list[float]:
    """Survivals of a block; certain: those of a run that is sure, then of one that is not."""
    chances = [1.0 if certain and index < size // 2 else rng.random() for index in range(size)]
    return list(itertools.accumulate(chances, lambda left, right: left * right))


def rate(
    plans: Sequence[BlockPlan], lengths: Sequence[int], law: Law, *, n_base: int, others: int, spent: float
) -> float:
    """Expected tokens per second of a pass with blocks of these lengths, by definition."""
    expected = others + sum(1 + sum(one.survival[:n]) for one, n in zip(plans, lengths, strict=True))
    return expected / (law(n_base + sum(lengths)) + spent)


@pytest.mark.parametrize("law", [linear, stairs, lambda n: 1.0 + 0.01 * n * n, lambda _: 1.0])
@pytest.mark.parametrize("seed", range(12))
def test_the_cut_is_the_best_of_all(law: Law, seed: int) -> None:
    rng = random.Random(seed)
    plans = []
    for _ in range(rng.randint(1, 3)):
        survival = falling(rng, rng.randint(0, 5), certain=rng.random() < 0.5)
        plans.append(plan(survival, drawn=rng.randint(0, len(survival))))
    n_base, others, spent = len(plans) + rng.choice([0, 20]), rng.choice([0, 3]), rng.choice([0.0, 0.7])
    pass_ = Pass(plans, n_base, Costs.given(law), others)
    pass_.spent = spent

    def rated(lengths: Sequence[int]) -> float:
        return rate(plans, lengths, law, n_base=n_base, others=others, spent=spent)

    ranges = [range(one.block.n_drawn, len(one.block) + 1) for one in plans]
    chosen = pass_.best_lengths()
    assert all(length in allowed for length, allowed in zip(chosen, ranges, strict=True))
    assert rated(chosen) == pytest.approx(max(map(rated, itertools.product(*ranges))))


def test_of_equal_cuts_the_longest_is_made() -> None:
    assert Pass([plan([1.0, 1.0, 0.0])], 1, Costs.given(lambda n: float(n))).best_lengths() == [2]


def test_tokens_are_kept_where_they_are_likeliest() -> None:
    plans = [plan([0.9, 0.2, 0.1]), plan([0.8, 0.7, 0.6]), plan([0.1])]
    assert Pass(plans, 3, Costs.given(lambda n: 1.0 + 0.25 * n)).best_lengths() == [1, 3, 0]


def test_drawn_tokens_are_kept_at_any_price() -> None:
    plans = [plan([0.01, 0.001, 0.0001, 0.00001], drawn=2)]
    assert Pass(plans, 1, Costs.given(lambda n: float(n))).best_lengths() == [2]


@pytest.mark.parametrize("seed", range(20))
def test_an_extension_saves_time_where_it_makes_the_rate_better(seed: int) -> None:
    """With times that are linear: (E + gain) / (T + cost + seconds) against E / T."""
    rng = random.Random(seed)
    plans = [plan(falling(rng, 3)) for _ in range(rng.randint(1, 3))]
    others = rng.choice([0, 2])
    pass_ = Pass(plans, len(plans) + others, Costs.given(linear), others)
    pass_.spent = rng.choice([0.0, 0.4])
    n = len(plans) + others + 3 * len(plans)
    expected = others + sum(1 + sum(one.survival) for one in plans)
    time = linear(n) + pass_.spent
    for _ in range(20):
        gain, tokens, seconds = rng.random(), rng.randint(1, 3), rng.choice([0.0, 0.05 * rng.random()])
        better = (expected + gain) / (time + 0.1 * tokens + seconds) > expected / time
        assert (pass_.saved(gain, tokens, seconds) > 0) == better


def test_what_is_saved_is_in_seconds() -> None:
    """A pass of 1.2 s for 1.5 tokens: a token is worth 0.8 s."""
    pass_ = Pass([plan([0.5])], 1, Costs.given(linear))
    assert pass_.saved(1.0, 1.0) == pytest.approx(0.8 - 0.1)
    assert pass_.saved(0.5, 2.0, 0.3) == pytest.approx(0.4 - 0.2 - 0.3)


def test_a_stair_is_paid_for_by_all_who_stand_on_it() -> None:
    """The first token of a tile is not refused for what the next three are free of."""
    costs = [Pass([], n, Costs.given(stairs)).cost(1) for n in range(4, 12)]
    assert costs == pytest.approx([0.5 / 4] * 8)
    assert Pass([], 4, Costs.given(stairs)).cost(8) == pytest.approx(1.0)
