"""The models folder: where a file lives, and whether it is the one its name promises.

A hash of a gigabyte takes seconds, so it is computed once: a record beside the file keeps the SHA-256
together with the size and time of change it was computed at. Any difference means hashing again.
Nothing here downloads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

from agentspec.config import cache_dir
from agentspec.models.catalogue import ModelFile

__all__ = ["is_genuine", "local_path", "models_dir", "record_verified", "sha256_of"]


def models_dir() -> Path:
    """The models folder; it need not exist yet."""
    return cache_dir() / "models"


def local_path(file: ModelFile) -> Path:
    """Where the file is kept, or would be."""
    return models_dir() / file.file


def sha256_of(path: Path) -> str:
    """Lower-case hex of a file's SHA-256."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def is_genuine(file: ModelFile) -> bool:
    """True where `local_path(file)` holds the bytes that the catalogue names.

    A file without a known hash (an `hf:` reference) is genuine when it is there: only a finished and
    checked download is ever moved to that path.
    """
    path = local_path(file)
    if not path.is_file():
        return False
    if file.sha256 is None:
        return True
    if path.stat().st_size != file.bytes:
        return False
    if _recorded(path) == file.sha256:
        return True
    if sha256_of(path) != file.sha256:
        return False
    record_verified(path, file.sha256)
    return True


def record_verified(path: Path, sha256: str) -> None:
    """Remembers that `path`, as it is now, has this SHA-256."""
    status = path.stat()
    record = {"sha256": sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    sidecar = _sidecar(path)
    temporary = sidecar.with_name(f"{sidecar.name}.{os.getpid()}")
    # a folder that is read-only costs a hash at each load, no more
    with contextlib.suppress(OSError):
        sidecar.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(record), encoding="utf-8")
        temporary.replace(sidecar)


def _recorded(path: Path) -> str | None:
    try:
        record: object = json.loads(_sidecar(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    status = path.stat()
    match record:
        case {"sha256": str(sha256), "size": status.st_size, "mtime_ns": status.st_mtime_ns}:
            return sha256
    return None


def _sidecar(path: Path) -> Path:
    return path.parent / ".verified" / f"{path.name}.json"
