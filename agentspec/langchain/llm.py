"""`AgentSpecLLM`: LangChain's plain model, text in and text out.

This file holds the fields and LangChain's hooks; each hook says what is asked and leaves the how to the
modules beside it. It must not know grammars or tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.language_models import BaseLLM, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.outputs import GenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig
from pydantic import Field, model_validator
from typing_extensions import override

from agentspec import __version__
from agentspec.langchain.completion import TextCall, prepare_completion
from agentspec.langchain.constraint import CONSTRAINTS, Document, constraint_of
from agentspec.langchain.driving import achunks, afinish, chunks, finish
from agentspec.langchain.errors import translated
from agentspec.langchain.fields import ConfiguredModel
from agentspec.langchain.metadata import PROVIDER
from agentspec.langchain.options import COMPLETION_OPTIONS, CallOptions, check_names, given

__all__ = ["AgentSpecLLM"]

_CALL_ARGUMENTS = COMPLETION_OPTIONS | {*CONSTRAINTS, "model"}


class AgentSpecLLM(ConfiguredModel, BaseLLM):
    """A local model that completes text: llama.cpp in this process, held to a grammar, exact speculation.

        llm = AgentSpecLLM(regex=r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
        llm.invoke("The first day of 2026, as year-month-day: ")

    No chat template is applied: the prompt is what the model reads, behind its BOS token where it has one.
    Spellings of control tokens in it are those tokens.

    A reply can be held to one of `json_schema`, `regex` and `lark`, here or per call. One that was cut all
    the same, or does not fit, is not returned: the call raises UnfitReplyError, which has the text; so does
    a stream, at its end.

    Loading, options and statistics are those of ChatAgentSpec, and models with equal settings share one
    runtime with it.
    """

    json_schema: dict[str, Any] | type | None = Field(
        default=None,
        description="The reply is one JSON document of this schema: a JSON Schema, a pydantic model or a "
        "TypedDict. The model is not shown it.",
    )
    regex: str | None = Field(
        default=None,
        description="The whole reply matches this regular expression, in the syntax of Rust's regex crate "
        "without look-around.",
    )
    lark: str | None = Field(
        default=None,
        description="The whole reply is a text of this grammar, in llguidance's dialect of Lark. Control "
        "tokens that it names spell nothing in the reply.",
    )

    # -- calls

    @override
    def _generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        calls = self._prepare(prompts, stop, kwargs)
        finish(calls)
        return _result(calls)

    @override
    async def _agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        # loading a model and compiling a grammar take seconds the first time
        calls = await asyncio.to_thread(self._prepare, prompts, stop, kwargs)
        await afinish(calls)
        return _result(calls)

    @override
    def _stream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[GenerationChunk]:
        (call,) = self._prepare([prompt], stop, kwargs)
        for chunk in chunks(call, call.submit()):
            if run_manager is not None:  # LangChain leaves this to the model, unlike for chats
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
        call.check()

    @override
    async def _astream(
        self,
        prompt: str,
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[GenerationChunk]:
        (call,) = await asyncio.to_thread(self._prepare, [prompt], stop, kwargs)
        async with aclosing(achunks(call, call.submit())) as read:
            async for chunk in read:
                if run_manager is not None:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk
        call.check()

    def _prepare(
        self, prompts: Sequence[str], stop: Sequence[str] | None, kwargs: Mapping[str, Any]
    ) -> list[TextCall]:
        with translated():
            asked = self._asked(kwargs)
            values = asked._values(COMPLETION_OPTIONS)
            if stop is not None:
                values["stop"] = stop
            options = CallOptions.parse(values)
            constraint = constraint_of(asked._values(CONSTRAINTS))
            runtime = asked._runtime(asked.model)
            return [prepare_completion(runtime, prompt, options, constraint) for prompt in prompts]

    def _asked(self, kwargs: Mapping[str, Any]) -> Self:
        """This model with the options of a call, which come before its own."""
        check_names(kwargs, _CALL_ARGUMENTS)
        values = given(kwargs)
        if any(name in values for name in CONSTRAINTS):
            values = {**dict.fromkeys(CONSTRAINTS), **values}  # the call's is in place of the model's
        return self.model_copy(update=values) if values else self

    # LangChain's own take the key of a cache from the model alone, whatever the options of a call are

    @override
    def generate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        callbacks: Callbacks | list[Callbacks] | None = None,
        *,
        tags: list[str] | list[list[str]] | None = None,
        metadata: dict[str, Any] | list[dict[str, Any]] | None = None,
        run_name: str | list[str] | None = None,
        run_id: UUID | list[UUID | None] | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        """The replies to several prompts, which share target passes, with their metadata.

        Raises UnfitReplyError if one of them does not fit what it was held to.
        """
        return super(AgentSpecLLM, self._asked(kwargs)).generate(
            prompts, stop, callbacks, tags=tags, metadata=metadata, run_name=run_name, run_id=run_id
        )

    @override
    async def agenerate(
        self,
        prompts: list[str],
        stop: list[str] | None = None,
        callbacks: Callbacks | list[Callbacks] | None = None,
        *,
        tags: list[str] | list[list[str]] | None = None,
        metadata: dict[str, Any] | list[dict[str, Any]] | None = None,
        run_name: str | list[str] | None = None,
        run_id: UUID | list[UUID | None] | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        """As `generate`, on the event loop."""
        return await super(AgentSpecLLM, self._asked(kwargs)).agenerate(
            prompts, stop, callbacks, tags=tags, metadata=metadata, run_name=run_name, run_id=run_id
        )

    # LangChain's own give each prompt the error of one: with return_exceptions they are asked one by one,
    # and share passes all the same

    @override
    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """The replies to several prompts, which share target passes.

        return_exceptions: whether an error takes the place of its reply; else the first one is raised, and
            the other requests are cancelled
        """
        if return_exceptions:
            return super(BaseLLM, self).batch(inputs, config, return_exceptions=True, **kwargs)
        return super().batch(inputs, config, **kwargs)

    @override
    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """As `batch`, on the event loop."""
        if return_exceptions:
            return await super(BaseLLM, self).abatch(inputs, config, return_exceptions=True, **kwargs)
        return await super().abatch(inputs, config, **kwargs)

    # -- tokens

    @override
    def get_token_ids(self, text: str) -> list[int]:
        """The target's token ids of a text, as in a prompt but without BOS. Loads the model."""
        if self.custom_get_token_ids is not None:
            return self.custom_get_token_ids(text)
        return self._runtime().vocab.tokenize(text.encode(), special=True)

    @override
    def get_num_tokens(self, text: str) -> int:
        """How many of the target's tokens a text takes. Loads the model."""
        return len(self.get_token_ids(text))

    # -- what LangChain asks about the model

    @property
    @override
    def _llm_type(self) -> str:
        return PROVIDER

    @property
    @override
    def _identifying_params(self) -> Mapping[str, Any]:
        asked: dict[str, object] = {"regex": self.regex, "lark": self.lark}
        # LangChain's keys of caches hold a call's `stop` in place of this one, also where a call has none
        asked["model_stop"] = self.stop
        if self.json_schema is not None:
            # a class as its schema: another may have its name; and with its name, since it may check more
            named = self.json_schema.__qualname__ if isinstance(self.json_schema, type) else ""
            asked["json_schema"] = [named, Document.of(self.json_schema).schema]
        return {**super()._identifying_params, **asked}

    @override
    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or list(self.stop) or None, **kwargs)
        params["ls_provider"] = PROVIDER
        return params

    @classmethod
    @override
    def _check_values(cls, values: Mapping[str, Any]) -> None:
        super()._check_values(values)
        constraint_of(values)

    @model_validator(mode="after")
    def _set_agentspec_version(self) -> Self:
        self._add_version("langchain-agentspec", __version__)
        return self


def _result(calls: Sequence[TextCall]) -> LLMResult:
    generations = [[call.generation()] for call in calls]
    n_prompt, n_reply = sum(call.n_prompt for call in calls), sum(call.n_reply for call in calls)
    usage = {"prompt_tokens": n_prompt, "completion_tokens": n_reply, "total_tokens": n_prompt + n_reply}
    output = {"token_usage": usage, "model_name": calls[0].runtime.name} if calls else {}
    return LLMResult(generations=[*generations], llm_output=output)
