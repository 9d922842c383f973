"""`ChatAgentSpec`: the LangChain chat model.

This file holds the fields and LangChain's hooks; each hook says what is asked and leaves the how to the
modules beside it. It must not know prompts, grammars or tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSerializable
from langchain_core.runnables.utils import AnyConfigurableField
from langchain_core.tools import BaseTool
from pydantic import Field, SecretStr, model_validator
from typing_extensions import override

from agentspec import __version__
from agentspec.config import ToolOptions
from agentspec.errors import ConfigError
from agentspec.langchain.call import TOOL_ARGUMENTS, ChatCall, prepare
from agentspec.langchain.convert import to_turns
from agentspec.langchain.driving import achunks, afinish, chunks, finish
from agentspec.langchain.errors import translated
from agentspec.langchain.fields import ConfiguredModel
from agentspec.langchain.metadata import PROVIDER
from agentspec.langchain.options import CALL_OPTIONS, CallOptions, check_names, given, inherit, only
from agentspec.langchain.structured import (
    Method,
    ResponseFormat,
    SchemaLike,
    StructuredOutputParser,
    with_parser,
)
from agentspec.langchain.tools import ToolLike, bound_tools, choice_as_openai, sound_tools, to_choice
from agentspec.langchain.wrapped import BoundChatModel, ConfigurableChatModel

if TYPE_CHECKING:
    from agentspec.engine.loading import RuntimeSpec

__all__ = ["ChatAgentSpec"]

_SETTLED_BY_CORE = frozenset({"stream", "ls_structured_output_format", "structured_output_format"})
"""Keyword arguments that LangChain may leave in a call although it has dealt with them."""

_CALL_ARGUMENTS = CALL_OPTIONS | TOOL_ARGUMENTS | _SETTLED_BY_CORE | {"model"}


class ChatAgentSpec(ConfiguredModel, BaseChatModel):
    """A local chat model that calls tools: llama.cpp in this process, validated calls, exact speculation.

        model = ChatAgentSpec().bind_tools([get_weather])
        model.invoke("What is the weather in Oslo?").tool_calls

    Nothing is loaded before the first call; models that are not on this machine are downloaded then. Chat
    models with equal settings share one runtime. What is not settled by loading (sampling, length, law,
    draft sources, parallel calls) can also be given per call, to `invoke`, `bind` and the rest. Unknown
    options raise ConfigError, here and per call.

    The draft model and the draft options change the speed of a reply and nothing else: its law is the
    target's own. `response_metadata["agentspec"]` says which law and how fast.
    """

    chat_template: str | None = Field(
        default=None, description="A Jinja chat template, in place of the model's own."
    )
    wire_format: str | None = Field(
        default=None,
        description="How the model writes calls, where that cannot be told from its template: a name, or "
        "'package.module:NAME' for a format of your own (docs/formats.md).",
    )
    parallel_tool_calls: bool = inherit(ToolOptions, "parallel_tool_calls")
    stream_tool_calls: Literal["whole", "incremental"] = inherit(ToolOptions, "stream_tool_calls")

    streaming: bool = Field(default=False, description="Whether `invoke` streams to callbacks.")
    api_key: SecretStr | None = Field(
        default=None, exclude=True, description="Taken for LangChain's sake; a local model needs none."
    )
    base_url: str | None = Field(
        default=None,
        exclude=True,
        repr=False,  # may hold a password
        description="Taken for LangChain's sake; there is no server.",
    )
    max_retries: int | None = Field(
        default=None, exclude=True, description="Taken for LangChain's sake; there is no network."
    )

    # -- calls

    @override
    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._prepare(messages, stop, kwargs)
        finish([call])
        return _result(call)

    @override
    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = await asyncio.to_thread(self._prepare, messages, stop, kwargs)
        await afinish([call])
        return _result(call)

    @override
    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call = self._prepare(messages, stop, kwargs)
        yield from chunks(call, call.submit())

    @override
    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        # loading a model, rendering a prompt and compiling a grammar take seconds the first time
        call = await asyncio.to_thread(self._prepare, messages, stop, kwargs)
        async with aclosing(achunks(call, call.submit())) as read:
            async for chunk in read:
                yield chunk

    def _prepare(
        self, messages: list[BaseMessage], stop: Sequence[str] | None, kwargs: Mapping[str, Any]
    ) -> ChatCall:
        with translated():
            check_names(kwargs, _CALL_ARGUMENTS)
            values = given(kwargs)
            if stop is not None:
                values["stop"] = stop
            options = CallOptions.parse({**self._values(CALL_OPTIONS), **only(values, CALL_OPTIONS)})
            arguments = only(values, TOOL_ARGUMENTS)
            runtime = self._runtime(values.get("model"))
            return prepare(runtime, messages, options, arguments)

    # -- tools and schemas

    @override
    def bind_tools(
        self,
        tools: Sequence[Mapping[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | Sequence[str] | Mapping[str, Any] | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools to call.

        tools: functions, BaseTools, pydantic models, TypedDicts, and dicts in OpenAI, Anthropic, MCP or
            JSON-Schema form. Of several with one name the last wins. One whose schema cannot be used is
            left out, and a warning names it.
        tool_choice: None or "auto" lets the model decide; "any", "required" or True makes it call;
            "none" forbids it; a tool's name, or a dict naming it, makes it call that one, and a list of names
            one of those.
        strict: without effect. Arguments always fit the tool's whole schema, or the call is not valid.
        parallel_tool_calls: whether one reply may hold several calls.
        kwargs: options that can be given per call.

        Raises SchemaError naming the tool where none is left, or where `unsupported="error"` refuses one;
        ConfigError for what is not a tool, or a choice of one that is not bound.
        """
        check_names(kwargs, _CALL_ARGUMENTS)
        unsupported = kwargs.get("unsupported") or self.unsupported
        bound = sound_tools(cast(Sequence[ToolLike], tools), whole=unsupported == "error")
        choice = to_choice(tool_choice, [tool.bound.name for tool in bound])
        arguments: dict[str, object] = {"tools": bound, **kwargs}
        if tool_choice is not None:
            arguments["tool_choice"] = choice_as_openai(choice)
        if parallel_tool_calls is not None:
            arguments["parallel_tool_calls"] = parallel_tool_calls
        return self.bind(**arguments)

    @override
    def bind(self, **kwargs: Any) -> BoundChatModel:
        return BoundChatModel(bound=self, kwargs=kwargs, config={})

    @override
    def with_config(self, config: RunnableConfig | None = None, **kwargs: Any) -> BoundChatModel:
        merged = cast(RunnableConfig, {**(config or {}), **kwargs})
        return BoundChatModel(bound=self, kwargs={}, config=merged)

    @override
    def configurable_fields(
        self, **kwargs: AnyConfigurableField
    ) -> RunnableSerializable[LanguageModelInput, AIMessage]:
        configurable = super().configurable_fields(**kwargs)  # checks the names
        return ConfigurableChatModel(**dict(configurable))

    @override
    def with_structured_output(
        self,
        schema: SchemaLike,
        *,
        include_raw: bool = False,
        method: Method = "function_calling",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """The model, answering with an object of a schema: a pydantic instance for a model, else a dict.

        method: how the object is asked for. The grammar enforces it under each.

            "function_calling" (default): the reply is a call of a tool with this schema. Tool calls are
                what tool-trained models have seen most of, and their template shows them the schema in the
                form they were trained on.
            "json_schema": the reply is the JSON document itself; the schema is shown in the system turn.
            "json_mode": the same, and nothing is added to the prompt, which has to say what is wanted.

        include_raw: answer with {"raw", "parsed", "parsing_error"} and do not raise.
        strict: without effect, as in `bind_tools`.

        Raises OutputParserException, when called, for a reply that was cut off or does not fit; never
        answers with part of an object.
        """
        check_names(kwargs, CALL_OPTIONS | {"model", "include_raw", "method", "strict"})
        parser = StructuredOutputParser.for_schema(schema, method)
        noted = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        if method == "function_calling":
            llm = self.bind_tools(
                [schema],
                tool_choice=parser.tool.name,
                parallel_tool_calls=False,
                ls_structured_output_format=noted,
                **kwargs,
            )
        elif method in ("json_schema", "json_mode"):
            wanted = ResponseFormat.of(parser.tool, method)
            llm = self.bind(response_format=wanted, ls_structured_output_format=noted, **kwargs)
        else:
            raise ConfigError(
                f"method {method!r} is not known",
                hint="use 'function_calling', 'json_schema' or 'json_mode'",
            )
        return with_parser(llm, parser, include_raw=include_raw)

    # -- tokens

    @override
    def get_token_ids(self, text: str) -> list[int]:
        """The target's token ids of a text. Loads the model."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self._runtime().vocab.tokenize(text.encode(), special=False)

    @override
    def get_num_tokens(self, text: str) -> int:
        """How many of the target's tokens a text takes. Loads the model."""
        return len(self.get_token_ids(text))

    @override
    def get_num_tokens_from_messages(
        self,
        messages: Sequence[BaseMessage],
        tools: Sequence[Mapping[str, Any] | type | Callable[..., Any] | BaseTool] | None = None,
    ) -> int:
        """Tokens of the prompt these messages become, tools and template included. Loads the model."""
        runtime = self._runtime()
        bound = [tool.bound for tool in bound_tools(cast(Sequence[ToolLike], tools or ()))]
        return len(runtime.tokenize_prompt(runtime.render(to_turns(messages), bound)))

    # -- what comes of the fields

    @override
    def _spec(self, model: str) -> RuntimeSpec:
        spec = super()._spec(model)
        return replace(spec, chat_template=self.chat_template, wire_format=self.wire_format)

    @property
    @override
    def _identifying_params(self) -> Mapping[str, Any]:
        return {
            **super()._identifying_params,
            **self._values(("chat_template", "wire_format", "output_version")),
        }

    # -- what LangChain asks about the model

    @property
    @override
    def _llm_type(self) -> str:
        return PROVIDER

    @override
    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=self._stops(stop), **given(kwargs))
        params["ls_provider"] = PROVIDER
        return params

    @override
    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        # caches take their key from here, and LangChain leaves the model's own stop strings out
        return super()._get_invocation_params(stop=self._stops(stop), **kwargs)

    def _stops(self, stop: list[str] | None) -> list[str] | None:
        """The stop strings of a call: its own, or the model's."""
        return list(self.stop) or None if stop is None else stop

    @override
    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(
            open_weights=True,
            max_input_tokens=self.n_ctx,
            max_output_tokens=self.max_tokens,
            text_inputs=True,
            text_outputs=True,
            image_inputs=False,
            audio_inputs=False,
            video_inputs=False,
            reasoning_output=False,
            tool_calling=True,
            tool_choice=True,
            # False sends LangChain's agents to ToolStrategy: its calls are what small models have seen most
            # of, and "any" keeps them from calling the same tool again and again. ProviderStrategy works, too
            structured_output=False,
            temperature=True,
        )

    @model_validator(mode="after")
    def _set_agentspec_version(self) -> Self:
        self._add_version("langchain-agentspec", __version__)
        return self


def _result(call: ChatCall) -> ChatResult:
    # the message is built directly: merging chunks would lose the reasons of invalid calls
    return ChatResult(generations=[ChatGeneration(message=call.reply.message())])
