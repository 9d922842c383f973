"""What a completion is asked to be: a JSON document, or a match of a pattern; and whether it is one.

It must not know models or requests, nor how a grammar is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, TypeAlias, cast

from agentspec.chat.schema import check_document, title_of
from agentspec.chat.strictjson import parse_json_strict
from agentspec.chat.validate import document_fault
from agentspec.errors import ConfigError
from agentspec.grammar.text import Pattern, check_pattern
from agentspec.langchain.tools import ToolLike, single_tool
from agentspec.types import Json

__all__ = ["CONSTRAINTS", "Constraint", "Document", "constraint_of"]

CONSTRAINTS = ("json_schema", "regex", "lark")
"""The options, of which one at most is given."""


@dataclass(frozen=True)
class Document:
    """One JSON document of a schema.

    check: a further check of a document that is an object (pydantic); raises ValueError with the reason
    """

    schema: Mapping[str, Json]
    check: Callable[[Mapping[str, Json]], None] | None = None

    @classmethod
    def of(cls, schema: object) -> Self:
        """From a JSON Schema, a pydantic model or a TypedDict. Raises SchemaError, ConfigError."""
        if isinstance(schema, Mapping):
            found = cls(cast(Mapping[str, Json], dict(schema)))
        elif isinstance(schema, type):
            tool = single_tool(cast(ToolLike, schema))
            found = cls({"title": tool.name, **tool.parameters}, tool.check)
        else:
            raise ConfigError(
                f"json_schema is {schema!r}", hint="give a dict, a pydantic model or a TypedDict"
            )
        check_document(title_of(found.schema), found.schema)
        return found

    def fault(self, text: str) -> str | None:
        """Why a text is not such a document; None if it is."""
        fault = document_fault(self.schema, text)
        if fault is not None or self.check is None:
            return fault
        try:
            self.check(cast(Mapping[str, Json], parse_json_strict(text)))  # of a class: always an object
        except ValueError as error:
            return f"document: {error}"
        return None


Constraint: TypeAlias = Document | Pattern


def constraint_of(values: Mapping[str, object]) -> Constraint | None:
    """The constraint among the options. Raises ConfigError, SchemaError for what cannot be one."""
    asked = [name for name in CONSTRAINTS if values.get(name) is not None]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} are given", hint="a reply can be held to one of them")
    if not asked:
        return None
    (name,) = asked
    value = values[name]
    if name == "json_schema":
        return Document.of(value)
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}", hint="give its text")
    pattern = Pattern("regex" if name == "regex" else "lark", value)
    check_pattern(pattern)
    return pattern
