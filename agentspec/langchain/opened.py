"""Calls whose arguments go out while they are written, and how one is taken back.

LangChain reads what has come of a call's arguments leniently, so that one which is cut looks whole. A call
that turns out not to be valid therefore gets a mark behind it that even that reading refuses: it is then an
invalid call, and no agent makes it.

It must not know what makes a call valid.
"""

from __future__ import annotations

from langchain_core.messages.tool import ToolCallChunk
from langchain_core.utils.json import parse_partial_json

from agentspec.chat.strictjson import parse_json_strict, write_json
from agentspec.types import ValidCall

__all__ = ["OpenedCall", "tool_call_chunk"]

# a bracket that closes nothing, in an object, an array, a string in one, and behind a backslash there
_MARKS = ("]", "}", '"]', '"}', '""]', '""}')


class OpenedCall:
    """A call that is being written.

    index: its place among the calls that have begun to go out; None before
    """

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.text = ""
        self.index: int | None = None
        self._sent = 0

    def send(self, index: int) -> ToolCallChunk:
        """What has not gone out yet. index: taken the first time"""
        text, self._sent = self.text[self._sent :], len(self.text)
        if self.index is None:
            self.index = index
            return tool_call_chunk(self.id, self.name, text, index)
        return tool_call_chunk(None, None, text, self.index)

    def says(self, call: ValidCall) -> bool:
        """Whether what has gone out is this call, whole."""
        try:
            return write_json(parse_json_strict(self.text)) == write_json(call.arguments)
        except ValueError:
            return False

    def take_back(self) -> list[ToolCallChunk]:
        """What makes it an invalid call, if any of it has gone out."""
        if self.index is None:
            return []
        mark = next(mark for mark in _MARKS if not _readable(self.text[: self._sent] + mark))
        return [tool_call_chunk(None, None, mark, self.index)]


def tool_call_chunk(call_id: str | None, name: str | None, args: str | None, index: int) -> ToolCallChunk:
    return ToolCallChunk(type="tool_call_chunk", id=call_id, name=name, args=args, index=index)


def _readable(args: str) -> bool:
    """Whether LangChain takes the text for arguments."""
    try:
        return isinstance(parse_partial_json(args), dict)
    except ValueError:
        return False
