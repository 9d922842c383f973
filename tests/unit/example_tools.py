"""The example tools in `schemas/`, with the calls that are kept beside them."""

from __future__ import annotations

import json
from pathlib import Path

from agentspec.types import BoundTool, Json

SCHEMAS = Path(__file__).parents[2] / "schemas"
OWN = sorted(SCHEMAS.glob("*.schema.json"))
"""The forms of the project's own files: these are no tools."""
TOOL_FILES = sorted(set(SCHEMAS.glob("*.json")) - set(OWN))

Call = tuple[str, dict[str, Json]]
"""A name, and arguments."""


def bound(path: Path) -> dict[str, BoundTool]:
    """The tools of a file by their names."""
    functions = [tool["function"] for tool in json.loads(path.read_text(encoding="utf-8"))]
    return {each["name"]: BoundTool(**each) for each in functions}


def calls_of(path: Path) -> list[Call]:
    """The example calls of a file of tools."""
    text = (path.parent / "calls" / path.name).read_text(encoding="utf-8")
    return [(call["name"], call["arguments"]) for call in json.loads(text)]
