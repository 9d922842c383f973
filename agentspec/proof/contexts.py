"""The prompts that a proof continues: short, in plain text, for any model, base or instruct.

Half of them go on in free text, half in a small JSON document, under each of the laws that a grammar can
have, so that soft proposals, certain ones, masks and ends of replies all take part. What the models answer
does not matter; that several tokens are likely at many places does.

This module must not know models, nor how a proof is made of prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentspec.types import Json

__all__ = ["PROMPTS", "Law", "Prompt"]

Law: TypeAlias = Literal["off", "enforce:canonical", "enforce:any", "propose"]
"""A law of the design, section 4: grammar and spelling."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, and the schema of the continuation under the laws that have a grammar."""

    text: str
    law: Law = "off"
    schema: Mapping[str, Json] | None = None


def _object(**properties: Json) -> Mapping[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_OPINION = _object(answer={"enum": ["yes", "no", "maybe"]}, certain={"type": "boolean"})
_ORDER = _object(size={"enum": ["small", "medium", "large"]}, count={"type": "integer"})

PROMPTS: tuple[Prompt, ...] = (
    Prompt("Once upon a time there was a"),
    Prompt("The best thing about living in a small town is"),
    Prompt("Here is what I bought at the market today: some"),
    Prompt("def largest(numbers):\n    "),
    Prompt("She opened the letter, read the first line and"),
    Prompt("Question: What is a good name for a grey cat?\nAnswer:"),
    Prompt(
        "Question: Is winter nicer than summer? Answer in JSON.\nAnswer: ",
        "enforce:canonical",
        _OPINION,
    ),
    Prompt("A customer orders coffee for the office. The order in JSON: ", "enforce:canonical", _ORDER),
    Prompt("Question: Should cities ban cars? Answer in JSON.\nAnswer: ", "enforce:any", _OPINION),
    Prompt("A customer orders pizza for a party. The order in JSON: ", "enforce:any", _ORDER),
    Prompt(
        'Question: Will it rain? Answer in JSON.\nAnswer: {"answer": "no", "certain": false}\n'
        "Question: Is tea better than coffee? Answer in JSON.\nAnswer: ",
        "propose",
        _OPINION,
    ),
    Prompt(
        'First order: {"size": "small", "count": 1}\nSecond order: {"size": "large", "count": 4}\n'
        "Third order: ",
        "propose",
        _ORDER,
    ),
)
