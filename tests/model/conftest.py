"""Fixtures of the tests that run models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from agentspec.engine.core import Core


@pytest.fixture(scope="session", autouse=True)
def _no_snapshots() -> Iterator[None]:
    """What a prompt left on disk is nothing to another test. Those of snapshots run other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentspec.engine.loading._open_snapshots", lambda *_: None)
        yield


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many replies took part in each pass of the target, from now on."""
    seen: list[int] = []
    decode = Core._decode

    def counted(core: Core, entries: Sequence[Any]) -> Any:
        seen.append(len(entries))
        return decode(core, entries)

    monkeypatch.setattr(Core, "_decode", counted)
    return seen
