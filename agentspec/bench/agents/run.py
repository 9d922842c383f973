"""`agentspec bench agents`: does an agent get its work done, how fast, and what becomes of its calls?

Every system works on every task, one task after another, the systems taking turns within each (A B A B), so
that what the machine does meanwhile meets all of them alike.

succeeded:      tasks whose end state and answer are those that count (see `agentspec.bench.agents.world`)
invalid_calls:  calls that are no JSON, name no bound tool, or whose arguments do not fit its schema
steps:          replies of the model
decode_tps:     tokens per second of making them: without prompts, templates and what compiles a grammar
seconds:        wall time of the tasks

It must not know how results are shown or how a system is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from agentspec.bench.agents.calls import Judge
from agentspec.bench.agents.peer import Peer, PeerError
from agentspec.bench.agents.systems import Ready
from agentspec.bench.agents.world import ANSWER, Task, World, wrong
from agentspec.bench.agents.worlds import WORLDS
from agentspec.types import Json

__all__ = ["Kept", "Outcome", "Row", "bench_agents", "work_on"]


class Kept(Protocol):
    """Rows by system and task."""

    def get(self, system: str, task: Task) -> Row | None: ...

    def add(self, system: str, row: Row) -> None: ...


Opener: TypeAlias = Callable[[str], AbstractContextManager[Ready]]
"""Makes a system ready, by its name. Raises PeerError."""


@dataclass(frozen=True, slots=True)
class Row:
    """How a task went. reason: why it did not succeed; tokens and decode_seconds: of its replies"""

    task: Task
    answer: str = ""
    reason: str = ""
    calls: Sequence[Json] = ()
    invalid: Sequence[str] = ()
    steps: int = 0
    tokens: int = 0
    decode_seconds: float = 0.0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Json]:
        return {
            "task": self.task.name,
            "world": self.task.world,
            "succeeded": not self.reason,
            "reason": self.reason,
            "answer": self.answer,
            "calls": list(self.calls),
            "invalid_calls": list(self.invalid),
            "steps": self.steps,
            "tokens": self.tokens,
            "decode_seconds": round(self.decode_seconds, 3),
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Outcome:
    """What a system came to. error: why it could not be made, or did not go on"""

    form: str = ""
    versions: Mapping[str, Json] = field(default_factory=dict)
    error: str | None = None
    rows: list[Row] = field(default_factory=list)

    @property
    def succeeded(self) -> int:
        return sum(not row.reason for row in self.rows)

    @property
    def invalid_calls(self) -> int:
        return sum(len(row.invalid) for row in self.rows)

    @property
    def steps(self) -> int:
        return sum(row.steps for row in self.rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    @property
    def decode_tps(self) -> float | None:
        """None where nothing was decoded."""
        seconds = sum(row.decode_seconds for row in self.rows)
        return sum(row.tokens for row in self.rows) / seconds if seconds else None

    def as_json(self) -> dict[str, Json]:
        return {
            "tasks": len(self.rows),
            "succeeded": self.succeeded,
            "invalid_calls": self.invalid_calls,
            "steps": self.steps,
            "decode_tps": None if self.decode_tps is None else round(self.decode_tps, 3),
            "seconds": round(self.seconds, 1),
            "error": self.error,
            "form": self.form,
            "versions": dict(self.versions),
            "rows": [row.as_json() for row in self.rows],
        }


def bench_agents(
    tasks: Sequence[Task],
    systems: Sequence[str],
    opener: Opener,
    *,
    max_steps: int,
    kept: Kept | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Outcome]:
    """Sets the systems to the tasks. A system that fails is reported, and the others go on.

    kept:   rows of an earlier run, which are not made again; new ones are added
    report: told after every task whose it was
    """
    outcomes = {name: Outcome() for name in systems}
    with ExitStack() as opened:
        peers: dict[str, Peer] = {}
        for name, outcome in outcomes.items():
            try:
                ready = opened.enter_context(opener(name))
            except PeerError as error:
                outcome.error = str(error)
                continue
            outcome.form, outcome.versions = ready.form, ready.versions
            peers[name] = ready.peer
        for task in tasks:
            for name, outcome in outcomes.items():
                if outcome.error is None:
                    try:
                        row = None if kept is None else kept.get(name, task)
                        if row is None:
                            row = work_on(task, peers[name], max_steps=max_steps)
                            if kept is not None:
                                kept.add(name, row)
                        outcome.rows.append(row)
                    except PeerError as error:
                        outcome.error = str(error)
                        outcome.rows.append(Row(task, reason=outcome.error))
                report(name)
    return outcomes


def work_on(task: Task, peer: Peer, *, max_steps: int) -> Row:
    """One task by one system. Raises PeerError where the system cannot go on."""
    world = WORLDS[task.world]()
    judge = Judge(world)
    before = world.state()
    started = time.perf_counter()
    told = peer.ask({"task": _as_told(task, world, max_steps)})
    while "call" in told:
        told = peer.ask({"result": _result(told["call"], world, judge)})
    seconds = time.perf_counter() - started
    match told:
        case {"done": {"answer": answer, "replies": [*replies], "error": error}}:
            said = _said(answer)
            reason = error if isinstance(error, str) else wrong(task, before, world.state(), said)
            return _row(task, said, reason, replies, judge, seconds)
        case _:
            raise PeerError(f"it said {told!r}")


def _as_told(task: Task, world: World, max_steps: int) -> dict[str, Json]:
    return {
        "instructions": world.instructions,
        "request": task.request,
        "tools": [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in world.tools()
        ],
        "answer": ANSWER,
        "max_steps": max_steps,
    }


def _result(call: Json, world: World, judge: Judge) -> str:
    match call:
        case {"name": str(name), "arguments": dict(arguments)}:
            fault = judge.fault(name, arguments)
            return f"error: {fault}" if fault else world.call(name, arguments)
        case _:
            raise PeerError(f"it called {call!r}")


def _said(answer: Json) -> str:
    match answer:
        case {"message": str(message)}:
            return message
        case str():
            return answer
        case _:
            return ""


def _row(task: Task, answer: str, reason: str, replies: Sequence[Json], judge: Judge, seconds: float) -> Row:
    calls: list[Json] = []
    invalid: list[str] = []
    tokens, decode_seconds = 0, 0.0
    for reply in replies:
        match reply:
            case {
                "calls": [*valid],
                "invalid": [*broken],
                "tokens": int(count),
                "decode_seconds": int(decoding) | float(decoding),
            }:
                calls += valid
                invalid += [f"not a call: {one}" for one in broken]
                tokens += count
                decode_seconds += decoding
            case _:
                raise PeerError(f"a reply of it was {reply!r}")
    for call in calls:
        match call:
            case {"name": name, "arguments": arguments}:
                fault = judge.fault(name, arguments)
                invalid += [fault] if fault else []
            case _:
                raise PeerError(f"it called {call!r}")
    return Row(task, answer, reason, calls, invalid, len(replies), tokens, decode_seconds, seconds)
