"""Snapshots: the KV states of prompt prefixes on disk, so that a new process need not compute them again.

A file holds one state with the tokens it is of. Its name says both, so the longest stored prefix of a prompt
is found by a listing of the folder, and nothing is read but the file that is used. A file is written under
another name, which then becomes its own: it is there whole or not at all, whichever process dies when. What
is read is checked against its checksum, and used for nothing where it does not match.

Processes share a folder. What they write under one name is the same, so the last one wins; a file that one
of them deletes is to another one as if it had never been there.

A state is a cache of something that can be computed: nothing here raises for the sake of a file. It holds
the prompt's tokens, so files are readable to their owner only. This module must not know what a state
consists of, nor which prefixes are worth one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from agentspec.config import cache_dir
from agentspec.types import State

__all__ = ["Snapshots", "Stored", "clear", "default_folder", "stored"]

_log = logging.getLogger(__name__)

_MAGIC: Final = b"agentspec.snapshot 1\n"
_SUFFIX: Final = ".kv"
_NAME: Final = re.compile(r"([0-9a-f]{16})-([1-9][0-9]*)-([0-9a-f]{32})\.kv")
_MAX_HEADER: Final = 4096
_ABANDONED: Final = 600.0
"""Seconds after which a file that was never finished is taken to be of a process that died."""

_private = functools.partial(os.open, mode=0o600)


@dataclass(frozen=True, slots=True)
class Stored:
    """One snapshot file, as its header describes it.

    model:  the model's name, for people to read
    n_bytes: size of the file
    used:   when it was last written or loaded, seconds since the epoch
    """

    path: Path
    model: str
    n_tokens: int
    n_bytes: int
    used: float


class Snapshots:
    """The stored states of one model under one set of context settings.

    folder:      shared by models and processes; made, for its owner only, with the first snapshot
    fingerprint: whatever a state depends on besides its tokens; states of another one are not read
    model:       the model's name, for people to read
    max_bytes:   of all files of the folder together; those not used for longest go first

    Files are written by a thread that ends when there is nothing to write. `close` waits for it.
    """

    def __init__(
        self, folder: Path, fingerprint: str, *, model: str = "", max_bytes: int = 2 * 10**9
    ) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._mark = hashlib.blake2b(fingerprint.encode(), digest_size=8).hexdigest()
        self._model = model
        self._max_bytes = max_bytes
        self._warned: set[Path] = set()
        self._due: queue.SimpleQueue[tuple[Path, bytes, State]] = queue.SimpleQueue()
        self._queued: set[Path] = set()
        self._writing = threading.Lock()
        self._writer: threading.Thread | None = None

    def longest(self, tokens: Sequence[int]) -> int:
        """How many tokens the longest stored prefix of `tokens` has, all of them at most; 0 for none."""
        lengths = sorted({n for n, _ in self._names() if n <= len(tokens)}, reverse=True)
        return next((n for n in lengths if self._path(tokens[:n]).exists()), 0)

    def load(self, tokens: Sequence[int]) -> State | None:
        """The state of exactly these tokens; None, with a warning where a file is there and of no use."""
        path = self._path(tokens)
        try:
            data = memoryview(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_once(path, f"cannot be read: {error}")
            return None
        try:
            state = self._checked(data, tokens)
        except ValueError as error:
            self._warn_once(path, f"is not used: {error}")
            with suppress(OSError):
                path.unlink()  # or it would be in the way of a sound one
            return None
        with suppress(OSError):
            os.utime(path)
        return state

    def has(self, tokens: Sequence[int]) -> bool:
        """Whether a state of exactly these tokens is stored, or about to be."""
        path = self._path(tokens)
        return path in self._queued or path.exists()

    def save(self, tokens: Sequence[int], state: State) -> None:
        """Stores a state, soon. One that is larger than the whole folder may be is left out."""
        ids = _ids(tokens).tobytes()
        header = {
            "fingerprint": self._fingerprint,
            "model": self._model,
            "n_tokens": len(tokens),
            "n_bytes": len(state),
            "checksum": _checksum(ids, state),
        }
        head = _MAGIC + json.dumps(header).encode() + b"\n"
        if len(head) > _MAX_HEADER or len(head) + len(ids) + len(state) > self._max_bytes:
            return
        path = self._path(tokens)
        with self._writing:
            self._queued.add(path)
            self._due.put((path, head + ids, state))
            if self._writer is not None:
                return
            writer = threading.Thread(target=self._write_all, name="agentspec-snapshots", daemon=True)
            try:
                writer.start()
            except RuntimeError:  # the interpreter is ending, or the system has no thread left
                self._due.get()
                self._queued.discard(path)
            else:
                self._writer = writer

    def close(self) -> None:
        """Waits until everything is written."""
        writer = self._writer
        if writer is not None:
            writer.join()

    # ------------------------------------------------------------------------------------------- reading

    def _names(self) -> Iterator[tuple[int, str]]:
        """Number and digest of the tokens of each file of this fingerprint."""
        with suppress(OSError):
            for name in os.listdir(self._folder):
                match = _NAME.fullmatch(name)
                if match and match[1] == self._mark:
                    yield int(match[2]), match[3]

    def _path(self, tokens: Sequence[int]) -> Path:
        digest = hashlib.blake2b(_ids(tokens).tobytes(), digest_size=16).hexdigest()
        return self._folder / f"{self._mark}-{len(tokens)}-{digest}{_SUFFIX}"

    def _checked(self, data: memoryview, tokens: Sequence[int]) -> memoryview:
        """The state in a file's content. Raises ValueError, saying why, where it is not that of `tokens`."""
        header, start = _header(bytes(data[:_MAX_HEADER]))
        if header.get("fingerprint") != self._fingerprint:
            raise ValueError("it is of another model, or of other settings")
        ids = _ids(tokens).tobytes()
        end = start + len(ids)
        state = data[end:]
        if data[start:end] != ids or len(state) != header.get("n_bytes"):
            raise ValueError("it is not of what its name says")
        if _checksum(ids, state) != header.get("checksum"):
            raise ValueError("its checksum does not match")
        return state

    # ------------------------------------------------------------------------------------------- writing

    def _write_all(self) -> None:
        while True:
            with self._writing:
                if self._due.empty():
                    self._writer = None
                    return
                path, head, state = self._due.get()
            try:
                self._write(path, head, state)
                self._prune()
            except OSError as error:
                self._warn_once(self._folder, f"keeps no snapshot: {error}")
            finally:
                self._queued.discard(path)

    def _write(self, path: Path, head: bytes, state: State) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            with open(unfinished, "wb", opener=_private) as file:
                file.write(head)
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        finally:
            with suppress(OSError):
                unfinished.unlink()

    def _prune(self) -> None:
        """Deletes what was not used for longest, until the rest fits; and what others left unfinished."""
        files: list[tuple[float, int, Path]] = []
        for path in self._folder.iterdir():
            with suppress(OSError):  # another process may have deleted it
                state = path.stat()
                if _NAME.fullmatch(path.name):
                    files.append((state.st_mtime, state.st_size, path))
                elif path.name.startswith(".") and time.time() - state.st_mtime > _ABANDONED:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._max_bytes:
                return
            with suppress(OSError):
                path.unlink()
            total -= size

    def _warn_once(self, path: Path, what: str) -> None:
        if path not in self._warned:
            self._warned.add(path)
            _log.warning("%s %s", path, what)


def default_folder() -> Path:
    """Where snapshots are kept, within the cache folder."""
    return cache_dir() / "snapshots"


def clear(folder: Path, model: str | None = None) -> list[Stored]:
    """Deletes the snapshots of a model, or all of them and what was left unfinished; returns what is gone.

    Raises OSError for one that cannot be deleted.
    """
    gone = [one for one in stored(folder) if model in (None, one.model)]
    for one in gone:
        one.path.unlink(missing_ok=True)  # another process may have been quicker
    if model is None:
        for path in folder.glob(f".*{_SUFFIX}.*"):
            path.unlink(missing_ok=True)
    return gone


def stored(folder: Path) -> list[Stored]:
    """The snapshots in a folder, those used last first; files that are none are left out."""
    found = []
    for path in folder.glob(f"*{_SUFFIX}"):
        match = _NAME.fullmatch(path.name)
        try:
            with path.open("rb") as file:
                header, _ = _header(file.read(_MAX_HEADER))
            state = path.stat()
        except (OSError, ValueError):
            continue
        if match:
            model = str(header.get("model", ""))
            found.append(Stored(path, model, int(match[2]), state.st_size, state.st_mtime))
    return sorted(found, key=lambda one: -one.used)


def _header(data: bytes) -> tuple[dict[str, object], int]:
    """A file's header and where it ends. Raises ValueError where there is none of this version."""
    if not data.startswith(_MAGIC):
        raise ValueError("it is no snapshot of this version")
    end = data.find(b"\n", len(_MAGIC), _MAX_HEADER)
    if end < 0:
        raise ValueError("its header is cut")
    header = json.loads(data[len(_MAGIC) : end])
    if not isinstance(header, dict):
        raise ValueError("its header is damaged")
    return header, end + 1


def _ids(tokens: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, dtype="<i4")


def _checksum(ids: bytes, state: State) -> str:
    digest = hashlib.blake2b(ids, digest_size=16)
    digest.update(state)
    return digest.hexdigest()
