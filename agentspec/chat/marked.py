"""Follows the text after a call's marker. An end marker inside a JSON string is part of that string.

What is around calls is compared without its white space, which small models vary. It must not know what a
call is checked against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.jsonscan import CallScan, NamedScan, Shape
from agentspec.chat.tagscan import TaggedScan, TaggedValue

__all__ = ["Ended", "MarkedCall", "MarkedScan", "Scan"]

Ended: TypeAlias = Literal["end", "marker"]
"""end: the calls ended. marker: their end was left out, and the next call began."""

Scan: TypeAlias = CallScan | NamedScan | TaggedScan
"""What follows one call, by how the family writes them."""

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class MarkedCall:
    """A call, whole or as far as it has come.

    raw:       what the model wrote between `begin` and `end`
    arguments: the text of the object of arguments, where the call is no object itself
    values:    the arguments, where they stand in tags
    written:   the text of the object of arguments, wherever it stands
    whole:     whether it is complete
    """

    raw: str
    name: str | None = None
    arguments: str = ""
    values: tuple[TaggedValue, ...] | None = None
    written: str = ""
    whole: bool = True


class MarkedScan:
    """The text after a call's marker, followed up to where the calls end.

    text:     all of it

    calls:    those that are whole
    fault:    why the rest of the text cannot be a call, or ""
    raw:      what the model wrote instead, once that has ended
    rest:     what was read beyond that
    """

    def __init__(self, wire_format: WireFormat, new_scan: Callable[[], Scan]) -> None:
        begin, end = _bare(wire_format.begin), _bare(wire_format.end)
        self._marker = _bare(wire_format.marker)
        self._stop = end + _bare(wire_format.closing)
        self._between = end + _bare(wire_format.between) + begin
        # where each call has the marker in front, the next one is the caller's to find
        self._goes_on = not self._marker or not begin.startswith(self._marker)
        self._end_marker = (wire_format.closing or wire_format.end).strip()
        self._new_scan = new_scan
        self._scan = new_scan()
        self._state: Literal["before", "within", "after"] = "before"
        self._due = (_bare(wire_format.opening) + begin).removeprefix(self._marker)  # before the call
        self._after = ""  # what has followed it, without white space
        self._start = 0  # of the call under way, in `text`
        self._stopped: int | None = None  # where in `text` the calls may have ended
        self._whole = 0  # up to where `text` is what it should be: no end is looked for in there
        self.text = ""
        self.calls: list[MarkedCall] = []
        self.raw = ""
        self.rest = ""
        self.fault = ""

    @property
    def name(self) -> str | None:
        return self._scan.name

    @property
    def is_whole(self) -> bool:
        """Whether every call is complete and only the beginning of what ends them follows."""
        ended = self._stop.startswith(self._after) or self._stopped is not None
        return self._state == "after" and not self.fault and ended

    @property
    def trailing(self) -> str:
        """What follows calls that have ended, where it seemed to become a further one."""
        return "" if self._stopped is None else self.text[self._stopped :]

    def under_way(self) -> list[MarkedCall]:
        """The call that is being read, as far as it has come; none between calls."""
        return [self._call()] if self._state == "within" and not self.fault else []

    def step(self, char: str) -> Ended | None:
        """Moves over one character; says how the calls ended, if they did."""
        self.text += char
        if self.fault:
            ends = self.text.endswith(self._end_marker)
            return self._ended_after_fault() if ends and self._end_marker else None
        if self._state == "within":
            return self._step_call(char)
        if char in _SPACE:
            return None
        return self._step_before(char) if self._state == "before" else self._step_after(char)

    def _step_before(self, char: str) -> Ended | None:
        if self._due:
            if not self._due.startswith(char):
                return self._fail("the call does not begin as calls do")
            self._due = self._due[1:]
            return None
        if not self._scan.begins(char):
            return self._fail("a call must be a JSON object")
        self._state, self._start = "within", len(self.text) - 1
        return self._step_call(char)

    def _step_call(self, char: str) -> Ended | None:
        shape = self._scan.step(char)
        if shape is Shape.BROKEN:
            self._whole = len(self.text) - self._scan.pending
            return self._fail(f"the call is not {self._scan.form}")
        if shape is Shape.OPEN:
            return None
        self._state, self._after, self._whole = "after", "", len(self.text)
        self.calls.append(self._call())
        return self._may_stop()

    def _call(self) -> MarkedCall:
        scan, raw = self._scan, self.text[self._start :]
        whole = scan.shape is Shape.CLOSED
        match scan:
            case CallScan(begun=int() as begun):
                return MarkedCall(raw, scan.name, written=raw[begun : scan.ended], whole=whole)
            case TaggedScan():
                return MarkedCall(raw, scan.name, values=tuple(scan.values), whole=whole)
            case _:
                return MarkedCall(raw, scan.name, scan.arguments, written=scan.arguments, whole=whole)

    def _step_after(self, char: str) -> Ended | None:
        if self._goes_on and not (self._between or self._after or self._stop.startswith(char)):
            return self._begin_next(char)
        self._after += char
        after = self._after
        if after == self._stop:
            return self._may_stop()
        if self._goes_on and self._between and after == self._between:
            self._scan, self._state, self._stopped = self._new_scan(), "before", None
            return None
        if self._stop.startswith(after) or (self._goes_on and self._between.startswith(after)):
            return None
        if self._stopped is not None:
            self.rest = self.text[self._stopped :]
            return "end"
        if self._marker.startswith(after):  # the end marker was left out, and another call begins
            return "marker" if after == self._marker else None
        return self._fail("there is text after the call's object")

    def _may_stop(self) -> Ended | None:
        """The calls have ended here, unless what stands between two calls begins likewise."""
        if self._after != self._stop:
            return None
        if self._goes_on and self._between.startswith(self._stop) and self._between != self._stop:
            self._stopped = len(self.text)
            return None
        return "end"

    def _begin_next(self, char: str) -> Ended | None:
        self._scan, self._state, self._stopped = self._new_scan(), "before", None
        return self._step_before(char)

    def _fail(self, fault: str) -> Ended | None:
        self.fault = fault
        return self._ended_after_fault()

    def _ended_after_fault(self) -> Ended | None:
        """The end marker behind what is wrong: one within a value that was read is part of that value."""
        at = self.text.find(self._end_marker, self._whole) if self._end_marker else -1
        if at < 0:
            return None  # where nothing marks the end, the rest of the reply belongs to it
        self.raw, self.rest = self.text[:at].strip(_SPACE), self.text[at + len(self._end_marker) :]
        return "end"


def _bare(text: str) -> str:
    return "".join(text.split())
