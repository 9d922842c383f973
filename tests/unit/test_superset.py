"""Schemas that the grammar engine does not take whole: what is enforced fits whatever the schema fits."""

from __future__ import annotations

import contextlib
import itertools
import random
import re
from collections.abc import Iterator

import jsonschema
import pytest

from agentspec.errors import SchemaError
from agentspec.grammar.enforce import check_enforced, enforceable_document, enforceable_tool
from agentspec.grammar.relax import possible, relaxed, spelled_out, without_assertions
from agentspec.grammar.superset import UnenforceableError, enforceable
from agentspec.types import BoundTool, Json
from tests.unit.grammars import IMPOSSIBLE

STRING: Json = {"type": "string"}


def holds(**properties: Json) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        holds(a=STRING),
        holds(a={"oneOf": [STRING, {"type": "integer"}]}),
        {**holds(a=STRING, b=STRING), "minProperties": 1},
        holds(a={"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 9}),
    ],
)
def test_what_the_engine_takes_stays_as_it_is(schema: dict[str, Json]) -> None:
    found = enforceable(schema)
    assert (found.schema, found.relaxations) == (schema, ())


@pytest.mark.parametrize(
    ("part", "weaker", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, "uniqueItems"),
        (
            {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
            {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
            "uniqueItems",
        ),
        (
            {"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 3},
            {"type": "array", "minItems": 2},
            "contains",
        ),
        ({"type": "string", "not": {"const": "a"}}, STRING, "not"),
        ({"type": "string", "format": "binary"}, STRING, "format"),
        (
            {"type": "string", "pattern": "^(?!x)[a-z]+$"},
            {"type": "string", "pattern": "^[a-z]+$"},
            "pattern",
        ),
        (
            {"type": "string", "pattern": r"^(a+)\1$", "maxLength": 8},
            {"type": "string", "maxLength": 8},
            "pattern",
        ),
        (
            {"oneOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 3}]},
            {"anyOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 3}]},
            "oneOf",
        ),
        (
            {
                "type": "object",
                "patternProperties": {"^a": STRING, "^ab": {"type": "string", "maxLength": 3}},
                "additionalProperties": False,
            },
            {
                "type": "object",
                "additionalProperties": {"anyOf": [STRING, {"type": "string", "maxLength": 3}]},
            },
            "patternProperties",
        ),
        (
            {**holds(a=STRING, b=STRING), "if": {"required": ["a"]}, "then": {"required": ["b"]}},
            holds(a=STRING, b=STRING),
            "if",
        ),
    ],
)
def test_no_more_is_given_up_than_must_be(part: dict[str, Json], weaker: Json, keyword: str) -> None:
    """And its neighbours keep all that they ask for."""
    neighbours: dict[str, Json] = {
        "x": {"type": "string", "pattern": "^[a-z]+$"},
        "y": {"type": "integer", "multipleOf": 3},
    }
    found = enforceable(holds(part=part, **neighbours))
    assert found.schema == holds(part=weaker, **neighbours)
    assert [one.pointer for one in found.relaxations] == [f"/properties/part/{keyword}"]


def test_names_of_a_map_are_said_by_its_properties() -> None:
    """The same, in a form that the engine takes."""
    names: Json = {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]+$"},
        "additionalProperties": {"type": "integer"},
    }
    few: Json = {"type": "object", "propertyNames": {"type": "string", "enum": ["p", "q"]}}
    found = enforceable(holds(a=names, b=few))
    assert found.relaxations == ()
    assert found.schema["properties"] == {
        "a": {
            "type": "object",
            "patternProperties": {"^[a-z]+$": {"type": "integer"}},
            "additionalProperties": False,
        },
        "b": {"type": "object", "properties": {"p": True, "q": True}, "additionalProperties": False},
    }


@pytest.mark.parametrize(
    "part",
    [
        {"type": "array", "uniqueItems": False},
        {"type": "array", "minContains": 2, "maxContains": 3},
        {"type": "string", "not": False},
        {"type": "string", "then": {"const": "a"}, "else": {"const": "b"}},
        {"type": "object", "dependentRequired": {}, "dependentSchemas": {}},
        {"type": "object", "propertyNames": {}},
        {"type": "object", "propertyNames": {"type": "string"}, "properties": {"b": STRING}},
    ],
)
def test_a_keyword_that_asks_nothing_gives_up_nothing(part: dict[str, Json]) -> None:
    """The engine knows it by its name alone; generators of schemas write `"uniqueItems": false`."""
    idle = {"uniqueItems", "minContains", "maxContains", "not", "then", "else"}
    idle |= {"dependentRequired", "dependentSchemas", "propertyNames"}
    found = enforceable(holds(a={"anyOf": [part]}))
    said = {key: value for key, value in part.items() if key not in idle}
    assert (found.schema, found.relaxations) == (holds(a={"anyOf": [said]}), ())


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({**holds(a=IMPOSSIBLE), "required": ["a"]}, "/properties/a"),
        (
            {**holds(a={"type": "string", "pattern": "^a$", "minLength": 3}), "required": ["a"]},
            "/properties/a",
        ),
        (
            {**holds(a={"type": "string", "pattern": "^a$", "minLength": 3, "not": {}}), "required": ["a"]},
            "/properties/a/pattern",
        ),
        (holds(a={"type": "nothing"}), "/properties/a"),
    ],
)
def test_what_nothing_fits_or_nobody_understands_is_refused(schema: dict[str, Json], pointer: str) -> None:
    with pytest.raises(UnenforceableError) as caught:
        enforceable(schema)
    assert caught.value.pointer == pointer


def test_errors_name_the_tool_the_pointer_and_the_keyword() -> None:
    tool = BoundTool(
        "tags", "", holds(a={"type": "array", "uniqueItems": True}, b={"type": "string", "not": {}})
    )
    found = enforceable_tool(tool)
    with pytest.raises(
        SchemaError, match=r"tool 'tags': /properties/a/uniqueItems: .* 1 more: /properties/b/not\)"
    ) as caught:
        check_enforced("tags", found)
    assert (caught.value.pointer, caught.value.keyword) == ("/properties/a/uniqueItems", "uniqueItems")
    check_enforced("sound", enforceable_tool(BoundTool("sound", "", holds(a=STRING))))
    with pytest.raises(SchemaError, match="tool 'none': /properties/a cannot be enforced"):
        enforceable_tool(BoundTool("none", "", {**holds(a=IMPOSSIBLE), "required": ["a"]}))
    with pytest.raises(SchemaError, match="tool 'Doc'"):
        enforceable_document({"title": "Doc", **IMPOSSIBLE})


# --------------------------------------------------------------------------------------- regular expressions


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^[a-z]+$", "^[a-z]+$"),
        (r"^(?!\.)(?!.*\.\.)([a-z.]*)@x$", "^([a-z.]*)@x$"),
        (r"^(?=.*[)(])(?:a|b)$", "^(?:a|b)$"),  # brackets in a class end no group
        (r"(?<=\))a(?<!(b|c))", "a"),
        (r"\bword\B", "word"),
        (r"\\bword", r"\\bword"),
        (r"[\b]x", r"[\b]x"),  # a backspace there
        (r"(?=a){2}b(?!c)?d", "bd"),
        ("(?=", ""),
        ("[", "["),
        ("\\", "\\"),
    ],
)
def test_a_pattern_without_look_around(pattern: str, expected: str) -> None:
    assert without_assertions(pattern) == expected


@pytest.mark.parametrize(
    "pattern", [r"^(?!ab)[abc]{2}$", r"a(?=b)", r"(?<!a)b", r"^(?=.*c)a", r"\ba\b", r"(?!a)(?:b|(?<=c)a)c"]
)
def test_it_matches_whatever_the_pattern_matches(pattern: str) -> None:
    weaker = without_assertions(pattern)
    for size in range(5):
        for letters in itertools.product("abc ", repeat=size):
            text = "".join(letters)
            assert not re.search(pattern, text) or re.search(weaker, text)


# ------------------------------------------------------------------------------------------------- supersets


def random_schema(chance: random.Random, depth: int = 3) -> Json:
    """Over few values, so that many of them fit."""

    def below() -> Json:
        return random_schema(chance, depth - 1)

    def several() -> list[Json]:
        return [below() for _ in range(chance.randrange(1, 3))]

    schema: dict[str, Json] = {}
    parts: dict[str, object] = {
        "type": lambda: chance.choice(["string", "integer", "array", "object", ["string", "array"]]),
        "enum": lambda: chance.sample(VALUES, 4),
        "pattern": lambda: chance.choice(["^(?!a)", "b", r"^(.)\1$", r"\bc"]),
        "minLength": lambda: chance.randrange(2),
        "minimum": lambda: chance.randrange(3),
        "uniqueItems": lambda: chance.random() < 0.7,
        "minProperties": lambda: chance.randrange(3),
        "maxProperties": lambda: chance.randrange(3),
        "minItems": lambda: chance.randrange(3),
        "required": lambda: chance.sample(["a", "b", "ab"], chance.randrange(2)),
        "dependentRequired": lambda: {"a": ["b"]},
        "propertyNames": lambda: chance.choice([{"enum": ["a", "b"]}, {"pattern": "^a"}, {"maxLength": 1}]),
        "additionalProperties": lambda: chance.choice([False, below()]),
        "properties": lambda: {name: below() for name in chance.sample(["a", "b", "ab"], 2)},
        "patternProperties": lambda: {name: below() for name in chance.sample(["^a", "b$", "ab"], 2)},
        "items": below,
        "prefixItems": several,
        "not": below,
        "if": below,
        "then": below,
        "else": below,
        "contains": below,
        "minContains": lambda: chance.randrange(3),
        "maxContains": lambda: chance.randrange(1, 3),
        "allOf": several,
        "anyOf": several,
        "oneOf": several,
        "unevaluatedProperties": lambda: False,
    }
    if depth:
        for keyword in chance.sample(sorted(parts), chance.randrange(1, 5)):
            make = parts[keyword]
            assert callable(make)
            schema[keyword] = make()
    return schema


VALUES: list[Json] = ["", "a", "b", "ab", "aa", 0, 1, 2, [], ["a"], ["a", "a"], [1, "b"], {}, {"a": "a"}]
VALUES += [{"b": 1}, {"a": "b", "b": 2}, {"ab": ["a"]}, {"a": {}, "ab": 1}]


def documents() -> Iterator[Json]:
    yield from VALUES
    yield from ([one, other] for one, other in itertools.product(VALUES[:8], repeat=2))
    yield from ({"a": one, "b": other} for one, other in itertools.product(VALUES[:8], repeat=2))


DOCUMENTS = list(documents())


@pytest.mark.parametrize("seed", range(12))
def test_whatever_fits_a_schema_fits_it_relaxed(seed: int) -> None:
    """Under all relaxations, which is where the search begins, and under what it ends with."""
    chance = random.Random(seed)
    n_fitting = 0
    for _ in range(15):
        schema = random_schema(chance)
        assert isinstance(schema, dict)
        given = jsonschema.Draft202012Validator(schema)
        fitting = [value for value in DOCUMENTS if given.is_valid(value)]
        others = [relaxed(spelled_out(schema), possible(spelled_out(schema)))]
        with contextlib.suppress(UnenforceableError):
            others.append(dict(enforceable(schema).schema))
        for other in others:
            weaker = jsonschema.Draft202012Validator(other)
            assert all(weaker.is_valid(value) for value in fitting), (schema, other)
        n_fitting += len(fitting)
    assert n_fitting > 100


def test_a_branch_that_asks_less_may_fit_beside_another() -> None:
    """Then one of them is enough, also where nobody chose that: exactly one would ask for more."""
    schema: dict[str, Json] = {"oneOf": [{"type": "string", "pattern": "^a"}, {"const": "b"}]}
    for keyword in ("pattern", "oneOf"):
        chosen = [one for one in possible(schema) if one.keyword == keyword]
        assert len(chosen) == 1
        assert jsonschema.Draft202012Validator(relaxed(schema, chosen)).is_valid("b")


@pytest.mark.parametrize("seed", range(10))
def test_names_that_are_said_otherwise_are_the_same(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        schema = random_schema(chance)
        assert isinstance(schema, dict)
        given, said = (jsonschema.Draft202012Validator(one) for one in (schema, spelled_out(schema)))
        assert [given.is_valid(value) for value in DOCUMENTS] == [said.is_valid(value) for value in DOCUMENTS]


@pytest.mark.parametrize(
    ("part", "left_out"),
    [
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, {"minimum"}),
        ({"type": "number", "maximum": 3.4028235e38}, {"maximum"}),
        ({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308}, set()),
    ],
)
def test_bounds_at_the_ends_of_64_bits_are_no_reason_to_refuse(part: Json, left_out: set[str]) -> None:
    """OpenAPI's and Java's code generators write them."""
    found = enforceable(holds(a=part))
    assert {relaxation.keyword for relaxation in found.relaxations} == left_out
