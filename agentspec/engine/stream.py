"""A reply on its way from the engine's worker to one consumer, a thread or an asyncio task.

The worker holds the `Channel` and the consumer the `Stream`, so that a stream nobody refers to any more
is collected, which cancels its request. Cancelling only sets a flag that the worker reads before each pass.
No lock is held while the consumer runs its own code, and an async consumer ties up no thread. It must not
know what makes the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator

from agentspec.engine.request import Result, Step

__all__ = ["Channel", "Stream"]


class Channel:
    """The shared state. `cancelled` is written by the consumer and read by the worker.

    created: when the request was submitted, `time.perf_counter()` seconds
    """

    def __init__(self) -> None:
        self.created = time.perf_counter()
        self._ready = threading.Condition()
        self._steps: deque[Step] = deque()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.cancelled = False
        self.result: Result | None = None
        self.error: BaseException | None = None

    # -- the worker

    def put(self, step: Step) -> None:
        with self._ready:
            self._steps.append(step)
            self._wake()

    def finish(self, result: Result) -> None:
        with self._ready:
            self.result = result
            self._wake()

    def fail(self, error: BaseException) -> None:
        with self._ready:
            if self.result is None and self.error is None:
                self.error = error
            self._wake()

    # -- the consumer

    def take(self) -> Step | None:
        """The next step, waited for; None at the end. Raises what made the reply fail."""
        with self._ready:
            while not self._settled():
                self._ready.wait()
            return self._pop()

    async def take_async(self) -> Step | None:
        """As `take`, without tying up a thread."""
        while True:
            with self._ready:
                if self._settled():
                    return self._pop()
                loop = asyncio.get_running_loop()
                waiter = loop.create_future()
                self._waiter = (loop, waiter)
            await waiter

    def close(self) -> None:
        with self._ready:
            self.cancelled = True
            self._wake()

    # -- with the lock held

    def _settled(self) -> bool:
        return bool(self._steps or self.cancelled or self.result is not None or self.error is not None)

    def _pop(self) -> Step | None:
        if self.cancelled:
            return None
        if self._steps:
            return self._steps.popleft()
        if self.error is not None:
            raise self.error
        return None

    def _wake(self) -> None:
        self._ready.notify_all()
        if self._waiter is not None:
            loop, waiter = self._waiter
            self._waiter = None
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, waiter)


class Stream(Iterator[Step], AsyncIterator[Step]):
    """The steps of one reply, then its result.

    Iteration ends when the reply does, or at `close`. It raises what made the reply fail: an
    `AgentSpecError`. One consumer iterates; any thread may close.
    """

    def __init__(self, channel: Channel, engine: object = None) -> None:
        self._channel = channel
        self._engine = engine  # kept alive for as long as somebody reads

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Step:
        step = self._channel.take()
        if step is None:
            raise StopIteration
        return step

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Step:
        step = await self._channel.take_async()
        if step is None:
            raise StopAsyncIteration
        return step

    def close(self) -> None:
        """Cancels the request, if it is still running: no further pass is made for it. Idempotent."""
        self._channel.close()

    @property
    def result(self) -> Result:
        """How the reply ended; after `close`, once the engine has noticed, with reason "cancelled".

        Raises RuntimeError before, and when the reply failed.
        """
        if self._channel.result is None:
            raise RuntimeError("the reply has no result: it is still running, or it failed")
        return self._channel.result

    def __del__(self) -> None:
        self._channel.cancelled = True  # no lock: this may run inside any other code


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
