"""Fixtures that every test directory shares.

Tests in `tests/unit` and `tests/exactness` need no model. Tests that run a GGUF carry the marker `model` and
take their file from the fixtures below; `make test` pulls the files first. A missing file fails such a test
with the command that fetches it: a suite that skips silently proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentspec.config import DEFAULT_DRAFT, DEFAULT_MODEL
from agentspec.models.catalogue import lookup
from agentspec.models.store import local_path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full",
        action="store_true",
        help="run the proofs on real models at full size (an hour on two cores), not at a quarter",
    )


SMALL_MODEL = "smollm2-135m-instruct"

ModelPath = Callable[[str], Path]
"""The file of a catalogue name."""


def _model_file(name: str) -> Path:
    path = local_path(lookup(name))
    if not path.exists():
        pytest.fail(f"{path} is missing; run: agentspec pull {name}", pytrace=False)
    return path


@pytest.fixture(scope="session")
def full_size(request: pytest.FixtureRequest) -> bool:
    """Whether the proofs on real models run at full size."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def model_path() -> ModelPath:
    return _model_file


@pytest.fixture(scope="session")
def small_model() -> Path:
    """SmolLM2-135M: loads in a moment, knows no tools."""
    return _model_file(SMALL_MODEL)


@pytest.fixture(scope="session")
def target_model() -> Path:
    """The default target, Qwen2.5-Coder-1.5B."""
    return _model_file(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def draft_model() -> Path:
    """The default draft, Qwen2.5-Coder-0.5B: the target's vocabulary."""
    return _model_file(DEFAULT_DRAFT)
