"""Drives a request from its submission to the end of its reply, and throws away replies that do not fit.

`_generate`, `_stream` and their async twins, of chats and of completions, differ only in what a step becomes
and in the loop that asks for it. It must not know messages or prompts, nor load models.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from agentspec.calibration.traces import append_trace
from agentspec.engine.request import Request, Result, Step
from agentspec.errors import QueueFullError, TraceError
from agentspec.langchain.errors import translated

if TYPE_CHECKING:
    from agentspec.engine.runtime import Runtime
    from agentspec.engine.stream import Stream

__all__ = ["Call", "achunks", "afinish", "chunks", "digest", "finish"]

_log = logging.getLogger(__name__)

C = TypeVar("C")
"""What LangChain streams: chunks of a message, or of a text."""


class Call(ABC, Generic[C]):
    """A request that is ready to be submitted, and its reply as far as it has come.

    max_resamples: how many replies that do not fit may be thrown away
    trace_path:    a file that each reply adds a line to, those that are thrown away included
    """

    def __init__(
        self,
        runtime: Runtime,
        request: Request,
        *,
        max_resamples: int = 0,
        trace_path: str | None = None,
    ) -> None:
        self.runtime = runtime
        self.request = request
        self._max_resamples = max_resamples
        self._trace_path = None if trace_path is None else Path(trace_path).expanduser()
        self._first = request.generation
        self._started = time.perf_counter()
        self._resampled = 0

    @abstractmethod
    def begin(self, resampled: int) -> None:
        """Makes room for a reply. resampled: how many were thrown away before it"""

    @abstractmethod
    def take(self, step: Step) -> list[C]:
        """The chunks a step completes."""

    @abstractmethod
    def end(self, result: Result) -> list[C]:
        """The chunks that the end completes, the last one with the metadata."""

    @abstractmethod
    def misfits(self) -> bool:
        """After `end`, of a reply that was not cut: whether it is not what was asked for."""

    def submit(self) -> Stream:
        """Hands the request to the engine. Raises PromptTooLongError, QueueFullError, EngineClosedError."""
        with translated():
            return self.runtime.engine.submit(self.request)

    def trace(self, result: Result) -> None:
        """Writes down what is recorded of a reply, where that was asked for. A trace that cannot be written
        is warned of: the reply is there, and is not to be lost over it."""
        if self._trace_path is None or result.recording is None:
            return
        try:
            append_trace(self._trace_path, self.runtime.trace_of(self.request, result))
        except TraceError as error:
            _log.warning("%s", error)

    def again(self, result: Result) -> Stream | None:
        """After `end`: the stream of another reply, where this one is to be thrown away.

        That is rejection sampling (von Neumann, 1951): a reply that fits its schema has the probability it
        has under the law, given that the reply fits. A reply that was cut is not thrown away, since whether
        it would have come to fit is not known; nor is the last one that `max_resamples` allows, nor one where
        the engine takes no other.
        """
        if self._resampled >= self._max_resamples or self.request.sampling.temperature == 0.0:
            return None
        if result.finish_reason != "stop" or not self.misfits():
            return None
        timeout = self._first.timeout
        if timeout is not None:
            timeout -= time.perf_counter() - self._started
            if timeout <= 0.0:
                return None
        seed = self._first.seed
        if seed is not None:
            seed = _derived(seed, self._resampled + 1)
        generation = self._first.model_copy(update={"seed": seed, "timeout": timeout})
        request = replace(self.request, generation=generation)
        try:
            another = self.runtime.engine.submit(request)
        except QueueFullError:
            return None
        self.request = request
        self._resampled += 1
        self.begin(self._resampled)
        return another


def chunks(call: Call[C], first: Stream, *, sent: bool = True) -> Iterator[C]:
    """The chunks of a reply.

    first: the stream of `call.submit()`
    sent:  whether they go to the user as they come: a reply that has begun cannot be taken back then
    """
    stream: Stream | None = first
    while stream is not None:
        begun = False
        try:
            with translated():
                for step in stream:
                    for chunk in call.take(step):
                        begun = sent
                        yield chunk
            last = call.end(stream.result)
            call.trace(stream.result)
            another = None if begun else call.again(stream.result)
            if another is None:
                yield from last
        finally:
            stream.close()  # also when the consumer went away, or pressed Ctrl-C
        stream = another


async def achunks(call: Call[C], first: Stream, *, sent: bool = True) -> AsyncGenerator[C]:
    """`chunks`, on the event loop."""
    stream: Stream | None = first
    while stream is not None:
        begun = False
        try:
            with translated():
                async for step in stream:
                    for chunk in call.take(step):
                        begun = sent
                        yield chunk
            last = call.end(stream.result)
            call.trace(stream.result)
            another = None if begun else call.again(stream.result)
            if another is None:
                for chunk in last:
                    yield chunk
        finally:
            stream.close()
        stream = another


def finish(calls: Sequence[Call[C]]) -> None:
    """Runs all calls to their ends, side by side. Where one fails, the others are cancelled."""
    with ExitStack() as stack:
        for call, stream in _submitted(calls, stack):
            for _ in chunks(call, stream, sent=False):
                pass


async def afinish(calls: Sequence[Call[C]]) -> None:
    """`finish`, on the event loop."""
    with ExitStack() as stack:
        for call, stream in _submitted(calls, stack):
            async with aclosing(achunks(call, stream, sent=False)) as read:
                async for _ in read:
                    pass


def _submitted(calls: Sequence[Call[C]], stack: ExitStack) -> list[tuple[Call[C], Stream]]:
    """All calls with their streams, which `stack` closes."""
    streams = []
    for call in calls:
        stream = call.submit()
        stack.callback(stream.close)
        streams.append((call, stream))
    return streams


def digest(shown: object) -> str:
    """Names a JSON value. Drafts keep what they learn of replies under such a name."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]


def _derived(seed: int, resampled: int) -> int:
    """The seed of the reply that follows so many that were thrown away."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{resampled}".encode()).digest()[:8])
