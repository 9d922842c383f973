"""Exact laws to compare: what the target alone would write, by the chain rule, and a reply of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agentspec.config import DraftOptions, SamplingOptions
from agentspec.engine.core import Core
from agentspec.engine.request import Request
from agentspec.engine.rules import Rule, SampledRule, SeedInvariantRule
from agentspec.engine.stream import Channel, Stream
from agentspec.law import probabilities
from agentspec.testing import TableModel
from agentspec.trace import Trace
from agentspec.types import Distribution, Matcher, Randomness

Law = dict[tuple[int, ...], float]


class EnumeratedNoise:
    """Noise whose draws are choices of an enumerated chance. Each position is drawn once."""

    def __init__(self, chance: Randomness) -> None:
        self._chance = chance
        self._drawn: set[int] = set()

    def draw(self, distribution: Distribution, position: int) -> int:
        assert position not in self._drawn
        self._drawn.add(position)
        return self._chance.draw(distribution)


class EnumeratedInvariantRule(SeedInvariantRule):
    """The seed-invariant rule on enumerated noise; drafts draw with a chance of their own."""

    def __init__(self, chance: Randomness) -> None:
        super().__init__(EnumeratedNoise(chance))
        self._chance = chance

    def draw(self, distribution: Distribution, position: int) -> int:  # noqa: ARG002 - it has no places
        return self._chance.draw(distribution)


def enumerated(chance: Randomness) -> Callable[[DraftOptions, int], Rule]:
    """The rules that `make_rule` makes, on a chance that is enumerated in place of a seed."""

    def make(options: DraftOptions, _: int) -> Rule:
        if options.verifier == "seed_invariant":
            return EnumeratedInvariantRule(chance)
        return SampledRule(chance, block=options.verifier == "block")

    return make


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
