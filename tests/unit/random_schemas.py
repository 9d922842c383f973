"""Strategies for the property tests: schemas of tools' arguments, values for them, and what jsonschema says.

`schemas` draws what people write, and what they rarely do: recursion, compositions, keywords that no grammar
enforces. It must not know what agentspec makes of them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import jsonschema
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from agentspec.chat.keywords import target
from agentspec.chat.schema import check_parameters, closed_schema
from agentspec.errors import SchemaError
from agentspec.types import Json

Schema = dict[str, Json]

# what hypothesis caches (tables of characters) is not for the working tree
set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "agentspec-hypothesis")


def repeatable(max_examples: int) -> settings:
    """The same examples every time, and no time limits: machines are slow at times.

    Much is filtered where a random schema has few values, or none.
    """
    return settings(
        max_examples=max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# ------------------------------------------------------------------------------------------------ schemas

KEYS: Final = ("a", "b", "name", "is on", "é")
TEXTS: Final = ("", "a", "ab", "Ω", 'say "so"', "1", "null", "2026-02-28")
PATTERNS: Final = ("^[a-z]+$", "^[A-Z]{3}$", "b", r"^\d{1,3}$", "^(?!a)", "^(on|off)$", r"\bab", "^é?$")
FORMATS: Final = ("date", "email", "uuid", "ipv4", "hostname", "uri", "regex", "no-such")

"""Not `time` and `date-time`: agentspec checks these, and jsonschema only with packages it does without."""

_numbers = st.integers(-3, 12)
_values: st.SearchStrategy[Json] = st.one_of(
    st.sampled_from(TEXTS), _numbers, st.booleans(), st.none(), st.just(1.5), st.just([1]), st.just({"a": 1})
)


def some_of(**keywords: st.SearchStrategy[Json]) -> st.SearchStrategy[Schema]:
    """A schema with any of the keywords. A name that Python has, or one that is no name, ends with `_`."""
    named = {_NAMES.get(key, key): strategy for key, strategy in keywords.items()}
    return st.fixed_dictionaries({}, optional=named)


_NAMES: Final = {"if_": "if", "else_": "else", "not_": "not"}


def typed(kind: str, schemas: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return schemas.map(lambda schema: {"type": kind, **schema})


_strings = typed(
    "string",
    st.one_of(
        some_of(minLength=st.integers(0, 3), maxLength=st.integers(0, 6)),
        some_of(pattern=st.sampled_from(PATTERNS), maxLength=st.integers(1, 9)),
        some_of(format=st.sampled_from(FORMATS)),
    ),
)
_bounds = some_of(
    minimum=_numbers,
    maximum=_numbers,
    exclusiveMinimum=_numbers,
    exclusiveMaximum=_numbers,
    multipleOf=st.sampled_from([1, 2, 3, 0.5, 0.01]),
)
_leaves: st.SearchStrategy[Schema] = st.one_of(
    _strings,
    typed("integer", _bounds),
    typed("number", _bounds),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}]),
    st.lists(_values, min_size=1, max_size=4, unique_by=repr).map(lambda values: {"enum": values}),
    _values.map(lambda value: {"const": value}),
    st.sampled_from([{"type": ["string", "null"]}, {"type": ["integer", "string"]}]),
    st.sampled_from([{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}, {"$ref": "#"}]),
)


def _above(parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """Schemas with these inside."""
    several = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(
        objects(parts),
        typed(
            "array",
            some_of(
                items=parts,
                minItems=st.integers(0, 2),
                maxItems=st.integers(0, 3),
                uniqueItems=st.booleans(),
                contains=parts,
                maxContains=st.integers(0, 2),
            ),
        ),
        typed("array", some_of(prefixItems=several, items=parts, minItems=st.integers(0, 2))),
        several.map(lambda choices: {"anyOf": choices}),
        several.map(lambda choices: {"oneOf": choices}),
        several.map(lambda choices: {"allOf": choices}),
        st.tuples(parts, parts).map(lambda both: {**both[0], "not": both[1]}),
    )


def objects(parts: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    names = st.sampled_from(KEYS)
    common = some_of(
        properties=st.dictionaries(names, parts, max_size=3),
        required=st.lists(names, max_size=2, unique=True),
        additionalProperties=st.one_of(st.booleans(), parts),
    )
    rare = some_of(
        patternProperties=st.dictionaries(st.sampled_from(["^a", "e$"]), parts, max_size=2),
        propertyNames=st.sampled_from([{"enum": ["a", "b"]}, {"pattern": "^[a-z]+$"}, {"maxLength": 2}]),
        minProperties=st.integers(0, 2),
        maxProperties=st.integers(0, 3),
        dependentRequired=st.just({"a": ["b"]}),
        if_=parts,
        then=parts,
        else_=parts,
        unevaluatedProperties=st.just(False),
    )
    none: st.SearchStrategy[Schema] = st.just({})
    rarely = st.one_of(none, none, rare)
    return typed("object", st.tuples(common, rarely).map(lambda both: {**both[0], **both[1]}))


PARTS: Final = st.recursive(_leaves, _above, max_leaves=6)


@st.composite
def arguments_schemas(draw: st.DrawFn) -> Schema:
    """Schemas of the arguments of a tool."""
    schema = draw(objects(PARTS))
    schema["properties"] = draw(st.dictionaries(st.sampled_from(KEYS), PARTS, min_size=1, max_size=3))
    if '"$ref"' in repr(schema).replace("'", '"'):
        schema["$defs"] = {"one": draw(PARTS), "two": draw(_leaves)}
    return schema


# ------------------------------------------------------------------------------------------------- values

_FORMATTED: Final[Mapping[str, tuple[str, ...]]] = {
    "date": ("2024-02-29", "2023-02-29", "1999-12-31"),
    "email": ("a@example.org", "first.last+tag@example.co.uk", "nobody"),
    "uuid": ("3f2b8c1e-5d47-4a09-9c6e-1b7d20f4a8e3", "3F2B8C1E-5D47-4A09-9C6E-1B7D20F4A8E3", "3f2b8c1e"),
    "ipv4": ("127.0.0.1", "10.0.0.256"),
    "hostname": ("example.org", "a-b.example"),
    "uri": ("https://example.org/a?b=c#d", "urn:a:b"),
}
"""Some of them do not fit."""

_AT_MOST: Final = 3
"""Levels of references that are followed: then any value will do."""


def values_of(schema: Schema) -> st.SearchStrategy[Json]:
    """Values, of which most fit the schema: where keywords stand in each other's way, some do not."""
    return _drawn(schema, schema, _AT_MOST)


@st.composite
def _drawn(draw: st.DrawFn, schema: Json, root: Schema, depth: int) -> Json:
    schema, depth = _chosen(draw, schema, root, depth)
    if "const" in schema or "enum" in schema:
        listed = schema.get("enum")
        choices: list[Json] = listed if isinstance(listed, list) else [schema["const"]]
        return draw(st.sampled_from(choices))
    match schema.get("type"):
        case list(kinds):
            return draw(_drawn({**schema, "type": draw(st.sampled_from(kinds))}, root, depth))
        case "string":
            return draw(_text(schema))
        case "integer" | "number" as kind:
            return draw(_number(schema, whole=kind == "integer"))
        case "boolean":
            return draw(st.booleans())
        case "null":
            return None
        case "array":
            return _array(draw, schema, root, depth)
        case "object":
            return _object(draw, schema, root, depth)
        case _:
            return draw(_values)


def _chosen(draw: st.DrawFn, schema: Json, root: Schema, depth: int) -> tuple[Schema, int]:
    """One schema out of a reference or a composition, as far as they can be put into one."""
    flat = dict(schema) if isinstance(schema, Mapping) else {}
    while depth and (keyword := next((one for one in _COMPOSED if one in flat), None)):
        value = flat.pop(keyword)
        match value:
            case str(reference):
                parts: list[Json] = [target(reference, root)]
                depth -= 1
            case list(choices):
                parts = choices if keyword == "allOf" else [draw(st.sampled_from(choices))]
            case _:
                parts = []
        for part in parts:
            flat |= part if isinstance(part, Mapping) else {}
    return flat, depth


_COMPOSED: Final = ("$ref", "anyOf", "oneOf", "allOf")


def _bound(schema: Schema, keyword: str, otherwise: int) -> int:
    value = schema.get(keyword)
    return int(value) if isinstance(value, int | float) else otherwise


def _text(schema: Schema) -> st.SearchStrategy[str]:
    least, most = _bound(schema, "minLength", 0), _bound(schema, "maxLength", 9)
    match schema:
        case {"pattern": str(pattern)}:
            # a grammar takes `$` as JSON Schema does, for the end of the text; Python's is also before a line
            # break that ends it
            return st.from_regex(pattern.replace("$", r"\Z"))
        case {"format": str(name)} if name in _FORMATTED:
            return st.sampled_from(_FORMATTED[name])
        case _:
            # half of a surrogate pair is no text that JSON can hold
            letters = st.characters(exclude_categories=["Cs"])
            return st.text(letters, min_size=least, max_size=max(least, most))


def _number(schema: Schema, *, whole: bool) -> st.SearchStrategy[int | float]:
    least = max(_bound(schema, "minimum", -(10**6)), _bound(schema, "exclusiveMinimum", -(10**6)))
    most = min(_bound(schema, "maximum", 10**6), _bound(schema, "exclusiveMaximum", 10**6))
    step = schema.get("multipleOf")
    integers = st.integers(min(least, most), max(least, most))
    if isinstance(step, int):
        return integers.map(lambda number: number // step * step)
    if whole:
        return integers
    hundredths = integers.flatmap(lambda number: st.integers(0, 99).map(lambda part: number + part / 100))
    return st.one_of(integers, hundredths, st.floats(least, max(least, most)))


def _array(draw: st.DrawFn, schema: Schema, root: Schema, depth: int) -> Json:
    prefix = schema.get("prefixItems", [])
    parts = [*prefix] if isinstance(prefix, list) else []
    least, most = _bound(schema, "minItems", 0), _bound(schema, "maxItems", 3)
    size = draw(st.integers(min(least, most), max(least, most)))
    parts = [*parts, *[schema.get("items", {})] * size][:size]
    return [draw(_drawn(part, root, depth)) for part in parts]


def _object(draw: st.DrawFn, schema: Schema, root: Schema, depth: int) -> Json:
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    assert isinstance(declared, Mapping)
    assert isinstance(patterns, Mapping)
    required = schema.get("required", [])
    assert isinstance(required, list)
    optional = [name for name in (*declared, *KEYS[:2]) if name not in required]
    names = (
        [*required, *draw(st.lists(st.sampled_from(optional), min_size=1, unique=True))]
        if optional
        else required
    )
    made: dict[str, Json] = {}
    for name in [*(one for one in declared if one in names), *(one for one in names if one not in declared)]:
        matching = [part for pattern, part in patterns.items() if re.search(pattern, str(name))]
        part = declared.get(name, matching[0] if matching else schema.get("additionalProperties", {}))
        if part is not False:
            made[str(name)] = draw(_drawn(part, root, depth))
    return made


def mutated(value: Json) -> st.SearchStrategy[Json]:
    """The value with one of its parts, or the whole, replaced, left out or repeated."""
    choices: list[st.SearchStrategy[Json]] = [_values]
    if isinstance(value, Mapping) and value:
        choices.append(st.sampled_from([*value]).map(lambda key: _without(value, key)))
        choices.append(
            st.sampled_from(KEYS).flatmap(lambda key: _values.map(lambda one: {**value, key: one}))
        )
        choices.append(st.sampled_from([*value]).flatmap(_inside(value)))
    elif isinstance(value, list) and value:
        choices.append(st.just([*value, value[0]]))
        choices.append(st.just(value[1:]))
        choices.append(st.sampled_from(range(len(value))).flatmap(_within(value)))
    return st.one_of(choices[1:] or choices)


def _without(value: Mapping[str, Json], key: str) -> Json:
    return {name: one for name, one in value.items() if name != key}


def _inside(value: Mapping[str, Json]) -> Callable[[str], st.SearchStrategy[Json]]:
    return lambda key: mutated(value[key]).map(lambda one: {**value, key: one})


def _within(value: list[Json]) -> Callable[[int], st.SearchStrategy[Json]]:
    return lambda at: mutated(value[at]).map(lambda one: [*value[:at], one, *value[at + 1 :]])


# ------------------------------------------------------------------------------------------------- oracle


def jsonschema_says(schema: Mapping[str, Json], value: Json, *, formats: bool = True) -> bool:
    """Whether the value fits. formats: of those, the ones that jsonschema knows without further packages"""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER if formats else None
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(value)


def fitting(parameters: Mapping[str, Json], arguments: Json) -> bool:
    """What jsonschema says of a tool's arguments: of the schema as it is given, and closed."""
    return all(jsonschema_says(one, arguments) for one in (parameters, closed_schema(parameters)))


def sound(parameters: Schema) -> bool:
    """Whether a tool may have this schema."""
    try:
        check_parameters("tool", parameters)
    except SchemaError:
        return False
    return True
