"""How a block is composed: who is asked, in what order, for how much."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.config import DraftOptions, SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest
from agentspec.engine.block import Block
from agentspec.engine.planner import BlockPlan, Planner
from agentspec.trace import Trace


class Recorder:
    """Proposes one token a call, `count` times, and remembers what it was asked."""

    def __init__(self, name: str, *, cheap: bool, count: int, fails: bool = False) -> None:
        self.name = name
        self.cheap = cheap
        self.asked: list[tuple[list[int], bool]] = []  # prefix, last
        self._left = count
        self._fails = fails

    def propose(self, requests: Sequence[DraftRequest]) -> None:
        self.asked += [(list(request.prefix), request.last) for request in requests]
        if self._fails:
            raise ValueError("out of order")
        self._left -= 1
        if self._left >= 0:
            for request in requests:
                request.propose([7])

    def release(self, slot: int) -> None: ...


def compose(drafts: Sequence[Draft], *, limit: int = 10, **options: object) -> BlockPlan:
    plan = BlockPlan(
        slot=0,
        block=Block([1], None, frozenset(), n_vocab=9, limit=limit, draw=lambda law, _: int(law.ids[0])),
        sampling=SamplingOptions(),
        draft=DraftOptions.parse(options),
        trace=Trace(law="off"),
    )
    Planner(drafts).compose([plan])
    return plan


def test_sources_take_turns_until_nobody_has_more() -> None:
    drafts = [Recorder("grammar", cheap=True, count=2), Recorder("model", cheap=False, count=3)]
    plan = compose(drafts)
    assert [part.source for part in plan.block.proposals] == ["grammar", "model", "grammar", "model", "model"]
    assert [prefix for prefix, _ in drafts[1].asked[:2]] == [[1, 7], [1, 7, 7, 7]]


def test_a_source_knows_whether_a_model_may_still_follow() -> None:
    grammar, model = Recorder("grammar", cheap=True, count=5), Recorder("model", cheap=False, count=5)
    compose([grammar, model], max_model_tokens=1)
    assert [last for _, last in grammar.asked[:2]] == [False, True]
    assert all(last for _, last in model.asked)


def test_nothing_follows_a_model_that_failed() -> None:
    grammar = Recorder("grammar", cheap=True, count=5)
    plan = compose([grammar, Recorder("model", cheap=False, count=5, fails=True)])
    assert [last for _, last in grammar.asked[:2]] == [False, True]
    assert plan.trace.draft_failures == {"model": 1}


def test_limits_and_choice_of_sources() -> None:
    both = [Recorder("grammar", cheap=True, count=9), Recorder("model", cheap=False, count=9)]
    assert len(compose(both, limit=4).block.tokens) == 4
    assert not compose([Recorder("grammar", cheap=True, count=9)], sources=()).block.tokens
    assert not compose([Recorder("grammar", cheap=True, count=9)], limit=0).block.tokens
