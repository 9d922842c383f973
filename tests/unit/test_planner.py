"""How a block is composed: whose offer is taken, where it is cut, what is learned, and who fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from agentspec.config import DraftOptions
from agentspec.drafts.base import Draft, EndedReply, Offer
from agentspec.engine.cost import Costs
from agentspec.engine.offers import BlockPlan
from agentspec.engine.planner import Planner
from agentspec.law import point_mass
from agentspec.testing import TrieMatcher
from agentspec.types import Distribution
from tests.unit.sources import N_VOCAB, Source, at, plan, sure

ENDED = EndedReply(0, (1, 2), 1, "", complete=True)


def compose(drafts: Sequence[Draft], *plans: BlockPlan, costs: Costs | None = None) -> Planner:
    planner = Planner(drafts, costs or Costs.free())
    planner.compose(plans, len(plans))
    return planner


def origin(made: BlockPlan) -> list[tuple[int, str]]:
    return [(part.token, part.source) for part in made.block.proposals]


def taught(planner: Planner, n: int, *, accepted: int) -> Planner:
    """The planner after n blocks of which so many tokens were accepted."""
    for _ in range(n):
        made = plan()
        planner.compose([made], 1)
        planner.learn(made, min(accepted, len(made.block)))
    return planner


# ----------------------------------------------------------------------------------- whose offer it is


def test_the_offer_with_the_best_estimate_is_taken() -> None:
    made = plan()
    compose([Source("a", at([1], sure(0.6, 2))), Source("b", at([1], sure(0.92, 3)))], made)
    assert origin(made) == [(3, "b")]


def test_of_equals_the_first_source_is_taken() -> None:
    for names in (("a", "b"), ("b", "a")):
        made = plan()
        compose([Source(name, at([1], sure(0.6, 2))) for name in names], made)
        assert origin(made) == [(2, names[0])]


def test_what_has_failed_gives_way_to_what_has_not() -> None:
    """The first is the surer one by its own account."""
    drafts = [Source("a", at([1], sure(0.85, 2))), Source("b", at([1], sure(0.6, 3)))]
    made = plan()
    taught(Planner(drafts, Costs.free()), 2, accepted=0).compose([made], 1)
    assert origin(made) == [(3, "b")]


def test_a_sure_offer_keeps_others_from_being_asked() -> None:
    """Sure is what is forced, and what has been right for long."""
    forced = plan(matcher=TrieMatcher([(2,)]))
    other = Source("b", sure(0.99, 2))
    compose([Source("a", sure(0.5, 2)), other], forced)
    assert origin(forced) == [(2, "a")]
    assert not other.asked
    planner = taught(Planner([Source("a", at([1], sure(0.99, 2))), other], Costs.free()), 60, accepted=1)
    other.asked.clear()
    planner.compose([plan(limit=1)], 1)
    assert not other.asked


def test_an_illegal_offer_is_none() -> None:
    made = plan(matcher=TrieMatcher([(2, 2), (3, 3)]))
    compose([Source("a", sure(0.99, 5)), Source("b", at([1], sure(0.5, 3)))], made)
    assert origin(made)[0] == (3, "b")


def test_sources_go_on_from_each_other_until_nobody_has_more() -> None:
    a, b = Source("a", at([1], sure(0.9, 2, 3))), Source("b", at([1, 2, 3], sure(0.9, 4)))
    made = plan()
    compose([a, b], made)
    assert origin(made) == [(2, "a"), (3, "a"), (4, "b")]
    assert a.asked == b.asked == [[[1]], [[1, 2, 3]], [[1, 2, 3, 4]]]


def test_a_run_is_taken_up_to_where_it_is_unsure_and_others_have_their_say() -> None:
    run = Offer((2, 3, 4), (0.99, 0.5, 0.99))
    a, b = Source("a", at([1], run)), Source("b", at([1, 2], sure(0.8, 5)))
    made = plan()
    compose([a, b], made)
    assert origin(made) == [(2, "a"), (5, "b")]


def test_many_sequences_are_asked_about_in_one_call() -> None:
    source = Source("a", sure(0.9, 2))
    plans = [plan(slot=slot, prefix=[slot], limit=1) for slot in range(3)]
    compose([source], *plans)
    assert source.asked == [[[0], [1], [2]]]
    assert all(origin(made) == [(2, "a")] for made in plans)


def test_limits_and_the_requests_choice_of_sources() -> None:
    drafts = [Source("a", sure(0.99, 2)), Source("b", sure(0.8, 3))]
    chosen, limited, none = plan(slot=0, sources=["b"]), plan(slot=1, limit=4), plan(slot=2, sources=[])
    compose(drafts, chosen, limited, none)
    assert {source for _, source in origin(chosen)} == {"b"}
    assert origin(limited) == [(2, "a")] * 4
    assert origin(none) == []


def test_nothing_is_asked_where_no_source_may_propose() -> None:
    planner = Planner([Source("a", None)], Costs.free())
    assert planner.drafts_for(DraftOptions(sources=("a", "model")))
    assert not planner.drafts_for(DraftOptions(sources=("model",)))
    assert not planner.drafts_for(DraftOptions(sources=()))


def test_a_block_ends_where_it_has_hardly_a_chance() -> None:
    """Of tokens that are right one time in five, say, even where they cost next to nothing."""
    made = plan()
    next_to_nothing = Costs.given(lambda n: 1.0 + 1e-9 * n)
    Planner([Source("a", sure(0.2, 2))], next_to_nothing).compose([made], 1)
    assert 1 <= len(made.block) <= 2


def test_a_proof_proposes_whatever_is_offered() -> None:
    """Without costs at all a block is filled, also by what was never right before."""
    source = Source("a", sure(0.2, 2))
    planner = Planner([source], Costs.free())
    for _ in range(50):
        made = plan()
        planner.compose([made], 1)
        assert len(made.block) == 10
        planner.learn(made, 0)


# -------------------------------------------------------------------------------------- where it is cut


@pytest.mark.parametrize(("price", "length"), [(1e-9, 10), (0.1, 5), (0.25, 3), (0.5, 2), (2.0, 1), (8.0, 0)])
def test_a_certain_tail_is_cut_to_what_makes_the_most_of_the_pass(price: float, length: int) -> None:
    """Each token is right with probability 0.72 by the first estimate."""

    def rate(n: int) -> float:
        return sum(0.72**index for index in range(n + 1)) / (1.0 + price * (n + 1))

    made = plan()
    compose([Source("a", sure(0.75, 2))], made, costs=Costs.given(lambda n: 1.0 + price * n))
    assert len(made.block) == length
    assert rate(length) == pytest.approx(max(rate(n) for n in range(11)), rel=1e-6)
    assert made.room == 0


def test_what_else_the_pass_carries_makes_tokens_dearer_or_cheaper() -> None:
    """Time that is spent in any case is better used; replies without drafts are made to wait."""
    lengths = []
    for n_base, others in ((1, 0), (20, 0), (20, 19)):
        made = plan()
        costs = Costs.given(lambda n: 1.0 + 0.25 * n)
        Planner([Source("a", sure(0.75, 2))], costs).compose([made], n_base, others)
        lengths.append(len(made.block))
    assert lengths[0] < lengths[1]
    assert lengths[2] == 0 < lengths[1]


def test_a_drawn_token_is_never_cut() -> None:
    """Here a probe draws what does not pay; the certain tokens after it are cut off."""
    law = Distribution(np.array([2, 3]), np.array([0.5, 0.5]))
    drafts = [Source("a", at([1], Offer(draft_probs=law))), Source("b", at([1, 2], sure(0.6, 4)))]
    made = plan(temperature=1.0)
    planner = Planner(drafts, Costs.given(lambda n: 1.0 + 2.0 * n))
    planner.passed(2.0 / 0.02 + 1.0)  # to spare: one token
    planner.compose([made], 1)
    assert origin(made) == [(2, "a")]
    assert made.block.n_drawn == 1
    assert len(made.survival) == len(made.cells) == 1


def test_a_distribution_that_does_not_pay_is_not_drawn_from() -> None:
    made = plan(temperature=1.0)
    law = Distribution(np.array([2, 3]), np.array([0.5, 0.5]))
    compose([Source("a", Offer(draft_probs=law))], made, costs=Costs.given(lambda n: 1.0 + 2.0 * n))
    assert origin(made) == []


# ----------------------------------------------------------------------------------------- what is learned


def chances(made: BlockPlan) -> list[float]:
    """The estimate of each token."""
    return [after / before for before, after in zip([1.0, *made.survival], made.survival, strict=False)]


def test_nothing_is_learned_of_tokens_after_the_first_rejected_one() -> None:
    run = [(0.96, 2), (0.92, 3), (0.85, 4), (0.75, 5)]
    after = dict(enumerate((sure(*one) for one in run), start=1))
    planner = Planner([Source("a", lambda request: after.get(len(request.prefix)))], Costs.free())
    first, second = plan(), plan()
    planner.compose([first], 1)
    assert first.block.tokens == [2, 3, 4, 5]
    planner.learn(first, accepted=1)
    planner.compose([second], 1)
    before, now = chances(first), chances(second)
    assert now[0] > before[0]
    assert now[1] < before[1]
    assert now[2:] == pytest.approx(before[2:])


def test_forced_tokens_are_certain_and_nothing_is_learned_from_them() -> None:
    source = Source("a", sure(0.5, 2))
    planner = Planner([source], Costs.free())
    forced = TrieMatcher([(2, 2, 2, 2, 2, 2)])
    for _ in range(20):
        made = plan(matcher=forced)
        planner.compose([made], 1)
        assert made.survival == [1.0] * 6
        assert made.cells == [()] * 6
        planner.learn(made, accepted=6)
    free, fresh = plan(limit=1), plan(limit=1)
    planner.compose([free], 1)
    compose([source], fresh)
    assert free.survival == fresh.survival


def test_what_was_cut_off_is_not_learned_from() -> None:
    source = Source("a", sure(0.75, 2))
    planner = Planner([source], Costs.given(lambda n: 1.0 + 0.5 * n))
    made = plan()
    planner.compose([made], 1)
    assert len(made.cells) == len(made.survival) == len(made.block) == 2


# ------------------------------------------------------------------------------------------ who fails


def raises(_: object) -> Offer:
    raise KeyError("anything")


class Miscounts(Source):
    """Answers with the wrong number of offers."""

    def offer(self, requests: Sequence[object]) -> list[Offer | None]:
        return [sure(0.99, 2)] * (len(requests) + 1)


BROKEN: dict[str, Callable[[], Source]] = {
    "raises": lambda: Source("a", raises),
    "another number of offers": lambda: Miscounts("a", None),
    "confidences of another length": lambda: Source("a", Offer((2, 3), (0.99,))),
    "no confidence": lambda: Source("a", Offer((2,))),
    "an id below the vocabulary": lambda: Source("a", sure(0.99, -1)),
    "an id beyond the vocabulary": lambda: Source("a", sure(0.99, N_VOCAB)),
    "an id beyond it, later": lambda: Source("a", sure(0.99, 2, N_VOCAB)),
    "no distribution": lambda: Source(
        "a", Offer(draft_probs=Distribution(np.array([2, 3]), np.array([0.9, 0.9])))
    ),
    "no numbers": lambda: Source("a", Offer(draft_probs=point_mass(2)._replace(probs=np.array([np.nan])))),
    "no offer": lambda: Source("a", lambda _: 7),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("n_plans", [1, 2])
def test_a_source_that_fails_is_left_out_and_others_go_on(
    kind: str, n_plans: int, caplog: pytest.LogCaptureFixture
) -> None:
    """For the pass: it is asked again in the next, and reported once."""
    broken = BROKEN[kind]()
    planner = Planner([broken, Source("b", at([1], sure(0.6, 3)))], Costs.free())
    for _ in range(2):
        plans = [plan(slot=slot) for slot in range(n_plans)]
        planner.compose(plans, n_plans)
        for made in plans:
            if kind != "an id beyond it, later":
                assert origin(made) == [(3, "b")]
        assert plans[0].trace.draft_failures == {"a": 1}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'a' failed" in caplog.text


def test_what_a_source_proposed_before_it_failed_stays() -> None:
    """To take a drawn token back would be to choose by its value, where that is what made it fail."""

    def twice(_: object) -> Offer:
        if len(broken.asked) > 1:
            raise KeyError("anything")
        return Offer(draft_probs=point_mass(2))

    broken = Source("a", twice)
    made = plan(temperature=1.0)
    compose([broken], made)
    assert origin(made) == [(2, "a")]
    assert made.trace.draft_failures == {"a": 1}


def test_a_failure_at_the_end_is_reported_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Source):
        def ended(self, reply: EndedReply) -> None:
            raise OSError(reply.slot)

        def close(self) -> None:
            raise OSError("disk full")

    good = Source("b", None)
    planner = Planner([Fails("a", None), Fails("model", None), good], Costs.free())
    planner.ended(ENDED, DraftOptions(sources=("a", "b")))
    planner.close()
    assert good.over == [ENDED, "closed"]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "'a' failed" in caplog.text
    assert "disk full" in caplog.text


def test_only_the_sources_of_a_reply_are_told_of_its_end() -> None:
    drafts = [Source("a", None), Source("b", None)]
    planner = Planner(drafts, Costs.free())
    planner.ended(ENDED, DraftOptions(sources=("b",)))
    assert [one.over for one in drafts] == [[], [ENDED]]
