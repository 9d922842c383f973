"""Many short requests from many threads and tasks, some cancelled at any moment: does anything break?

Method:    every request is first answered alone. Then threads and asyncio tasks send them again and again to
           the same engine, all at once; of a part of them the reader goes away after a few steps, or before
           the first one. Which ones, and when, comes from a seed. Every reply is compared with the one alone,
           as far as it was read. Where nothing comes for a minute, the engine is closed, and that counts as a
           deadlock. At the end as many replies as there are slots must all be under way at once.
Figures:   wrong: replies that are not what they are alone; the caller sees which of them are near-ties
           resident memory after a tenth of the requests, and at the end

It must not know messages, tools or how models are opened.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agentspec.bench.replay import rss_mb
from agentspec.bench.together import Odd, Progress, reply_of
from agentspec.engine.engine import Engine
from agentspec.engine.request import Request, Step
from agentspec.engine.stream import Stream
from agentspec.errors import DeadlineExceededError, EngineClosedError

__all__ = ["Soak", "soak"]

_PATIENCE = 60.0
"""Seconds without any step after which the engine is taken to be stuck."""

_LONG = 256
"""Tokens of a reply that is not to end before others have begun."""

_MOST_STEPS = 6
"""A reader that goes away does so after fewer steps."""


class _Errand(NamedTuple):
    """One request to make: which one, and after how many steps its reader goes away, if it does."""

    which: int
    steps: int | None


@dataclass(slots=True)
class Soak:
    """What came of it.

    completed, cancelled: requests that were read to the end, and that were not
    stuck:     requests that were under way when nothing came any more; 0 without a deadlock
    leaked:    slots that could not be used at the end
    odd:       replies that are not what they are alone
    """

    completed: int = 0
    cancelled: int = 0
    stuck: int = 0
    leaked: int = 0
    odd: list[Odd] = field(default_factory=list)
    rss_start_mb: float | None = None
    rss_end_mb: float | None = None
    seconds: float = 0.0

    @property
    def requests(self) -> int:
        return self.completed + self.cancelled + self.stuck


def soak(
    engine: Engine,
    requests: Sequence[Request],
    *,
    count: int,
    n_slots: int,
    n_threads: int = 16,
    n_tasks: int = 16,
    cancelled: float = 1 / 3,
    seed: int = 0,
    progress: Progress = lambda: None,
) -> Soak:
    """Sends `count` requests, taken from `requests` by chance, from threads and tasks at once.

    requests:  greedy ones
    n_slots:   how many replies the engine can have under way
    cancelled: the share of them whose reader goes away

    Raises what makes a reply fail. The engine is closed after a deadlock.
    """
    run = _Run(engine, requests, count, progress)
    chance = random.Random(seed)
    errands = [
        _Errand(
            chance.randrange(len(requests)),
            chance.randrange(_MOST_STEPS) if chance.random() < cancelled else None,
        )
        for _ in range(count)
    ]
    workers = n_threads + n_tasks
    shares = [errands[start::workers] for start in range(workers)]
    started = time.perf_counter()
    with ThreadPoolExecutor(n_threads + 1) as pool:
        working = [pool.submit(run.in_thread, share) for share in shares[:n_threads]]
        working.append(pool.submit(lambda: asyncio.run(run.in_tasks(shares[n_threads:]))))
        run.watch(working)
    run.found.seconds = time.perf_counter() - started
    run.found.rss_end_mb = rss_mb()
    if not run.found.stuck:
        run.found.leaked = n_slots - _at_once(engine, requests[0], n_slots)
    return run.found


class _Run:
    """A soak under way. What several threads change is guarded by one lock, which nobody holds for long."""

    def __init__(self, engine: Engine, requests: Sequence[Request], count: int, progress: Progress) -> None:
        self.found = Soak()
        self._engine = engine
        self._requests = requests
        self._expected = [reply_of(engine.submit(request)) for request in requests]
        self._count = count
        self._progress = progress
        self._lock = threading.Lock()
        self._last_step = time.monotonic()
        self._stuck = False

    def in_thread(self, errands: Sequence[_Errand]) -> None:
        for errand in errands:
            reading = _Reading(errand)
            try:
                stream = self._engine.submit(self._requests[errand.which])
                while reading.goes_on and (step := next(stream, None)) is not None:
                    self._take(reading, step)
                stream.close()
            except EngineClosedError:
                if not self._stuck:
                    raise
                self._note_stuck()
                return
            self._note(reading)

    async def in_tasks(self, shares: Sequence[Sequence[_Errand]]) -> None:
        await asyncio.gather(*map(self._task, shares))

    async def _task(self, errands: Sequence[_Errand]) -> None:
        for errand in errands:
            reading = _Reading(errand)
            try:
                stream = self._engine.submit(self._requests[errand.which])
                while reading.goes_on and (step := await anext(stream, None)) is not None:
                    self._take(reading, step)
                stream.close()
            except EngineClosedError:
                if not self._stuck:
                    raise
                self._note_stuck()
                return
            self._note(reading)

    def watch(self, working: Sequence[Future[None]]) -> None:
        """Waits until all is done; closes the engine where nothing has come for long."""
        due = set(working)
        while due:
            done, due = wait(due, timeout=1.0)
            for one in done:
                one.result()
            if due and not self._stuck and time.monotonic() - self._last_step > _PATIENCE:
                self._stuck = True
                self._engine.close()

    def _take(self, reading: _Reading, step: Step) -> None:
        reading.take(step)
        self._last_step = time.monotonic()

    def _note(self, reading: _Reading) -> None:
        index, cut = reading.errand.which, reading.errand.steps is not None
        tokens, expected = tuple(reading.tokens), self._expected[index]
        with self._lock:
            found = self.found
            found.completed += not cut
            found.cancelled += cut
            if tokens != (expected[: len(tokens)] if cut else expected):
                found.odd.append(Odd(self._requests[index].prompt, expected, tokens))
            if found.requests == self._count // 10:
                found.rss_start_mb = rss_mb()
            self._progress()

    def _note_stuck(self) -> None:
        with self._lock:
            self.found.stuck += 1


class _Reading:
    """A reply as far as its reader has come."""

    def __init__(self, errand: _Errand) -> None:
        self.errand = errand
        self.tokens: list[int] = []
        self._steps = 0

    @property
    def goes_on(self) -> bool:
        return self.errand.steps is None or self._steps < self.errand.steps

    def take(self, step: Step) -> None:
        self.tokens += step.tokens
        self._steps += 1


def _at_once(engine: Engine, request: Request, n_slots: int) -> int:
    """How many of as many replies as there are slots are under way before any of them ends."""
    long = request.generation.model_copy(update={"max_tokens": _LONG, "timeout": _PATIENCE})
    streams = [engine.submit(replace(request, generation=long)) for _ in range(n_slots)]
    begun = 0
    for stream in streams:
        with suppress(DeadlineExceededError):
            begun += next(stream, None) is not None and not any(map(_has_ended, streams))
    for stream in streams:
        stream.close()
    return begun


def _has_ended(stream: Stream) -> bool:
    try:
        stream.result  # noqa: B018 - it says so by raising
    except RuntimeError:
        return False
    return True
