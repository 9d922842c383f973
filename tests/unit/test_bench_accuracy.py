"""`agentspec bench accuracy`: which calls count as right, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.bench.accuracy import (
    Answered,
    Call,
    Record,
    bench_accuracy,
    best_effort,
    is_right,
    kept_in,
    read_records,
)
from agentspec.bench.chat import ask_with
from agentspec.cli.bench_accuracy import lines
from agentspec.errors import ConfigError
from agentspec.types import Json
from tests.langchain_fakes import Reply, call_text, fake_model, runtime_of

ACCEPTED: dict[str, dict[str, list[Json]]] = {
    "f": {"city": ["New York", "NYC"], "days": [3, ""], "hot": [True, ""]}
}


def record(*accepted: dict[str, dict[str, list[Json]]], name: str = "r") -> Record:
    tool: dict[str, Json] = {
        "name": "f",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    return Record(name, [{"role": "user", "content": "?"}], [tool], accepted or (ACCEPTED,))


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"city": "New York"}, True),
        ({"city": "new-york.", "days": 3.0, "hot": True}, True),
        ({"city": "NYC", "days": 4}, False),
        ({"city": "NYC", "days": True}, False),
        ({"city": "NYC", "hot": 1}, False),
        ({"days": 3}, False),
        ({"city": "NYC", "more": 1}, False),
    ],
)
def test_arguments_are_right_where_each_is_accepted(arguments: dict[str, Json], right: bool) -> None:
    assert is_right([("f", arguments)], record()) is right
    assert not is_right([("g", arguments)], record())
    assert not is_right([], record())


def test_values_inside_values() -> None:
    wanted = record({"f": {"at": [{"x": [1, 2], "y": [""]}], "tags": [["a", "B"]]}})
    assert is_right([("f", {"at": {"x": 2}, "tags": ["A", "b"]})], wanted)
    assert not is_right([("f", {"at": {"x": 3}, "tags": ["a", "b"]})], wanted)
    assert not is_right([("f", {"at": {"x": 1}, "tags": ["a"]})], wanted)


def test_several_calls_may_come_in_any_order() -> None:
    two = record({"f": {"n": [1]}}, {"f": {"n": [2]}})
    one: list[Call] = [("f", {"n": 1}), ("f", {"n": 2})]
    assert is_right(one, two)
    assert is_right(one[::-1], two)
    assert not is_right(one[:1], two)
    assert not is_right([one[0], one[0]], two)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            'Sure: {"name": "f", "arguments": {"a": 1}} and {"name": "g", "parameters": {}}',
            [("f", {"a": 1}), ("g", {})],
        ),
        ('[{"x": {"name": "f", "arguments": {}}}]', [("f", {})]),
        ('{"name": "f", "arguments": "a"} {"name": "f", "arg', []),
        ("no call", []),
    ],
)
def test_what_looks_like_a_call_is_taken(text: str, calls: list[Call]) -> None:
    assert list(best_effort(text)) == calls


def test_what_is_counted() -> None:
    right, wrong = [("f", {"city": "NYC"})], [("f", {"city": "Oslo"})]
    answers = {
        ("both", True): Answered(right, 0, cut=False),
        ("both", False): Answered([], 0, cut=False, text='{"name": "f", "arguments": {"city": "NYC"}}'),
        ("lost", True): Answered(wrong, 0, cut=False),
        ("lost", False): Answered(right, 0, cut=False),
        ("cut", True): Answered([], 1, cut=True),
        ("cut", False): Answered([], 0, cut=False, text="I do not know."),
    }
    told: list[int] = []
    records = [record(name=name) for name in ("both", "lost", "cut")]
    found = bench_accuracy(records, lambda one, enforced: answers[one.name, enforced], report=told.append)
    assert told == [3, 3, 3]
    assert found.as_json() == {
        "prompts": 3,
        "valid_calls": 2,
        "exact_match": 0.3333,
        "unconstrained_valid_calls": 1,
        "unconstrained_exact_match": 0.6667,
        "length_stops": 1,
        "lost_by_enforcing": ["lost"],
    }
    assert any("lost" in text for _, text in lines(found))


def test_records_are_those_that_ask_for_a_call(tmp_path: Path) -> None:
    one = {"id": "a", "messages": [{"role": "user", "content": "?"}], "tools": [{}], "accepted": [ACCEPTED]}
    path = tmp_path / "records.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, [one, {**one, "accepted": []}, {"x": 1}])) + "\n\n", encoding="utf-8"
    )
    (found,) = read_records(path)
    assert (found.name, found.accepted) == ("a", [ACCEPTED])
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="no record that asks for a call"):
        read_records(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"records\.jsonl:1 is not JSON"):
        read_records(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_records(tmp_path / "none.jsonl")


def test_the_model_is_asked_both_ways() -> None:
    model = fake_model(
        call_text("f", '{"city": "NYC"}'), Reply(call_text("f", '{"city": 3}'), finish_reason="length")
    )
    ask = ask_with(model)
    enforced, alone = ask(record(), True), ask(record(), False)
    assert (list(enforced.calls), enforced.invalid, enforced.cut) == ([("f", {"city": "NYC"})], 0, False)
    assert (list(alone.calls), alone.invalid, alone.cut) == ([], 1, True)
    assert list(best_effort(alone.text)) == [("f", {"city": 3})]
    assert len(runtime_of(model).asked) == 1  # the model left alone has no grammar
    assert {request.sampling.temperature for request in runtime_of(model).engine.requests} == {0.0}


def test_replies_that_are_kept_are_not_asked_for_again(tmp_path: Path) -> None:
    asked: list[tuple[str, bool]] = []

    def ask(one: Record, enforced: bool) -> Answered:
        asked.append((one.name, enforced))
        return Answered([("f", {"city": "NYC"})], 0, False, "é\n")

    path = tmp_path / "replies.jsonl"
    first = bench_accuracy([record(name="a")], kept_in(path, ask))
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    records = [record(name="a"), record(name="b")]
    second = bench_accuracy(records, kept_in(path, ask))
    assert asked == [("a", True), ("a", False), ("b", True), ("b", False)]
    assert (first.exact_match, second.exact_match) == (1, 2)


def test_a_file_of_something_else_is_no_replies(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    path.write_text('{"id": 1}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"replies\.jsonl does not hold replies"):
        kept_in(path, lambda _record, _enforced: Answered([], 0, False))
