"""Which kinds of JSON value a schema may take, and values that were written as text to what they mean.

It must not know tools or formats.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

from agentspec.chat.keywords import target
from agentspec.chat.strictjson import parse_json_strict, write_json
from agentspec.types import Json

__all__ = ["kinds_of", "read_value"]

_MOST_PYTHON: Final = 100_000  # characters: its parser needs much memory
_ALL: Final = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})


def kinds_of(schema: Json, root: Mapping[str, Json]) -> frozenset[str]:
    """The JSON types that a value of the schema may have; more than that where it is hard to say.

    root: the document that references are to
    """
    return _kinds(schema, root, 0)


def _kinds(schema: Json, root: Mapping[str, Json], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > 32:
        return _ALL
    kinds = _ALL
    named = schema.get("type")
    if isinstance(named, str):
        kinds &= {named}
    elif isinstance(named, list):
        kinds &= {str(one) for one in named}
    listed = schema.get("enum")
    if "const" in schema:
        listed = [schema["const"]]
    if isinstance(listed, list):
        kinds &= {kind for value in listed for kind in _kinds_of_value(value)}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        kinds &= _kinds(target(reference, root), root, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list):
            kinds &= frozenset().union(*(_kinds(branch, root, depth + 1) for branch in branches))
    every = schema.get("allOf")
    for branch in every if isinstance(every, list) else ():
        kinds &= _kinds(branch, root, depth + 1)
    return kinds


def _kinds_of_value(value: Json) -> tuple[str, ...]:
    match value:
        case None:
            return ("null",)
        case bool():
            return ("boolean",)
        case int():
            return ("integer", "number")
        case float():
            return ("number",)
        case str():
            return ("string",)
        case Mapping():
            return ("object",)
        case _:
            return ("array",)


def read_value(text: str, kinds: frozenset[str]) -> Json:
    """What a text means that stands where a value of these kinds belongs: JSON, or a string as it is."""
    if kinds == {"string"}:
        return text
    for parse in (parse_json_strict, _python):
        try:
            value = parse(text)
        except ValueError:
            continue
        if kinds.intersection(_kinds_of_value(value)):
            return value
    return text


def _python(text: str) -> Json:
    """A value as Python writes it, which some templates do, and their models learn. Raises ValueError."""
    if len(text) > _MOST_PYTHON:
        raise ValueError("too long")
    try:
        value = ast.literal_eval(text.strip())
        return parse_json_strict(write_json(value))
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("not a value of Python's") from error
