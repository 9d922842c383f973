"""`agentspec bench agents`: the worker and its protocol, what is counted, and peers that fail."""

from __future__ import annotations

import io
import json
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from agentspec.bench.agents import worker
from agentspec.bench.agents.kept import KeptRows
from agentspec.bench.agents.peer import Peer, PeerError
from agentspec.bench.agents.run import Outcome, Row, bench_agents, work_on
from agentspec.bench.agents.systems import SYSTEMS, Ready
from agentspec.bench.agents.world import Task
from agentspec.bench.agents.worlds import TASKS, WORLDS
from agentspec.cli import bench_agents as command
from agentspec.errors import ConfigError
from agentspec.types import Json
from tests.langchain_fakes import call_text, fake_model

CANCEL = next(task for task in TASKS if task.name == "cancel an open order")
STEPS = (
    call_text("find_order", '{"customer": "Nils Berg"}'),
    call_text("cancel_order", '{"order": "A-1043"}'),
    call_text("Answer", '{"message": "Order A-1043 is cancelled."}'),
)


class Lines:
    """What a worker writes to."""

    def __init__(self) -> None:
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write(self, line: str) -> None:
        self.lines.put(line)

    def flush(self) -> None:
        pass


class InThread:
    """A worker in a thread of this process, where a Peer has it in another process."""

    def __init__(self, model: worker.Model) -> None:
        self._in: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._out = Lines()
        lines = iter(self._in.get, None)
        models = {"fake": lambda _: model}
        self._thread = threading.Thread(target=worker.serve, args=(lines, self._out, models))
        self._thread.start()
        self.ready = self.ask({"open": {"kind": "fake"}})

    def ask(self, message: Mapping[str, Json]) -> Any:
        self._in.put(json.dumps(message))
        return json.loads(self._out.lines.get(timeout=60))

    def close(self) -> None:
        self._in.put(None)
        self._thread.join()


@contextmanager
def working(*replies: str, forced: bool = True) -> Iterator[Peer]:
    """A worker whose model writes these replies, each of 10 tokens in 2 seconds."""
    model = worker.Model(fake_model(*replies), forced, "fake", lambda _, __: (10, 2.0))
    peer = InThread(model)
    try:
        assert peer.ready["ready"]["form"] == "fake"
        yield cast(Peer, peer)
    finally:
        peer.close()


def test_a_task_is_worked_on_until_it_is_done() -> None:
    with working(*STEPS) as peer:
        row = work_on(CANCEL, peer, max_steps=5)
    assert row.as_json() | {"seconds": 0} == {
        "task": CANCEL.name,
        "world": "shop",
        "succeeded": True,
        "reason": "",
        "answer": "Order A-1043 is cancelled.",
        "calls": [
            {"name": "find_order", "arguments": {"customer": "Nils Berg"}},
            {"name": "cancel_order", "arguments": {"order": "A-1043"}},
            {"name": "Answer", "arguments": {"message": "Order A-1043 is cancelled."}},
        ],
        "invalid_calls": [],
        "steps": 3,
        "tokens": 30,
        "decode_seconds": 6.0,
        "seconds": 0,
    }


def test_one_worker_does_one_task_after_another() -> None:
    with working(*STEPS, *STEPS) as peer:
        assert [work_on(CANCEL, peer, max_steps=5).steps for _ in range(2)] == [3, 3]


def test_an_answer_in_text_counts_as_well() -> None:
    with working(*STEPS[:2], "It is cancelled.", forced=False) as peer:
        row = work_on(CANCEL, peer, max_steps=5)
    assert (row.reason, row.answer) == ("", "It is cancelled.")


def test_a_text_where_a_call_was_meant_is_no_success() -> None:
    with working("I have cancelled it.", forced=False) as peer:
        row = work_on(CANCEL, peer, max_steps=5)
    assert row.reason.startswith("A-1043: status is 'open', not 'cancelled'")
    assert (row.steps, row.invalid) == (1, [])


def test_too_many_steps_are_no_success_even_where_the_end_state_is_right() -> None:
    with working(*STEPS, *STEPS) as peer:
        assert work_on(CANCEL, peer, max_steps=3).reason == ""
        row = work_on(CANCEL, peer, max_steps=2)
    assert row.reason.startswith("GraphRecursionError")
    assert row.steps == 2


def test_what_a_model_raises_is_the_reason_and_the_next_task_is_tried() -> None:
    with working(STEPS[0]) as peer:
        first = work_on(CANCEL, peer, max_steps=5)
        assert first.reason.startswith("IndexError")
        assert first.steps == 1
        assert work_on(CANCEL, peer, max_steps=5).steps == 0


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (call_text("sell", "{}"), "unknown tool"),
        (call_text("cancel_order", '{"order": 1043}'), "1043"),
        (call_text("cancel_order", '{"order": "A-10'), "not a call"),
    ],
)
def test_invalid_calls_are_counted(reply: str, fault: str) -> None:
    with working(reply) as peer:
        row = work_on(CANCEL, peer, max_steps=5)
    assert len(row.invalid) == 1
    assert fault in row.invalid[0]
    assert row.reason


@dataclass
class Scripted:
    """A peer that says what it was told to; an error is raised."""

    said: list[Mapping[str, Json] | PeerError]
    heard: list[Mapping[str, Json]]

    def ask(self, message: Mapping[str, Json]) -> Mapping[str, Json]:
        self.heard.append(message)
        said = self.said.pop(0)
        if isinstance(said, PeerError):
            raise said
        return said


def done(*calls: Json, invalid: Sequence[Json] = (), answer: Json = None) -> Mapping[str, Json]:
    reply: Mapping[str, Json] = {
        "text": "",
        "calls": list(calls),
        "invalid": list(invalid),
        "seconds": 1.0,
        "tokens": 0,
        "decode_seconds": 0.0,
    }
    return {"done": {"answer": answer, "replies": [reply], "error": None}}


def scripted(*said: Mapping[str, Json] | PeerError) -> tuple[Peer, Scripted]:
    peer = Scripted(list(said), [])
    return cast(Peer, peer), peer


def test_calls_of_peers_without_a_grammar_are_judged_alike() -> None:
    call: Json = {"name": "cancel_order", "arguments": {"number": "A-1043"}}
    other: Json = {"name": "sell", "arguments": {}}
    peer, heard = scripted({"call": call}, done(call, other, invalid=[{"name": "x", "arguments": "{"}]))
    row = work_on(CANCEL, peer, max_steps=5)
    assert heard.heard[1] == {"result": "error: cancel_order: 'order' is a required property"}
    assert [fault.split(":")[0] for fault in row.invalid] == [
        "not a call",
        "cancel_order",
        "there is no tool 'sell'",
    ]


@pytest.mark.parametrize("said", [{"what": 1}, {"done": {}}, {"call": "cancel_order"}])
def test_a_peer_that_speaks_otherwise_has_failed(said: Mapping[str, Json]) -> None:
    peer, _ = scripted(said)
    with pytest.raises(PeerError, match=r"it (said|called) "):
        work_on(CANCEL, peer, max_steps=5)


def opener_of(peers: Mapping[str, Peer]) -> Any:
    @contextmanager
    def opened(name: str) -> Iterator[Ready]:
        if name not in peers:
            raise PeerError("pip cannot find it")
        yield Ready(peers[name], "text", {"langchain": "1"})

    def opener(name: str) -> AbstractContextManager[Ready]:
        return opened(name)

    return opener


def test_peers_that_fail_are_reported_and_hide_nothing() -> None:
    good, _ = scripted(done(), done())
    dying, _ = scripted(done(), PeerError("it has ended: SIGILL"), done())
    told: list[str] = []
    outcomes = bench_agents(
        [CANCEL, CANCEL],
        ["absent", "dying", "good"],
        opener_of({"good": good, "dying": dying}),
        max_steps=3,
        report=told.append,
    )
    assert told == ["absent", "dying", "good"] * 2
    assert {name: (outcome.error, len(outcome.rows)) for name, outcome in outcomes.items()} == {
        "absent": ("pip cannot find it", 0),
        "dying": ("it has ended: SIGILL", 2),
        "good": (None, 2),
    }
    shown = dict(command.lines(outcomes))
    assert shown["absent "] == "error: pip cannot find it"
    assert shown["good "] == ""
    assert ("  form", "text") in list(command.lines(outcomes))
    assert outcomes["absent"].as_json() == {
        "tasks": 0,
        "succeeded": 0,
        "invalid_calls": 0,
        "steps": 0,
        "decode_tps": None,
        "seconds": 0,
        "error": "pip cannot find it",
        "form": "",
        "versions": {},
        "rows": [],
    }


def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    other = next(task for task in TASKS if task is not CANCEL)
    path = tmp_path / "rows.jsonl"
    first, _ = scripted(done(answer={"message": "one"}))
    bench_agents([CANCEL], ["good"], opener_of({"good": first}), max_steps=3, kept=KeptRows(path))
    second, _ = scripted(done(answer={"message": "two"}))
    again = bench_agents(
        [CANCEL, other], ["good"], opener_of({"good": second}), max_steps=3, kept=KeptRows(path)
    )
    assert [row.answer for row in again["good"].rows] == ["one", "two"]
    assert [row.task.name for row in again["good"].rows] == [CANCEL.name, other.name]
    third, _ = scripted()
    last = bench_agents(
        [CANCEL, other], ["good"], opener_of({"good": third}), max_steps=3, kept=KeptRows(path)
    )
    assert last["good"].as_json()["rows"] == again["good"].as_json()["rows"]
    path.write_text('{"system": 3}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="does not hold the rows"):
        KeptRows(path)


def row(task: Task = CANCEL, **values: Any) -> Row:
    return Row(task, **{"steps": 3, "tokens": 30, "decode_seconds": 6.0, "seconds": 8.0, **values})


def outcome(*rows: Row) -> Outcome:
    return Outcome(rows=list(rows))


def test_the_figures_and_the_table() -> None:
    outcomes = {
        "agentspec": outcome(row(), row(reason="too late", decode_seconds=4.0, invalid=["x"])),
        "agentspec-no-drafts": outcome(row(decode_seconds=10.0), row(decode_seconds=10.0)),
        "chat-llama-cpp": outcome(row(tokens=0, decode_seconds=0.0)),
    }
    figures = outcomes["agentspec"].as_json()
    assert {name: figures[name] for name in ("tasks", "succeeded", "invalid_calls", "steps", "seconds")} == {
        "tasks": 2,
        "succeeded": 1,
        "invalid_calls": 1,
        "steps": 6,
        "seconds": 16.0,
    }
    assert figures["decode_tps"] == 6.0
    assert command.drafts_ratio(outcomes) == 2.0
    assert command.drafts_ratio({"agentspec": outcomes["agentspec"]}) is None
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(command.table(outcomes))
    printed = console.export_text()
    cells = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.strip()}
    assert cells["agentspec-no-drafts"] == ["2", "2", "0", "6", "3.0", "16"]
    assert cells["chat-llama-cpp"] == ["1", "1", "0", "3", "–", "8"]
    assert ("  shop", "cancel an open order: too late") in list(command.lines(outcomes))
    assert ("drafts", "2.00× plain decoding") in list(command.lines(outcomes))


def test_the_command_offers_what_there_is() -> None:
    assert [system.value for system in command._System] == list(SYSTEMS)
    assert [world.value for world in command._World] == list(WORLDS)
