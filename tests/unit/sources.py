"""What the tests of the planner and the engine share: sources that answer as they are told, and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentspec.config import DraftOptions, SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest, EndedReply, Offer
from agentspec.engine.block import Block
from agentspec.engine.offers import BlockPlan
from agentspec.trace import Trace
from agentspec.types import Matcher

Answer = Callable[[DraftRequest], Offer | None]

N_VOCAB = 10


class Source(Draft):
    """Gives the same answer always, or one by the request.

    missing: of a source that runs a model, how many tokens a pass has; 0 for one that is cheap
    asked:   the prefixes of each call
    over:    the replies that it was told are over, and "closed" at the end
    """

    name = ""
    cheap = True

    def __init__(self, name: str, answer: Offer | Answer | None, *, missing: int = 0) -> None:
        self.name = name
        self.cheap = not missing
        self.answer = answer
        self.n_missing = missing
        self.asked: list[list[list[int]]] = []
        self.over: list[EndedReply | str] = []

    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        self.asked.append([list(request.prefix) for request in requests])
        return [self.answer(one) if callable(self.answer) else self.answer for one in requests]

    def missing(self, request: DraftRequest) -> int:  # noqa: ARG002 - the same always
        return self.n_missing

    def ended(self, reply: EndedReply) -> None:
        self.over.append(reply)

    def close(self) -> None:
        self.over.append("closed")


def sure(confidence: float, *tokens: int) -> Offer:
    """A run whose tokens are all of one confidence."""
    return Offer(tokens, [confidence] * len(tokens))


def at(prefix: Sequence[int], offer: Offer) -> Answer:
    """That offer after that prefix, else none."""
    return lambda request: offer if list(request.prefix) == list(prefix) else None


def plan(
    *,
    slot: int = 0,
    prefix: Sequence[int] = (1,),
    limit: int = 10,
    matcher: Matcher | None = None,
    temperature: float = 0.0,
    sources: Sequence[str] = ("a", "b", "model"),
    max_model_tokens: int = 12,
) -> BlockPlan:
    """An empty block, whose draws take a distribution's first token."""
    block = Block(
        prefix, matcher, frozenset(), n_vocab=N_VOCAB, limit=limit, draw=lambda law, _: int(law.ids[0])
    )
    return BlockPlan(
        slot=slot,
        block=block,
        n_prompt=len(prefix),
        law_sampling=SamplingOptions(temperature=temperature),
        draft=DraftOptions(sources=tuple(sources), max_model_tokens=max_model_tokens),
        trace=Trace(law="off"),
    )
