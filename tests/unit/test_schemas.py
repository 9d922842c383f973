"""The example tools in `schemas/` are what a user may copy: well-formed tools, with a sound call of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import jsonschema
import pytest

from agentspec.chat.formats import HERMES, render_calls
from agentspec.chat.keywords import LISTS, MAPS, ONE
from agentspec.chat.validate import argument_fault
from agentspec.grammar.enforce import enforceable_tool
from agentspec.grammar.reply import compile_reply
from agentspec.types import BoundTool, Json
from tests.langchain_fakes import fake_model
from tests.unit.example_tools import OWN, SCHEMAS, TOOL_FILES, bound, calls_of
from tests.unit.grammars import fits, small_tokenizer

ON_PURPOSE = {"create_issue": ["/properties/labels/uniqueItems"]}
"""What no grammar enforces: schemas/README.md says so."""

each_file = pytest.mark.parametrize("path", TOOL_FILES, ids=lambda path: path.stem)


def schemas_in(schema: Json, place: str = "") -> Iterator[tuple[str, Mapping[str, Json]]]:
    """A schema and those inside it, with their pointers."""
    if not isinstance(schema, Mapping):
        return
    yield place, schema
    for key, value in schema.items():
        if key in ONE:
            yield from schemas_in(value, f"{place}/{key}")
        elif key in LISTS and isinstance(value, list):
            for index, one in enumerate(value):
                yield from schemas_in(one, f"{place}/{key}/{index}")
        elif key in MAPS and isinstance(value, Mapping):
            for name, one in value.items():
                yield from schemas_in(one, f"{place}/{key}/{name}")


# ------------------------------------------------------------------------------------------------ our own


def test_our_own_files_have_schemas() -> None:
    assert {path.name for path in OWN} >= {"catalogue.v1.schema.json", "bench.v1.schema.json"}


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_own_schemas_are_sound(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


# ------------------------------------------------------------------------------------------ example tools


def test_there_are_a_dozen_files_and_the_readme_tells_of_each() -> None:
    listed = (SCHEMAS / "README.md").read_text(encoding="utf-8")
    assert len(TOOL_FILES) == 12
    names = [name for path in TOOL_FILES for name in bound(path)]
    assert len(names) == len({*names})  # so that they can be bound together
    for path in TOOL_FILES:
        (row,) = (line for line in listed.splitlines() if line.startswith(f"| [{path.name}]({path.name}) |"))
        assert all(f"`{name}`" in row for name in bound(path))


@each_file
def test_example_tools_are_sound(path: Path) -> None:
    for tool in json.loads(path.read_text(encoding="utf-8")):
        assert set(tool) == {"type", "function"}
        assert tool["type"] == "function"
        function = tool["function"]
        assert set(function) == {"name", "description", "parameters"}
        assert function["description"].endswith(".")
        parameters = function["parameters"]
        jsonschema.Draft202012Validator.check_schema(parameters)
        assert parameters["type"] == "object"
        for place, schema in schemas_in(parameters):
            match schema:
                case {"properties": dict(properties), "required": list(required), **others}:
                    assert set(required) <= set(properties), place
                    assert others["additionalProperties"] is False, place
                case _:
                    assert "properties" not in schema, place


@each_file
def test_every_property_is_described_and_everything_has_a_bound(path: Path) -> None:
    """A model that is held to a schema without bounds may write a string or a list without end."""
    for name, tool in bound(path).items():
        for place, schema in schemas_in(tool.parameters):
            where = f"{name}{place}"
            if place.rpartition("/")[0].endswith("/properties"):
                assert str(schema.get("description") or target_of(schema, tool).get("description")), where
            assert not unbounded(schema), where


def unbounded(schema: Mapping[str, Json]) -> bool:
    """A number in a choice of scalars has no bound either: it stands for any."""
    match schema:
        case {"enum": _} | {"format": "date" | "date-time" | "uuid"}:
            return False
        case {"type": "string"}:
            return "maxLength" not in schema and not str(schema.get("pattern", "")).endswith("$")
        case {"type": "array"}:
            return "maxItems" not in schema
        case {"type": "integer" | "number"}:
            lowest = {"minimum", "exclusiveMinimum"} & schema.keys()
            return not lowest and schema != {"type": "number"}
        case {"type": "object", "additionalProperties": Mapping()}:
            return not {"propertyNames", "maxProperties"} <= schema.keys()
        case _:
            return False


def target_of(schema: Mapping[str, Json], tool: BoundTool) -> Mapping[str, Json]:
    definitions = tool.parameters.get("$defs", {})
    assert isinstance(definitions, Mapping)
    found = definitions[str(schema["$ref"]).removeprefix("#/$defs/")]
    assert isinstance(found, Mapping)
    return found


@each_file
def test_example_tools_are_enforced_whole(path: Path) -> None:
    for name, tool in bound(path).items():
        given_up = [one.pointer for one in enforceable_tool(tool).relaxations]
        assert given_up == ON_PURPOSE.get(name, [])


@each_file
def test_every_tool_has_a_call_that_fits_and_that_the_grammar_takes(path: Path) -> None:
    tools, calls = bound(path), calls_of(path)
    assert {name for name, _ in calls} == tools.keys()
    for name, arguments in calls:
        assert argument_fault(tools[name], arguments) is None
        grammar = compile_reply(small_tokenizer(), HERMES, [*tools.values()], "required", parallel=False)
        assert grammar is not None
        state = grammar.start()
        assert fits(small_tokenizer(), state, render_calls(HERMES, [(name, arguments)])), name
        assert state.accepting()


def test_what_the_grammar_cannot_enforce_is_found_afterwards() -> None:
    tool = bound(SCHEMAS / "issues.json")["create_issue"]
    (arguments,) = (made for name, made in calls_of(SCHEMAS / "issues.json") if name == tool.name)
    assert argument_fault(tool, {**arguments, "labels": ["bug", "bug"]}) is not None


@each_file
def test_a_chat_model_takes_the_file_and_gives_its_calls(path: Path) -> None:
    """As schemas/README.md shows it."""
    calls = calls_of(path)
    model = fake_model(render_calls(HERMES, calls), parallel_tool_calls=True)
    reply = model.bind_tools(json.loads(path.read_text(encoding="utf-8"))).invoke("Hello")
    assert [(call["name"], call["args"]) for call in reply.tool_calls] == calls
    assert reply.invalid_tool_calls == []


def test_all_files_can_be_bound_at_once() -> None:
    tools = [tool for path in TOOL_FILES for tool in bound(path).values()]
    for choice in ("required", "auto"):
        assert compile_reply(small_tokenizer(), HERMES, tools, choice) is not None
