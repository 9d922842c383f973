"""One call: LangChain's messages and keyword arguments to a request, and its stream to messages.

`_generate`, `_stream` and their async twins differ only in the loop that drives a `Call`. It must not know
the fields of the chat model, nor load models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk

from agentspec.chat.parser import ReplyParser
from agentspec.engine.request import Request, Step
from agentspec.errors import ConfigError
from agentspec.langchain.convert import recent_texts, to_turns, with_instructions
from agentspec.langchain.errors import translated
from agentspec.langchain.options import CallOptions
from agentspec.langchain.reply import ReplyBuilder
from agentspec.langchain.structured import ResponseFormat
from agentspec.langchain.tools import OpenAITool, bound_tools, to_choice
from agentspec.types import BoundTool, Matcher, ToolChoice

if TYPE_CHECKING:
    from agentspec.engine.runtime import Runtime
    from agentspec.engine.stream import Stream

__all__ = ["TOOL_ARGUMENTS", "Call", "prepare"]

TOOL_ARGUMENTS = frozenset({"tools", "tool_choice", "strict", "response_format"})
"""Keyword arguments of a call, besides the options."""


@dataclass
class Call:
    """A call that is ready to be submitted, and its reply as far as it has come."""

    runtime: Runtime
    request: Request
    reply: ReplyBuilder

    def submit(self) -> Stream:
        """Hands the request to the engine. Raises PromptTooLongError, QueueFullError, EngineClosedError."""
        with translated():
            return self.runtime.engine.submit(self.request)

    def take(self, step: Step) -> list[ChatGenerationChunk]:
        """The chunks a step completes."""
        if step.logprobs:
            pieces = self.runtime.vocab.pieces()
            self.reply.add_logprobs([pieces[token] for token in step.tokens], step.logprobs)
        return _generations(self.reply.feed(step.data))

    def end(self, stream: Stream) -> list[ChatGenerationChunk]:
        """The chunks that the end completes, the last one with the metadata."""
        return _generations(self.reply.finish(stream.result))


def prepare(
    runtime: Runtime,
    messages: Sequence[BaseMessage],
    options: CallOptions,
    arguments: Mapping[str, object],
) -> Call:
    """Builds the request.

    arguments: those of TOOL_ARGUMENTS that were given
    Raises ConfigError, SchemaError naming the tool, TemplateError.
    """
    tools = bound_tools(cast(Sequence[OpenAITool], arguments.get("tools") or ()))
    bound = [tool.bound for tool in tools]
    choice = to_choice(arguments.get("tool_choice"), [tool.name for tool in bound])
    wanted = ResponseFormat.parse(arguments.get("response_format"))
    if wanted is not None and bound and choice != "none":
        raise ConfigError(
            "response_format together with tools is not supported",
            hint="bind the schema as one more tool (ToolStrategy in LangChain's agents), or pass one of them",
        )
    turns = to_turns(messages)
    if wanted is not None and wanted.instructions:
        turns = with_instructions(turns, wanted.instructions)
    prompt = runtime.tokenize_prompt(runtime.template.render(turns, bound))
    law, matcher = _law(runtime, bound, choice, wanted, options)
    request = Request(
        prompt=prompt,
        matcher=matcher,
        law=law,
        sampling=options.sampling,
        generation=options.generation,
        draft=options.draft,
        tool_set=_tool_set(bound, wanted, options),
        texts=recent_texts(turns),
        n_stable=runtime.stable_prefix(turns, bound, prompt),
    )
    reply = ReplyBuilder(
        ReplyParser(runtime.format, bound, choice, parallel=options.tools.parallel_tool_calls),
        model_name=runtime.name,
        prompt_tokens=len(prompt),
    )
    return Call(runtime=runtime, request=request, reply=reply)


def _law(
    runtime: Runtime,
    tools: Sequence[BoundTool],
    choice: ToolChoice,
    wanted: ResponseFormat | None,
    options: CallOptions,
) -> tuple[str, Matcher | None]:
    """The law of the reply, by name, and the grammar that takes part in it."""
    grammar, spelling = options.law.grammar, options.law.spelling
    parallel = options.tools.parallel_tool_calls
    if grammar == "off" or (wanted is None and (not tools or choice == "none")):
        return "off", None
    if grammar == "propose":
        if "grammar" not in options.draft.sources:
            return grammar, None  # nobody would ask it
        if wanted is not None:
            return grammar, runtime.schema_follower(wanted.schema)
        return grammar, runtime.reply_follower(tools, choice, parallel=parallel)
    if wanted is not None:
        matcher = runtime.schema_matcher(wanted.schema, spelling=spelling)
    else:
        matcher = runtime.reply_matcher(tools, choice, spelling=spelling, parallel=parallel)
    return "off" if matcher is None else f"enforce:{spelling}", matcher


def _tool_set(tools: Sequence[BoundTool], wanted: ResponseFormat | None, options: CallOptions) -> str:
    """Names what the reply may call, and the agent it is for."""
    shown: list[object] = [options.draft.agent, [[tool.name, tool.parameters] for tool in tools]]
    if wanted is not None:
        shown.append(wanted.schema)
    digest = hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:32]
    return digest if tools or wanted is not None or options.draft.agent else ""


def _generations(chunks: Iterable[AIMessageChunk]) -> list[ChatGenerationChunk]:
    return [ChatGenerationChunk(message=chunk) for chunk in chunks]
