"""Reasoning in front of a reply: where it begins and ends, and taking it apart from the rest.

Models that reason write a block of it before anything else, between marks such as `<think>` and `</think>`;
some templates write the first mark themselves, or both of them where reasoning is switched off. Nothing in
the block is a call, or text for the user.

It must not know tokens, calls or templates' variables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "NO_THOUGHT",
    "Marks",
    "Opening",
    "Reasoning",
    "ThoughtSplitter",
    "find_marks",
    "overlap",
    "reasoning_of",
]

Opening: TypeAlias = Literal["inside", "possible", "over"]
"""How a reply stands to reasoning at its start: the prompt has begun it, the reply may, or neither."""

_SPACE = " \t\r\n"

# how the end of a block is spelled, and from it the beginning: </think>, </seed:think>, [/THINK], ...
_ENDS = (
    (re.compile(r"</([^<>/\s]*think[^<>/\s]*)>"), "<{}>"),
    (re.compile(r"\[/(THINK)\]"), "[{}]"),
    (re.compile(r"<\|END_(THINKING)\|>"), "<|START_{}|>"),
    (re.compile(r"<\|inner_(suffix)\|>"), "<|inner_prefix|>"),
)


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands around a block of reasoning."""

    begin: str
    end: str


def find_marks(template_source: str) -> Marks | None:
    """The marks that a chat template knows of; None for a family that does not reason."""
    for expression, begin in _ENDS:
        found = expression.search(template_source)
        if found is not None:
            return Marks(begin.format(found[1]), found[0])
    return None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What of a reply may be reasoning.

    marks:   what stands around it; None where the family does none
    opening: how the reply stands to it at its start
    """

    marks: Marks | None = None
    opening: Opening = "over"


NO_THOUGHT = Reasoning()


def reasoning_of(prompt: str, marks: Marks | None) -> Reasoning:
    """The reasoning of the reply to a rendered prompt, which may end with a mark."""
    if marks is None:
        return NO_THOUGHT
    text = prompt.rstrip()
    if text.endswith(marks.end):
        return Reasoning(marks, "over")
    return Reasoning(marks, "inside" if text.endswith(marks.begin) else "possible")


class ThoughtSplitter:
    """Takes the reasoning off the front of a reply, while that arrives.

    White space at both ends of the block is dropped, and so is what follows it. What comes out does not
    depend on how the text was cut.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        self._marks = reasoning.marks
        self._state: Opening | Literal["behind"] = "over" if reasoning.marks is None else reasoning.opening
        self._held = ""  # undecided text
        self._fresh = True  # whether nothing of the block has been looked at
        self._begun = False  # whether the block has shown any text
        self._kept = ""  # white space within the block, which may be at its end

    @property
    def inside(self) -> bool:
        """Whether the reply is within the block."""
        return self._state == "inside"

    @property
    def undecided(self) -> bool:
        """Whether the reply is within the block, or may yet begin one."""
        return self._state in ("inside", "possible")

    def feed(self, text: str) -> tuple[str, str]:
        """What the text settles: further reasoning, and further text of the reply behind it."""
        if self._state == "over" or self._marks is None:
            return "", text
        self._held += text
        if self._state == "possible":
            self._look_for_begin(self._marks)
        thought = self._thought(self._marks) if self._state == "inside" else ""
        return thought, self._reply()

    def finish(self) -> tuple[str, str]:
        """What was held back, at the end of the reply."""
        held, self._held = self._held, ""
        if self._state == "inside":
            return self._shown(held), ""
        return "", "" if self._state == "behind" else held

    def _look_for_begin(self, marks: Marks) -> None:
        text = self._held.lstrip(_SPACE)
        if text.startswith(marks.begin):
            self._state, self._held = "inside", text[len(marks.begin) :]
        elif not marks.begin.startswith(text):
            self._state = "over"

    def _thought(self, marks: Marks) -> str:
        if self._fresh:
            self._held = self._held.lstrip(_SPACE)
            if marks.begin.startswith(self._held) and self._held != marks.begin:
                return ""
            # some models write the mark again that the prompt ends with
            self._held, self._fresh = self._held.removeprefix(marks.begin), False
        body, end, rest = self._held.partition(marks.end)
        if end:
            self._state, self._held = "behind", rest
            return self._shown(body)
        keep = overlap(body, marks.end)
        self._held = body[len(body) - keep :]
        return self._shown(body[: len(body) - keep])

    def _shown(self, text: str) -> str:
        """The text without white space that may turn out to be at an end of the block."""
        text = self._kept + text if self._begun else text.lstrip(_SPACE)
        shown = text.rstrip(_SPACE)
        self._begun = self._begun or bool(shown)
        self._kept = text[len(shown) :] if self._begun else ""
        return shown

    def _reply(self) -> str:
        match self._state:
            case "behind":
                self._held = self._held.lstrip(_SPACE)
                if not self._held:
                    return ""
                self._state = "over"
            case "inside" | "possible":
                return ""
        text, self._held = self._held, ""
        return text


def overlap(text: str, mark: str) -> int:
    """How many of the last characters of `text` may begin `mark`."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
