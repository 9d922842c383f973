"""From parsed events to LangChain messages: one assembly for whole replies and for streamed ones.

Three facts about `langchain_core` shape it:

- Merging chunks parses argument fragments leniently, so a call that was cut off comes out *valid*. Calls
  are therefore sent whole, after validation, one chunk each; invalid ones go on the last chunk, their text
  behind a mark that no JSON parser, however lenient, can read. Where the arguments are wanted while they are
  written, a call that turns out not to be valid gets such a mark behind them (`agentspec.langchain.opened`).
- Merging drops the `error` of an invalid call, so the reasons are in `response_metadata` as well.
- Merging concatenates strings and adds integers of `response_metadata`, so it is on the last chunk only.

A valid call that repeats an earlier one of the reply is counted and left out: small models go round in
circles, and an agent would go with them.

It must not know prompts, grammars or the engine's inner life.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages import content as blocks
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.block_translators import register_translator
from langchain_core.messages.content import InvalidToolCall
from langchain_core.messages.tool import ToolCall, ToolCallChunk

from agentspec.chat.parser import CallDelta, CallEvent, ReasoningDelta, ReplyEvent, ReplyReader, TextDelta
from agentspec.chat.strictjson import write_json
from agentspec.engine.request import Result
from agentspec.langchain.metadata import PROVIDER, logprob_entries, statistics_of, usage_of
from agentspec.langchain.opened import OpenedCall, tool_call_chunk
from agentspec.types import InvalidCall, ValidCall

__all__ = ["ReplyBuilder", "raw_of"]

_MARK = "invalid: "
_REASONING = "reasoning_content"


def raw_of(args: str) -> str:
    """What the model wrote, from the `args` of an invalid tool call."""
    return args.removeprefix(_MARK)


class ReplyBuilder:
    """Takes a reply's bytes, and gives chunks while they come or the message at the end.

    Either send on what `feed` and `finish` return (streaming), or leave it and ask for `message()`.

    resampled:    how many replies were thrown away before this one
    count_tokens: of a text; for the reasoning's share of the usage
    """

    def __init__(
        self,
        parser: ReplyReader,
        *,
        model_name: str,
        prompt_tokens: int,
        resampled: int = 0,
        count_tokens: Callable[[str], int] = len,
    ) -> None:
        self._parser = parser
        self._count_tokens = count_tokens
        self._model_name = model_name
        self._prompt_tokens = prompt_tokens
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._invalid: list[InvalidToolCall] = []
        self._logprobs: list[dict[str, object]] = []
        self._written: set[tuple[str, str]] = set()
        self._opened: dict[int, OpenedCall] = {}  # calls whose arguments have begun to come
        self._taken_back: set[str | None] = set()  # ids of invalid calls whose arguments have gone out
        self._n_sent = 0  # calls that have begun to go out
        self._repeated = 0  # calls left out since the reply has them already
        self._result: Result | None = None
        self._resampled = resampled

    @property
    def text(self) -> str:
        """The text so far, without reasoning and calls."""
        return "".join(self._text)

    @property
    def has_calls(self) -> bool:
        """Whether the reply so far has calls, valid or not."""
        return bool(self._calls or self._invalid)

    @property
    def has_invalid(self) -> bool:
        """Whether a call so far is not valid."""
        return bool(self._invalid)

    def add_logprobs(self, pieces: Sequence[bytes], logprobs: Sequence[float]) -> None:
        """Takes the log-probabilities of tokens, for the metadata."""
        self._logprobs += logprob_entries(pieces, logprobs)

    def feed(self, data: bytes) -> list[AIMessageChunk]:
        """The chunks that these bytes complete."""
        return self._take(self._parser.feed(data))

    def finish(self, result: Result) -> list[AIMessageChunk]:
        """The chunks that the end completes, then the last one, which carries the metadata."""
        self._result = result
        chunks = self._take(self._parser.finish(result.finish_reason, result.complete))
        for opened in self._opened.values():
            chunks += _call_chunks(opened.take_back())
        return [*chunks, self._last_chunk(result)]

    def _last_chunk(self, result: Result) -> AIMessageChunk:
        unsent = [call for call in self._invalid if call["id"] not in self._taken_back]
        return AIMessageChunk(
            content="",
            tool_call_chunks=[
                tool_call_chunk(call["id"], call["name"], call["args"], index)
                for index, call in enumerate(unsent, start=self._n_sent)
            ],
            usage_metadata=self._usage(result),
            response_metadata=self._metadata(result),
            chunk_position="last",
        )

    def message(self) -> AIMessage:
        """The whole reply, after `finish` ran to its end."""
        result = self._result
        if result is None:
            raise RuntimeError("the reply has not finished")
        return AIMessage(
            content=self.text,
            additional_kwargs=_thought("".join(self._reasoning)),
            tool_calls=self._calls,
            invalid_tool_calls=self._invalid,
            usage_metadata=self._usage(result),
            response_metadata=self._metadata(result),
        )

    def _take(self, events: Sequence[ReplyEvent]) -> list[AIMessageChunk]:
        return [chunk for event in events for chunk in self._chunks(event)]

    def _chunks(self, event: ReplyEvent) -> list[AIMessageChunk]:
        match event:
            case TextDelta(text=text):
                self._text.append(text)
                return [_chunk(content=text)]
            case ReasoningDelta(text=text):
                self._reasoning.append(text)
                return [_chunk(reasoning=text)]
            case CallDelta(key=key, name=name, arguments=text):
                opened = self._opened.setdefault(key, OpenedCall(_new_id(), name))
                opened.text += text
                return [] if self._may_repeat(opened) else _call_chunks([self._send(opened)])
            case CallEvent(call=ValidCall() as call, key=key):
                return _call_chunks(self._valid(call, self._opened.pop(key, None)))
            case CallEvent(call=InvalidCall() as call, key=key):
                return _call_chunks(self._not_valid(call, self._opened.pop(key, None)))
        raise TypeError(f"unknown event {event!r}")

    def _valid(self, call: ValidCall, opened: OpenedCall | None) -> list[ToolCallChunk]:
        begun = opened is not None and opened.index is not None
        written = (call.name, write_json(call.arguments))  # in which 1 is not true
        if written in self._written:
            self._repeated += 1
            return [] if opened is None else opened.take_back()
        self._written.add(written)
        chunks: list[ToolCallChunk] = []
        if opened is not None and begun and not opened.says(call):
            chunks, begun = opened.take_back(), False
        call_id = opened.id if opened is not None and begun else _new_id()
        self._calls.append(ToolCall(type="tool_call", id=call_id, name=call.name, args=dict(call.arguments)))
        if not begun:
            arguments = json.dumps(self._calls[-1]["args"], ensure_ascii=False)
            chunks.append(tool_call_chunk(call_id, call.name, arguments, self._n_sent))
            self._n_sent += 1
        return chunks

    def _not_valid(self, call: InvalidCall, opened: OpenedCall | None) -> list[ToolCallChunk]:
        """Its text goes on the last chunk, where the reason is, unless it has gone out already."""
        call_id = _new_id() if opened is None else opened.id
        self._invalid.append(
            InvalidToolCall(
                type="invalid_tool_call",
                id=call_id,
                name=call.name or "",
                args=_MARK + call.raw,
                error=call.error,
            )
        )
        chunks = [] if opened is None else opened.take_back()
        if chunks:
            self._taken_back.add(call_id)
        return chunks

    def _send(self, opened: OpenedCall) -> ToolCallChunk:
        new = opened.index is None
        chunk = opened.send(self._n_sent)
        self._n_sent += new
        return chunk

    def _may_repeat(self, opened: OpenedCall) -> bool:
        """Whether a call of which nothing has gone out may turn out to be a repetition."""
        return opened.index is None and any(
            name == opened.name and text.startswith(opened.text) for name, text in self._written
        )

    def _usage(self, result: Result) -> UsageMetadata:
        usage = usage_of(result, self._prompt_tokens)
        if self._reasoning:
            # counted anew from the text: the tokens that a reply ends its reasoning with may be text, too
            reasoning = min(self._count_tokens("".join(self._reasoning)), result.trace.tokens)
            usage["output_token_details"] = {"reasoning": reasoning}
        return usage

    def _metadata(self, result: Result) -> dict[str, object]:
        reason = result.finish_reason
        statistics = statistics_of(result, self._resampled)
        if self._repeated:
            statistics["repeated_calls"] = self._repeated
        if self._invalid:
            statistics["invalid_tool_calls"] = [
                {
                    "id": call["id"],
                    "name": call["name"],
                    "raw": raw_of(call["args"] or ""),
                    "error": call["error"],
                }
                for call in self._invalid
            ]
        metadata: dict[str, object] = {
            "model_provider": PROVIDER,
            "model_name": self._model_name,
            "finish_reason": "tool_calls" if reason == "stop" and self._calls else reason,
            "agentspec": statistics,
        }
        if self._logprobs:
            metadata["logprobs"] = {"content": self._logprobs}
        return metadata


def _call_chunks(calls: Sequence[ToolCallChunk]) -> list[AIMessageChunk]:
    return [_chunk(calls=[call]) for call in calls]


def _chunk(*, content: str = "", reasoning: str = "", calls: Sequence[ToolCallChunk] = ()) -> AIMessageChunk:
    # the provider's name is on each chunk: it selects the translator below, and is not concatenated
    return AIMessageChunk(
        content=content,
        additional_kwargs=_thought(reasoning),
        tool_call_chunks=list(calls),
        response_metadata={"model_provider": PROVIDER},
    )


def _thought(text: str) -> dict[str, object]:
    """Where LangChain's integrations keep reasoning beside the content."""
    return {_REASONING: text} if text else {}


def _new_id() -> str:
    """Unique over turns: agents match answers to calls by it."""
    return f"call_{uuid4().hex}"


# -- content blocks: LangChain's typed view of a message. Its own guess merges a call into the text before it.


def _text_blocks(message: AIMessage) -> list[blocks.ContentBlock]:
    if not isinstance(message.content, str):
        raise NotImplementedError  # not made here: LangChain's best effort takes over
    found: list[blocks.ContentBlock] = []
    if isinstance(thought := message.additional_kwargs.get(_REASONING), str):
        found.append(blocks.ReasoningContentBlock(type="reasoning", reasoning=thought))
    if message.content:
        # not create_text_block: it gives each chunk's block an id of its own, and they would not merge
        found.append(blocks.TextContentBlock(type="text", text=message.content))
    return found


def _translate(message: AIMessage) -> list[blocks.ContentBlock]:
    """Reasoning, text, then calls. Invalid calls are left to the field: LangChain adds them from there."""
    return [*_text_blocks(message), *_call_blocks(message.tool_calls)]


def _translate_chunk(message: AIMessageChunk) -> list[blocks.ContentBlock]:
    """Each call under an index of its own, apart from the text's."""
    translated = _text_blocks(message)
    if message.chunk_position == "last":
        translated += _call_blocks(message.tool_calls)
        translated += _invalid_blocks(message)
        return translated
    for call in message.tool_call_chunks:
        translated.append(
            blocks.ToolCallChunk(
                type="tool_call_chunk",
                id=call["id"],
                name=call["name"],
                args=call["args"],
                index=f"lc_tc_{call['index']}",
            )
        )
    return translated


def _call_blocks(calls: Sequence[ToolCall]) -> list[blocks.ContentBlock]:
    return [
        blocks.ToolCall(type="tool_call", id=call["id"], name=call["name"], args=call["args"])
        for call in calls
    ]


def _invalid_blocks(message: AIMessageChunk) -> list[blocks.ContentBlock]:
    statistics: Mapping[str, object] = message.response_metadata.get(PROVIDER, {})
    noted = statistics.get("invalid_tool_calls")
    reasons = {entry["id"]: entry["error"] for entry in noted} if isinstance(noted, list) else {}
    return [
        blocks.InvalidToolCall(
            type="invalid_tool_call",
            id=call["id"],
            name=call["name"],
            args=call["args"],
            error=call["error"] or reasons.get(call["id"]),
            index=f"lc_itc_{position}",
        )
        for position, call in enumerate(message.invalid_tool_calls)
    ]


register_translator(PROVIDER, _translate, _translate_chunk)
