"""What pays: models are asked where they bring more than they cost, and to find that out has a budget.

Costs are given, so that seconds are sums and not measurements. Every pass here has one target token of its
own besides the block: without drafts it takes 1.25 s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from agentspec.config import DraftOptions
from agentspec.drafts.base import DraftRequest, EndedReply, Offer
from agentspec.engine.cost import Costs
from agentspec.engine.planner import Planner
from agentspec.law import point_mass
from agentspec.types import Distribution
from tests.unit.sources import Source, at, plan, sure

PLAIN = 1.25
FAIR = Offer(draft_probs=Distribution(np.array([2, 3]), np.array([0.5, 0.5])))


def costs(model: Callable[[int], float] | None = None, *, fixed: float = 1.0) -> Costs:
    return Costs.given(lambda n: fixed + 0.25 * n, {"model": model or (lambda n: 0.2 * n)})


@dataclass
class Play:
    """One reply after another, a block each, with a source that is right or wrong.

    seconds: of each pass, those of the model included
    lengths: of each block
    """

    planner: Planner
    costs: Costs
    source: Source
    temperature: float = 0.0
    seconds: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def run(self, n: int, *, right: bool) -> Play:
        for _ in range(n):
            made = plan(temperature=self.temperature)
            before = len(self.source.asked)
            self.planner.compose([made], 1)
            self.planner.learn(made, len(made.block) if right else 0)
            seconds = self.costs.target.seconds(1 + len(made.block))
            self.planner.passed(seconds)
            calls = 0 if self.source.cheap else len(self.source.asked) - before
            self.seconds.append(seconds + calls * self.costs.source("model").seconds(1))
            self.lengths.append(len(made.block))
        return self

    @property
    def lost(self) -> float:
        """Seconds beyond those of plain decoding; to be read where no proposal was right."""
        return sum(self.seconds) - PLAIN * len(self.seconds)


PLAYS = {
    "cheap": lambda: Source("a", sure(0.99, 2, 2, 2, 2, 2)),
    "drawing": lambda: Source("a", FAIR),
    "model": lambda: Source("model", sure(0.99, 2), missing=1),
    "drawing model": lambda: Source("model", FAIR, missing=1),
}


def play(kind: str) -> Play:
    source, given = PLAYS[kind](), costs()
    return Play(Planner([source], given), given, source, temperature=1.0 if "drawing" in kind else 0.0)


# -------------------------------------------------------------------------------- what is found out, and when


@pytest.mark.parametrize("kind", PLAYS)
def test_a_wrong_source_is_left_alone_after_a_few_blocks(kind: str) -> None:
    """However sure it is: what it costs until then is what a few passes take."""
    done = play(kind).run(20, right=False)
    assert done.lengths[0] > 0
    assert sum(done.lengths[12:]) <= 1
    assert done.lost < 6 * PLAIN


@pytest.mark.parametrize("kind", PLAYS)
def test_probes_of_a_wrong_source_take_a_fiftieth_of_the_time(kind: str) -> None:
    done = play(kind).run(20, right=False)
    first = done.lost
    done.run(1000, right=False)
    assert 0.01 < (done.lost - first) / sum(done.seconds) <= 0.02


@pytest.mark.parametrize("kind", PLAYS)
def test_a_source_that_is_right_again_comes_back(kind: str) -> None:
    """However long it was wrong: what is past fades, and there is a probe every tenth pass, or thirtieth."""
    done = play(kind).run(500, right=False)
    assert done.lengths[-20:].count(0) >= 16
    done.run(500, right=True)
    assert min(done.lengths[-20:]) >= 5


@pytest.mark.parametrize("kind", PLAYS)
def test_a_source_that_is_right_fills_the_block_without_probes(kind: str) -> None:
    done = play(kind).run(60, right=True)
    assert done.lengths[-1] == 10


def test_time_to_spare_does_not_pile_up() -> None:
    """Nothing is spared for later than four passes can take, however long it goes well."""
    planner = Planner([Source("a", sure(0.5, 2))], given := Costs.given(lambda n: 1.0 + 10.0 * n))
    for _ in range(1000):
        planner.passed(1e6)
    probes = 0
    for _ in range(1000):
        made = plan()
        planner.compose([made], 1)
        planner.learn(made, accepted=0)
        probes += len(made.block)
    assert probes * 10.0 <= 4 * given.target.seconds(8)


def test_a_probe_is_one_token_more() -> None:
    """It shows what the next token is worth, and spoils no block that pays."""
    source = Source("a", sure(0.75, 2))
    planner = Planner([source], Costs.given(lambda n: 1.0 + 0.25 * n))
    planner.passed(0.25 / 0.02 + 0.01)
    lengths = []
    for _ in range(2):
        made = plan()
        planner.compose([made], 1)
        lengths.append(len(made.block))
    assert lengths == [4, 3]


# ----------------------------------------------------------------------------------- sources that run a model


@pytest.mark.parametrize(("seconds", "asked"), [(0.2, True), (0.9, True), (1.1, False), (30.0, False)])
def test_a_model_is_asked_where_it_pays(seconds: float, asked: bool) -> None:
    """By the first estimates it brings 0.6 tokens, a cheap source as many after it, of 1.25 s each; two
    tokens more take 0.5 s: what it may take itself is a second."""
    model = Source("model", sure(0.99, 2), missing=1)
    Planner([model], costs(lambda _: seconds)).compose([plan()], 1)
    assert bool(model.asked) is asked


def test_a_model_is_asked_for_so_many_tokens_and_no_more() -> None:
    model = Source("model", sure(0.99, 2), missing=1)
    made = plan(max_model_tokens=3)
    Planner([model], Costs.free()).compose([made], 1)
    assert len(model.asked) == len(made.block) == 3


def test_cheap_sources_go_on_where_a_model_has_made_a_choice() -> None:
    a = Source("a", lambda one: sure(0.95, 4, 5) if one.prefix[-1] == 2 else None)
    model = Source("model", sure(0.99, 2), missing=1)
    made = plan(limit=6)
    Planner([model, a], Costs.free()).compose([made], 1)
    sources = [part.source for part in made.block.proposals]
    assert sources == ["model", "a", "a", "model", "a", "a"]


def test_cheap_sources_are_asked_first() -> None:
    """A model pass is not spent on what others know."""
    a, model = Source("a", at([1], sure(0.95, 4, 5))), Source("model", sure(0.99, 2), missing=1)
    Planner([model, a], Costs.free()).compose([plan(limit=3)], 1)
    assert model.asked == [[[1, 4, 5]]]


@pytest.mark.parametrize(
    ("confidence", "seconds", "first"),
    [
        (0.5, 0.0, "model"),  # a guess waits for who is expected to know better,
        (0.5, 9.0, "a"),  # is taken where that one is too dear,
        (0.97, 0.0, "a"),  # and is none where it is as sure
    ],
)
def test_a_guess_waits_for_a_model_that_is_expected_to_do_better(
    confidence: float, seconds: float, first: str
) -> None:
    guess, model = (
        Source("a", at([1], sure(confidence, 2))),
        Source("model", at([1], sure(0.9, 3)), missing=1),
    )
    made = plan()
    Planner([guess, model], costs(lambda _: seconds, fixed=2.0)).compose([made], 1)
    assert made.block.proposals[0].source == first
    assert len(guess.asked) >= 1


def test_a_guess_that_waited_for_a_model_in_vain_is_taken() -> None:
    guess, model = Source("a", at([1], sure(0.5, 2))), Source("model", None, missing=1)
    made = plan()
    Planner([guess, model], costs(lambda _: 0.0, fixed=2.0)).compose([made], 1)
    assert model.asked
    assert made.block.tokens == [2]


def test_several_sequences_share_a_model_pass() -> None:
    model = Source("model", sure(0.99, 2), missing=1)
    plans = [plan(slot=slot, prefix=[slot], limit=1) for slot in range(3)]
    Planner([model], costs(lambda _: 0.2)).compose(plans, 3)
    assert [sorted(call) for call in model.asked] == [[[0], [1], [2]]]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_model_pass_that_pays_for_one_pays_for_many_together(count: int) -> None:
    """Its time hardly depends on how many share it. To each of them alone it would not be worth it: a token
    is worth little where the target's pass makes many."""
    model = Source("model", sure(0.99, 2), missing=1)
    plans = [plan(slot=slot, limit=1) for slot in range(count)]
    table = Costs.given(lambda n: 1.0 + 0.01 * n, {"model": lambda n: 0.8 + 0.01 * n})
    Planner([model], table).compose(plans, count)
    assert [len(call) for call in model.asked] == [count]


def test_a_model_that_cannot_read_the_prefix_is_not_asked() -> None:
    model = Source("model", sure(0.99, 2), missing=1)
    model.n_missing = 0
    Planner([model], Costs.free()).compose([plan()], 1)
    assert not model.asked


def test_a_model_that_cannot_say_what_it_misses_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Source):
        def missing(self, request: DraftRequest) -> int:
            raise KeyError(request.slot)

    a = Source("a", at([1], sure(0.95, 4)))
    made = plan()
    Planner([Fails("model", None, missing=1), a], Costs.free()).compose([made], 1)
    assert made.block.tokens == [4]
    assert made.trace.draft_failures == {"model": 1}
    assert len(caplog.records) == 1


# ------------------------------------------------------------------------------------------- catching up


class Reader(Source):
    """A model that has read what it was once asked about."""

    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        self.n_missing = 1
        return super().offer(requests)


def passes_until_asked(planner: Planner, model: Reader) -> int:
    for number in range(1, 100):
        planner.compose([plan(limit=1)], 1)
        if model.asked:
            return number
    raise AssertionError("never asked")


@pytest.mark.parametrize("missing", [20, 60, 200])
def test_a_model_catches_up_once_what_was_forgone_has_reached_the_cost(missing: int) -> None:
    """In a pass that it takes part in it brings 1.2 tokens of 1.25 s, and costs the target 0.5 s and itself
    0.1 s: it saves 0.9 s. To read takes 0.1 s a token."""
    given = costs(lambda n: 0.1 * n)
    model = Reader("model", sure(0.99, 2), missing=missing)
    expected = np.ceil((0.1 * missing - 0.1) / 0.9)
    assert passes_until_asked(Planner([model], given), model) == expected


def test_a_model_that_would_never_pay_does_not_catch_up() -> None:
    model = Reader("model", sure(0.99, 2), missing=50)
    planner = Planner([model], costs(lambda n: 1.5 * n))
    for _ in range(200):
        planner.compose([plan(limit=1)], 1)
    assert not model.asked


def test_what_was_forgone_in_a_reply_ends_with_it() -> None:
    model = Reader("model", sure(0.99, 2), missing=60)
    planner = Planner([model], costs(lambda n: 0.1 * n))
    for _ in range(6):
        planner.compose([plan(limit=1)], 1)
    planner.ended(EndedReply(0, (1,), 1, "", complete=True), DraftOptions())
    assert passes_until_asked(planner, model) == 7


def test_a_model_that_catches_up_keeps_no_other_sequence_from_being_drafted_for() -> None:
    """Slot 1 has to read first; slot 0 pays by itself."""

    class Behind(Source):
        def missing(self, request: DraftRequest) -> int:
            return 60 if request.slot else 1

    model = Behind("model", sure(0.99, 2), missing=1)
    planner = Planner([model], costs(lambda n: 0.1 * n))
    for _ in range(40):
        first = plan(slot=0, limit=1)
        planner.compose([first, plan(slot=1, limit=1)], 2)
        assert len(first.block) == 1


# ---------------------------------------------------------------------------------------------- measuring


class Timed(Source):
    def measure(self) -> list[tuple[int, float]]:
        return [(1, 0.5), (4, 0.8)]


def test_models_are_timed_before_and_in_use() -> None:
    measured = Costs()
    measured.record(1, 1e3)
    model = Timed("model", Offer(draft_probs=point_mass(2)), missing=1)
    planner = Planner([model, Source("a", None)], measured)
    planner.measure()
    assert [measured.source("model").seconds(n) for n in (1, 4)] == [0.5, 0.8]
    assert not measured.source("a").known
    planner.compose([plan(limit=1)], 1)
    assert 0.0 < measured.source("model").seconds(1) < 0.5
