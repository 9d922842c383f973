"""`agentspec version` and `agentspec --version`: what is installed, without loading it."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import typer

import agentspec

__all__ = ["print_and_exit", "version_command"]

_PARTS = ("llama-cpp-python", "llguidance", "langchain-core")


def version_command() -> None:
    """Print the versions of agentspec and of what it runs on (worth pasting into a bug report)."""
    lines = [f"agentspec {agentspec.__version__}"]
    for part in _PARTS:
        try:
            lines.append(f"{part} {importlib.metadata.version(part)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{part} is not installed")
    lines.append(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    sys.stdout.write("\n".join(lines) + "\n")


def print_and_exit(asked: bool) -> None:
    """Callback of `--version`."""
    if asked:
        version_command()
        raise typer.Exit
