"""A reply in channels to reasoning, text and calls, while it arrives: OpenAI's Harmony response format.

Each message has a header. In the channel for thoughts it is reasoning, to a tool it is a call, and otherwise
text. A call counts once the model has ended it. What comes out does not depend on how the bytes were cut.

It must not know tokens, grammars or LangChain.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from agentspec.chat.calls import CallReader
from agentspec.chat.formats.base import Channels, WireFormat
from agentspec.chat.marked import MarkedCall
from agentspec.chat.parser import (
    CUT,
    CallEvent,
    Deltas,
    ReasoningDelta,
    ReplyEvent,
    ReplyParser,
    ReplyReader,
    TextDelta,
)
from agentspec.chat.reasoning import NO_THOUGHT, Reasoning, overlap
from agentspec.types import BoundTool, FinishReason, InvalidCall, ToolChoice, ValidCall

__all__ = ["ChannelParser", "parser_of"]

_Kind: TypeAlias = Literal["thought", "text", "call"]
_BETWEEN = "\n\n"  # two messages of one kind


class ChannelParser:
    """Parses one reply. Its parameters and methods are those of `ReplyParser`."""

    def __init__(
        self,
        wire_format: WireFormat,
        channels: Channels,
        tools: Sequence[BoundTool],
        choice: ToolChoice = "auto",
        *,
        parallel: bool = True,
        deltas: bool = False,
    ) -> None:
        self._channels = channels
        self._deltas = Deltas(wanted=deltas)
        self._key = 0  # of the next call
        self._reader = CallReader(wire_format, tools, choice, parallel=parallel)
        self._active = bool(tools) and choice != "none"
        self._recipient = re.compile(rf"\bto=(?:{re.escape(_bare(channels.recipient))})?([^\s<]+)")
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # undecided text: a header, or what may end a message
        self._kind: _Kind | None = None  # of the message under way; None in a header
        self._name = ""  # of the tool that it is for
        self._call = ""
        self._shown: set[_Kind] = set()  # what the reply has had
        self._begun = False  # whether this message has shown any text

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """The events that these bytes settle."""
        self._held += self._decoder.decode(data)
        return self._run()

    def finish(self, reason: FinishReason, complete: bool = True) -> list[ReplyEvent]:
        """The last events."""
        self._held += self._decoder.decode(b"", final=True)
        events = self._run()
        cut = CUT.get(reason, "" if complete else "cut: the reply ended before its grammar allowed")
        held, self._held = self._held, ""
        if self._kind is None:
            if self._active and self._tool_of(held):  # whose name may have been cut, too
                events.append(self._ended(self._reader.unfinished(held.strip(), None, cut)))
            elif not self._is_header(held):
                events += self._said("text", held)
        elif self._kind == "call":
            self._call += held
            events += self._called(cut)
        else:
            events += self._said(self._kind, held)
        return events

    def _run(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        while self._held:
            step = self._header() if self._kind is None else self._body(self._kind)
            if step is None:
                break
            events += step
        return events

    # ---------------------------------------------------------------------------------------- headers

    def _header(self) -> list[ReplyEvent] | None:
        """Moves over a header; None while it is not whole."""
        if not self._is_header(self._held):
            self._kind, self._begun = "text", False  # the model left the header out
            return []
        header, message, rest = self._held.partition(self._channels.message)
        if not message:
            return None
        header = header.rpartition(self._channels.start)[2]  # a message without text may be in front
        self._held, self._begun = rest, False
        self._name = self._tool_of(header)
        if self._name and self._active:
            self._kind, self._call = "call", ""
        else:
            said = re.search(rf"{re.escape(self._channels.channel)}\s*(\w*)", header)
            thinking = said is not None and said[1] == self._channels.thoughts
            self._kind = "thought" if thinking else "text"
        return []

    def _is_header(self, text: str) -> bool:
        """Whether the text is a header as far as it goes."""
        text = text.lstrip()
        text = text.removeprefix(self._channels.start).lstrip()
        begins = (self._channels.channel, self._channels.start, self._channels.message, "to=")
        return any(text.startswith(begin) or begin.startswith(text) for begin in begins)

    def _tool_of(self, header: str) -> str:
        found = self._recipient.search(header)
        return found[1] if found else ""

    # ----------------------------------------------------------------------------------------- bodies

    def _body(self, kind: _Kind) -> list[ReplyEvent] | None:
        """Moves over a part of a message, as far as it is settled; None where none is."""
        marks = (self._channels.end, self._channels.start)
        ends = [at for mark in marks if (at := self._held.find(mark)) >= 0]
        if ends:
            text, self._held = self._held[: min(ends)], self._held[min(ends) :]
            self._held = self._held.removeprefix(self._channels.end)
            self._kind = None
        else:
            keep = max(overlap(self._held, mark) for mark in marks)
            text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
            if not text:
                return None
        if kind != "call":
            return self._said(kind, text)
        self._call += text
        if ends:
            return self._called("")
        so_far = MarkedCall("", self._name, written=self._call.lstrip(), whole=False)
        return [*self._deltas.further(self._key, self._reader.so_far(so_far))]

    def _said(self, kind: _Kind, text: str) -> list[ReplyEvent]:
        if not text:
            return []
        if not self._begun and kind in self._shown:
            text = _BETWEEN + text
        self._begun = True
        self._shown.add(kind)
        return [ReasoningDelta(text) if kind == "thought" else TextDelta(text)]

    def _called(self, cut: str) -> list[ReplyEvent]:
        raw = self._call.strip()
        if cut:
            return [self._ended(self._reader.unfinished(raw, self._name, cut))]
        call = MarkedCall(raw, self._name, raw or "null", written=raw)
        said = self._deltas.further(self._key, self._reader.so_far(call))
        return [*said, self._ended(self._reader.marked(call))]

    def _ended(self, call: ValidCall | InvalidCall) -> CallEvent:
        self._key += 1
        return CallEvent(call, self._key - 1)


def parser_of(
    wire_format: WireFormat,
    tools: Sequence[BoundTool],
    choice: ToolChoice = "auto",
    *,
    parallel: bool = True,
    reasoning: Reasoning = NO_THOUGHT,
    deltas: bool = False,
) -> ReplyReader:
    """What parses a reply of this format. Parameters, and what it raises, as for `ReplyParser`."""
    if wire_format.channels is not None:
        channels = wire_format.channels
        return ChannelParser(wire_format, channels, tools, choice, parallel=parallel, deltas=deltas)
    return ReplyParser(wire_format, tools, choice, parallel=parallel, reasoning=reasoning, deltas=deltas)


def _bare(text: str) -> str:
    return text.rpartition("to=")[2]
