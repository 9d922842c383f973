"""A hub and a package index on this machine, and a world without any other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentspec.models import catalogue, transfer
from tests.unit.fake_servers import FakeServer, Page, fake_server, publish_wheel
from tests.unit.pull.tiny import CONTENT, HUB_PATH, TINY


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder, a catalogue and an environment of the test's own; no waiting between tries."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("HF_", "PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(catalogue, "catalogue", lambda: {"tiny": TINY})
    monkeypatch.setattr(transfer, "_PAUSES", (0.0, 0.0))


@pytest.fixture
def hub() -> Iterator[FakeServer]:
    with fake_server() as server:
        server.pages[HUB_PATH] = Page(CONTENT)
        yield server


@pytest.fixture
def wheels() -> Iterator[FakeServer]:
    with fake_server() as server:
        third = len(CONTENT) // 3
        for part, start in enumerate((0, third, 2 * third), start=1):
            end = len(CONTENT) if part == 3 else start + third
            publish_wheel(server, f"tiny-part{part}", "1.0", CONTENT[start:end])
        yield server
