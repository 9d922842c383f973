"""Where in a reply a bare call may begin: at the start of a line, or of a fenced block.

The same rules as `agentspec.chat.parser`, so that what the grammar enforces is what the parser takes for a
call: a fence of another language is text, so is what follows other text within a fence, and nothing inside
a JSON value is a call of its own. It must not know tokens, tools or markers.
"""

from __future__ import annotations

import re
from typing import Literal

from agentspec.chat.jsonscan import JsonScan, Shape

__all__ = ["call_place"]

_FENCE = "```"
_OPENING = re.compile(r"```(?P<language>[^\n]*)\n[ \t\r\n]*")
_LANGUAGES = ("", "json", "tool_call", "xml")
_SPACE = " \t\r\n"


def call_place(before: str) -> Literal["bare", "fenced"] | None:
    """What a call would be that followed this text; None where it would be text."""
    at = 0
    fenced = block_start = False  # within a fenced block; before anything in one that may hold a call
    line_start = True
    while at < len(before):
        char = before[at]
        if char in "{[" and line_start and (block_start or not fenced):
            end = _value_end(before, at)
            if end is None:
                return None
            at, block_start, line_start = end, False, before[end - 1] == "\n"
        elif line_start and before.startswith(_FENCE, at):
            fenced = not fenced
            if fenced:
                opening = _OPENING.match(before, at)
                if opening is None:
                    return None  # still on the fence's own line
                at, block_start = opening.end(), opening["language"].strip().lower() in _LANGUAGES
            else:
                at, block_start, line_start = at + len(_FENCE), False, False
        else:
            at, block_start = at + 1, False
            line_start = char == "\n" or (line_start and char in _SPACE)
    if fenced:
        return "fenced" if block_start else None
    return "bare" if line_start else None


def _value_end(text: str, start: int) -> int | None:
    """Where the JSON value that begins at `start` ends, or stops being JSON; None where it goes on."""
    scan = JsonScan()
    for at in range(start, len(text)):
        if scan.step(text[at]) is not Shape.OPEN:
            return at + 1
    return None
