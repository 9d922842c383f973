"""Loads the files beside this one: what a family's documentation says its models write.

source       the document, or several
tools        name to parameters: each a type, or the values it may have; "?" behind the optional ones
[[reply]]    a reply as documented, the text outside its calls (`said`), and the calls it means;
             `auto = false` where a free choice of tools cannot tell it from text
[[tolerated]]  what small models, or sister models, write instead: it is read, but not enforced
[[near_miss]]  what the documentation would not call a call; `reason` is why the reply ended
[prompt]     what the template of that name makes of the first reply's calls, and of their results
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from agentspec.types import BoundTool, FinishReason, Json

__all__ = ["FAMILIES", "Call", "Example", "Family", "Prompt"]

Call: TypeAlias = tuple[str, dict[str, Json]]


@dataclass(frozen=True, slots=True)
class Example:
    """One text of a file."""

    what: str
    text: str
    calls: list[Call]
    said: str = ""
    auto: bool = True
    reason: FinishReason = "stop"


@dataclass(frozen=True, slots=True)
class Prompt:
    """results: of the calls, in their order; ids: of the calls, where they matter."""

    template: str
    results: list[str]
    text: str
    ids: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Family:
    """One file. name: of its wire format"""

    name: str
    sources: list[str]
    tools: list[BoundTool]
    replies: list[Example]
    tolerated: list[Example]
    near_misses: list[Example]
    prompt: Prompt | None


def _family(path: Path) -> Family:
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    source, prompt = given.pop("source"), given.pop("prompt", None)
    family = Family(
        name=path.stem,
        sources=[source] if isinstance(source, str) else source,
        tools=[_tool(name, parameters) for name, parameters in given.pop("tools").items()],
        replies=[_example(one) for one in given.pop("reply")],
        tolerated=[_example(one) for one in given.pop("tolerated", [])],
        near_misses=[_example(one) for one in given.pop("near_miss")],
        prompt=None if prompt is None else Prompt(**prompt),
    )
    assert not given, f"{path.name}: {', '.join(given)}"
    return family


def _example(given: dict[str, Any]) -> Example:
    calls = [(call["name"], call["arguments"]) for call in given.pop("calls", [])]
    return Example(calls=calls, **given)


def _tool(name: str, parameters: Mapping[str, Json]) -> BoundTool:
    properties = {
        key.rstrip("?"): {"type": value} if isinstance(value, str) else {"enum": value}
        for key, value in parameters.items()
    }
    required = [key for key in parameters if not key.endswith("?")]
    return BoundTool(name, "", {"type": "object", "properties": properties, "required": required})


FAMILIES = [_family(path) for path in sorted(Path(__file__).parent.glob("*.toml"))]
