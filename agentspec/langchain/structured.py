"""Structured output: a schema in, an object of it out, or an error. Never part of an object.

It must not know how a schema is enforced; that is the grammar's work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, Self, TypeAlias, cast

from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.utils.pydantic import is_basemodel_subclass
from pydantic import BaseModel

from agentspec.chat.validate import validate_call
from agentspec.errors import ConfigError
from agentspec.langchain.metadata import PROVIDER
from agentspec.langchain.tools import ToolLike, single_tool
from agentspec.types import BoundTool, InvalidCall, Json

__all__ = ["Method", "ResponseFormat", "SchemaLike", "StructuredOutputParser", "with_parser"]

Method: TypeAlias = Literal["function_calling", "json_schema", "json_mode"]

SchemaLike: TypeAlias = "dict[str, Any] | type"
"""A JSON Schema with a title, a pydantic model (v2 or v1), or a TypedDict."""

_ANY_OBJECT: Mapping[str, Json] = {"type": "object"}


@dataclass(frozen=True)
class ResponseFormat:
    """What `response_format=` asks for: a reply that is exactly one JSON document of this schema, or, beside
    tools that may be called, calls or such a document.

    schema_shown: whether the model is told about it, at the end of the system turn
    """

    schema: Mapping[str, Json]
    schema_shown: bool

    @classmethod
    def parse(cls, value: object) -> Self | None:
        """From the OpenAI form. None for None and for plain text; raises ConfigError for anything else."""
        match value:
            case None | {"type": "text"}:
                return None
            case {"type": "json_object", "schema": Mapping() as schema}:
                return cls(cast(Mapping[str, Json], schema), schema_shown=False)
            case {"type": "json_object"}:
                return cls(_ANY_OBJECT, schema_shown=False)
            case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema}}:
                return cls(cast(Mapping[str, Json], schema), schema_shown=True)
            case _:
                raise ConfigError(
                    f"response_format {value!r} is not understood",
                    hint='use {"type": "json_object"}, or {"type": "json_schema", "json_schema": '
                    '{"name": ..., "schema": ...}}',
                )

    def instructions(self, *, beside_calls: bool) -> str:
        """What the model is told. beside_calls: whether it may call tools first"""
        when = "Once you need no further tool call, answer" if beside_calls else "Answer"
        text = json.dumps(self.schema, ensure_ascii=False)
        return f"{when} with one JSON document that fits this JSON Schema:\n{text}"

    @staticmethod
    def of(tool: BoundTool, method: Literal["json_schema", "json_mode"]) -> dict[str, object]:
        """The OpenAI form that asks for a tool's schema; for "json_mode" llama.cpp's form with a schema,
        which is enforced and not shown."""
        described = {"description": tool.description} if tool.description else {}
        schema = {"title": tool.name, **described, **tool.parameters}
        if method == "json_mode":
            return {"type": "json_object", "schema": schema}
        return {"type": "json_schema", "json_schema": {"name": tool.name, "schema": schema}}


@dataclass(frozen=True)
class StructuredOutputParser:
    """A finished reply to an object of the schema: a pydantic instance for a model, else a dict."""

    schema_class: type | None
    tool: BoundTool
    method: Method

    @classmethod
    def for_schema(cls, schema: SchemaLike, method: Method) -> Self:
        """Raises SchemaError, ConfigError as `bound_tools`."""
        return cls(
            schema_class=schema if isinstance(schema, type) and is_basemodel_subclass(schema) else None,
            tool=single_tool(cast(ToolLike, schema)),
            method=method,
        )

    def parse(self, message: AIMessage) -> object:
        """The object.

        Raises OutputParserException, with the reply's text, when the reply was cut off, holds no call or no
        JSON, or fails validation.
        """
        if self.method == "function_calling":
            return self._build(self._from_call(message))
        return self._build(self._from_text(message))

    def _from_call(self, message: AIMessage) -> Mapping[str, Json]:
        for call in message.tool_calls:
            if call["name"] == self.tool.name:
                return cast(Mapping[str, Json], call["args"])
        statistics: dict[str, Any] = message.response_metadata.get(PROVIDER, {})
        for invalid in statistics.get("invalid_tool_calls", ()):
            raise OutputParserException(str(invalid["error"]), llm_output=str(invalid["raw"]))
        raise OutputParserException(f"the reply does not call {self.tool.name!r}", llm_output=message.text)

    def _from_text(self, message: AIMessage) -> Mapping[str, Json]:
        text = str(message.text)
        reason = message.response_metadata.get("finish_reason")
        if reason != "stop":
            raise OutputParserException(
                f"the reply ended early (finish_reason {reason!r}); its JSON is not complete", llm_output=text
            )
        checked = validate_call({self.tool.name: self.tool}, self.tool.name, text)
        if isinstance(checked, InvalidCall):
            raise OutputParserException(checked.error, llm_output=text)
        return checked.arguments

    def _build(self, arguments: Mapping[str, Json]) -> object:
        model = self.schema_class
        if model is None:
            return dict(arguments)
        if issubclass(model, BaseModel):
            return model.model_validate(dict(arguments))
        return cast(Any, model).parse_obj(dict(arguments))  # a pydantic v1 model


def with_parser(
    model: Runnable[LanguageModelInput, AIMessage], parser: StructuredOutputParser, *, include_raw: bool
) -> Runnable[LanguageModelInput, Any]:
    """The model with its parser; with `include_raw`, {"raw", "parsed", "parsing_error"}."""
    # a lambda waits for the whole stream: LangChain's own JSON parsers hand out parts of objects
    parse: Runnable[AIMessage, Any] = RunnableLambda(parser.parse, name=type(parser).__name__)
    if not include_raw:
        return model | parse
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parse, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | parsed.with_fallbacks([failed], exception_key="parsing_error")
