"""Text of a conversation that spells control tokens, kept from becoming them.

A user, a tool's result or a description may hold `<|im_end|>`: tokenized with the prompt it would end the
turn, and what follows could pose as the system's. Such spellings are broken in two by a character that no
text has, at which the rendered prompt is cut before it is tokenized. The model reads the same characters, as
text.

An assistant's own text is left as it is: templates look for marks in it, and the model wrote it. It must not
know vocabularies or templates.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from agentspec.types import AssistantTurn, BoundTool, Json, SystemTurn, ToolTurn, Turn, UserTurn

__all__ = ["BREAK", "LiteralText"]

BREAK: Final = "\ufdd0"
"""A noncharacter: Unicode keeps it out of text that is exchanged."""


class LiteralText:
    """Breaks the spellings of control tokens.

    spellings: of the tokens; one of a single character cannot be broken
    """

    def __init__(self, spellings: Collection[str]) -> None:
        longest_first = sorted((text for text in spellings if len(text) > 1), key=len, reverse=True)
        self._spellings = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def turn(self, turn: Turn) -> Turn:
        """The turn with its spellings broken."""
        match turn:
            case AssistantTurn(calls=calls):
                read = tuple((call_id, name, self._mapping(arguments)) for call_id, name, arguments in calls)
                return dataclasses.replace(turn, calls=read)
            case SystemTurn(text=text):
                return SystemTurn(self._text(text))
            case UserTurn(text=text, name=name):
                return UserTurn(self._text(text), name=name and self._text(name))
            case ToolTurn(text=text):
                return dataclasses.replace(turn, text=self._text(text))

    def tool(self, tool: BoundTool) -> BoundTool:
        """The tool with the spellings in its description and its schema broken."""
        description, parameters = self._text(tool.description), self._mapping(tool.parameters)
        return dataclasses.replace(tool, description=description, parameters=parameters)

    def _text(self, text: str) -> str:
        return self._spellings.sub(lambda found: found[0][:1] + BREAK + found[0][1:], text)

    def _mapping(self, value: Mapping[str, Json]) -> dict[str, Json]:
        return {self._text(key): self._value(item) for key, item in value.items()}

    def _value(self, value: Json) -> Json:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, Sequence):
            return [self._value(item) for item in value]
        return value
