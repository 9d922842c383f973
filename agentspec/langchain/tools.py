"""Tools and tool choices, in every form LangChain has, to the project's own.

The grammar and the validator get each tool's **full** schema. LangChain's OpenAI form of it loses things:
recursive models become `{}`, discriminators keep dead references, `strict=True` closes open maps. It must
not know messages or models, nor how grammars are made.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from langchain_core.tools import BaseTool, Tool, create_schema_from_function
from langchain_core.utils.function_calling import convert_to_openai_function
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel
from pydantic.errors import PydanticUserError
from typing_extensions import is_typeddict

from agentspec.chat.validate import check_tool
from agentspec.errors import ConfigError, SchemaError
from agentspec.grammar.enforce import check_enforced, enforceable_tool
from agentspec.types import BoundTool, Json, NamedTool, NamedTools, ToolChoice

__all__ = [
    "OpenAITool",
    "ToolLike",
    "bound_tools",
    "choice_as_openai",
    "single_tool",
    "sound_tools",
    "to_choice",
]

ToolLike: TypeAlias = "Mapping[str, object] | type | Callable[..., object] | BaseTool"
"""A tool as users write it: a BaseTool, a function, a pydantic model (v2 or v1), a TypedDict, or a dict in
OpenAI, Anthropic, MCP or Bedrock form, or a JSON Schema with a title."""

_EMPTY: Mapping[str, Json] = {"type": "object", "properties": {}}


class OpenAITool(dict[str, object]):
    """A tool as LangChain keeps it in `kwargs["tools"]`: a dict in OpenAI form.

    That is what tracers show and caches take their keys from. It remembers the tool it stands for, because
    a dict cannot hold its pydantic check.
    """

    def __init__(self, bound: BoundTool) -> None:
        super().__init__(
            type="function",
            function={
                "name": bound.name,
                "description": bound.description,
                "parameters": bound.parameters,
            },
        )
        self.bound = bound


class _Validated(Protocol):
    """What pydantic's v1 models have; v1 itself is never imported."""

    @classmethod
    def schema(cls) -> dict[str, Json]: ...

    @classmethod
    def parse_obj(cls, obj: object) -> object: ...


def sound_tools(tools: Sequence[ToolLike], *, whole: bool) -> list[OpenAITool]:
    """`bound_tools`, but for those whose schema is broken or cannot be enforced: a warning names each.

    whole: whether a schema has to be enforced whole

    Raises SchemaError where no tool is left, and where one is not enforced whole that has to be; ConfigError
    for what is not a tool.
    """
    sound: list[OpenAITool] = []
    refused: list[SchemaError] = []
    for tool in tools:
        try:
            converted = tool if isinstance(tool, OpenAITool) else OpenAITool(single_tool(tool))
            found = enforceable_tool(converted.bound)
        except SchemaError as error:
            refused.append(error)
            continue
        if whole:
            check_enforced(converted.bound.name, found)
        sound.append(converted)
    if refused and (whole or not sound):
        raise refused[0]
    for fault in refused:
        warnings.warn(f"not bound: {fault}", UserWarning, stacklevel=3)
    return bound_tools(sound)


def bound_tools(tools: Sequence[ToolLike]) -> list[OpenAITool]:
    """The tools, checked. Of several with one name the last wins, as LangChain's agents expect.

    Raises SchemaError naming the tool whose schema is broken, ConfigError for what is not a tool.
    """
    named: dict[str, OpenAITool] = {}
    for tool in tools:
        converted = tool if isinstance(tool, OpenAITool) else OpenAITool(single_tool(tool))
        named[converted.bound.name] = converted
    return list(named.values())


def single_tool(tool: ToolLike) -> BoundTool:
    """One tool, with its full schema. Raises as `bound_tools`."""
    bound = _convert(tool)
    check_tool(bound)
    return bound


def to_choice(value: object, names: Sequence[str]) -> ToolChoice:
    """`tool_choice` in any of LangChain's forms: None, False, "auto", "none", "any", "required", True, a
    tool's name, a list of names of which one must be called, and the OpenAI and Anthropic dicts.

    Raises ConfigError for a tool that is not bound, and for a forced call without tools.
    """
    choice = _choice(value)
    wanted: tuple[str, ...] = ()
    if isinstance(choice, NamedTool | NamedTools):
        wanted = (choice.name,) if isinstance(choice, NamedTool) else choice.names
    for name in wanted:
        if name not in names:
            known = ", ".join(names) or "none"
            raise ConfigError(f"tool_choice names {name!r}, which is not bound", hint=f"tools: {known}")
    if choice == "required" and not names:
        raise ConfigError("tool_choice asks for a call, but no tools are bound", hint="bind tools first")
    return choice


def choice_as_openai(choice: ToolChoice) -> str | dict[str, object]:
    """The choice as LangChain keeps it in `kwargs["tool_choice"]`."""
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    if isinstance(choice, NamedTools):
        tools = [{"type": "function", "function": {"name": name}} for name in choice.names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}
    return choice


def _choice(value: object) -> ToolChoice:
    match value:
        case None | False | "auto" | {"type": "auto"}:
            return "auto"
        case "none" | {"type": "none"}:
            return "none"
        case True | "any" | "required" | {"type": "any" | "required"}:
            return "required"
        case str(name) | {"type": "function", "function": {"name": str(name)}}:
            return NamedTool(name)
        case {"type": "tool" | "function", "name": str(name)}:
            return NamedTool(name)
        case [str(), *_] as listed if all(isinstance(name, str) for name in listed):
            return NamedTools(tuple(map(str, listed)))
        case {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [_, *_] as tools}}:
            return NamedTools(tuple(_name_of(tool) for tool in tools))
        case _:
            raise ConfigError(
                f"tool_choice {value!r} is not understood",
                hint="use 'auto', 'none', 'any', a tool's name, a list of names, or "
                '{"type": "function", "function": {"name": ...}}',
            )


def _name_of(tool: object) -> str:
    match tool:
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
        case _:
            raise ConfigError(f"tool_choice: {tool!r} names no tool")


def _convert(tool: ToolLike) -> BoundTool:
    if isinstance(tool, BaseTool):
        return _from_base_tool(tool)
    if isinstance(tool, Mapping):
        return _from_mapping(tool)
    if isinstance(tool, type) and is_basemodel_subclass(tool):
        return _from_model(tool)
    if is_typeddict(tool):
        return _from_openai(convert_to_openai_function(cast(type, tool)))
    if callable(tool):
        return _from_function(tool)
    raise ConfigError(
        f"{tool!r} is not a tool", hint="bind functions, BaseTools, pydantic models, TypedDicts or dicts"
    )


def _from_base_tool(tool: BaseTool) -> BoundTool:
    if isinstance(tool, Tool) and not tool.args_schema:  # takes one string, under any name
        return _from_openai(convert_to_openai_function(tool))
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        return BoundTool(tool.name, tool.description, _without(_untitled(schema), "description"))
    full = tool.args_schema
    if isinstance(full, type) and _fields(full) == _fields(schema):
        schema = full  # no injected arguments: the class itself, whose validators LangChain's subset loses
    return _from_model(schema, name=tool.name, description=tool.description)


def _from_function(function: Callable[..., object]) -> BoundTool:
    name = getattr(function, "__name__", type(function).__name__)
    model = create_schema_from_function(
        name, function, filter_args=(), parse_docstring=True, error_on_invalid_docstring=False
    )
    return _from_model(model, name=name, description=inspect.cleandoc(model.__doc__ or ""))


def _from_model(model: type, *, name: str = "", description: str | None = None) -> BoundTool:
    try:
        schema = _model_schema(model)
    except PydanticUserError as error:
        raise SchemaError(
            f"pydantic has no JSON Schema for it: {error.message}",
            tool=name or model.__name__,
            hint="give every argument a type that JSON can hold",
        ) from error
    name = name or str(schema.get("title") or model.__name__)
    if description is None:
        description = str(schema.get("description") or "")
    return BoundTool(
        name, description, _without(_untitled(schema), "description"), check=_PydanticCheck(model)
    )


def _from_mapping(tool: Mapping[str, object]) -> BoundTool:
    match tool:
        case {"type": "function", "function": {"name": str()} as function}:
            return _from_openai(cast(Mapping[str, object], function))
        case {"name": str(), "input_schema": Mapping() as schema} | {
            "name": str(),
            "inputSchema": Mapping() as schema,
        }:
            return _from_openai({**tool, "parameters": schema})
        case {"name": str()} if tool.get("type", "function") == "function":
            return _from_openai(tool)
        case {"title": str(name), "properties": Mapping()}:
            schema = cast(Mapping[str, Json], tool)
            description = str(schema.get("description") or "")
            return BoundTool(name, description, _without(schema, "title", "description"))
        case {"title": str(name)} if "type" not in tool:
            return BoundTool(name, str(tool.get("description") or ""), _EMPTY)
        case {"toolSpec": Mapping()}:
            return _from_openai(convert_to_openai_function(dict(tool)))
        case {"type": str(kind)} if "properties" not in tool:
            raise ConfigError(
                f"a tool of type {kind!r} runs at its provider; a local model has only tools you run",
                hint="bind a function or a dict in OpenAI form",
            )
        case _:
            raise ConfigError(
                f"a tool without a name: {dict(tool)!r}",
                hint="give the JSON Schema a 'title', or use the OpenAI form",
            )


def _from_openai(function: Mapping[str, object]) -> BoundTool:
    parameters = function.get("parameters") or _EMPTY
    name = str(function["name"])
    if not isinstance(parameters, Mapping):
        raise SchemaError(f"its parameters are {type(parameters).__name__}, not an object", tool=name)
    return BoundTool(name, str(function.get("description") or ""), cast(Mapping[str, Json], parameters))


def _model_schema(model: type) -> Mapping[str, Json]:
    if issubclass(model, BaseModel):
        return cast(Mapping[str, Json], model.model_json_schema())
    return cast(_Validated, model).schema()


@dataclass(frozen=True)
class _PydanticCheck:
    """The check of a tool that has a pydantic model, of either version."""

    model: type

    def __call__(self, arguments: Mapping[str, Json]) -> None:
        model = self.model
        validate: Callable[[object], object] = (
            model.model_validate if issubclass(model, BaseModel) else cast(_Validated, model).parse_obj
        )
        try:
            validate(dict(arguments))
        except ValueError as error:  # pydantic's ValidationError, of either version
            raise ValueError(_reason(error)) from error

    def __deepcopy__(self, memo: object) -> _PydanticCheck:
        return self

    def __reduce__(self) -> tuple[type, tuple[type, ...]]:
        """What LangChain makes of a function's signature is no class that another process could import: its
        tools leave the check behind, as None, and keep the schema."""
        model = self.model
        if getattr(sys.modules.get(model.__module__), model.__qualname__, None) is model:
            return _PydanticCheck, (model,)
        return type(None), ()


def _reason(error: ValueError) -> str:
    """pydantic's findings on one line."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}" for item in errors()
    )


def _fields(model: type) -> frozenset[str]:
    fields: Mapping[str, object] = getattr(model, "model_fields", None) or getattr(model, "__fields__", {})
    return frozenset(fields)


def _without(schema: Mapping[str, Json], *keys: str) -> Mapping[str, Json]:
    return {key: value for key, value in schema.items() if key not in keys}


_SCHEMA_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
_VALUES = frozenset({"const", "enum", "default", "examples"})


def _untitled(schema: Mapping[str, Json]) -> Mapping[str, Json]:
    """The schema without its own title, and without those pydantic makes out of the names of arguments:
    they say nothing, and the model reads them at three tokens each."""
    return cast(Mapping[str, Json], _strip(_without(schema, "title")))


def _strip(schema: Json, name: str | None = None) -> Json:
    if isinstance(schema, Mapping):
        repeats = name is not None and _words(schema.get("title")) == _words(name)
        return {
            key: value if key in _VALUES else _strip_map(value) if key in _SCHEMA_MAPS else _strip(value)
            for key, value in schema.items()
            if not (repeats and key == "title")
        }
    if isinstance(schema, Sequence) and not isinstance(schema, str):
        return [_strip(item) for item in schema]
    return schema


def _strip_map(schemas: Json) -> Json:
    """Here the keys are names, and "title" may be one of them."""
    if not isinstance(schemas, Mapping):
        return schemas
    return {name: _strip(schema, name) for name, schema in schemas.items()}


def _words(text: Json) -> str:
    return str(text).replace("_", " ").lower()
