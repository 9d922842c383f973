"""Follows the text after a call's marker. The end marker inside a JSON string is part of that string.

It must not know what the call is checked against.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.jsonscan import CallScan, Shape

__all__ = ["Ended", "MarkedScan"]

Ended: TypeAlias = Literal["end", "marker"]
"""end: the end marker came. marker: it was left out, and the next call began."""

_SPACE = " \t\r\n"


class MarkedScan:
    """The text after a call's marker, followed up to where the call ends.

    text:     all of it

    object:   the JSON object, once it is complete
    fault:    why the text cannot be a call, or ""
    raw:      what the model wrote as the call, once it has ended
    rest:     what was read beyond that
    """

    def __init__(self, wire_format: WireFormat, scan: CallScan) -> None:
        self._marker, self._end = wire_format.marker, wire_format.end.strip()
        self._scan = scan
        self._started = False
        self._object_end = 0
        self.text = ""
        self.object = ""
        self.raw = ""
        self.rest = ""
        self.fault = ""

    @property
    def name(self) -> str | None:
        return self._scan.name

    @property
    def has_whole_object(self) -> bool:
        """Whether the object is complete and only space, or the beginning of a marker, follows."""
        return bool(self.object) and not self.fault

    def step(self, char: str) -> Ended | None:
        """Moves over one character; says how the call ended, if it did."""
        self.text += char
        if self.fault:
            return self._search_end()
        if not self.object:
            return self._step_object(char)
        after = self.text[self._object_end :].lstrip(_SPACE)
        if self._end.startswith(after):
            return self._close("end") if after == self._end else None
        if self._marker.startswith(after):  # the end marker was left out, and another call begins
            return self._close("marker") if after == self._marker else None
        return self._fail("there is text after the call's object")

    def _step_object(self, char: str) -> Ended | None:
        if not self._started and char in _SPACE:
            return None
        if not self._started and char != "{":
            return self._fail("a call must be a JSON object")
        self._started = True
        shape = self._scan.step(char)
        if shape is Shape.BROKEN:
            return self._fail("the call is not a complete JSON object")
        if shape is Shape.CLOSED:
            self.object = self.text.strip(_SPACE)
            self._object_end = len(self.text)
            if not self._end:
                return self._close("end")
        return None

    def _close(self, ended: Ended) -> Ended:
        self.raw = self.object
        return ended

    def _fail(self, fault: str) -> Ended | None:
        self.fault = fault
        return self._search_end()

    def _search_end(self) -> Ended | None:
        if not self._end:
            return None  # nothing marks the end: the rest of the reply belongs to it
        raw, end, rest = self.text.partition(self._end)
        if not end:
            return None
        self.raw, self.rest = raw.strip(_SPACE), rest
        return "end"
