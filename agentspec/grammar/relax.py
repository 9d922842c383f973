"""Ways to ask less of a JSON document: each takes one keyword out of a schema, or puts a weaker one there.

Whatever fits a schema fits it relaxed. So nothing is relaxed where asking less of a part asks more of the
whole: below `not` and `if`, and below `contains`, whose matches may be bounded from above. It must not know
which keywords a grammar engine takes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from agentspec.chat.keywords import LISTS, MAPS, ONE, Place, Schema, pointer, target
from agentspec.types import Json

__all__ = ["Relaxation", "possible", "relaxed", "spelled_out", "without_assertions"]

_HELD: Final = ("contains", "if", "not", "unevaluatedItems", "unevaluatedProperties")
"""Where less asked of a part may be more asked of the whole, or nothing is."""

ASSERTIONS: Final = "pattern (assertions)"


class Relaxation(NamedTuple):
    """One keyword, at one place, of which less is asked."""

    place: Place
    keyword: str

    @property
    def pointer(self) -> str:
        """The keyword's JSON pointer."""
        return pointer((*self.place, self.keyword.split()[0]))


def possible(schema: Mapping[str, Json]) -> list[Relaxation]:
    """Every relaxation there is, those that give up most first."""
    found: list[Relaxation] = []

    def wanted(relaxation: Relaxation) -> bool:
        found.append(relaxation)
        return True

    _Relaxing(schema, wanted).relax(schema, ())
    ranks = {keyword: rank for rank, keyword in enumerate(_STEPS)}
    return sorted(found, key=lambda one: -ranks[one.keyword])


def relaxed(schema: Mapping[str, Json], relaxations: Collection[Relaxation]) -> Schema:
    """A copy of the schema with these relaxations made."""
    return _Relaxing(schema, frozenset(relaxations).__contains__).relax(schema, ())


class _Relaxing:
    """One walk over a schema: relaxes what is wanted of it, the innermost schemas first."""

    def __init__(self, root: Mapping[str, Json], wanted: Callable[[Relaxation], bool]) -> None:
        self._root = root
        self._wanted = wanted

    def relax(self, schema: Mapping[str, Json], place: Place) -> Schema:
        copy: Schema = {}
        for key, value in schema.items():
            if key in ONE and key not in _HELD:
                copy[key] = self._inside(value, (*place, key))
            elif key in LISTS and isinstance(value, list):
                copy[key] = [self._inside(one, (*place, key, i)) for i, one in enumerate(value)]
            elif key in MAPS and key != "dependentSchemas" and isinstance(value, Mapping):
                copy[key] = {name: self._inside(one, (*place, key, name)) for name, one in value.items()}
            else:
                copy[key] = value
        if "oneOf" in copy and copy["oneOf"] != schema["oneOf"]:
            self._wanted(Relaxation(place, "oneOf"))  # and done in any case:
            _one_of(copy, self._root)  # branches of which less is asked may overlap
        for keyword, step in _STEPS.items():
            if keyword.split()[0] in copy and self._wanted(Relaxation(place, keyword)):
                step(copy, self._root)
        return copy

    def _inside(self, value: Json, place: Place) -> Json:
        return self.relax(value, place) if isinstance(value, Mapping) else value


# ------------------------------------------------------------------------------------------------ steps

_Step: TypeAlias = Callable[[Schema, Mapping[str, Json]], None]


def _drop(*keywords: str) -> _Step:
    def step(schema: Schema, _: Mapping[str, Json]) -> None:
        for keyword in keywords:
            schema.pop(keyword, None)

    return step


def _contains(schema: Schema, _: Mapping[str, Json]) -> None:
    """As many matches as there must be, so many items."""
    del schema["contains"]
    schema.pop("maxContains", None)
    _at_least(schema, "minItems", schema.pop("minContains", 1))


def _unique(schema: Schema, root: Mapping[str, Json]) -> None:
    """There are no more different items than there are values to choose from."""
    if schema.pop("uniqueItems") is not True or "prefixItems" in schema:
        return
    items = _resolved(schema.get("items"), root)
    values = items.get("enum") if items is not None else None
    most = schema.get("maxItems", None)
    if isinstance(values, list) and not (isinstance(most, int | float) and most <= len(values)):
        schema["maxItems"] = len(values)


def _one_of(schema: Schema, _: Mapping[str, Json]) -> None:
    """At least one branch, where it was to be exactly one."""
    branches = schema.pop("oneOf")
    if "anyOf" not in schema:
        schema["anyOf"] = branches
        return
    every = schema.get("allOf")
    schema["allOf"] = [*(every if isinstance(every, list) else []), {"anyOf": branches}]


def _patterns_of_keys(schema: Schema, _: Mapping[str, Json]) -> None:
    """A key that is not declared may have the value of any pattern."""
    patterns = schema.pop("patternProperties")
    rest = schema.get("additionalProperties", True)
    if rest is True or not isinstance(patterns, Mapping):
        schema.pop("additionalProperties", None)
    else:
        choices = [*patterns.values(), *([] if rest is False else [rest])]
        schema["additionalProperties"] = {"anyOf": choices} if choices else False


def _assertions(schema: Schema, _: Mapping[str, Json]) -> None:
    pattern = schema["pattern"]
    if isinstance(pattern, str):
        schema["pattern"] = without_assertions(pattern)


_STEPS: Final[Mapping[str, _Step]] = {
    # of one keyword the weaker relaxation is made first, and given up last
    "if": _drop("if", "then", "else"),
    "not": _drop("not"),
    "dependentSchemas": _drop("dependentSchemas"),
    "dependentRequired": _drop("dependentRequired"),
    "dependencies": _drop("dependencies"),
    "unevaluatedItems": _drop("unevaluatedItems"),
    "unevaluatedProperties": _drop("unevaluatedProperties"),
    "contains": _contains,
    "uniqueItems": _unique,
    "propertyNames": _drop("propertyNames"),
    "patternProperties": _patterns_of_keys,
    "minProperties": _drop("minProperties"),
    "maxProperties": _drop("maxProperties"),
    "format": _drop("format"),
    ASSERTIONS: _assertions,
    "multipleOf": _drop("multipleOf"),
    # those at the ends of 64 bits, which the engine does not take
    "minimum": _drop("minimum"),
    "maximum": _drop("maximum"),
    "exclusiveMinimum": _drop("exclusiveMinimum"),
    "exclusiveMaximum": _drop("exclusiveMaximum"),
    "oneOf": _one_of,
    "pattern": _drop("pattern"),
    "allOf": _drop("allOf"),
    "anyOf": _drop("anyOf"),
    "$ref": _drop("$ref"),
}


def _at_least(schema: Schema, keyword: str, least: Json) -> None:
    present = schema.get(keyword, 0)
    if isinstance(least, int | float) and isinstance(present, int | float) and least > present:
        schema[keyword] = least


def _resolved(schema: Json, root: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """The schema itself, or what it refers to in the same document."""
    if isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str):
        schema = target(reference, root)
    return schema if isinstance(schema, Mapping) else None


# ------------------------------------------------------------------------------------------ equal forms


def spelled_out(schema: Mapping[str, Json]) -> Schema:
    """The same schema without keywords that say nothing, and with the names of a map said by its properties.

    `propertyNames` of a map (an object without declared properties) that lists names, or has a pattern for
    them, becomes properties or a pattern of them; not where `unevaluatedProperties` would take note.
    """
    schema = _without_idle(schema)
    return schema if _mentions(schema, "unevaluatedProperties") else _spelled_out(schema)


def _without_idle(schema: Mapping[str, Json]) -> Schema:
    said = {key: value for key, value in schema.items() if not _is_idle(key, value, schema)}
    return _with_parts(said, _without_idle)


def _is_idle(keyword: str, value: Json, schema: Mapping[str, Json]) -> bool:
    """Whether the keyword asks nothing, by its value or for want of another one."""
    match keyword:
        case "then" | "else":
            return "if" not in schema
        case "minContains" | "maxContains":
            return "contains" not in schema
        case "uniqueItems" | "not":
            return value is False
        case "dependentRequired" | "dependentSchemas":
            return value == {}
        case "minimum":  # below which no number is
            return isinstance(value, float) and value <= -sys.float_info.max
        case "maximum":
            return isinstance(value, float) and value >= sys.float_info.max
        case "propertyNames":
            return value is True or value in ({}, {"type": "string"})
        case _:
            return False


def _with_parts(schema: Mapping[str, Json], change: Callable[[Mapping[str, Json]], Schema]) -> Schema:
    """A copy in which the schemas directly inside are changed."""
    copy: Schema = {}
    for key, value in schema.items():
        if key in ONE and isinstance(value, Mapping):
            copy[key] = change(value)
        elif key in LISTS and isinstance(value, list):
            copy[key] = [change(one) if isinstance(one, Mapping) else one for one in value]
        elif key in MAPS and isinstance(value, Mapping):
            copy[key] = {
                name: change(one) if isinstance(one, Mapping) else one for name, one in value.items()
            }
        else:
            copy[key] = value
    return copy


def _mentions(value: Json, keyword: str) -> bool:
    if isinstance(value, Mapping):
        return keyword in value or any(_mentions(one, keyword) for one in value.values())
    return isinstance(value, list) and any(_mentions(one, keyword) for one in value)


def _spelled_out(schema: Mapping[str, Json]) -> Schema:
    copy = _with_parts(schema, _spelled_out)
    names = copy.get("propertyNames")
    if isinstance(names, Mapping) and not copy.get("properties") and "patternProperties" not in copy:
        said = {key: value for key, value in names.items() if (key, value) != ("type", "string")}
        value = copy.get("additionalProperties", True)
        match said:
            case {"enum": list(listed)} if len(said) == 1 and all(isinstance(name, str) for name in listed):
                copy["properties"] = {str(name): value for name in listed}
            case {"pattern": str(pattern)} if len(said) == 1:
                copy["patternProperties"] = {pattern: value}
            case _:
                return copy
        del copy["propertyNames"]
        copy["additionalProperties"] = False
    return copy


_ASSERTION = re.compile(r"\(\?<?[=!]")


def without_assertions(pattern: str) -> str:
    r"""The regular expression without look-around and word boundaries, which match no text of their own.

    It matches whatever the expression matches. What is not understood is left as it is.
    """
    kept: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith((r"\b", r"\B"), at):
            at = _skip_quantifier(pattern, at + 2)
        elif _ASSERTION.match(pattern, at):
            at = _skip_quantifier(pattern, _end_of_group(pattern, at))
        else:
            end = _end_of_atom(pattern, at)
            kept.append(pattern[at:end])
            at = end
    return "".join(kept)


def _end_of_atom(pattern: str, at: int) -> int:
    """Behind the escape, the class or the character that begins here."""
    if pattern[at] == "\\":
        return min(at + 2, len(pattern))
    if pattern[at] != "[":
        return at + 1
    at += 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return min(at + 1, len(pattern))


def _end_of_group(pattern: str, at: int) -> int:
    depth = 0
    while at < len(pattern):
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        at = _end_of_atom(pattern, at)
        if not depth:
            break
    return at


_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")


def _skip_quantifier(pattern: str, at: int) -> int:
    found = _QUANTIFIER.match(pattern, at)
    return found.end() if found else at
