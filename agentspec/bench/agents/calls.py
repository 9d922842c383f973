"""Whether a call is one that its tools allow, judged from their schemas, for every system alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentspec.bench.agents.world import ANSWER, World
from agentspec.types import Json

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

__all__ = ["Judge"]


class Judge:
    """Knows the tools that are bound in a world, the answer among them."""

    def __init__(self, world: World) -> None:
        from jsonschema import Draft202012Validator  # here: only this command needs it at once

        schemas = {tool.name: tool.parameters for tool in world.tools()} | {"Answer": ANSWER}
        self._tools: Mapping[str, Draft202012Validator] = {
            name: Draft202012Validator(schema) for name, schema in schemas.items()
        }

    def fault(self, name: Json, arguments: Json) -> str:
        """What is wrong with a call; empty where nothing is."""
        if not isinstance(name, str) or name not in self._tools:
            return f"there is no tool {name!r}"
        found = next(self._tools[name].iter_errors(arguments), None)
        return f"{name}: {found.message}" if found else ""
