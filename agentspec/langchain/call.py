"""One call of the chat model: LangChain's messages and keyword arguments to a request, its steps to messages.

It must not know the fields of the chat model, nor load models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from typing_extensions import override

from agentspec.chat.channels import parser_of
from agentspec.chat.reasoning import Reasoning
from agentspec.chat.schema import title_of
from agentspec.chat.validate import document_fault
from agentspec.engine.request import Request, Result, Step
from agentspec.grammar.enforce import check_enforced, enforceable_document, enforceable_tool
from agentspec.langchain.convert import recent_texts, to_turns, with_instructions
from agentspec.langchain.driving import Call, digest
from agentspec.langchain.options import CallOptions
from agentspec.langchain.reply import ReplyBuilder
from agentspec.langchain.structured import ResponseFormat
from agentspec.langchain.tools import OpenAITool, bound_tools, to_choice
from agentspec.types import BoundTool, Json, Matcher, ToolChoice

if TYPE_CHECKING:
    from agentspec.engine.runtime import Runtime

__all__ = ["TOOL_ARGUMENTS", "ChatCall", "prepare"]

TOOL_ARGUMENTS = frozenset({"tools", "tool_choice", "strict", "response_format"})
"""Keyword arguments of a call, besides the options."""


class ChatCall(Call[ChatGenerationChunk]):
    """A call of the chat model.

    new_reply: makes a builder; takes how many replies were thrown away before
    document:  the schema that a reply without calls is to fit
    """

    def __init__(
        self,
        runtime: Runtime,
        request: Request,
        *,
        new_reply: Callable[[int], ReplyBuilder],
        max_resamples: int,
        document: Mapping[str, Json] | None,
        trace_path: str | None,
    ) -> None:
        super().__init__(runtime, request, max_resamples=max_resamples, trace_path=trace_path)
        self._new_reply = new_reply
        self._document = document
        self.reply = new_reply(0)

    @override
    def begin(self, resampled: int) -> None:
        self.reply = self._new_reply(resampled)

    @override
    def take(self, step: Step) -> list[ChatGenerationChunk]:
        if step.logprobs:
            pieces = self.runtime.vocab.pieces()
            self.reply.add_logprobs([pieces[token] for token in step.tokens], step.logprobs)
        return _generations(self.reply.feed(step.data))

    @override
    def end(self, result: Result) -> list[ChatGenerationChunk]:
        return _generations(self.reply.finish(result))

    @override
    def misfits(self) -> bool:
        if self._document is None or self.reply.has_calls:
            return self.reply.has_invalid
        return document_fault(self._document, self.reply.text) is not None


def prepare(
    runtime: Runtime,
    messages: Sequence[BaseMessage],
    options: CallOptions,
    arguments: Mapping[str, object],
) -> ChatCall:
    """Builds the request.

    arguments: those of TOOL_ARGUMENTS that were given
    Raises ConfigError, SchemaError naming the tool, TemplateError.
    """
    tools = bound_tools(cast(Sequence[OpenAITool], arguments.get("tools") or ()))
    bound = [tool.bound for tool in tools]
    choice = to_choice(arguments.get("tool_choice"), [tool.name for tool in bound])
    wanted = ResponseFormat.parse(arguments.get("response_format"))
    if bound and choice not in ("auto", "none"):
        wanted = None  # the reply has to be a call
    turns = to_turns(messages)
    if wanted is not None and wanted.schema_shown:
        turns = with_instructions(turns, wanted.instructions(beside_calls=bool(bound) and choice == "auto"))
    shown = runtime.render(turns, bound)
    prompt = runtime.tokenize_prompt(shown)
    reasoning = runtime.template.reasoning(shown)
    law, matcher = _law(runtime, bound, choice, wanted, options, reasoning)
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
        shown=runtime.shown,
        recorded=options.traces.recorded,
    )
    parallel = options.tools.parallel_tool_calls

    def new_reply(resampled: int) -> ReplyBuilder:
        parser = parser_of(
            runtime.format,
            bound,
            choice,
            parallel=parallel,
            reasoning=reasoning,
            deltas=options.tools.stream_tool_calls == "incremental",
        )
        return ReplyBuilder(
            parser,
            model_name=runtime.name,
            prompt_tokens=len(prompt),
            resampled=resampled,
            count_tokens=lambda text: len(runtime.vocab.tokenize(text.encode(), special=False)),
        )

    enforced = law.startswith("enforce")
    return ChatCall(
        runtime,
        request,
        new_reply=new_reply,
        max_resamples=options.law.max_resamples if enforced else 0,
        document=wanted.schema if enforced and wanted is not None else None,
        trace_path=options.traces.trace_path,
    )


def _law(
    runtime: Runtime,
    tools: Sequence[BoundTool],
    choice: ToolChoice,
    wanted: ResponseFormat | None,
    options: CallOptions,
    reasoning: Reasoning,
) -> tuple[str, Matcher | None]:
    """The law of the reply, by name, and the grammar that takes part in it."""
    grammar, spelling = options.law.grammar, options.law.spelling
    parallel = options.tools.parallel_tool_calls
    answer = None if wanted is None else wanted.schema
    if choice == "none":
        tools = ()
    if grammar == "off" or (answer is None and not tools):
        return "off", None
    if grammar == "propose":
        if "grammar" not in options.draft.sources:
            return grammar, None  # nobody would ask it
        if answer is not None and not tools:
            return grammar, runtime.schema_follower(answer, reasoning=reasoning)
        return grammar, runtime.reply_follower(
            tools, choice, parallel=parallel, reasoning=reasoning, answer=answer
        )
    if options.law.unsupported == "error":
        if answer is not None:
            check_enforced(title_of(answer), enforceable_document(answer))
        for tool in tools:
            check_enforced(tool.name, enforceable_tool(tool))
    matcher: Matcher | None
    if answer is not None and not tools:
        matcher = runtime.schema_matcher(answer, spelling=spelling, reasoning=reasoning)
    else:
        matcher = runtime.reply_matcher(
            tools, choice, spelling=spelling, parallel=parallel, reasoning=reasoning, answer=answer
        )
    return "off" if matcher is None else f"enforce:{spelling}", matcher


def _tool_set(tools: Sequence[BoundTool], wanted: ResponseFormat | None, options: CallOptions) -> str:
    """Names what the reply may call, and the agent it is for."""
    shown: list[object] = [options.draft.agent, [[tool.name, tool.parameters] for tool in tools]]
    if wanted is not None:
        shown.append(wanted.schema)
    return digest(shown) if tools or wanted is not None or options.draft.agent else ""


def _generations(chunks: Iterable[AIMessageChunk]) -> list[ChatGenerationChunk]:
    return [ChatGenerationChunk(message=chunk) for chunk in chunks]
