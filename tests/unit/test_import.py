"""`import agentspec` is light: nothing heavy is loaded, and it takes no time one could feel."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    *("llama_cpp", "llguidance", "langchain_core", "pydantic", "numpy", "httpx", "rich", "typer", "jinja2"),
    "matplotlib",
)
SECONDS = 0.1


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_nothing_heavy_is_imported() -> None:
    loaded = run(f"import sys, agentspec; print(*(name for name in {HEAVY} if name in sys.modules))")
    assert loaded == ""


def test_import_takes_no_time() -> None:
    code = "import time; t = time.perf_counter(); import agentspec; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(3)) < SECONDS


def test_every_public_name_is_listed_and_unknown_ones_are_errors() -> None:
    code = """
import agentspec
assert set(dir(agentspec)) == set(agentspec.__all__), dir(agentspec)
assert list(agentspec.__all__) == sorted(agentspec.__all__)
try:
    agentspec.nonsense
except AttributeError as error:
    print(error)
"""
    assert run(code) == "module 'agentspec' has no attribute 'nonsense'"
