"""Strict JSON, schemas closed to unknown keys, broken schemas named, and the reasons of invalid calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

import pytest

from agentspec.chat.keywords import upgraded
from agentspec.chat.schema import check_tool, closed_schema
from agentspec.chat.strictjson import parse_json_strict, plain, write_json
from agentspec.chat.validate import argument_fault, compile_tool, document_fault, validate_call
from agentspec.errors import SchemaError
from agentspec.types import BoundTool, InvalidCall, Json, ValidCall

Schema = dict[str, Json]


def tool(parameters: Mapping[str, Json], name: str = "f") -> BoundTool:
    return BoundTool(name, "", parameters)


def fault(parameters: Mapping[str, Json], arguments: str) -> str | None:
    result = validate_call({"f": tool(parameters)}, "f", arguments)
    if isinstance(result, ValidCall):
        assert result.arguments == json.loads(arguments)
        return None
    assert result.raw == arguments
    return result.error


# ------------------------------------------------------------------------------------- strict JSON


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 1}', "'a' appears twice"),
        ('{"a": 1, "\\u0061": 2}', "'a' appears twice"),
        ('[{"b": {"a": 1, "a": 2}}]', "'a' appears twice"),
        ("NaN", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ("1e999", "out of range"),
        ("-1E+400", "out of range"),
        ("9" * 400, "out of range"),
        ('"\\ud800"', "surrogate"),
        ('{"\\udc00": 1}', "surrogate"),
        ('"\\ud800\\ud800"', "surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ("", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": 1,}', "not JSON"),
        ('{"a": 1} x', "not JSON"),
        ('"a\nb"', "not JSON"),
        ("{{}}", "not JSON"),
        ("01", "not JSON"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_json_strict(text)
    assert len(str(caught.value)) < 120


def test_read() -> None:
    text = ' {"a": [1, -2.5e3, true, null, "\\ud83d\\ude00é"], "b": {}}\n'
    assert parse_json_strict(text) == {"a": [1, -2500.0, True, None, "😀é"], "b": {}}


def test_write_is_one_line_in_the_templates_separators() -> None:
    assert write_json({"b": ("é", None), "a": {"x": 1.0}}) == '{"b": ["é", null], "a": {"x": 1.0}}'
    with pytest.raises(ValueError, match="Out of range"):
        write_json([float("nan")])


def test_plain_copies() -> None:
    given: Schema = {"a": [1]}
    copy = cast("dict[str, list[Json]]", plain(given))
    copy["a"].append(2)
    assert given == {"a": [1]}


# -------------------------------------------------------------------------------- closed schemas

A: Schema = {"type": "object", "properties": {"a": {"type": "string"}}}
B: Schema = {"type": "object", "properties": {"b": {"type": "string"}}}


def test_missing_additional_properties_counts_as_false_on_every_level() -> None:
    closed = closed_schema(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$defs": {"N": A},
            "properties": {"x": A, "y": {"type": "array", "items": B}, "z": {"$ref": "#/$defs/N"}},
        }
    )
    shut_a, shut_b = {**A, "additionalProperties": False}, {**B, "additionalProperties": False}
    assert closed == {
        "type": "object",
        "$defs": {"N": shut_a},
        "properties": {"x": shut_a, "y": {"type": "array", "items": shut_b}, "z": {"$ref": "#/$defs/N"}},
        "additionalProperties": False,
    }


def test_a_tool_without_arguments_takes_none() -> None:
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    assert closed_schema({}) == closed_schema({"type": "object"}) == nothing
    assert fault({"type": "object"}, '{"a": 1}') == "arguments: unexpected 'a'; the keys are: none"
    assert fault({"type": "object"}, "{}") is None


@pytest.mark.parametrize(
    "open_schema",
    [
        {**A, "additionalProperties": True},
        {**A, "additionalProperties": {"type": "integer"}},
        {**A, "patternProperties": {"^x-": {}}},
        {**A, "unevaluatedProperties": {"type": "integer"}},
        {**A, "propertyNames": {"maxLength": 3}},
        {**A, "required": ["a", "undeclared"]},
        {**A, "allOf": [B]},
        {**A, "anyOf": [B, {"required": ["a"]}]},
        {**A, "oneOf": [B]},
        {**A, "not": {"properties": {"b": {"const": "no"}}, "required": ["b"]}},
        {**A, "if": {"properties": {"a": {"const": "x"}}}, "then": B},
        {**A, "dependentSchemas": {"a": B}},
        {"allOf": [A, B]},
        {**A, "$defs": {"B": B}, "$ref": "#/properties/x/$defs/B"},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ],
)
def test_what_says_otherwise_stays_as_it_is(open_schema: Schema) -> None:
    assert closed_schema({"properties": {"x": open_schema}})["properties"] == {"x": open_schema}


def test_alternatives_are_closed_one_by_one() -> None:
    schema: Schema = {"properties": {"x": {"anyOf": [A, {"type": "null"}, B]}}}
    assert fault(schema, '{"x": {"a": ""}}') is None
    assert fault(schema, '{"x": {"b": ""}}') is None
    assert fault(schema, '{"x": null}') is None
    assert fault(schema, '{"x": {"a": "", "b": ""}}') is not None


def test_a_definition_shared_with_a_composition_stays_open() -> None:
    schema: Schema = {
        "$defs": {"Base": A, "Derived": {"allOf": [{"$ref": "#/$defs/Base"}, B]}},
        "properties": {"x": {"$ref": "#/$defs/Derived"}},
    }
    assert fault(schema, '{"x": {"a": "", "b": ""}}') is None


def test_closing_never_makes_valid_what_was_not() -> None:
    # as given, both branches match {"a": ""}; closed, only the first would
    schema: Schema = {"properties": {"x": {"oneOf": [A, B]}}}
    assert fault(schema, '{"x": {"a": ""}}') is not None


def test_closed_schema_is_a_copy() -> None:
    given: Schema = {"properties": {"x": dict(A)}}
    before = json.dumps(given)
    closed_schema(given)
    assert json.dumps(given) == before


# ------------------------------------------------------------------------------- broken schemas


@pytest.mark.parametrize(
    ("parameters", "pointer", "keyword"),
    [
        ({"type": "dict"}, "/type", "type"),
        ({"type": "array"}, "/type", "type"),
        ({"properties": {"a/b": {"type": "any"}}}, "/properties/a~1b/type", "type"),
        ({"properties": {"a": {"pattern": "["}}}, "/properties/a/pattern", "pattern"),
        ({"properties": {"a": {"enum": "x"}}}, "/properties/a/enum", "enum"),
        ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength", "minLength"),
        ({"required": "a"}, "/required", "required"),
        ({"$ref": "https://example.org/schema.json"}, "/$ref", "$ref"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "/properties/a/$ref", "$ref"),
        ({"properties": {"a": {"$ref": "#/$defs/None"}}}, "/properties/a/$ref", "$ref"),
        ({"properties": {"a": {"$dynamicRef": "#x"}}}, "/properties/a/$dynamicRef", "$dynamicRef"),
        ({"properties": {"a": {"$id": "https://x.org/"}}}, "/properties/a/$id", "$id"),
        (
            {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}]}}},
            "/$defs/A",
            "$ref",
        ),
        ({"properties": {"a": {"const": float("nan")}}}, "", ""),
    ],
)
def test_broken_schemas_are_named(parameters: Schema, pointer: str, keyword: str) -> None:
    with pytest.raises(SchemaError, match="tool 'f'") as caught:
        compile_tool(tool(parameters))
    assert (caught.value.tool, caught.value.pointer, caught.value.keyword) == ("f", pointer, keyword)


def test_a_schema_that_is_no_object_is_named() -> None:
    with pytest.raises(SchemaError, match="not a JSON object"):
        check_tool(BoundTool("f", "", cast("Schema", ["x"])))


def test_a_property_may_be_named_like_a_keyword() -> None:
    check_tool(tool({"properties": {"$ref": {"type": "string"}, "properties": {"type": "string"}}}))


def test_recursive_schemas_are_fine() -> None:
    tree: Schema = {
        "$defs": {"T": {"properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/T"}}}}},
        "properties": {"root": {"$ref": "#/$defs/T"}},
    }
    check_tool(tool(tree))
    assert fault(tree, '{"root": {"kids": [{"kids": []}, {}]}}') is None
    assert fault(tree, '{"root": {"kids": [{"kid": []}]}}') is not None


def test_deep_arguments_of_a_recursive_schema() -> None:
    deep = '{"a":' * 300 + "{}" + "}" * 300
    schema: Schema = {"properties": {"a": {"$ref": "#"}}}
    assert fault(schema, deep) == "arguments: nested too deeply"


# ------------------------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("schema", "arguments", "reason"),
    [
        (
            {"properties": {"a": {"type": "integer"}}},
            '{"a": "1"}',
            "arguments.a: expected integer, got string",
        ),
        ({"properties": {"a": {"type": ["integer", "null"]}}}, '{"a": true}', "integer or null, got boolean"),
        ({"properties": {"a": {"enum": ["x", 1]}}}, '{"a": "é"}', 'expected one of ["x", 1], got "é"'),
        ({"properties": {"a": {"const": 1}}}, '{"a": 2}', "expected 1, got 2"),
        ({"properties": {"a": {}}, "required": ["a"]}, "{}", "arguments: 'a' is missing"),
        ({"properties": {"a": {}}}, '{"b": 1}', "arguments: unexpected 'b'; the keys are: a"),
        (
            {"properties": {"a": {"items": {"minimum": 3}}}},
            '{"a": [3, 2]}',
            "arguments.a[1]: expected minimum 3",
        ),
        ({"properties": {"a": {"format": "date"}}}, '{"a": "2023-02-30"}', "expected format 'date'"),
        ({"properties": {"a": {"pattern": "^x$"}}}, '{"a": "y"}', "expected pattern '^x$'"),
        ({"properties": {"a": {"maxItems": 1}}}, '{"a": [1, 2]}', "arguments.a: "),
        ({"properties": {"a": {"multipleOf": 0.5}}}, '{"a": 1' + "0" * 309 + "}", "out of range"),
        ({}, "[]", "arguments: expected an object, got array"),
        ({}, "null", "arguments: expected an object, got null"),
        ({}, '{"a": 1', "arguments: not JSON"),
    ],
)
def test_reasons(schema: Schema, arguments: str, reason: str) -> None:
    found = fault(schema, arguments)
    assert found is not None
    assert reason in found
    assert len(found) <= 300


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("date-time", "2024-02-29T23:59:60Z", "2023-02-29T00:00:00Z"),
        ("date-time", "2024-02-29t01:02:03.5+02:00", "2024-02-29 01:02:03Z"),
        ("time", "01:02:03-08:00", "01:02:03"),
        ("date", "2024-02-29", "2024-2-9"),
        ("email", "a@b.c", "nobody"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
    ],
)
def test_formats_are_checked(kind: str, good: str, bad: str) -> None:
    schema: Schema = {"properties": {"a": {"format": kind}}}
    assert fault(schema, json.dumps({"a": good})) is None
    assert fault(schema, json.dumps({"a": bad})) is not None


def test_unknown_tool() -> None:
    result = validate_call({"f": tool({}), "g": tool({}, "g")}, "h", "{}")
    assert result == InvalidCall("h", "{}", "unknown tool 'h'; the tools are: f, g")


def test_the_tools_own_check_has_the_last_word() -> None:
    def check(arguments: Mapping[str, Json]) -> None:
        if arguments["a"] == 13:
            raise ValueError("not on a Friday")

    checked = BoundTool("f", "", {"properties": {"a": {"type": "integer"}}, "required": ["a"]}, check)
    assert validate_call({"f": checked}, "f", '{"a": 12}') == ValidCall("f", {"a": 12})
    assert argument_fault(checked, {"a": 13}) == "arguments: not on a Friday"
    assert argument_fault(checked, {"a": "x"}) == "arguments.a: expected integer, got string"


def test_tools_of_one_name_do_not_share_a_validator() -> None:
    assert argument_fault(tool(A), {"a": ""}) is None
    assert argument_fault(tool(B), {"a": ""}) is not None


# ------------------------------------------------------------------------------------------ older drafts


def within(schema: Json) -> dict[str, Json]:
    return {"properties": {"items": {"anyOf": [schema]}}}


@pytest.mark.parametrize(
    ("older", "same"),
    [
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"maximum": 9, "exclusiveMaximum": False}, {"maximum": 9}),
        ({"exclusiveMinimum": True}, {}),
        ({"exclusiveMaximum": 3}, {"exclusiveMaximum": 3}),
        ({"items": [{"minimum": 0, "exclusiveMinimum": True}]}, {"prefixItems": [{"exclusiveMinimum": 0}]}),
        ({"items": [{}], "additionalItems": False}, {"prefixItems": [{}], "items": False}),
        ({"items": {}, "additionalItems": False}, {"items": {}}),
        (
            {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
            {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"required": ["d"]}}},
        ),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_forms_of_older_drafts_are_read(older: dict[str, Json], same: dict[str, Json], inside: bool) -> None:
    """As the draft that they come from means them; whatever else is said keeps its meaning."""
    if inside:
        older, same = within(older), within(same)
    given = json.dumps(older)
    assert upgraded(older) == same
    assert json.dumps(older) == given
    check_tool(BoundTool("f", "", {"type": "object", "properties": {"x": older}}))


def test_a_call_is_held_to_a_schema_of_an_older_draft() -> None:
    pages: dict[str, Json] = {"type": "integer", "minimum": 0, "exclusiveMinimum": True}
    tool = BoundTool("f", "", {"type": "object", "properties": {"pages": pages}})
    assert isinstance(validate_call({"f": tool}, "f", '{"pages": 1}'), ValidCall)
    assert isinstance(validate_call({"f": tool}, "f", '{"pages": 0}'), InvalidCall)


# -------------------------------------------------------------------------------------------- documents


def test_a_document_need_not_be_an_object() -> None:
    numbers: dict[str, Json] = {"type": "array", "items": {"type": "integer"}}
    assert document_fault(numbers, "[1, 2]") is None
    assert document_fault(numbers, '[1, "a"]') == "document[1]: expected integer, got string"
    assert str(document_fault(numbers, "[1,")).startswith("document: ")
    point: dict[str, Json] = {"type": "object", "properties": {"x": {"type": "integer"}}}
    assert document_fault(point, '{"x": 1}') is None
    assert document_fault(point, '{"x": 1, "y": 2}') == "document: unexpected 'y'; the keys are: x"
    with pytest.raises(SchemaError, match="'response'"):
        document_fault({"type": "strnig"}, "1")


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("^(on|off)$", "on", True),
        ("^(on|off)$", "on\n", False),
        (r"^\$[0-9]+$", "$5", True),
        (r"^[$]x$", "$x", True),
        (r"^[\]$]+$|^y$", "]$", True),
        (r"^[\]$]+$|^y$", "y\n", False),
        ("^[]$]+$", "]$", True),
        ("^[^]$]+$", "ab", True),
    ],
)
def test_a_pattern_ends_where_the_text_ends(pattern: str, text: str, fits: bool) -> None:
    schema: dict[str, Json] = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    assert (argument_fault(BoundTool("f", "", schema), {"a": text}) is None) is fits


def test_so_does_a_pattern_of_keys_and_of_a_part_with_a_draft_of_its_own() -> None:
    keys: dict[str, Json] = {
        "type": "object",
        "patternProperties": {"^x$": {}},
        "additionalProperties": False,
    }
    assert argument_fault(BoundTool("f", "", keys), {"x": 1}) is None
    assert argument_fault(BoundTool("f", "", keys), {"x\n": 1}) is not None
    part: Json = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "pattern": "^a$"}
    fault = argument_fault(BoundTool("f", "", {"type": "object", "properties": {"p": part}}), {"p": "a\n"})
    assert fault is not None
    assert "'^a$'" in fault
