"""Replies for the bench, made as a user's code makes them: by a `ChatAgentSpec`, one call at a time.

It must not know what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from agentspec.bench import accuracy
from agentspec.bench.drafts import Answer, Ask
from agentspec.bench.replay import Outcome
from agentspec.bench.stages import Setup
from agentspec.bench.workload import Turn
from agentspec.config import RuntimeOptions
from agentspec.engine.loading import RuntimeSpec, open_runtime
from agentspec.engine.runtime import Runtime
from agentspec.langchain.call import ChatCall, prepare
from agentspec.langchain.chat_model import ChatAgentSpec
from agentspec.langchain.convert import from_openai
from agentspec.langchain.options import CallOptions
from agentspec.langchain.reply import raw_of
from agentspec.langchain.tools import OpenAITool
from agentspec.types import Json

__all__ = ["answer_with", "ask_with", "call_of", "open_chat"]


@contextmanager
def open_chat(
    setup: Setup,
    *,
    model: str,
    options: RuntimeOptions,
    n_parallel: int = 1,
    ignore_costs: bool = False,
) -> Iterator[Answer]:
    """Loads the models of a setup, and frees them at the end.

    model:        the target, by name or path
    options:      of target and draft alike
    n_parallel:   sequences that the context can hold
    ignore_costs: whether all that is offered is proposed, whatever a pass takes

    Raises what `open_runtime` raises; answers raise what the chat model raises.
    """
    spec = RuntimeSpec(
        model=model,
        draft=setup.draft,
        n_parallel=n_parallel,
        target=options,
        draft_runtime=options,
        calibration="memory",
        history="memory",  # a measurement is neither to be remembered nor to remember an earlier one
        snapshots="off",
        plugins=setup.plugins,
        ignore_costs=ignore_costs,
    )
    runtime = open_runtime(spec)
    try:
        yield answer_with(ChatAgentSpec.from_runtime(runtime))
    finally:
        runtime.close()


def call_of(
    runtime: Runtime, turn: Turn, *, max_tokens: int, answer: Mapping[str, Json] | None = None
) -> ChatCall:
    """A turn's call, at temperature 0, as the chat model makes it.

    answer: the JSON Schema of the reply, for a turn without tools

    Raises SchemaError, TemplateError.
    """
    options = CallOptions.parse({"temperature": 0.0, "max_tokens": max_tokens})
    arguments: dict[str, object] = {}
    if turn.tools:
        arguments = {"tools": [OpenAITool(tool) for tool in turn.tools], "tool_choice": "any"}
    elif answer is not None:
        arguments = {"response_format": {"type": "json_object", "schema": answer}}
    return prepare(runtime, from_openai(turn.messages), options, arguments)


def answer_with(chat: ChatAgentSpec) -> Answer:
    """A function that makes replies with this model. Where there are tools, every reply is a call."""

    def answer(ask: Ask) -> Outcome:
        tools = [OpenAITool(tool) for tool in ask.turn.tools]
        reply = (chat.bind_tools(tools, tool_choice="any") if tools else chat).invoke(
            [dict(message) for message in ask.turn.messages],
            draft_sources=ask.sources,
            agent=ask.agent,
            temperature=ask.temperature,
            seed=ask.seed,
            max_tokens=ask.max_tokens,
        )
        calls = [(call["name"], call["args"]) for call in reply.tool_calls]
        cut = [call["args"] for call in reply.invalid_tool_calls]
        return Outcome(json.dumps([reply.text, calls, cut]), reply.response_metadata["agentspec"])

    return answer


def ask_with(chat: ChatAgentSpec, *, max_tokens: int = 512) -> accuracy.Ask:
    """A function that answers records with this model, held to a grammar or left alone."""

    def ask(record: accuracy.Record, enforced: bool) -> accuracy.Answered:
        reply = chat.bind_tools(
            record.tools,
            tool_choice="any" if enforced else "auto",
            parallel_tool_calls=len(record.accepted) > 1,
            grammar="enforce" if enforced else "off",
        ).invoke([dict(message) for message in record.messages], temperature=0.0, max_tokens=max_tokens)
        return accuracy.Answered(
            calls=[(call["name"], call["args"]) for call in reply.tool_calls],
            invalid=len(reply.invalid_tool_calls),
            cut=reply.response_metadata["finish_reason"] == "length",
            text="\n".join([reply.text, *(raw_of(call["args"] or "") for call in reply.invalid_tool_calls)]),
        )

    return ask
