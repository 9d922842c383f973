"""Follows JSON text one character at a time: where a value ends, and whether it may still be a tool call.

Needed because a reply streams: text must go out as soon as it cannot be a call, and a call must not go out
before its last brace. Only the shape is followed here; the finished text is read by `parse_json_strict`. It
must not know markers or fences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from enum import Enum
from typing import Final

__all__ = ["CallScan", "JsonScan", "NamedScan", "Shape"]

MAX_DEPTH: Final = 64
"""Levels of nesting; deeper text is no call. Bounds the work that hostile text can cause."""

MAX_HEAD: Final = 512
"""Characters before the arguments of a call that names its tool in front of them."""

_SPACE = frozenset(" \t\r\n")
_SCALAR = frozenset("+-.0123456789eEtrufalsn")  # of numbers, true, false, null
_CLOSERS = {"{": "}", "[": "]"}


class Shape(Enum):
    """open: the value goes on. closed: its last bracket is in. broken: this is not JSON."""

    OPEN = "open"
    CLOSED = "closed"
    BROKEN = "broken"


class JsonScan:
    """The shape of one object or array, from its first bracket on."""

    def __init__(self) -> None:
        self.shape = Shape.OPEN
        self._stack: list[str] = []
        self._in_string = False
        self._escaped = False

    def step(self, char: str) -> Shape:
        """Moves over one character. After CLOSED or BROKEN there is nothing to move over."""
        if self._in_string:
            self._step_string(char)
        elif char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._stack.append(char)
            if len(self._stack) > MAX_DEPTH:
                self.shape = Shape.BROKEN
        elif char in "}]":
            if not self._stack or _CLOSERS[self._stack.pop()] != char:
                self.shape = Shape.BROKEN
            elif not self._stack:
                self.shape = Shape.CLOSED
        elif char not in _SPACE and char not in _SCALAR and char not in ",:":
            self.shape = Shape.BROKEN
        return self.shape

    def _step_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
        elif char < " ":
            self.shape = Shape.BROKEN


class CallScan(JsonScan):
    """A value that may be a call, or an array of calls: `{"name": "f", "arguments": {...}}`.

    possible:  False once it cannot be one any more, whatever follows
    name:      the tool's name in the last call, once it has been read to its closing quote
    begun:     where the last call's object of arguments begins, in characters from the first one; None before
    ended:     where it ends
    arguments: "": the call's text has them
    form:      what a call is written as
    pending:   how many of the last characters are part of nothing that is whole
    """

    arguments: Final = ""
    pending: Final = 1
    form: Final = "a complete JSON object"

    def __init__(
        self,
        name_keys: Collection[str],
        argument_keys: Collection[str],
        id_keys: Collection[str],
        tools: Collection[str] | None,
    ) -> None:
        """tools: the names a call may have; None where any name makes a call."""
        super().__init__()
        self.possible = True
        self.name: str | None = None
        self.begun: int | None = None
        self.ended: int | None = None
        self._read = 0
        self._name_keys, self._argument_keys = name_keys, argument_keys
        self._text_keys = {*name_keys, *id_keys, "type"}
        self._keys = {*argument_keys, *self._text_keys}
        self._tools = tools
        self._call_depth = 1  # 2 inside an array
        self._expects_key = False
        self._key = ""
        self._seen: set[str] = set()
        self._text: list[str] = []  # of the string being read at call level

    def begins(self, char: str) -> bool:
        """Whether the one call of a marker may begin so: an array may not."""
        return char == "{"

    def step(self, char: str) -> Shape:
        depth, in_string = len(self._stack), self._in_string
        super().step(char)
        self._read += 1
        if self.shape is Shape.BROKEN:
            self.possible = False
        elif depth == 0:
            self._start(char)
        elif self.possible and depth < self._call_depth:
            self._step_array(char)
        elif self.possible and depth == self._call_depth:
            if in_string:
                self._step_call_string(char)
            else:
                self._step_call(char)
        elif char in "}]" and not in_string and len(self._stack) == self._call_depth:
            self.ended = self._read
        return self.shape

    def _start(self, char: str) -> None:
        if char == "[":
            self._call_depth = 2
        else:
            self._enter_call()

    def _enter_call(self) -> None:
        self._expects_key, self._key, self._seen, self.name = True, "", set(), None
        self.begun = self.ended = None

    def _step_array(self, char: str) -> None:
        if char == "{":
            self._enter_call()
        elif char == "]":
            self.possible = bool(self._seen)
        elif char != "," and char not in _SPACE:
            self.possible = False

    def _step_call(self, char: str) -> None:
        if char in _SPACE:
            return
        if char == '"':
            self._text = []
            self.possible = self._expects_key or self._key in self._text_keys
        elif char == ":":
            self._expects_key = False
        elif char == ",":
            self._expects_key, self._key = True, ""
        elif char == "}":
            self.possible = self.name is not None and not self._seen.isdisjoint(self._argument_keys)
        else:
            self.possible = char == "{" and not self._expects_key and self._key in self._argument_keys
            if self.possible:
                self.begun, self.ended = self._read - 1, None

    def _step_call_string(self, char: str) -> None:
        if self._in_string:
            self._text.append(char)
            if len(self._text) > MAX_HEAD:
                self.possible = False
                return
            text = "".join(self._text)
            self.possible = "\\" in text or self._may_say(text, whole=False)
            return
        text = _unescaped("".join(self._text))
        self.possible = self._may_say(text, whole=True)
        if self._expects_key:
            self._key = text
            self._seen.add(text)
        elif self._key in self._name_keys:
            self.name = text

    def _may_say(self, text: str, *, whole: bool) -> bool:
        """Whether the string being read may be `text`, or may begin with it."""
        if self._expects_key:
            words: Collection[str] | None = self._keys
        elif self._key == "type":
            words = ("function",)
        else:
            words = self._tools if self._key in self._name_keys else None
        if words is None:
            return True
        return text in words if whole else any(word.startswith(text) for word in words)


class NamedScan:
    """A call that is a name and an object of arguments: `f[ARGS]{...}`.

    head: what may stand before the arguments; its group `name` is the tool's name
    """

    form: Final = "a tool's name and a complete JSON object"

    def __init__(self, head: re.Pattern[str]) -> None:
        self.shape = Shape.OPEN
        self.name: str | None = None
        self.arguments = ""
        self._head = head
        self._text = ""
        self._scan: JsonScan | None = None

    @property
    def pending(self) -> int:
        """How many of the last characters are part of nothing that is whole."""
        return len(self._text) + 1 if self._scan is None else 1

    def begins(self, char: str) -> bool:  # noqa: ARG002 - whatever it is, `step` will see
        """Whether a call may begin so."""
        return True

    def step(self, char: str) -> Shape:
        """Moves over one character. After CLOSED or BROKEN there is nothing to move over."""
        if self._scan is not None:
            self.arguments += char
            self.shape = self._scan.step(char)
        elif char != "{":
            self._text += char
            if len(self._text) > MAX_HEAD:
                self.shape = Shape.BROKEN
        elif (found := self._head.fullmatch(self._text)) is not None:
            self.name, self.arguments, self._scan = found["name"], char, JsonScan()
            self._scan.step(char)
        else:
            self.shape = Shape.BROKEN
        return self.shape


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"')) if "\\" in text else text
    except json.JSONDecodeError:
        return ""
