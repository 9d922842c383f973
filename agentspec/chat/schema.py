"""What a tool's JSON Schema means here: checked before use, and closed to keys it does not name.

The grammar and the validator both take their schema from here, so they cannot disagree about it. Dialect:
JSON Schema draft 2020-12. This module must not know grammars, and it never fetches anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote

import jsonschema
from jsonschema.exceptions import best_match

from agentspec.chat.keywords import LISTS, MAPS, ONE, Place, Schema, pointer, upgraded
from agentspec.chat.strictjson import plain
from agentspec.errors import SchemaError
from agentspec.types import BoundTool, Json

__all__ = ["check_document", "check_parameters", "check_tool", "closed_document", "closed_schema", "title_of"]

# keywords that apply schemas to the same value, not to a part of it
_IN_PLACE = ("allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")

# an object schema with one of these says itself, or may say elsewhere, which further keys it takes
_SAYS_OTHERWISE = (
    "$dynamicRef",
    "$ref",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
)


def closed_schema(parameters: Mapping[str, Json]) -> dict[str, Json]:
    """A copy of a tool's schema in which a missing `additionalProperties` means false.

    Two in three real tool schemas leave it out and mean false; taken by the letter, any invented key is
    legal. An object schema is closed where it has `properties` and nothing says otherwise: neither
    additionalProperties, patternProperties, unevaluatedProperties or propertyNames, nor a required key that
    is not declared, nor a composition (`allOf`, `anyOf`, `oneOf`, `$ref`, ...) that could name further keys.
    A schema that is one part of such a composition stays as it is, for the same reason. The schema of the
    whole arguments object is closed without `properties` too: a tool that names no arguments takes none.

    `$schema` is left out: the dialect is always 2020-12. Expects a schema that `check_tool` passed.
    """
    root = _copy(parameters)
    root.pop("$schema", None)
    if not any(key in root for key in (*_SAYS_OTHERWISE, *_IN_PLACE)):
        root.setdefault("type", "object")
        root.setdefault("properties", {})
    return _closed(root)


def closed_document(schema: Mapping[str, Json]) -> dict[str, Json]:
    """`closed_schema` of a whole JSON document, which need not be an object: one that is an object without
    `properties` stays open."""
    root = _copy(schema)
    root.pop("$schema", None)
    return _closed(root)


def _closed(root: Schema) -> Schema:
    parts = _parts_of_compositions(root)
    for place, schema in _schemas(root):
        if place not in parts and _can_close(schema):
            schema["additionalProperties"] = False
    return root


def _can_close(schema: Schema) -> bool:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or any(key in schema for key in (*_SAYS_OTHERWISE, *_IN_PLACE)):
        return False
    # a required key that is not declared must stay possible
    return all(name in properties for name in _list(schema, "required"))


def check_tool(tool: BoundTool) -> None:
    """Raises SchemaError, naming the tool, the pointer and the keyword, if its schema cannot be used."""
    check_parameters(tool.name, tool.parameters)


def check_parameters(tool: str, parameters: Mapping[str, Json]) -> None:
    """`check_tool` on a schema alone."""
    check_document(tool, parameters)
    if parameters.get("type", "object") not in ("object", ["object"]):
        raise SchemaError(
            f"arguments are always an object, and its schema asks for {parameters['type']!r}",
            tool=tool,
            pointer="/type",
            keyword="type",
        )


def title_of(schema: Mapping[str, Json]) -> str:
    """What errors call a document."""
    return str(schema.get("title") or "response")


def check_document(tool: str, parameters: Mapping[str, Json]) -> None:
    """`check_parameters` for a document, which need not be an object."""
    if not isinstance(parameters, Mapping):
        raise SchemaError("its schema is not a JSON object", tool=tool)
    try:
        schema = _copy(parameters)
        schema.pop("$schema", None)
        error = best_match(_METASCHEMA.iter_errors(schema))
    except RecursionError:
        raise SchemaError("its schema is nested too deeply", tool=tool) from None
    if error is not None:
        place = tuple(error.absolute_path)
        keyword = next((part for part in reversed(place) if isinstance(part, str)), "")
        raise SchemaError(
            f"{pointer(place) or 'its schema'}: {_meaning(keyword, error)}",
            tool=tool,
            pointer=pointer(place),
            keyword=keyword,
            hint="schemas are read as JSON Schema draft 2020-12",
        )
    _check_references(tool, schema)


def _meaning(keyword: str, error: jsonschema.ValidationError) -> str:
    if keyword == "type" and isinstance(error.instance, str):
        return f"there is no type {error.instance!r}"
    return _short(error.message)


_METASCHEMA = jsonschema.Draft202012Validator(
    jsonschema.Draft202012Validator.META_SCHEMA,
    format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,  # so a broken `pattern` is an error
)


# ------------------------------------------------------------------------------------------ walking


def _copy(parameters: Mapping[str, Json]) -> Schema:
    copy = plain(parameters)
    assert isinstance(copy, dict)  # plain() keeps the kind
    return upgraded(copy)


def _children(schema: Mapping[str, Json]) -> Iterator[tuple[Place, Schema]]:
    """The schemas directly inside one, with their place below it; a boolean schema has nothing to see."""
    for keyword, value in schema.items():
        if keyword in ONE:
            if isinstance(value, dict):
                yield (keyword,), value
        elif keyword in LISTS and isinstance(value, list):
            yield from (((keyword, i), item) for i, item in enumerate(value) if isinstance(item, dict))
        elif keyword in MAPS and isinstance(value, dict):
            yield from (((keyword, name), item) for name, item in value.items() if isinstance(item, dict))


def _schemas(schema: Schema, place: Place = ()) -> Iterator[tuple[Place, Schema]]:
    """A schema and all the schemas inside it, with their places."""
    yield place, schema
    for step, child in _children(schema):
        yield from _schemas(child, place + step)


def _parts_of_compositions(root: Schema) -> frozenset[Place]:
    """Places of schemas that share their value with another schema, and of everything inside them."""
    targets = {pointer(place): (place, schema) for place, schema in _schemas(root)}
    parts: set[Place] = set()
    waiting: list[tuple[Place, Schema]] = []
    for place, schema in _schemas(root):
        # `anyOf: [A, B]` and nothing else is a choice of whole shapes, and each can be closed
        beside = [key for key in schema if key in (*_IN_PLACE, "$ref", "$dynamicRef", "properties")]
        sole = len(beside) == 1 and beside[0] in ("anyOf", "oneOf", "allOf")
        if sole and (beside[0] != "allOf" or len(_list(schema, "allOf")) == 1):
            continue
        shared = [(place + step, child) for step, child in _children(schema) if step[0] in _IN_PLACE]
        if len(beside) > 1:
            shared += _target(schema, targets)
        waiting += shared
    while waiting:
        place, schema = waiting.pop()
        if place in parts:
            continue
        parts.add(place)
        waiting += [(place + step, child) for step, child in _children(schema)]
        waiting += _target(schema, targets)
    return frozenset(parts)


def _list(schema: Mapping[str, Json], keyword: str) -> list[Json]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _target(
    schema: Mapping[str, Json], targets: Mapping[str, tuple[Place, Schema]]
) -> list[tuple[Place, Schema]]:
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return []
    found = targets.get(unquote(reference.removeprefix("#")))
    return [found] if found else []


# --------------------------------------------------------------------------------------- references


def _check_references(tool: str, root: Schema) -> None:
    targets = {pointer(place): (place, schema) for place, schema in _schemas(root)}
    for place, schema in _schemas(root):
        for keyword in ("$ref", "$dynamicRef", "$id", "$anchor", "$dynamicAnchor"):
            value = schema.get(keyword)
            if value is None or (keyword == "$id" and not place):
                continue
            if keyword != "$ref" or not (isinstance(value, str) and value.startswith("#")):
                raise SchemaError(
                    f"{keyword} {value!r} is not supported",
                    tool=tool,
                    pointer=pointer((*place, keyword)),
                    keyword=keyword,
                    hint="references must be to a part of the same schema, such as '#/$defs/Name'; "
                    "nothing is fetched",
                )
            if unquote(value[1:]) not in targets:
                raise SchemaError(
                    f"$ref {value!r} points to no schema",
                    tool=tool,
                    pointer=pointer((*place, keyword)),
                    keyword=keyword,
                )
        _check_descends(tool, place, schema, targets)


def _check_descends(
    tool: str, place: Place, schema: Schema, targets: Mapping[str, tuple[Place, Schema]]
) -> None:
    """A schema that reaches itself without going into a part of the value can never be decided."""
    seen: set[Place] = set()
    waiting = _here(place, schema, targets)
    while waiting:
        reached, inner = waiting.pop()
        if reached == place:
            raise SchemaError(
                "its schema refers to itself without end",
                tool=tool,
                pointer=pointer(place),
                keyword="$ref",
            )
        if reached not in seen:
            seen.add(reached)
            waiting += _here(reached, inner, targets)


def _here(
    place: Place, schema: Schema, targets: Mapping[str, tuple[Place, Schema]]
) -> list[tuple[Place, Schema]]:
    inside = [(place + step, child) for step, child in _children(schema) if step[0] in _IN_PLACE]
    return inside + _target(schema, targets)


def _short(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
