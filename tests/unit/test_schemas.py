"""The example tools in `schemas/` are what a user may copy: well-formed tools with sound schemas."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from agentspec.chat.formats import HERMES
from agentspec.grammar.reply import compile_reply
from agentspec.types import BoundTool
from tests.unit.grammars import small_tokenizer

SCHEMAS = Path(__file__).parents[2] / "schemas"
OWN = sorted(SCHEMAS.glob("*.schema.json"))
TOOLS = sorted(set(SCHEMAS.glob("*.json")) - set(OWN))


def test_there_are_examples_and_schemas_of_our_own_files() -> None:
    assert {path.name for path in TOOLS} >= {"calendar.json", "flights.json", "weather.json"}
    assert {path.name for path in OWN} >= {"catalogue.v1.schema.json"}


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_own_schemas_are_sound(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.name)
def test_example_tools_are_sound(path: Path) -> None:
    for tool in json.loads(path.read_text(encoding="utf-8")):
        assert set(tool) == {"type", "function"}
        assert tool["type"] == "function"
        function = tool["function"]
        assert set(function) == {"name", "description", "parameters"}
        jsonschema.Draft202012Validator.check_schema(function["parameters"])
        assert function["parameters"]["type"] == "object"
        assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: path.name)
def test_example_tools_can_be_enforced(path: Path) -> None:
    functions = [tool["function"] for tool in json.loads(path.read_text(encoding="utf-8"))]
    tools = [BoundTool(each["name"], each["description"], each["parameters"]) for each in functions]
    for choice in ("required", "auto"):
        assert compile_reply(small_tokenizer(), HERMES, tools, choice) is not None
