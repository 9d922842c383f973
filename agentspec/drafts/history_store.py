"""Earlier replies on disk: what the history draft knows from one run to the next.

Each tool set has a file of JSON lines: a header that names the format, its version, the vocabulary and the
tool set, then for each reply, oldest first, its token ids and their checksum. The ids spell what the model
wrote, so files are readable to their owner only. To forget everything is to delete the folder.

Many processes may share a folder. Whoever reads or writes holds the folder's lock, which the system takes
from a process that dies. A reply is appended as one line; a file that has grown to twice its size is written
anew, from all that is in it by then, under another name that then replaces it. So no process undoes what
another wrote, and a process that is killed leaves a whole file, or one whose last line is cut.

Stored replies make things faster and are never needed: nothing here raises for the sake of a file, and a
reply that cannot be stored at once waits for the next one. It must not know how tokens are spelled, or what
replies are used for.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import logging
import os
import re
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from io import BufferedReader
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

__all__ = ["HistoryStore"]

_log = logging.getLogger(__name__)

_FORMAT: Final = "agentspec.history"
_VERSION: Final = 1
_MAX_HEADER: Final = 2**16
_LOAD_WAIT: Final = 0.2
_CLOSE_WAIT: Final = 5.0
"""Seconds to wait for the lock: others hold it for milliseconds."""

_private = functools.partial(os.open, mode=0o600)


class _OtherFileError(Exception):
    """A file says that it is something else: a newer version, or another vocabulary's."""


class HistoryStore:
    """Recent replies of each tool set, kept across runs.

    folder:        where the files are; made, for its owner only, when the first reply is stored
    fingerprint:   names the target's vocabulary: files of another one are not read
    max_replies:   replies of a tool set that are read back, the latest
    max_bytes:     bytes of them; a file has at most twice as many
    max_tool_sets: files of this vocabulary; the one that was not written to for longest goes first

    A file that is damaged is read as far as it can be, and one that cannot be read or written is done
    without; either is said once, as a warning of `logging`.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        *,
        max_replies: int = 200,
        max_bytes: int = 100_000,
        max_tool_sets: int = 32,
    ) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._max_replies = max_replies
        self._max_bytes = max_bytes
        self._max_tool_sets = max_tool_sets
        self._lock = FileLock(folder / ".lock", mode=0o600)
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=max_replies)  # tool sets and lines
        self._broken = False
        self._warned: set[Path] = set()

    def load(self, tool_set: str) -> list[list[int]]:
        """The stored replies of a tool set, oldest first, each a list of token ids."""
        path = self._path(tool_set)
        try:
            if not path.exists():
                return []
            with ExitStack() as held:
                with suppress(OSError):  # in a read-only folder; without it, the last line may be incomplete
                    held.enter_context(self._lock.acquire(timeout=_LOAD_WAIT))
                with path.open("rb") as file:
                    return self._replies(file, path) if self._is_sound(file, tool_set) else []
        except _OtherFileError as other:
            self._warn_once(path, str(other))
        except OSError as error:
            self._warn_once(path, f"cannot be read: {error}")
        return []

    def add(self, tool_set: str, reply: Sequence[int]) -> None:
        """Stores a reply; where another process is writing, together with the next one."""
        line = _reply_line([int(token) for token in reply])
        if not self._broken and len(line) <= self._max_bytes:
            self._waiting.append((tool_set, line))
            self._save(wait=0.0)

    def close(self) -> None:
        """Stores what is still waiting."""
        if self._waiting:
            self._save(wait=_CLOSE_WAIT)
        if self._waiting:
            _log.warning("%s is locked; replies that were not stored: %d", self._folder, len(self._waiting))
            self._waiting.clear()

    def _save(self, *, wait: float) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock.acquire(timeout=wait):
                while self._waiting:
                    self._store(*self._waiting[0])
                    self._waiting.popleft()
        except Timeout:
            return
        except OSError as error:
            _log.warning("replies are no longer stored: %s", error)
            self._broken = True
            self._waiting.clear()

    def _store(self, tool_set: str, line: bytes) -> None:
        """Appends the line, or writes the file anew with it; holding the lock."""
        path = self._path(tool_set)
        kept: list[list[int]] = []
        try:
            with path.open("rb") as file:
                if self._is_sound(file, tool_set):
                    if os.fstat(file.fileno()).st_size + len(line) <= 2 * self._max_bytes:
                        _append(path, line)
                        return
                    kept = self._replies(file, path)
        except FileNotFoundError:
            self._make_room()
        except _OtherFileError as other:
            self._warn_once(path, str(other))
            return
        _replace(path, [_line(self._header(tool_set)), *map(_reply_line, kept), line])

    def _make_room(self) -> None:
        """Removes the files that were not written to for longest, if one more would be too many."""
        mine = [
            path for path in self._folder.iterdir() if re.fullmatch(self._name("[0-9a-f]{16}"), path.name)
        ]
        mine.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in mine[: max(0, len(mine) + 1 - self._max_tool_sets)]:
            path.unlink()

    def _is_sound(self, file: BufferedReader, tool_set: str) -> bool:
        """Reads the header: False where it is damaged. Raises _OtherFileError for that of another file."""
        header = _parsed(file.readline(_MAX_HEADER))
        if not isinstance(header, dict):
            self._warn_once(Path(file.name), "is damaged; what it holds is lost")
            return False
        if header != self._header(tool_set):
            raise _OtherFileError(f"is not of version {_VERSION} and this vocabulary; it is left as it is")
        return True

    def _replies(self, file: BufferedReader, path: Path) -> list[list[int]]:
        """The latest replies of a file that was read up to the end of its header."""
        start = max(file.tell(), os.fstat(file.fileno()).st_size - self._max_bytes)
        if start > file.tell():
            file.seek(start - 1)
            file.readline()  # the rest of a line
        lines = file.read().split(b"\n")
        replies = [reply for line in lines[:-1] if (reply := _parsed_reply(line)) is not None]
        damaged = len(lines) - 1 - len(replies) + bool(lines[-1])
        if damaged:
            self._warn_once(path, f"is damaged; damaged lines are left out: {damaged}")
        return replies[-self._max_replies :]

    def _header(self, tool_set: str) -> dict[str, object]:
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "fingerprint": self._fingerprint,
            "tool_set": _digest(tool_set),
        }

    def _path(self, tool_set: str) -> Path:
        return self._folder / self._name(_digest(tool_set))

    def _name(self, tool_set: str) -> str:
        return f"{_digest(self._fingerprint)}-{tool_set}.jsonl"

    def _warn_once(self, path: Path, what: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            _log.warning("the history %s %s", path, what)


def _append(path: Path, line: bytes) -> None:
    """Adds a line in one write. Raises OSError, and leaves the file as it was, where there is no room."""
    with path.open("a+b", buffering=0) as file:
        size = file.seek(-1, os.SEEK_END) + 1
        if file.read(1) != b"\n":
            line = b"\n" + line  # the last writer did not come to an end
        if file.write(line) != len(line):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    """Writes the whole file: there is the old one or the new one, at every moment."""
    temporary = path.with_suffix(".tmp")  # one name is enough: the lock is held
    with open(temporary, "wb", opener=_private) as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _reply_line(tokens: list[int]) -> bytes:
    return _line({"crc32": zlib.crc32(_line(tokens)), "tokens": tokens})


def _parsed(line: bytes) -> object:
    """The line's JSON value; None where it has none."""
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value


def _parsed_reply(line: bytes) -> list[int] | None:
    """The line's token ids; None where it is damaged."""
    match _parsed(line):
        case {"crc32": int(checksum), "tokens": list(tokens)} if zlib.crc32(_line(tokens)) == checksum:
            return tokens
    return None


def _digest(text: str) -> str:
    """Names a file after a text of any length: 64 bits of its SHA-256, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
