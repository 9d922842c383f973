"""Exact laws to compare: what the target alone would write, by the chain rule, and a reply of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentspec.config import SamplingOptions
from agentspec.engine.core import Core
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.law import probabilities
from agentspec.testing import TableModel
from agentspec.trace import Trace
from agentspec.types import Matcher

Law = dict[tuple[int, ...], float]


def target_law(
    model: TableModel,
    prompt: Sequence[int],
    *,
    length: int,
    sampling: SamplingOptions,
    matcher: Matcher | None = None,
    end_ids: frozenset[int] = frozenset(),
) -> Law:
    """The law of the first `length` tokens of a reply, or of all of a shorter one, end token included."""
    law: Law = {}

    def follow(reply: tuple[int, ...], weight: float, state: Matcher | None) -> None:
        ended = bool(reply) and reply[-1] in end_ids
        if len(reply) == length or ended or (state is not None and state.done()):
            law[reply] = law.get(reply, 0.0) + weight
            return
        legal = None if state is None else state.legal()
        step = probabilities(model.logits([*prompt, *reply]), legal, sampling)
        for token, probability in zip(step.ids.tolist(), step.probs.tolist(), strict=True):
            if probability > 0.0:
                after = None if state is None else state.fork()
                if after is not None and token not in end_ids:
                    after.advance(token)
                follow((*reply, token), weight * probability, after)

    follow((), 1.0, matcher)
    return law


def total_variation(left: Mapping[tuple[int, ...], float], right: Mapping[tuple[int, ...], float]) -> float:
    return 0.5 * sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in left.keys() | right.keys())


def generate(core: Core, request: Request) -> tuple[tuple[int, ...], Trace]:
    """One reply through the engine's loop: its tokens, the end token included, and its trace."""
    channel = Channel()
    core.add(request, channel)
    while core.busy():
        core.step()
    stream = Stream(channel)
    tokens = tuple(token for step in stream for token in step.tokens)
    trace = stream.result.trace
    assert trace.tokens == len(tokens)
    return tokens, trace
