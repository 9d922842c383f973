"""Gets model files, or says why it could not.

A file is built in `models/.partial/`, checked, and moved to its name in one step, so whatever is found under
that name is whole. One lock per file: of two pulls at the same time, the second waits and finds the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from agentspec.errors import DownloadError, HashMismatchError, ModelError, ModelNotFoundError
from agentspec.models.catalogue import ModelFile, parse_reference
from agentspec.models.progress import ConsoleProgress, Progress, SilentProgress
from agentspec.models.sources import Fetched, Source, default_sources
from agentspec.models.store import is_genuine, local_path, models_dir, record_verified, sha256_of
from agentspec.models.transfer import Unavailable

__all__ = ["ensure", "pull"]

_MAGIC = b"GGUF"


class _WrongBytesError(Exception):
    """A download came to its end and is not the file; the text says how it differs."""


def ensure(model: str | Path) -> Path:
    """The local file of what `model=` names; pulled first, with a bar on stderr, where it is missing.

    Raises ModelNotFoundError, HashMismatchError where the local file is not the catalogue's (it is left
    alone: `agentspec pull` replaces it), and what `pull` raises.
    """
    reference = parse_reference(model)
    if isinstance(reference, Path):
        return _existing(reference)
    path = local_path(reference)
    if is_genuine(reference):
        return path
    if path.exists():
        raise HashMismatchError(
            f"{path} is not the file that the catalogue names {reference.name!r}",
            hint=f"`agentspec pull {reference.name}` replaces it; to use your own file, give its path",
        )
    with ConsoleProgress() as progress:
        return pull(model, progress=progress)


def pull(
    model: str | Path, *, progress: Progress | None = None, sources: Sequence[Source] | None = None
) -> Path:
    """Downloads a catalogue name or `hf:` reference into the models folder and returns its path.

    Sources are tried in order; each may go on from what an earlier, interrupted pull left. A file that is
    there and genuine is not downloaded again; one that is not is replaced.

    Raises ModelNotFoundError (unknown name, or a path that does not exist), DownloadError (listing what each
    source answered), HashMismatchError (a source sent another file, and no other could help).
    """
    reference = parse_reference(model)
    if isinstance(reference, Path):
        return _existing(reference)
    try:
        return _pull(
            reference,
            progress or SilentProgress(),
            default_sources() if sources is None else sources,
        )
    except OSError as error:
        where = error.filename or models_dir()
        raise ModelError(
            f"cannot store {reference.name}: {where}: {error.strerror or error}",
            hint="make room or mend the permissions, or set AGENTSPEC_CACHE to another folder",
        ) from error


def _existing(path: Path) -> Path:
    if path.is_file():
        return path
    what = "is a folder, not a model file" if path.is_dir() else "does not exist"
    raise ModelNotFoundError(
        f"{path} {what} (looked in {Path.cwd()})" if not path.is_absolute() else f"{path} {what}",
        hint="check the path, or give a catalogue name: `agentspec models` lists them",
    )


def _pull(file: ModelFile, progress: Progress, sources: Sequence[Source]) -> Path:
    target = local_path(file)
    partial = models_dir() / ".partial" / re.sub(r"[^A-Za-z0-9._-]", "_", file.name)
    with _only_one(partial.with_name(partial.name + ".lock"), file.name, progress):
        if is_genuine(file):
            return target
        partial.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        fetched = _fetch_from_any(file, partial, progress, sources)
        os.replace(fetched.path, target)
        record_verified(target, fetched.sha256 or sha256_of(target))
        shutil.rmtree(partial)
    return target


@contextmanager
def _only_one(lock_path: Path, name: str, progress: Progress) -> Iterator[None]:
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(lock_path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.note(f"{name}: another process is pulling it, waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch_from_any(file: ModelFile, partial: Path, progress: Progress, sources: Sequence[Source]) -> Fetched:
    answers: list[str] = []
    wrong_bytes = False
    for source in sources:
        if not source.offers(file):
            continue
        folder = partial / type(source).__name__
        try:
            return _fetch_checked(file, folder, progress, source)
        except Unavailable as answer:
            answers.append(f"{source.name}: {answer}")
        except _WrongBytesError as error:
            answers.append(f"{source.name}: {error}")
            wrong_bytes = True
        progress.note(f"{file.name}: {answers[-1]}")
    listed = "\n".join(f"  - {answer}" for answer in answers) or "  - the catalogue names no source"
    raise (HashMismatchError if wrong_bytes else DownloadError)(
        f"could not get {file.name}; no source had it:\n{listed}", hint=_hint(file)
    )


def _hint(file: ModelFile) -> str:
    by_hand = f"download it elsewhere and copy it to {local_path(file)}, or pass the path of a GGUF you have"
    if file.sha256 is None:
        return f"a private or gated repository needs HF_TOKEN; else {by_hand}"
    return f"check the network (HTTPS_PROXY, HF_ENDPOINT and PIP_INDEX_URL are respected); else {by_hand}"


def _fetch_checked(file: ModelFile, folder: Path, progress: Progress, source: Source) -> Fetched:
    """Fetches and checks; where an earlier try's leftovers turn out wrong, starts once more from nothing."""
    resumed = folder.exists() and any(folder.iterdir())
    while True:
        folder.mkdir(exist_ok=True)
        fetched = source.fetch(file, folder, progress)
        try:
            return _checked(file, fetched)
        except _WrongBytesError:
            shutil.rmtree(folder)
            if not resumed:
                raise
        resumed = False
        progress.note(f"{file.name}: what an earlier pull left does not fit, starting over")


def _checked(file: ModelFile, fetched: Fetched) -> Fetched:
    """Holds the bytes to the catalogue's SHA-256, or where it has none to the source's own word."""
    with fetched.path.open("r+b") as stream:
        os.fsync(stream.fileno())
        if stream.read(len(_MAGIC)) != _MAGIC and file.sha256 is None:
            raise _WrongBytesError("is not a GGUF file")
        stream.seek(0)
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    expected = file.sha256 or fetched.sha256
    if expected is not None and sha256 != expected:
        raise _WrongBytesError(f"has SHA-256 {sha256}, expected {expected}")
    return Fetched(fetched.path, sha256)
