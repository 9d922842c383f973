"""The small world that a draft source is tested in: a conversation, some replies, a target that likes them.

Its requests are the engine's own: live views of blocks, whose matcher is a copy each time. It must not know
draft sources.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.base import EndedReply, Offer
from agentspec.drafts.plugins import DraftContext
from agentspec.engine.block import Block
from agentspec.engine.offers import BlockPlan
from agentspec.engine.request import Request
from agentspec.places import PlaceScanner
from agentspec.testing.fakes import TableModel, TrieMatcher, random_rows
from agentspec.trace import Trace
from agentspec.types import Distribution

__all__ = ["LIMIT", "Situation", "World", "alike", "request_state"]

LIMIT = 8
"""Tokens that a block takes."""

_MOST_FREE, _MOST_BOUND = 3, 6
"""Most tokens of a reply that is generated, without the grammar and with it."""

_DRAWS = 400
"""Sequences of draws up to which the law of a reply is enumerated."""

_TOOL_SET = "contract"
_WARM = SamplingOptions(temperature=0.8, top_k=2)
_GREEDY = SamplingOptions(temperature=0.0)

_LAST_DIGITS = 1e-6
"""What a probability may differ by between passes of two sizes."""

_LIKELY = 2.0
"""Added to the logits of tokens that go on with one of the replies."""


class Situation(NamedTuple):
    """Where a source is asked: behind the first tokens of a reply, the last few of them proposed only.

    prompt: None for the world's own
    """

    reply: tuple[int, ...]
    n_proposed: int = 0
    grammar: bool = False
    sampling: SamplingOptions = _GREEDY
    prompt: tuple[int, ...] | None = None

    def __str__(self) -> str:
        grammar, temperature = "with" if self.grammar else "without", self.sampling.temperature
        return f"{self.reply}, {self.n_proposed} proposed, {grammar} a grammar, temperature {temperature}"


class World:
    """What is said in it.

    texts:   the conversation, the latest message first; the prompt is made of them
    replies: what may be answered
    n_slots: sequences that are asked about at once
    prompt:  tokens
    prompts: the prompt, and another of its length
    known:   the replies' tokens
    """

    def __init__(
        self, context: DraftContext, texts: Sequence[str], replies: Sequence[str], *, n_slots: int
    ) -> None:
        self.vocab = context.vocab
        self.texts = tuple(texts)
        self.n_slots = n_slots
        self.prompt = tuple(context.tokenize("".join(reversed(texts)).encode()))
        if not self.prompt:
            raise ValueError("without texts there is no prompt")
        self.prompts = (self.prompt, (*self.prompt[1:], self.prompt[0]))
        self.known = [tuple(context.tokenize(reply.encode())) for reply in replies]

    def grammar(self) -> TrieMatcher:
        """Allows the replies and nothing else."""
        return TrieMatcher(self.known, end_ids=self.vocab.end_ids)

    def situations(self) -> list[Situation]:
        """Every place of every reply, each once, with and without the grammar, greedy and sampled."""
        places = {reply[:length]: None for reply in self.known for length in range(len(reply))}
        return [
            Situation(place, len(place) % 3, grammar, sampling)
            for grammar, sampling, place in itertools.product((False, True), (_GREEDY, _WARM), places)
        ]

    def together(self) -> Iterator[list[BlockPlan]]:
        """The requests of all situations, `n_slots` at a time, each in a slot of its own."""
        situations = self.situations()
        for start in range(0, len(situations), self.n_slots):
            some = situations[start : start + self.n_slots]
            yield [self.asks(situation, slot) for slot, situation in enumerate(some)]

    def asks(self, situation: Situation, slot: int = 0) -> BlockPlan:
        """The request for proposals that the engine makes in a situation."""
        prompt = self.prompt if situation.prompt is None else situation.prompt
        n_settled = len(situation.reply) - situation.n_proposed
        scanner = PlaceScanner()
        matcher = self.grammar() if situation.grammar else None
        for token in situation.reply[:n_settled]:
            scanner.advance(self.vocab.token_bytes(token))
            if matcher is not None:
                matcher.advance(token)
        block = Block(
            prompt + situation.reply[:n_settled],
            matcher,
            self.vocab.end_ids,
            n_vocab=self.vocab.n_tokens,
            limit=LIMIT,
            draw=_refuse,
            scanner=scanner,
            token_bytes=self.vocab.token_bytes,
        )
        for token in situation.reply[n_settled:]:
            block.propose(token, "another")
        return BlockPlan(
            slot=slot,
            block=block,
            n_prompt=len(prompt),
            law_sampling=situation.sampling,
            draft=DraftOptions(),
            trace=Trace(law="contract"),
            tool_set=_TOOL_SET,
            texts=self.texts,
        )

    def requests(self, source: str, *, n_drawn: int) -> list[Request]:
        """Replies to generate with one source: with and without the grammar, greedy and sampled.

        n_drawn: from how many tokens the source has one drawn, at most: the replies are few enough tokens for
                 their law to be enumerated
        """
        length = 1
        while n_drawn ** (length + 1) <= _DRAWS and length < _MOST_BOUND:
            length += 1
        return [
            Request(
                prompt=self.prompt,
                matcher=matcher,
                sampling=sampling,
                generation=GenerationOptions(
                    max_tokens=min(length, _MOST_FREE) if matcher is None else length
                ),
                draft=DraftOptions(sources=(source,), max_block=3, max_model_tokens=3),
                tool_set=_TOOL_SET,
                texts=self.texts,
            )
            for matcher, sampling in itertools.product((None, self.grammar()), (_GREEDY, _WARM))
        ]

    def target(self) -> TableModel:
        """A target that mostly writes one of the replies."""
        noise = random_rows(self.vocab.n_tokens, seed=1)
        likely = [self.prompt + reply for reply in self.known]

        def rows(prefix: Sequence[int]) -> Sequence[float]:
            size, row = len(prefix), list(noise(prefix))
            for token in {text[size] for text in likely if len(text) > size and text[:size] == tuple(prefix)}:
                row[token] += _LIKELY
            return row

        return TableModel(rows, n_vocab=self.vocab.n_tokens, n_ctx=len(self.prompt) + 64)

    def another(self, token: int) -> int:
        """A token that is not this one, and ends no reply."""
        return next(
            other for other in range(self.vocab.n_tokens) if other not in {token, *self.vocab.end_ids}
        )

    def ended(
        self,
        reply: Sequence[int],
        *,
        slot: int = 0,
        complete: bool = True,
        prompt: tuple[int, ...] | None = None,
    ) -> EndedReply:
        """What sources are told when a reply is over."""
        before = self.prompt if prompt is None else prompt
        return EndedReply(slot, (*before, *reply), len(before), _TOOL_SET, complete)


def request_state(plan: BlockPlan) -> tuple[object, ...]:
    """All that a source can see of a request."""
    matcher = plan.matcher
    legal = None if matcher is None or matcher.done() else matcher.legal()
    return (
        list(plan.prefix),
        plan.block.tokens,
        plan.n_prompt,
        plan.n_settled,
        plan.place,
        plan.room,
        plan.sampling,
        plan.tool_set,
        plan.texts,
        None if legal is None else legal.tolist(),
    )


def alike(left: Offer | None, right: Offer | None) -> bool:
    """Whether two offers are equal, but for last digits."""
    if left is None or right is None:
        return left is right
    (tokens, ids, shares), (other_tokens, other_ids, other_shares) = _parts(left), _parts(right)
    if tokens != other_tokens or ids != other_ids or len(shares) != len(other_shares):
        return False
    return np.allclose(shares, other_shares, rtol=0.0, atol=_LAST_DIGITS)


def _parts(offer: Offer) -> tuple[list[int], list[int], list[float]]:
    """Tokens, the ids of the distribution, and all probabilities."""
    if offer.draft_probs is None:
        return list(offer.tokens), [], list(offer.confidence)
    ids, probs = offer.draft_probs
    return list(offer.tokens), list(ids), [*offer.confidence, *probs]


def _refuse(distribution: Distribution, position: int) -> int:
    raise AssertionError(f"a source draws nothing: {distribution} at {position}")
