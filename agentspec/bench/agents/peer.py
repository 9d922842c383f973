"""A worker process, from the outside: started, spoken with in JSON lines, ended whatever happens.

It must not know tasks or what the worker runs.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from agentspec.errors import AgentSpecError
from agentspec.types import Json

__all__ = ["Peer", "PeerError", "last_lines", "start_peer"]

_ENDING_SECONDS = 10.0


class PeerError(AgentSpecError):
    """A system cannot be made ready, or cannot go on; the message is the reason that results give."""


class Peer:
    """A process that answers JSON lines. seconds: how long it may be silent; log: what it writes to stderr"""

    def __init__(self, process: subprocess.Popen[str], log: IO[str], seconds: float) -> None:
        self._process = process
        self._log = log
        self._seconds = seconds
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, message: Mapping[str, Json]) -> Mapping[str, Json]:
        """Says something and waits for what comes. Raises PeerError where nothing does."""
        assert self._process.stdin is not None, "asked for with PIPE"
        with suppress(OSError):  # it has ended, which is found below
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=self._seconds)
        except queue.Empty:
            raise PeerError(f"it said nothing for {self._seconds:.0f} s") from None
        if line is None:
            self._lines.put(None)  # for whoever asks again
            raise PeerError(f"it has ended: {last_lines(self._log)}")
        found: Mapping[str, Json] = json.loads(line)
        return found

    def close(self) -> None:
        """Ends the process: by the end of its input, or by force."""
        assert self._process.stdin is not None, "asked for with PIPE"
        with suppress(OSError):  # it has ended, with lines unread
            self._process.stdin.close()
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None, "asked for with PIPE"
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)


@contextmanager
def start_peer(command: Sequence[str], environ: Mapping[str, str], *, seconds: float) -> Iterator[Peer]:
    """Starts a worker, and ends it. Raises PeerError where it cannot start."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=dict(environ),
            )
        except OSError as error:
            raise PeerError(f"it cannot be started: {error}") from error
        peer = Peer(process, log, seconds)
        try:
            yield peer
        finally:
            peer.close()


def last_lines(log: IO[str], count: int = 5) -> str:
    """The end of what a process wrote."""
    log.seek(0)
    return "\n".join(log.read().rstrip().splitlines()[-count:])
