"""Which kinds of JSON value a schema may take, and values that were written as text to what they mean.

It must not know tools or formats.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Final

from agentspec.chat.keywords import target
from agentspec.chat.strictjson import parse_json_strict
from agentspec.types import Json

__all__ = ["kinds_of", "read_value", "schema_of"]

_MOST_PYTHON: Final = 100_000  # characters: its parser needs much memory
_ALL: Final = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})


def kinds_of(schema: Json, root: Mapping[str, Json]) -> frozenset[str]:
    """The JSON types that a value of the schema may have; more than that where it is hard to say.

    root: the document that references are to
    """
    return _Kinds(root).of(schema)


class _Kinds:
    """Each reference is followed once, however often it is met."""

    def __init__(self, root: Mapping[str, Json]) -> None:
        self._root = root
        self._known: dict[str, frozenset[str]] = {}

    def of(self, schema: Json) -> frozenset[str]:
        if not isinstance(schema, Mapping):
            return _ALL
        kinds = _named(schema)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            kinds &= self._referred(reference)
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list):
                kinds &= frozenset().union(*map(self.of, branches))
        every = schema.get("allOf")
        for branch in every if isinstance(every, list) else ():
            kinds &= self.of(branch)
        return kinds

    def _referred(self, reference: str) -> frozenset[str]:
        if reference not in self._known:
            self._known[reference] = _ALL  # should it lead back here
            self._known[reference] = self.of(target(reference, self._root))
        return self._known[reference]


def _named(schema: Mapping[str, Json]) -> frozenset[str]:
    kinds = _ALL
    named = schema.get("type")
    if isinstance(named, str | list):
        names = {named} if isinstance(named, str) else {str(one) for one in named}
        kinds &= names | ({"integer"} if "number" in names else set())
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        kinds &= {kind for value in listed for kind in _kinds_of_value(value)}
    return kinds


def schema_of(key: str, schema: Json, root: Mapping[str, Json]) -> list[Json]:
    """What is asked of the value of a key of an object: every one of these schemas; none asks nothing."""
    found: list[Json] = []
    waiting: list[Json] = [schema]
    seen: set[str] = set()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            waiting.append(target(reference, root))
        every = part.get("allOf")
        waiting += every if isinstance(every, list) else []
        properties, patterns = part.get("properties"), part.get("patternProperties")
        own = [properties[key]] if isinstance(properties, Mapping) and key in properties else []
        if isinstance(patterns, Mapping):
            own += [value for pattern, value in patterns.items() if _matches(pattern, key)]
        if not own and "additionalProperties" in part:
            own = [part["additionalProperties"]]
        found += own
    return found


def _matches(pattern: str, key: str) -> bool:
    try:
        return re.search(pattern, key) is not None
    except re.error:
        return False


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
    """A value as Python writes it, which some templates do. Raises ValueError."""
    if len(text) > _MOST_PYTHON:
        raise ValueError("not a value of Python's")
    try:
        text = text.strip()
        tree = ast.parse(text, mode="eval").body
        if ast.get_source_segment(text, tree) != text:
            raise ValueError("there is more than a value")
        return _plain(tree, text)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("not a value of Python's") from error


def _plain(node: ast.expr, text: str) -> Json:
    """None, True, False, strings, decimal numbers, lists, and dictionaries with strings for keys."""
    match node:
        case ast.Constant(value=None | bool() | str() as constant):
            return constant
        case ast.Constant() | ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
            return parse_json_strict(ast.get_source_segment(text, node) or "")  # numbers, as JSON has them
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_plain(item, text) for item in items]
        case ast.Dict(keys=keys, values=values):
            plain: dict[str, Json] = {}
            for key, value in zip(keys, values, strict=True):
                if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or key.value in plain:
                    raise ValueError("not a key of JSON's")
                plain[key.value] = _plain(value, text)
            return plain
        case _:
            raise ValueError("not a value of JSON's")
