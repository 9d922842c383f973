"""Every form of tool and of tool_choice, with the full schema and the check kept."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from langchain_core.tools import InjectedToolArg, StructuredTool, Tool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, Field, field_validator
from pydantic.v1 import BaseModel as BaseModelV1
from typing_extensions import TypedDict

from agentspec.errors import ConfigError, SchemaError
from agentspec.langchain.tools import (
    OpenAITool,
    ToolLike,
    bound_tools,
    choice_as_openai,
    single_tool,
    to_choice,
)
from agentspec.types import NamedTool, NamedTools, ToolChoice


def add(a: int, b: int = 2) -> int:
    """Adds.

    Args:
        a: the first
        b: the second
    """
    return a + b


class Add(BaseModel):
    """Adds."""

    a: int = Field(description="the first", ge=0)
    title: str = "x"
    base: int = Field(10, title="the radix")


class AddV1(BaseModelV1):
    """Adds."""

    a: int


class AddDict(TypedDict):
    """Adds."""

    a: Annotated[int, ..., "the first"]


class Node(BaseModel):
    """A tree."""

    children: list[Node] = []


class Even(BaseModel):
    """Takes even numbers."""

    n: int

    @field_validator("n")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("odd")
        return value


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (add, "add"),
        (tool(add), "add"),
        (Add, "Add"),
        (AddV1, "AddV1"),
        (AddDict, "AddDict"),
        ({"type": "function", "function": {"name": "f", "description": "Adds.", "parameters": SCHEMA}}, "f"),
        ({"name": "f", "description": "Adds.", "parameters": SCHEMA}, "f"),
        ({"name": "f", "description": "Adds.", "input_schema": SCHEMA}, "f"),
        ({"title": "f", "description": "Adds.", **SCHEMA}, "f"),
        (
            {"toolSpec": {"name": "f", "description": "Adds.", "inputSchema": {"json": SCHEMA}}},
            "f",
        ),
        (StructuredTool.from_function(name="f", description="Adds.", func=add, args_schema=SCHEMA), "f"),
    ],
)
def test_each_form(given: ToolLike, name: str) -> None:
    bound = single_tool(given)
    assert bound.name == name
    assert bound.description.startswith("Adds.")
    properties = bound.parameters["properties"]
    assert isinstance(properties, Mapping)
    argument = properties["a"]
    assert isinstance(argument, Mapping)
    assert argument["type"] == "integer"


def test_argument_descriptions_come_from_the_docstring() -> None:
    assert single_tool(add).parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "the first"},
            "b": {"type": "integer", "description": "the second", "default": 2},
        },
        "required": ["a"],
    }


def test_titles_that_repeat_names_go_and_an_argument_named_title_stays() -> None:
    assert single_tool(Add).parameters == {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "description": "the first", "minimum": 0},
            "title": {"type": "string", "default": "x"},
            "base": {"type": "integer", "default": 10, "title": "the radix"},
        },
        "required": ["a"],
    }


def test_a_recursive_schema_is_kept_whole() -> None:
    parameters = single_tool(Node).parameters
    assert parameters["$ref"] == "#/$defs/Node"
    flattened = convert_to_openai_tool(Node)["function"]["parameters"]
    assert "$defs" not in flattened  # why LangChain's own form is not used


def test_a_tool_without_arguments() -> None:
    def now() -> str:
        """Tells the time."""
        return "noon"

    assert single_tool(now).parameters == {"type": "object", "properties": {}}
    assert single_tool({"name": "now"}).parameters == {"type": "object", "properties": {}}


def test_a_tool_of_one_string() -> None:
    bound = single_tool(Tool(name="echo", description="Says it again.", func=str))
    assert bound.parameters["required"] == ["__arg1"]


def test_injected_arguments_are_not_the_models_to_give() -> None:
    @tool
    def greet(name: str, user: Annotated[str, InjectedToolArg]) -> str:
        """Greets."""
        return f"{name} {user}"

    bound = single_tool(greet)
    assert bound.parameters["properties"] == {"name": {"type": "string"}}
    assert bound.check is not None
    bound.check({"name": "x"})


@pytest.mark.parametrize(
    "given", [Even, StructuredTool.from_function(lambda n: n, name="Even", description="d", args_schema=Even)]
)
def test_the_check_is_pydantics(given: ToolLike) -> None:
    check = single_tool(given).check
    assert check is not None
    check({"n": 2})
    with pytest.raises(ValueError, match=r"^n: Value error, odd$"):
        check({"n": 3})


def test_the_check_of_a_v1_model() -> None:
    check = single_tool(AddV1).check
    assert check is not None
    with pytest.raises(ValueError, match="a: field required"):
        check({})


def test_of_tools_with_one_name_the_last_wins() -> None:
    tools = bound_tools([{"name": "f"}, {"name": "g"}, {"name": "f", "description": "new"}])
    assert [(tool.bound.name, tool.bound.description) for tool in tools] == [("f", "new"), ("g", "")]


def test_a_bound_tool_is_a_plain_dict_to_others_and_keeps_its_check_when_copied() -> None:
    (bound,) = bound_tools([Even])
    assert bound == {
        "type": "function",
        "function": {
            "name": "Even",
            "description": "Takes even numbers.",
            "parameters": {
                "type": "object",
                "properties": {"n": {"type": "integer"}},
                "required": ["n"],
            },
        },
    }
    copied = copy.deepcopy(bound)
    assert isinstance(copied, OpenAITool)
    assert copied.bound.check is not None
    assert bound_tools([copied]) == [bound]


def test_a_broken_schema_names_its_tool() -> None:
    with pytest.raises(SchemaError, match="'f'"):
        bound_tools([{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "intt"}}}}])
    with pytest.raises(SchemaError, match="'f'"):
        bound_tools([{"name": "f", "parameters": [1]}])


def test_a_type_json_cannot_hold_names_its_tool() -> None:
    def call(function: type[Add] | Any) -> None:
        """Calls."""

    class Holder(BaseModel):
        """Holds."""

        function: Any

    Holder.model_fields  # noqa: B018 - built
    assert single_tool(Holder).name == "Holder"

    class Opaque(BaseModel, arbitrary_types_allowed=True):
        """Holds."""

        thing: Tool

    with pytest.raises(SchemaError, match="'Opaque'"):
        single_tool(Opaque)


@pytest.mark.parametrize("given", [{"type": "web_search_preview"}, {"type": "object", "properties": {}}, 3])
def test_what_is_not_a_local_tool_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        single_tool(given)


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (None, "auto"),
        (False, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("any", "required"),
        ("required", "required"),
        (True, "required"),
        ("f", NamedTool("f")),
        ({"type": "function", "function": {"name": "f"}}, NamedTool("f")),
        ({"type": "function", "name": "f"}, NamedTool("f")),
        ({"type": "tool", "name": "f"}, NamedTool("f")),
        (["f"], NamedTools(("f",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"name": "f"}]}},
            NamedTools(("f",)),
        ),
        ({"type": "any"}, "required"),
        ({"type": "auto"}, "auto"),
    ],
)
def test_each_choice(given: object, choice: ToolChoice) -> None:
    assert to_choice(given, ["f"]) == choice
    assert to_choice(choice_as_openai(choice), ["f"]) == choice


@pytest.mark.parametrize(
    "given", ["g", {"type": "function", "function": {"name": "g"}}, 3, {"x": 1}, [], ["f", "g"], ["f", 3]]
)
def test_a_choice_that_cannot_be_made_is_refused(given: object) -> None:
    with pytest.raises(ConfigError):
        to_choice(given, ["f"])


def test_a_forced_call_without_tools_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tools"):
        to_choice("any", [])
