"""Fixtures of the tests that run models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_snapshots() -> Iterator[None]:
    """What a prompt left on disk is nothing to another test. Those of snapshots run other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentspec.engine.runtime._open_snapshots", lambda *_: None)
        yield
