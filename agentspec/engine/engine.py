"""The engine: one worker thread that owns both llama contexts, and a queue in front of it.

Any thread may submit; the replies of all requests are made in shared passes by `engine.core`. It must not
know tools, text or LangChain.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable

from agentspec.engine.core import Core
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.errors import EngineClosedError

__all__ = ["Engine"]


class Engine:
    """Runs requests on a `Core`.

    on_close: called on the worker thread after its last pass, to free what the core uses

    The thread starts with the first request. It ends at `close`, when the engine is collected, or at
    interpreter exit.
    """

    def __init__(self, core: Core, *, on_close: Callable[[], None] = lambda: None) -> None:
        self._core = core
        self._worker = _Worker(core, on_close)
        self._finalizer = weakref.finalize(self, self._worker.stop)
        atexit.register(self._finalizer)

    def submit(self, request: Request) -> Stream:
        """Queues a request and returns its stream.

        Raises ContextLengthError when the prompt does not fit, and EngineClosedError after `close`.
        """
        self._core.check(request)
        channel = Channel()
        self._worker.put(request, channel)
        return Stream(channel)

    def close(self) -> None:
        """Ends the thread after the pass in progress. Replies under way fail with EngineClosedError."""
        atexit.unregister(self._finalizer)
        self._finalizer()

    @property
    def closed(self) -> bool:
        """True once no request is taken any more."""
        return self._worker.stopping

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """The thread and its queue; it holds no reference to the Engine, so that one can be collected."""

    def __init__(self, core: Core, on_close: Callable[[], None]) -> None:
        self._core = core
        self._on_close = on_close
        self._wake = threading.Condition()
        self._queue: deque[tuple[Request, Channel]] = deque()
        self.stopping = False
        self._thread: threading.Thread | None = None

    def put(self, request: Request, channel: Channel) -> None:
        with self._wake:
            if self.stopping:
                raise EngineClosedError("the engine is closed", hint="make a new one")
            self._queue.append((request, channel))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentspec-engine", daemon=True)
                self._thread.start()
            self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            already, self.stopping = self.stopping, True
            thread = self._thread
            self._wake.notify()
        if thread is None:
            if not already:
                self._on_close()
        elif thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        try:
            while self._take():
                self._core.step()
        except BaseException as error:
            self._fail(error)
            raise
        else:
            self._fail(EngineClosedError("the engine was closed before the reply was done"))
        finally:
            self._on_close()

    def _take(self) -> bool:
        """Moves the queue into the core, waiting while there is nothing to do; False to stop."""
        with self._wake:
            while not (self._queue or self.stopping or self._core.busy()):
                self._wake.wait()
            if self.stopping:
                return False
            while self._queue:
                self._core.add(*self._queue.popleft())
        return True

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self.stopping = True
            for _, channel in self._queue:
                channel.fail(error)
            self._queue.clear()
        self._core.fail_all(error)
