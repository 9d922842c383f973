"""The engine: one worker thread that owns both llama contexts, and a queue in front of it.

Any thread may submit; the replies of all requests are made in shared passes by `engine.core`. It must not
know tools, text or LangChain.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable

from agentspec.engine.core import Core
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.errors import AgentSpecError, EngineClosedError, EngineError, QueueFullError

__all__ = ["Engine"]


class Engine:
    """Runs requests on a `Core`.

    max_waiting: requests that may wait for a slot; one more is refused
    on_close:    called after the last pass, to free what the core uses

    The thread starts with the first request. It ends at `close`, at interpreter exit, or some time after the
    engine and its streams are gone.
    """

    def __init__(
        self, core: Core, *, max_waiting: int = 1024, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self._core = core
        self._worker = _Worker(core, max_waiting, on_close)
        # the collector may run inside any code, so it only signals; at exit the thread must have ended
        # before the interpreter takes its modules apart
        weakref.finalize(self, self._worker.stop).atexit = False
        atexit.register(self._worker.close)

    def submit(self, request: Request) -> Stream:
        """Queues a request and returns its stream.

        Raises ContextLengthError when the prompt does not fit, ValueError when it makes no sense,
        QueueFullError when too many requests wait already, EngineClosedError after `close`, and EngineError
        in a process forked after the engine was made.
        """
        self._core.check(request)
        channel = Channel()
        self._worker.put(request, channel)
        return Stream(channel, self)

    def close(self) -> None:
        """Ends the thread after the pass in progress. Replies under way fail with EngineClosedError."""
        self._worker.close()

    @property
    def closed(self) -> bool:
        """True once no request is taken any more."""
        return self._worker.stopping

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """The thread and its queue; it holds no reference to the Engine, so that one can be collected.

    `stop` may be called from anywhere, a finalizer included: it takes no lock. The queue is a SimpleQueue
    for that reason. None in it wakes the thread up.
    """

    def __init__(self, core: Core, max_waiting: int, on_close: Callable[[], None]) -> None:
        self._core = core
        self._max_waiting = max_waiting
        self._on_close = on_close
        self._inbox: queue.SimpleQueue[tuple[Request, Channel] | None] = queue.SimpleQueue()
        self._submitting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._ended = False
        self.stopping = False

    def put(self, request: Request, channel: Channel) -> None:
        if os.getpid() != self._process:
            raise EngineError(
                f"this engine belongs to process {self._process}, and its thread did not survive the fork",
                hint="make the model after forking",
            )
        if self.stopping:
            raise EngineClosedError("the engine is closed", hint="make a new one")
        with self._submitting:  # two threads must neither start it twice nor take one place
            # in this order: a request on its way from one to the other is counted twice rather than never
            if self._inbox.qsize() + self._core.n_waiting >= self._max_waiting:
                raise QueueFullError(
                    f"{self._max_waiting} requests are waiting already",
                    hint="submit fewer at once, such as by max_concurrency, or raise max_waiting",
                )
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="agentspec-engine", daemon=True)
                thread.start()
                self._thread = thread
            self._inbox.put((request, channel))
        if self._ended:  # the thread has gone in the meantime and will not look again
            self._fail_inbox(_CLOSED)

    def stop(self) -> None:
        """Asks the thread to end; frees the core at once where there is no thread."""
        if self.stopping:
            return
        self.stopping = True
        if self._thread is None:
            self._core.close()
            self._on_close()
        else:
            self._inbox.put(None)

    def close(self) -> None:
        """Ends the thread and waits for it."""
        atexit.unregister(self.close)
        self.stop()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        error: AgentSpecError = _CLOSED
        try:
            while self._take():
                self._core.step()
        except BaseException as failure:
            error = EngineError(f"the engine's thread failed: {failure!r}")
            error.__cause__ = failure
            raise
        finally:
            self.stopping = True
            self._core.fail_all(error)
            self._ended = True
            self._fail_inbox(error)
            self._core.close()
            self._on_close()

    def _take(self) -> bool:
        """Moves the queue into the core, waiting while there is nothing to do; False to stop."""
        while not self.stopping:
            try:
                item = self._inbox.get(block=not self._core.busy())
            except queue.Empty:
                return True
            if item is not None:
                self._add(*item)
        return False

    def _add(self, request: Request, channel: Channel) -> None:
        try:
            self._core.add(request, channel)
        except AgentSpecError as error:
            channel.fail(error)
        except ValueError as error:
            channel.fail(EngineError(f"the request cannot be generated: {error}"))

    def _fail_inbox(self, error: AgentSpecError) -> None:
        while True:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item[1].fail(error)


_CLOSED = EngineClosedError("the engine was closed before the reply was done")
