"""Exact laws to compare: what the target alone would write, by the chain rule, and a reply of the engine.

It must not know draft sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from agentspec.config import SamplingOptions
from agentspec.engine.core import Core
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.law import probabilities
from agentspec.testing.fakes import TableModel
from agentspec.trace import Trace
from agentspec.types import Matcher

__all__ = ["Law", "generate", "target_law", "total_variation"]

Law: TypeAlias = dict[tuple[int, ...], float]
"""The probability of each reply, its end token included."""


def target_law(
    model: TableModel,
    prompt: Sequence[int],
    *,
    length: int,
    sampling: SamplingOptions,
    matcher: Matcher | None = None,
    end_ids: frozenset[int] = frozenset(),
) -> Law:
    """The law of the first `length` tokens of a reply, or of all of a shorter one.

    matcher: the grammar's state before the reply; it is not moved
    end_ids: the tokens that end a reply
    """
    law: Law = {}

    def follow(reply: tuple[int, ...], weight: float, state: Matcher | None) -> None:
        ended = bool(reply) and reply[-1] in end_ids
        if len(reply) == length or ended or (state is not None and state.done()):
            law[reply] = law.get(reply, 0.0) + weight
            return
        legal = None if state is None else state.legal()
        before = [*prompt, *reply]
        step = probabilities(model.logits(before), legal, sampling, before)
        for token, probability in zip(step.ids.tolist(), step.probs.tolist(), strict=True):
            if probability > 0.0:
                after = None if state is None else state.fork()
                if after is not None and token not in end_ids:
                    after.advance(token)
                follow((*reply, token), weight * probability, after)

    follow((), 1.0, matcher)
    return law


def generate(core: Core, request: Request) -> tuple[tuple[int, ...], Trace]:
    """One reply through the engine's loop: its tokens, the end token included, and its trace.

    Raises what the reply fails with.
    """
    channel = Channel()
    core.add(request, channel)
    while core.busy():
        core.step()
    stream = Stream(channel)
    tokens = tuple(token for step in stream for token in step.tokens)
    trace = stream.result.trace
    assert trace.tokens == len(tokens)
    return tokens, trace


def total_variation(left: Mapping[tuple[int, ...], float], right: Mapping[tuple[int, ...], float]) -> float:
    """Half the sum of the differences: 0 for equal laws, 1 for laws that share no reply."""
    return 0.5 * sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in left.keys() | right.keys())
