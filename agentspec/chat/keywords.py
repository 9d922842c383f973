"""Where JSON Schema (draft 2020-12) has schemas inside schemas, and the forms of older drafts that it lacks.

It must not know what schemas are used for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import unquote

from agentspec.types import Json

__all__ = ["LISTS", "MAPS", "ONE", "Place", "Schema", "pointer", "target", "upgraded"]

Schema: TypeAlias = dict[str, Json]

Place: TypeAlias = tuple[str | int, ...]
"""Where a schema is in another: the keys and indices that lead there."""

ONE: Final = (
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords whose value is a schema."""

LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords whose value is a list of schemas."""

MAPS: Final = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose value is a mapping of names to schemas."""


def pointer(place: Sequence[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a place."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place)


def target(reference: str, root: Mapping[str, Json]) -> Json:
    """What a `$ref` within the document means; None where that is nothing."""
    found: Json = root
    for part in unquote(reference).removeprefix("#").split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def upgraded(schema: Mapping[str, Json]) -> Schema:
    """A copy in which forms of older drafts are those of 2020-12, which gives them no other meaning.

    `exclusiveMinimum: true` beside `minimum` (draft 4), `items` with a list and `additionalItems`, and
    `dependencies` (both to draft 7). Servers go on sending them, whatever `$schema` says.
    """
    copy: Schema = {}
    for key, value in schema.items():
        if key in MAPS and isinstance(value, Mapping):
            copy[key] = {name: _upgraded(one) for name, one in value.items()}
        elif key in ONE or key in LISTS or key in ("additionalItems", "dependencies"):
            copy[key] = _upgraded(value)
        else:
            copy[key] = value
    _exclusive(copy, "exclusiveMinimum", "minimum")
    _exclusive(copy, "exclusiveMaximum", "maximum")
    _tuple(copy)
    _dependencies(copy)
    return copy


def _upgraded(value: Json) -> Json:
    if isinstance(value, Mapping):
        return upgraded(value)
    return [_upgraded(one) for one in value] if isinstance(value, list) else value


def _exclusive(schema: Schema, keyword: str, bound: str) -> None:
    if isinstance(schema.get(keyword), bool):
        exclusive = schema.pop(keyword)
        if exclusive and bound in schema:
            schema[keyword] = schema.pop(bound)


def _tuple(schema: Schema) -> None:
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema["additionalItems"]
    schema.pop("additionalItems", None)  # beside one schema for all items it said nothing


def _dependencies(schema: Schema) -> None:
    given = schema.get("dependencies")
    if not isinstance(given, Mapping):
        return
    del schema["dependencies"]
    for name, needs in given.items():
        keyword = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
        known = schema.setdefault(keyword, {})
        if isinstance(known, dict):
            known.setdefault(name, needs)
