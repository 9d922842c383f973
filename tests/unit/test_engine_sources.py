"""What the engine does with draft sources beside asking them: it times their passes, learns what they are
worth, tells them when a reply is over, and closes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentspec.config import DraftOptions
from agentspec.drafts.base import EndedReply
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.engine import Engine
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel
from agentspec.errors import DecodeError, EngineError
from agentspec.testing import TableModel, random_rows
from tests.unit.sources import Source, sure
from tests.unit.test_engine import N_VOCAB, BrokenSession, drafted, greedy, model, request, run, tokens, vocab


def learners() -> tuple[Source, Source]:
    return Source("mine", None), Source("other", None)


def choosing(*sources: str, **changes: int) -> Request:
    return replace(request(**changes), draft=DraftOptions(sources=sources), tool_set="tools")  # type: ignore[arg-type]


def test_the_sources_of_a_request_are_told_when_its_reply_is_over() -> None:
    mine, other = learners()
    ending = TableModel(lambda prefix: [0, 0, 0, 0, 0, 9.0 if len(prefix) == 5 else -9], n_vocab=N_VOCAB)
    core = Core(ending, vocab(end=True), [mine, other], costs=Costs.free())
    run(core, choosing("mine"))
    assert mine.over == [EndedReply(0, (0, 1, 2, 0, 0), 3, "tools", complete=True)]
    assert not other.over


def test_a_reply_that_was_cut_is_not_complete() -> None:
    mine, _ = learners()
    run(drafted(model(), mine), choosing("mine", max_tokens=3))
    assert mine.over == [EndedReply(0, (0, 1, 2, *greedy(model(), (0, 1, 2), 3)), 3, "tools", complete=False)]


@pytest.mark.parametrize("how", ["cancelled", "failed", "all failed"])
def test_a_reply_that_was_cancelled_or_failed_is_not_complete(how: str) -> None:
    mine, _ = learners()
    core, channel = drafted(BrokenSession(failing={2}), mine), Channel()
    core.add(choosing("mine"), channel)
    core.step()
    if how == "cancelled":
        channel.close()
    if how == "all failed":
        core.fail_all(EngineError("the end of it all"))
    core.step()
    assert not core.busy()
    assert (channel.error is None) == (how == "cancelled")
    assert mine.over == [EndedReply(0, (0, 1, 2, *greedy(model(), (0, 1, 2), 1)), 3, "tools", complete=False)]


def test_a_source_that_cannot_take_the_end_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Source):
        def ended(self, reply: EndedReply) -> None:
            raise OSError(len(reply.tokens))

    (stream,) = run(drafted(model(), Fails("mine", None)), choosing("mine"))
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    assert stream.result.finish_reason == "length"
    assert "'mine' failed" in caplog.text


def test_a_core_that_closes_closes_its_sources() -> None:
    mine, other = learners()
    drafted(model(), mine, other).close()
    assert mine.over == other.over == ["closed"]


def test_an_engine_that_closes_closes_its_sources() -> None:
    """Also one that was never used."""
    for used in (True, False):
        mine, _ = learners()
        engine = Engine(drafted(model(), mine))
        if used:
            list(engine.submit(choosing()))
        engine.close()
        assert mine.over == ["closed"]


def test_what_never_pays_is_proposed_less_and_less_and_now_and_then() -> None:
    """From block to block and from reply to reply: a token more costs a fifth of a pass here."""
    wrong = Source("mine", lambda one: sure(0.99, int(model().logits(one.prefix).argmin())))
    core = Core(model(n_ctx=256), vocab(), [wrong], costs=Costs.given(lambda n: 1.0 + 0.25 * n))
    proposed = []
    for _ in range(6):
        (stream,) = run(core, choosing("mine", max_tokens=41))
        assert tokens(stream) == greedy(model(), (0, 1, 2), 41)
        proposed.append(stream.result.trace.sources["mine"].proposed)
    assert proposed[0] > 10
    assert all(2 <= count <= 5 for count in proposed[1:])


class Timed(Source):
    """Notes that it is asked to time its passes."""

    def measure(self) -> list[tuple[int, float]]:
        self.over.append("timed")
        return [(1, 1.0)]


def test_passes_are_timed_before_the_first_reply() -> None:
    """Of five sizes, each once, and nothing of them stays."""
    source, target = Timed("mine", None), model()
    core = Core(target, vocab(), [source])
    (stream,) = run(core, choosing("mine", max_tokens=1))
    assert tokens(stream) == greedy(model(), (0, 1, 2), 1)
    assert target.passes == 5 + 1
    assert stream.result.trace.prefill_reused == 0
    assert source.over[0] == "timed"
    run(core, choosing("mine", max_tokens=1))
    assert target.passes == 5 + 2
    assert source.over.count("timed") == 1


@pytest.mark.parametrize("why", ["no drafts", "memory that cannot go back", "costs that are given"])
def test_passes_are_not_timed_where_nothing_depends_on_it(why: str) -> None:
    source = Timed("mine", None)
    rewinds = why != "memory that cannot go back"
    target = TableModel(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, can_rewind=rewinds)
    costs = Costs.free() if why == "costs that are given" else None
    core = Core(target, vocab(), [] if why == "no drafts" else [source], costs=costs)
    run(core, request(max_tokens=1))
    assert target.passes == 1
    assert "timed" not in source.over


def test_a_target_that_fails_while_it_is_timed_fails_what_waits_and_not_the_next() -> None:
    core = Core(BrokenSession(failing={2}), vocab(), [Source("mine", None)])
    (first,) = run(core, request())
    with pytest.raises(DecodeError):
        tokens(first)
    (second,) = run(core, request())
    assert tokens(second) == greedy(model(), (0, 1, 2), 8)
