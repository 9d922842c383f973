"""The committed workload of `agentspec bench drafts`: agents at work, and a few questions of prose.

`data/workload.json` holds whole conversations with the calls written down, `data/tools.json` the tools. A
turn is everything up to one of those calls; what is measured is the model's reply in its place, whatever it
is. So each turn is the same for every configuration and every model, and a later turn never depends on what
was answered to an earlier one.

One agent has one set of tools and several conversations, and calls of one kind come back with other values,
as they do in an agent's life. Names, numbers and addresses are invented (the domains end in .example).

This module must not know drafts, models or figures.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypeAlias, TypedDict, TypeVar

from agentspec.types import BoundTool, Json

__all__ = ["Message", "Turn", "Workload", "called", "load_workload"]

T = TypeVar("T")

Message: TypeAlias = Mapping[str, Json]
"""A message in OpenAI's form."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply to make.

    name:     "agent/conversation/number", or "prose/number"
    messages: the conversation so far, which ends with a user's or a tool's message
    tools:    what may be called; () for prose
    call:     name and arguments of the call that was written down for this place; None for prose
    """

    name: str
    messages: tuple[Message, ...]
    tools: tuple[BoundTool, ...] = ()
    call: tuple[str, Mapping[str, Json]] | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """calls: turns in the order in which the agents work through them. prose: turns without tools."""

    calls: tuple[Turn, ...]
    prose: tuple[Turn, ...]

    def subset(self, size: int) -> Workload:
        """At most `size` turns of each kind, spread evenly, in order."""
        return Workload(spread(self.calls, size), spread(self.prose, size))


def spread(items: Sequence[T], size: int) -> tuple[T, ...]:
    """At most `size` of the items, the first one included, evenly spread and in order."""
    count = min(size, len(items))
    return tuple(items[index * len(items) // count] for index in range(count))


class _Step(TypedDict):
    """One of: what the user says, what the assistant says, a call with what the tool answers."""

    user: NotRequired[str]
    assistant: NotRequired[str]
    call: NotRequired[str]
    arguments: NotRequired[Mapping[str, Json]]
    result: NotRequired[Json]


class _Session(TypedDict):
    name: str
    steps: list[_Step]


class _Agent(TypedDict):
    name: str
    system: str
    tools: list[str]
    sessions: list[_Session]


class _Tool(TypedDict):
    name: str
    description: str
    parameters: Mapping[str, Json]


class _Record(TypedDict):
    version: int
    agents: list[_Agent]
    prose: list[str]


@functools.cache
def load_workload() -> Workload:
    """The workload that comes with the package."""
    data = importlib.resources.files("agentspec.bench") / "data"
    listed: list[_Tool] = json.loads((data / "tools.json").read_text(encoding="utf-8"))
    record: _Record = json.loads((data / "workload.json").read_text(encoding="utf-8"))
    tools = {tool["name"]: BoundTool(**tool) for tool in listed}
    calls = [turn for agent in record["agents"] for turn in _turns(agent, tools)]
    prose = [
        Turn(f"prose/{number}", ({"role": "user", "content": question},))
        for number, question in enumerate(record["prose"], 1)
    ]
    return Workload(tuple(calls), tuple(prose))


def _turns(agent: _Agent, tools: Mapping[str, BoundTool]) -> Iterator[Turn]:
    bound = tuple(tools[name] for name in agent["tools"])
    for session in agent["sessions"]:
        messages: list[Message] = [{"role": "system", "content": agent["system"]}]
        number = 0
        for step in session["steps"]:
            if "call" in step:
                number += 1
                name, arguments = step["call"], step["arguments"]
                label = f"{agent['name']}/{session['name']}/{number}"
                yield Turn(label, tuple(messages), bound, (name, arguments))
                messages += called(f"call_{number}", name, arguments, step["result"])
            elif "user" in step:
                messages.append({"role": "user", "content": step["user"]})
            else:
                messages.append({"role": "assistant", "content": step["assistant"]})


def called(call_id: str, name: str, arguments: Mapping[str, Json], result: Json) -> list[Message]:
    """A call and its answer, as the conversation goes on with them."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    answer = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "name": name, "content": answer},
    ]
