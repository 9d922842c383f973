"""What a task is: a world with tools, a request, and the end state that counts.

A world's state is flat: records by name, each with fields. A task names every record that is to differ from
the beginning and its fields; any other difference is a mistake, and so is a fact that the answer lacks.

It must not know models, LangChain, or who works on a task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from agentspec.types import Json

__all__ = [
    "ANSWER",
    "IN_STEPS",
    "Call",
    "Mentions",
    "State",
    "Task",
    "Tool",
    "World",
    "number",
    "text",
    "wrong",
]

State: TypeAlias = Mapping[str, Mapping[str, Json]]
"""Records by name, and the fields of each."""

Call: TypeAlias = tuple[str, Mapping[str, Json]]
"""A tool's name and its arguments."""

IN_STEPS = (
    "Do what the user asks, one tool call at a time and in the user's order. Take every argument from the "
    "user's words or from what a tool has answered. Never make the same call twice. As soon as everything is "
    "done or found, call Answer with the facts that were asked for."
)
"""What each world's instructions end with."""

ANSWER: Mapping[str, Json] = {
    "title": "Answer",
    "description": "Answer the user, once everything that was asked for is done.",
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "description": "what was done, with every fact that was asked for",
        }
    },
    "required": ["message"],
    "additionalProperties": False,
}
"""How a conversation ends where every reply is a call: a tool by this title."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. arguments: the JSON Schema of each; all of them must be given. run: takes them by name"""

    name: str
    description: str
    arguments: Mapping[str, Mapping[str, Json]]
    run: Callable[..., str]

    @property
    def parameters(self) -> Mapping[str, Json]:
        """The JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": dict(self.arguments),
            "required": list(self.arguments),
            "additionalProperties": False,
        }


def text(description: str, *, pattern: str = "") -> Mapping[str, Json]:
    """The schema of a string. pattern: a regular expression that all of it fits, where not any will do"""
    schema: dict[str, Json] = {"type": "string", "description": description}
    return {**schema, "pattern": f"^{pattern}$"} if pattern else schema


def number(description: str, *, least: int, most: int) -> Mapping[str, Json]:
    """The schema of a whole number."""
    return {"type": "integer", "minimum": least, "maximum": most, "description": description}


class World(ABC):
    """What an agent works in. Every new one is in the same state."""

    instructions: ClassVar[str]
    """The system prompt."""

    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """What an agent can do here."""

    @abstractmethod
    def state(self) -> State:
        """How things are now."""

    def call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """What a tool answers to arguments that fit its schema. Raises KeyError for a tool it lacks."""
        return {tool.name: tool for tool in self.tools()}[name].run(**arguments)


@dataclass(frozen=True, slots=True)
class Mentions:
    """Stands for any text with all of these in it, in any case. Of a tuple, one is enough."""

    parts: Sequence[str | tuple[str, ...]]

    def missing(self, found: str) -> Iterator[str]:
        """What the text lacks."""
        for part in self.parts:
            ways = (part,) if isinstance(part, str) else part
            if not any(way.lower() in found.lower() for way in ways):
                yield " or ".join(ways)


@dataclass(frozen=True, slots=True)
class Task:
    """A task.

    ends:     fields by record, of every record that is to differ from the beginning; those named count
    says:     what the answer must contain
    solution: calls that solve it, as a test of the task itself
    answer:   what would be a right answer after them
    """

    name: str
    world: str
    request: str
    solution: Sequence[Call]
    answer: str
    ends: Mapping[str, Mapping[str, Json | Mentions]] = field(default_factory=dict)
    says: Mentions = Mentions(())


def wrong(task: Task, before: State, after: State, answer: str) -> str:
    """What is wrong with how a task ended; empty where nothing is."""
    return "; ".join([*_state_faults(task, before, after), *_answer_faults(task, answer)])


def _answer_faults(task: Task, answer: str) -> Iterator[str]:
    for part in task.says.missing(answer):
        yield f"the answer does not say {part}"


def _state_faults(task: Task, before: State, after: State) -> Iterator[str]:
    for record in sorted({*before, *after, *task.ends}):
        wanted = task.ends.get(record)
        if wanted is None:
            if before.get(record) != after.get(record):
                yield f"{record} was not to change"
            continue
        found = after.get(record, {})
        for name, value in wanted.items():
            if isinstance(value, Mentions):
                for part in value.missing(str(found.get(name, ""))):
                    yield f"{record}: {name} does not mention {part}"
            elif found.get(name) != value:
                yield f"{record}: {name} is {found.get(name)!r}, not {value!r}"
