"""Several agents on one engine: what they gain by sharing its passes, and what they cost each other.

Question:  how much more do agents get done at once than one after another? Do they get the same replies? How
           long does one that loads a long prompt hold up another's reply?
Method:    throughput: each agent makes its call a few times in a row, with all drafts, first one agent after
           another, then all at once, each from a thread of its own; prompts are loaded before. In every round
           both ways take their turn (A B A B). Every reply has a history of its own, so that none is drafted
           from another one's answer to the same prompt.
           gap: while one reply goes on, a long prompt comes; the time between that reply's steps is taken
           before and meanwhile.
Figures:   throughput is tokens of all replies over the wall time of all of them; the ratio is that of the
           medians over the rounds. A gap is the time between two steps of a stream as its reader sees it.

It must not know messages, tools or how models are opened.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from agentspec.engine.engine import Engine
from agentspec.engine.request import Request
from agentspec.engine.stream import Stream
from agentspec.errors import EngineError
from agentspec.proof.near_tie import Difference, first_difference, measure
from agentspec.types import Session

__all__ = ["Gap", "Odd", "Progress", "Throughput", "explain", "measure_gap", "measure_throughput", "reply_of"]

Tokens: TypeAlias = tuple[int, ...]

Progress: TypeAlias = Callable[[], None]
"""Told after every reply."""

_IN_A_ROW = 2
"""Calls that an agent makes in a row: with one, all would be waiting for the longest reply."""

_STEPS_BEFORE = 12
"""Steps of a reply that are timed before the long prompt comes."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A reply that is not the one expected: the prompt, what was expected, and what came."""

    prompt: Tokens
    expected: Tokens
    found: Tokens


@dataclass(slots=True)
class Throughput:
    """Tokens per second by round, one agent after another and all at once.

    odd: replies that were not those of the agents alone
    """

    agents: int
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    odd: list[Odd] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.together) / statistics.median(self.alone)


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds between the steps of a reply.

    before:   each, with nothing else to do
    meanwhile: each, while a prompt of `prompt_tokens` was loaded
    seconds:  from the prompt's request to its first token
    """

    prompt_tokens: int
    before: list[float]
    meanwhile: list[float]
    seconds: float

    @property
    def worst(self) -> float:
        return max(self.meanwhile)


def reply_of(stream: Stream) -> Tokens:
    """All tokens of a reply."""
    return tuple(token for step in stream for token in step.tokens)


def measure_throughput(
    engine: Engine, requests: Sequence[Request], rounds: int, progress: Progress
) -> Throughput:
    """One agent for each of the requests, which are greedy. The engine has a slot for each.

    Raises what makes a reply fail.
    """
    found = Throughput(len(requests))
    fresh = itertools.count()

    def calls() -> list[list[Request]]:
        return [
            [replace(request, tool_set=f"agent {next(fresh)}") for _ in range(_IN_A_ROW)]
            for request in requests
        ]

    def answer(mine: Sequence[Request]) -> list[Tokens]:
        replies = []
        for request in mine:
            replies.append(reply_of(engine.submit(request)))
            progress()
        return replies

    def timed(
        answers: Callable[[list[list[Request]]], list[list[Tokens]]],
    ) -> tuple[list[list[Tokens]], float]:
        due = calls()
        started = time.perf_counter()
        replies = answers(due)
        seconds = time.perf_counter() - started
        return replies, sum(len(reply) for mine in replies for reply in mine) / seconds

    for request in requests:  # loads the prompts
        one = request.generation.model_copy(update={"max_tokens": 1})
        reply_of(engine.submit(replace(request, generation=one)))
        progress()
    with ThreadPoolExecutor(len(requests)) as pool:
        for _ in range(rounds):
            alone, speed = timed(lambda due: [answer(mine) for mine in due])
            found.alone.append(speed)
            together, speed = timed(lambda due: list(pool.map(answer, due)))
            found.together.append(speed)
            for request, expected, came in zip(requests, alone, together, strict=True):
                found.odd += [Odd(request.prompt, expected[0], one) for one in came if one != expected[0]]
    return found


def measure_gap(engine: Engine, running: Request, loading: Request, progress: Progress) -> Gap:
    """How long loading a prompt holds up another reply.

    running: goes on until the prompt is loaded, and for as long as it was timed before
    Raises EngineError where its reply ends before, and what makes one of them fail.
    """
    times: list[float] = []
    due = threading.Event()
    loaded: list[float] = []

    def load() -> float:
        due.wait()
        started = time.perf_counter()
        reply_of(engine.submit(loading))
        loaded.append(time.perf_counter())
        return loaded[0] - started

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(load)
        stream = engine.submit(running)
        try:
            for _ in stream:
                times.append(time.perf_counter())
                if len(times) == _STEPS_BEFORE:
                    due.set()
                if loaded:
                    break
        finally:
            due.set()
            stream.close()
        seconds = waiting.result()
    progress()
    if times[-1] < loaded[0]:
        raise EngineError("the reply ended before the prompt was loaded", hint="give it more tokens")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return Gap(len(loading.prompt), gaps[1 : _STEPS_BEFORE - 1], gaps[_STEPS_BEFORE - 1 :], seconds)


def explain(session: Session, odd: Sequence[Odd]) -> list[Difference | None]:
    """What each difference comes from: see `agentspec.proof.near_tie`. None where one reply just goes on.

    session: of the same model, idle
    """
    found: list[Difference | None] = []
    for one in odd:
        at = first_difference(one.expected, one.found)
        if at is None or at >= min(len(one.expected), len(one.found)):
            found.append(None)
        else:
            found.append(measure(session, one.prompt, one.expected[:at], one.expected[at], one.found[at]))
    return found
