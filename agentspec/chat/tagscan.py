"""Follows a call whose arguments stand in tags, one character at a time.

White space between tags is not looked at; within a value every character counts, but for the white space that
the format itself has at its ends. It must not know what the call is checked against.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from agentspec.chat.formats.base import Tags
from agentspec.chat.jsonscan import MAX_HEAD, Shape

__all__ = ["TaggedScan", "TaggedValue"]

_SPACE = " \t\r\n"


class TaggedValue(NamedTuple):
    """An argument as it is written.

    is_text: whether its tag says that it is a string; None where it says nothing
    """

    key: str
    text: str
    is_text: bool | None


class TaggedScan:
    """A call from its head to what closes it.

    head: what may stand before the arguments; its group `name` is the tool's name
    """

    arguments: Final = ""
    form: Final = "a tool's name and arguments in tags"

    def __init__(self, head: re.Pattern[str], tags: Tags) -> None:
        self.shape = Shape.OPEN
        self.name: str | None = None
        self.values: list[TaggedValue] = []
        self._head = head
        self._tags = tags
        self._begin, self._close = _bare(tags.begin), _bare(tags.close)
        # what may follow a key, and whether that says that the value is a string
        self._after_key: list[tuple[re.Pattern[str], bool | None]] = [(_loose(tags.after_key), None)]
        if tags.after_json_key is not None:
            self._after_key = [(_loose(tags.after_json_key), False), (_loose(tags.after_key), True)]
        self._state: Literal["head", "key", "value", "between"] = "head"
        self._text = ""
        self._spaces = 0  # since the last value, not in `_text`
        self._key = ""
        self._is_text: bool | None = None

    @property
    def pending(self) -> int:
        """How many of the last characters are part of nothing that is whole."""
        return len(self._text) + (self._spaces if self._state == "between" else 0)

    def begins(self, char: str) -> bool:  # noqa: ARG002 - whatever it is, `step` will see
        """Whether a call may begin so."""
        return True

    def step(self, char: str) -> Shape:
        """Moves over one character. After CLOSED or BROKEN there is nothing to move over."""
        if self._state == "between" and char in _SPACE:
            self._spaces += 1
            return self.shape
        self._text += char
        match self._state:
            case "head":
                self._step_head()
            case "key":
                self._step_key()
            case "value":
                self._step_value()
            case "between":
                self._step_between()
        return self.shape

    def _step_head(self) -> None:
        text = self._text.rstrip(_SPACE)
        for ending, state in ((self._tags.begin.strip(), "key"), (self._tags.close.strip(), "close")):
            if text.endswith(ending):
                found = self._head.fullmatch(text.removesuffix(ending))
                if found is not None:
                    self.name = found["name"]
                    self._enter(state)
                    return
        self._limit()

    def _step_key(self) -> None:
        for ending, is_text in self._after_key:
            if found := ending.fullmatch(self._text):
                self._key, self._is_text = found["key"].strip(), is_text
                self._text, self._state = "", "value"
                return
        self._limit()

    def _step_value(self) -> None:
        end = self._tags.end.strip()
        if self._text.endswith(end):
            text = _without_space(self._text.removesuffix(end), self._tags)
            self.values.append(TaggedValue(self._key, text, self._is_text))
            self._text, self._spaces, self._state = "", 0, "between"

    def _step_between(self) -> None:
        text = self._text
        if text == self._begin:
            self._enter("key")
        elif text == self._close:
            self._enter("close")
        elif not (self._begin.startswith(text) or self._close.startswith(text)):
            self.shape = Shape.BROKEN

    def _enter(self, state: str) -> None:
        self._text = ""
        if state == "close":
            self.shape = Shape.CLOSED
        else:
            self._state = "key"

    def _limit(self) -> None:
        if len(self._text) > MAX_HEAD:
            self.shape = Shape.BROKEN


def _without_space(text: str, tags: Tags) -> str:
    """The value without the white space that the tags have inside: `>\\nvalue\\n</parameter>`."""
    after = tags.after_key
    text = text.removeprefix(after[len(after.rstrip(_SPACE)) :])
    text = text.removesuffix(tags.end[: len(tags.end) - len(tags.end.lstrip(_SPACE))])
    quoted = text.startswith("<![CDATA[") and text.endswith("]]>")
    return text[len("<![CDATA[") : -len("]]>")] if quoted else text


def _loose(ending: str) -> re.Pattern[str]:
    """A key with this behind it, in any white space between its parts."""
    parts = map(re.escape, re.split(r"\s+|(?<=>)(?=<)", ending.strip()))
    return re.compile("(?P<key>.*?)" + r"\s*".join(parts), re.DOTALL)


def _bare(text: str) -> str:
    return "".join(text.split())
