"""A reply's bytes to text and calls, while they arrive.

What counts as a call:

    marked    what stands between the format's markers. It is a call even when it is broken, and then an
              invalid one: the model said it was calling.
    bare      where the format allows it, a JSON object (or an array of them) that begins a line or a fenced
              block, names a bound tool, and fits its schema. Anything less is text, delivered unchanged:
              nothing but the fit tells a call from an answer that is JSON.

A call counts once its object is complete; nothing cut is ever completed. Text is held back only while it
may still become a marker, a fence or a bare call. The events do not depend on how the bytes were cut. This
module must not know tokens, grammars or LangChain.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from agentspec.chat.calls import CallReader
from agentspec.chat.formats.base import WireFormat
from agentspec.chat.jsonscan import CallScan, JsonScan, Shape
from agentspec.chat.marked import MarkedScan
from agentspec.chat.reasoning import NO_THOUGHT, Reasoning, ThoughtSplitter
from agentspec.types import BoundTool, FinishReason, InvalidCall, NamedTool, NamedTools, ToolChoice, ValidCall

__all__ = [
    "CUT",
    "CallDelta",
    "CallEvent",
    "Deltas",
    "ReasoningDelta",
    "ReplyEvent",
    "ReplyParser",
    "ReplyReader",
    "TextDelta",
]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Further text of the reply; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Further text of the reasoning that the reply begins with; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEvent:
    """A call, when it is complete or when the reply has ended within it.

    key: that of its deltas
    """

    call: ValidCall | InvalidCall
    key: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class CallDelta:
    """Further text of the arguments of a call that is being written; never empty.

    Nothing says yet that the call is valid: its CallEvent does. One that never comes is not.

    key: tells the reply's calls apart
    """

    key: int
    name: str
    arguments: str


ReplyEvent: TypeAlias = TextDelta | ReasoningDelta | CallDelta | CallEvent


class ReplyReader(Protocol):
    """What parses one reply."""

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """The events that these bytes settle. `data` may begin and end inside a character."""
        ...

    def finish(self, reason: FinishReason, complete: bool = True) -> list[ReplyEvent]:
        """The last events. `complete` is False where a grammar was not satisfied when the reply ended."""
        ...


class Deltas:
    """What has been said of the arguments of calls while they are written."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._said: dict[int, int] = {}  # key -> characters

    def further(self, key: int, call: tuple[str, str] | None) -> list[CallDelta]:
        """The delta of a call's name and arguments as far as they have come, if there is anything new."""
        if not self.wanted or call is None:
            return []
        name, arguments = call
        said = self._said.get(key, 0)
        if len(arguments) <= said:
            return []
        self._said[key] = len(arguments)
        return [CallDelta(key, name, arguments[said:])]


_FENCE = "```"
_FENCED_LANGUAGES = ("", "json", "tool_call", "xml")
_SPACE = " \t\r\n"

_Opening = Literal["wait", "text", "marker", "object", "fence end"]


class ReplyParser:
    """Parses one reply.

    choice:    under "none" everything is text. Under a forced choice, in a format without markers, a bare
               call that does not fit is an invalid call, not text.
    parallel:  False allows one call a reply; further ones are invalid
    reasoning: what the reply may begin with, in which nothing is a call
    deltas:    whether arguments are also given while they are written, where it is certain that it is a call
    """

    def __init__(
        self,
        wire_format: WireFormat,
        tools: Sequence[BoundTool],
        choice: ToolChoice = "auto",
        *,
        parallel: bool = True,
        reasoning: Reasoning = NO_THOUGHT,
        deltas: bool = False,
    ) -> None:
        self._format = wire_format
        self._deltas = Deltas(wanted=deltas)
        self._key = 0  # of the next call
        self._thoughts = ThoughtSplitter(reasoning)
        self._reader = CallReader(wire_format, tools, choice, parallel=parallel)
        self._active = bool(tools) and choice != "none"
        self._forced = choice == "required" or isinstance(choice, NamedTool | NamedTools)
        named = bool(wire_format.after_name)
        self._all_objects = self._forced and not wire_format.marker and not named
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._input: deque[str] = deque()
        self._events: list[ReplyEvent] = []
        self._text: list[str] = []  # settled text, not yet in an event
        self._gap: list[str] = []  # space before any text, or after a call: dropped if a call follows
        self._in_gap = True
        self._after_bare = False  # the gap follows a bare call, where "," and ";" separate too
        self._line_start = True
        self._fence: Literal["", "text", "dropped"] = ""  # the fenced block we are in, if any
        self._held = ""  # undecided text
        self._bare: CallScan | None = None  # follows the object at the end of `_held`
        self._bare_start = 0
        self._inert: JsonScan | None = None  # follows JSON that is known to be text
        self._marked: MarkedScan | None = None
        if self._forced and named and not wire_format.marker:
            self._marked = MarkedScan(wire_format, self._reader.marked_scan)  # nothing marks the call

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """The events that these bytes settle. `data` may begin and end inside a character."""
        return self._take(*self._thoughts.feed(self._decoder.decode(data)))

    def finish(self, reason: FinishReason, complete: bool = True) -> list[ReplyEvent]:
        """The last events. `complete` is False where a grammar was not satisfied when the reply ended."""
        events = self._take(*self._thoughts.feed(self._decoder.decode(b"", final=True)))
        events += self._take(*self._thoughts.finish())
        # A marked call needs its end marker unless the model itself chose to end there: whatever was cut
        # off might have made the text between the markers something other than this one object.
        cut = CUT.get(reason, "" if complete else "cut: the reply ended before its grammar allowed")
        if self._marked is not None:
            self._finish_marked(self._marked, cut)
        elif self._bare is not None and (self._bare.name is not None or self._all_objects):
            self._emit_call(self._reader.unfinished(self._held[self._bare_start :], self._bare.name, cut))
        elif self._forced and cut and self._held and self._format.marker.startswith(self._held):
            self._emit_call(self._reader.unfinished(self._held, None, cut))
        else:
            self._emit_text(self._held)
        self._held, self._bare, self._marked = "", None, None
        if not self._reader.count:
            self._text = [*self._gap, *self._text]  # a reply of nothing but space
            self._gap = []
        self._flush()
        return [*events, *self._drain()]

    # ---------------------------------------------------------------------------------- one character

    def _take(self, thought: str, text: str) -> list[ReplyEvent]:
        if thought:
            self._events.append(ReasoningDelta(thought))
        if not self._active:
            if text:
                self._events.append(TextDelta(text))
            return self._drain()
        self._input.extend(text)
        while self._input:
            char = self._input.popleft()
            if self._marked is not None:
                self._step_marked(self._marked, char)
            elif self._bare is not None:
                self._step_bare(self._bare, char)
            else:
                self._step_text(char)
        self._flush()
        if self._marked is not None:
            self._say(self._marked)
        return self._drain()

    def _step_text(self, char: str) -> None:
        self._held += char
        match self._opening():
            case "wait":
                pass
            case "marker":
                if self._held != self._format.marker:
                    self._fence = "dropped"
                self._held, self._inert = "", None
                self._marked = MarkedScan(self._format, self._reader.marked_scan)
            case "object":
                self._bare = self._reader.scan(any_tool=self._all_objects)
                self._bare_start = len(self._held) - 1
                self._bare.step(char)
            case "fence end":
                self._held, self._fence = "", ""
                self._gap, self._in_gap = [], True
            case "text":
                held, self._held = self._held, ""
                if self._line_start and held.startswith(_FENCE):
                    self._fence = "" if self._fence else "text"
                self._emit_text(held[0])
                self._input.extendleft(reversed(held[1:]))

    def _opening(self) -> _Opening:
        """What the held text is, or may become."""
        held, marker = self._held, self._format.marker
        if marker and marker.startswith(held):
            return "marker" if held == marker else "wait"
        if not self._format.bare_objects or not self._line_start or self._inert is not None:
            return "text"
        if held in ("{", "["):
            return "text" if self._fence == "text" else "object"
        if held == _FENCE and self._fence:
            return "text" if self._fence == "text" else "fence end"
        if held.startswith(_FENCE):
            return _fenced(held[len(_FENCE) :], marker)
        return "wait" if _FENCE.startswith(held) else "text"

    def _step_bare(self, scan: CallScan, char: str) -> None:
        self._held += char
        shape = scan.step(char)
        if shape is Shape.OPEN and scan.possible:
            return
        start, held = self._bare_start, self._held
        self._bare, self._held = None, ""
        if shape is Shape.CLOSED and scan.possible:
            calls = self._reader.bare(held[start:], keep_invalid=self._all_objects)
            if calls:
                self._fence = "dropped" if start else self._fence
                for call in calls:
                    self._emit_call(call, bare=True)
                return
        if start:
            self._fence = "text"
        if shape is Shape.CLOSED:
            self._emit_text(held)
        elif shape is Shape.BROKEN:
            # not JSON after all: only its first character is settled
            self._emit_text(held[: start + 1])
            self._input.extendleft(reversed(held[start + 1 :]))
        else:
            # JSON, but no call: nothing inside it is one either
            self._emit_text(held[:start])
            self._inert = JsonScan()
            self._input.extendleft(reversed(held[start:]))

    def _step_marked(self, marked: MarkedScan, char: str) -> None:
        ended = marked.step(char)
        if ended is None:
            return
        self._marked = None
        if marked.fault:
            self._emit_instead(marked, self._reader.faulty(marked.raw, marked.fault))
        else:
            self._emit_marked(marked)
        if ended == "marker":
            self._marked = MarkedScan(self._format, self._reader.marked_scan)
        self._input.extendleft(reversed(marked.rest))

    def _finish_marked(self, marked: MarkedScan, cut: str) -> None:
        if marked.is_whole and not cut:
            self._emit_marked(marked)
            self._emit_text(marked.trailing)
        else:
            fault = cut or marked.fault
            call = self._reader.unfinished(marked.text.strip(), marked.name, fault)
            self._emit_instead(marked, call)

    def _emit_marked(self, marked: MarkedScan) -> None:
        self._say(marked)
        for call in marked.calls:
            self._emit_call(self._reader.marked(call))

    def _emit_instead(self, marked: MarkedScan, call: InvalidCall) -> None:
        """One call in place of all that were behind the marker: those that have deltas get no event."""
        self._emit_call(call)
        self._key += len(marked.calls)

    def _say(self, marked: MarkedScan) -> None:
        """What is new of the arguments of calls."""
        if self._deltas.wanted:
            for key, call in enumerate([*marked.calls, *marked.under_way()], start=self._key):
                self._events += self._deltas.further(key, self._reader.so_far(call))

    # ----------------------------------------------------------------------------------------- output

    def _emit_text(self, text: str) -> None:
        for char in text:
            if self._in_gap and (char in _SPACE or (self._after_bare and char in ",;")):
                self._gap.append(char)
                continue
            self._text += self._gap
            self._gap, self._in_gap, self._after_bare = [], False, False
            self._text.append(char)
            if char == "\n":
                self._line_start = True
            elif char not in _SPACE:
                self._line_start = False
            if self._inert is not None and self._inert.step(char) is not Shape.OPEN:
                self._inert = None

    def _emit_call(self, call: ValidCall | InvalidCall, *, bare: bool = False) -> None:
        self._gap, self._in_gap, self._after_bare, self._line_start = [], True, bare, True
        self._flush()
        self._events.append(CallEvent(call, self._key))
        self._key += 1

    def _flush(self) -> None:
        if self._text:
            self._events.append(TextDelta("".join(self._text)))
            self._text = []

    def _drain(self) -> list[ReplyEvent]:
        events, self._events = self._events, []
        return events


CUT: Mapping[FinishReason, str] = {
    "length": "cut: the reply ran out of tokens within the call",
    "cancelled": "cut: the reply was cancelled within the call",
}
"""What is wrong with a call that the end of a reply fell into."""


def _fenced(inside: str, marker: str) -> _Opening:
    """What follows an opening fence: a language, a line break, then an object or a marker."""
    head, newline, body = inside.partition("\n")
    language = head.strip().lower()
    if not newline:
        return "wait" if any(known.startswith(language) for known in _FENCED_LANGUAGES) else "text"
    body = body.lstrip(_SPACE)
    if language not in _FENCED_LANGUAGES:
        return "text"
    if body in ("{", "["):
        return "object"
    if marker and marker.startswith(body):
        return "marker" if body == marker else "wait"
    return "text" if body else "wait"
