"""`ChatAgentSpec`: the LangChain chat model.

This file holds the fields and LangChain's hooks; each hook says what is asked and leaves the how to the
modules beside it. It must not know prompts, grammars or tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import Field, PrivateAttr, SecretStr, model_validator
from typing_extensions import override

from agentspec import __version__
from agentspec.config import (
    DEFAULT_DRAFT,
    DEFAULT_MODEL,
    ContextOptions,
    DraftOptions,
    GenerationOptions,
    KvType,
    LawOptions,
    RuntimeOptions,
    SamplingOptions,
    ToolOptions,
)
from agentspec.errors import ConfigError
from agentspec.langchain.call import TOOL_ARGUMENTS, Call, prepare
from agentspec.langchain.convert import to_turns
from agentspec.langchain.options import (
    CALL_OPTIONS,
    MODEL_OPTIONS,
    CallOptions,
    check_names,
    inherit,
    parse,
)
from agentspec.langchain.reply import PROVIDER
from agentspec.langchain.structured import (
    Method,
    ResponseFormat,
    SchemaLike,
    StructuredOutputParser,
    with_parser,
)
from agentspec.langchain.tools import ToolLike, bound_tools, choice_as_openai, to_choice

if TYPE_CHECKING:
    from agentspec.engine.runtime import Runtime, RuntimeSpec

__all__ = ["ChatAgentSpec"]

_SETTLED_BY_CORE = frozenset({"stream", "ls_structured_output_format", "structured_output_format"})
"""Keyword arguments that LangChain may leave in a call although it has dealt with them."""

_CALL_ARGUMENTS = CALL_OPTIONS | TOOL_ARGUMENTS | _SETTLED_BY_CORE | {"model"}


class _Runtimes:
    """The runtimes a model has opened. Copies of the model share them; a pickle starts without."""

    def __init__(self) -> None:
        self.given: Runtime | None = None
        self.opened: dict[RuntimeSpec, Runtime] = {}

    def __deepcopy__(self, memo: object) -> _Runtimes:
        return self

    def __reduce__(self) -> tuple[type[_Runtimes], tuple[()]]:
        return (_Runtimes, ())


class ChatAgentSpec(BaseChatModel):
    """A local chat model that calls tools: llama.cpp in this process, validated calls, exact speculation.

        model = ChatAgentSpec().bind_tools([get_weather])
        model.invoke("What is the weather in Oslo?").tool_calls

    Nothing is loaded before the first call; models that are not on this machine are downloaded then. Models
    with equal settings share one runtime. Options marked *per call* can also be given to `invoke`, `bind`
    and the rest. Unknown options raise ConfigError, here and per call.

    The draft model and the draft options change the speed of a reply and nothing else: its law is the
    target's own. `response_metadata["agentspec"]` says which law and how fast.
    """

    model: str = Field(
        default=DEFAULT_MODEL,
        description="The target: a catalogue name, a path to a GGUF, or 'hf:owner/repo/file.gguf'.",
    )
    draft: str | None = Field(
        default="auto",
        description="The draft model, named likewise; None for none. 'auto' is the default pair's draft "
        "beside the default model, and none beside others.",
    )

    n_ctx: int = inherit(ContextOptions, "n_ctx")
    n_parallel: int = inherit(ContextOptions, "n_parallel")
    n_gpu_layers: int | Literal["auto"] = inherit(RuntimeOptions, "n_gpu_layers")
    main_gpu: int = inherit(RuntimeOptions, "main_gpu")
    split_mode: Literal["none", "layer", "row"] = inherit(RuntimeOptions, "split_mode")
    tensor_split: tuple[float, ...] | None = inherit(RuntimeOptions, "tensor_split")
    flash_attn: bool | Literal["auto"] = inherit(RuntimeOptions, "flash_attn")
    type_k: KvType = inherit(RuntimeOptions, "type_k")
    type_v: KvType = inherit(RuntimeOptions, "type_v")
    n_threads: int | None = inherit(RuntimeOptions, "n_threads")
    n_batch: int = inherit(RuntimeOptions, "n_batch")
    use_extra_bufts: bool | Literal["auto"] = inherit(RuntimeOptions, "use_extra_bufts")
    draft_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the draft's own, such as {'n_gpu_layers': 0}; the others are the target's.",
    )
    chat_template: str | None = Field(
        default=None, description="A Jinja chat template, in place of the model's own."
    )
    wire_format: str | None = Field(
        default=None, description="How the model writes calls, where it cannot be told from the model."
    )

    temperature: float = inherit(SamplingOptions, "temperature")
    top_k: int = inherit(SamplingOptions, "top_k")
    top_p: float = inherit(SamplingOptions, "top_p")
    min_p: float = inherit(SamplingOptions, "min_p")
    max_tokens: int = inherit(GenerationOptions, "max_tokens")
    stop: tuple[str, ...] = inherit(GenerationOptions, "stop")
    seed: int | None = inherit(GenerationOptions, "seed")
    grammar: Literal["enforce", "off"] = inherit(LawOptions, "grammar")
    spelling: Literal["canonical", "any"] = inherit(LawOptions, "spelling")
    draft_sources: tuple[Literal["grammar", "model"], ...] = inherit(DraftOptions, "sources")
    max_block: int = inherit(DraftOptions, "max_block")
    max_model_tokens: int = inherit(DraftOptions, "max_model_tokens")
    parallel_tool_calls: bool = inherit(ToolOptions, "parallel_tool_calls")

    timeout: float | None = Field(
        default=None,
        description="Most seconds a reply may take, looked at after each target pass; None for no limit.",
    )
    streaming: bool = Field(default=False, description="Whether `invoke` streams to callbacks.")
    api_key: SecretStr | None = Field(
        default=None, exclude=True, description="Taken for LangChain's sake; a local model needs none."
    )
    base_url: str | None = Field(
        default=None, exclude=True, description="Taken for LangChain's sake; there is no server."
    )
    max_retries: int | None = Field(
        default=None, exclude=True, description="Taken for LangChain's sake; there is no network."
    )

    _runtimes: _Runtimes = PrivateAttr(default_factory=_Runtimes)

    # Hidden from type checkers, which then hold calls to the fields. LangChain's base ignores unknown names;
    # checking them here, outside pydantic's validators, lets ConfigError through as it is.
    if not TYPE_CHECKING:

        def __init__(self, **values: object) -> None:
            values = _given(values)
            check_names(values, type(self).model_fields)
            _check_options(values)
            super().__init__(**values)

    @classmethod
    def from_runtime(cls, runtime: Runtime, **options: Any) -> Self:
        """A model on a runtime that is already open, whatever its `model` and runtime options say."""
        made = cls(**{"model": runtime.name, **options})
        made._runtimes.given = runtime
        return made

    @property
    def model_name(self) -> str:
        """`model`, under the name other chat models give it."""
        return self.model

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
        for _ in _chunks(call):
            pass
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
        async with aclosing(_achunks(call)) as chunks:
            async for _ in chunks:
                pass
        return _result(call)

    @override
    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from _chunks(self._prepare(messages, stop, kwargs))

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
        async with aclosing(_achunks(call)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _prepare(
        self, messages: list[BaseMessage], stop: Sequence[str] | None, kwargs: Mapping[str, Any]
    ) -> Call:
        check_names(kwargs, _CALL_ARGUMENTS)
        given = _given(kwargs)
        if stop is not None:
            given["stop"] = stop
        options = CallOptions.parse({**self._values(CALL_OPTIONS), **_only(given, CALL_OPTIONS)})
        arguments = _only(given, TOOL_ARGUMENTS)
        runtime = self._runtime(given.get("model"))
        return prepare(runtime, messages, options, arguments, timeout=self.timeout)

    # -- tools and schemas

    @override
    def bind_tools(
        self,
        tools: Sequence[Mapping[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | Mapping[str, Any] | None = None,
        strict: bool | None = None,
        parallel_tool_calls: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with tools to call.

        tools: functions, BaseTools, pydantic models, TypedDicts, and dicts in OpenAI, Anthropic or
            JSON-Schema form. Of several with one name the last wins.
        tool_choice: None or "auto" lets the model decide; "any", "required" or True makes it call;
            "none" forbids it; a tool's name, or a dict naming it, makes it call that one.
        strict: without effect. Arguments always fit the tool's whole schema, or the call is not valid.
        parallel_tool_calls: whether one reply may hold several calls.
        kwargs: options that can be given per call.

        Raises SchemaError naming the tool whose schema cannot be used, ConfigError for what is not a tool
        or a choice of one that is not bound.
        """
        check_names(kwargs, _CALL_ARGUMENTS)
        bound = bound_tools(cast(Sequence[ToolLike], tools))
        choice = to_choice(tool_choice, [tool.bound.name for tool in bound])
        arguments: dict[str, object] = {"tools": bound, **kwargs}
        if tool_choice is not None:
            arguments["tool_choice"] = choice_as_openai(choice)
        if parallel_tool_calls is not None:
            arguments["parallel_tool_calls"] = parallel_tool_calls
        return self.bind(**arguments)

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
            "json_mode": the reply is any JSON object; the prompt has to say which. It is held to the
                schema afterwards.

        include_raw: answer with {"raw", "parsed", "parsing_error"} and do not raise.
        strict: without effect, as in `bind_tools`.

        Raises OutputParserException, when called, for a reply that was cut off or does not fit; never
        answers with part of an object.
        """
        check_names(kwargs, CALL_OPTIONS | {"include_raw", "method", "strict"})
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
        return len(runtime.tokenize_prompt(runtime.template.render(to_turns(messages), bound)))

    # -- what LangChain asks about the model

    @property
    @override
    def _llm_type(self) -> str:
        return PROVIDER

    @property
    @override
    def _identifying_params(self) -> Mapping[str, Any]:
        names = ("model", "draft", "draft_options", "chat_template", "wire_format", "timeout")
        return {name: getattr(self, name) for name in (*names, *sorted(MODEL_OPTIONS | CALL_OPTIONS))}

    @override
    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or list(self.stop) or None, **kwargs)
        params["ls_provider"] = PROVIDER
        return params

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
            # False sends LangChain's agents to ToolStrategy, where schema and tools share one grammar;
            # response_format together with tools does not work here
            structured_output=False,
            temperature=True,
        )

    @model_validator(mode="after")
    def _set_agentspec_version(self) -> Self:
        self._add_version("langchain-agentspec", __version__)
        return self

    # -- the runtime

    def _runtime(self, model: str | None = None) -> Runtime:
        """The runtime of `model`, opened on first use."""
        runtimes = self._runtimes
        if runtimes.given is not None and model in (None, runtimes.given.name):
            return runtimes.given
        from agentspec.engine.runtime import open_runtime  # here: it loads llama.cpp

        spec = self._spec(model or self.model)
        if spec not in runtimes.opened:
            runtimes.opened[spec] = open_runtime(spec)
        return runtimes.opened[spec]

    def _spec(self, model: str) -> RuntimeSpec:
        from agentspec.engine.runtime import RuntimeSpec  # here: it loads llama.cpp

        draft = self.draft
        if draft == "auto":
            draft = DEFAULT_DRAFT if model == DEFAULT_MODEL else None
        values = self._values(MODEL_OPTIONS)
        return RuntimeSpec(
            model=model,
            draft=draft,
            n_ctx=self.n_ctx,
            n_parallel=self.n_parallel,
            target=parse(RuntimeOptions, values),
            draft_runtime=_draft_runtime(values, self.draft_options),
            chat_template=self.chat_template,
            wire_format=self.wire_format,
        )

    def _values(self, names: frozenset[str]) -> dict[str, object]:
        return {name: getattr(self, name) for name in names}


def _chunks(call: Call) -> Iterator[ChatGenerationChunk]:
    stream = call.submit()
    try:
        for step in stream:
            yield from call.take(step)
        yield from call.end(stream)
    finally:
        stream.close()  # also when the consumer went away, or pressed Ctrl-C


async def _achunks(call: Call) -> AsyncGenerator[ChatGenerationChunk]:
    stream = call.submit()
    try:
        async for step in stream:
            for chunk in call.take(step):
                yield chunk
        for chunk in call.end(stream):
            yield chunk
    finally:
        stream.close()


def _result(call: Call) -> ChatResult:
    # the message is built directly: merging chunks would lose the reasons of invalid calls
    return ChatResult(generations=[ChatGeneration(message=call.reply.message())])


def _given(values: Mapping[str, object]) -> dict[str, Any]:
    """Without the Nones that mean "not given", as in LangChain's `max_tokens=None`; for `draft` it is a
    value. `model_name` is another name of `model`."""
    given = {name: value for name, value in values.items() if value is not None or name == "draft"}
    if "model_name" in given:
        given.setdefault("model", given.pop("model_name"))
    return given


def _only(values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _check_options(values: Mapping[str, Any]) -> None:
    """Raises ConfigError naming the option whose value cannot be used."""
    CallOptions.parse(_only(values, CALL_OPTIONS))
    parse(ContextOptions, values)
    parse(RuntimeOptions, values)
    _draft_runtime(values, values.get("draft_options", {}))


def _draft_runtime(values: Mapping[str, object], own: Mapping[str, object]) -> RuntimeOptions:
    """The draft's options: its own over the target's."""
    if not isinstance(own, Mapping):
        raise ConfigError(f"draft_options is {own!r}", hint="give a dict, such as {'n_gpu_layers': 0}")
    return RuntimeOptions.parse({**_only(values, frozenset(RuntimeOptions.model_fields)), **own})
