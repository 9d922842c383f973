"""`agentspec calibrate` and `agentspec bench calibration`: what they read, write, print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.bench.calibration import by_class, curve, lengths, online
from agentspec.bench.mechanism import toy_mechanism
from agentspec.bench.record import read_prompts
from agentspec.calibration.calibrator import Where
from agentspec.calibration.files import read_calibration
from agentspec.calibration.lengths import Price
from agentspec.calibration.traces import ReplyTrace, append_trace
from agentspec.errors import ConfigError
from tests.unit.test_cli import run
from tests.unit.test_replay import badly, traces


def written(path: Path, *replies: ReplyTrace) -> Path:
    for one in replies:
        append_trace(path, one)
    return path


# -------------------------------------------------------------------------------------------- calibrate


def test_a_calibration_is_written_and_what_it_brings_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "bold.jsonl", *(badly(trace, 0.3) for trace in traces()[:12]))
    assert run(monkeypatch, "calibrate", "bold.jsonl", "-o", "c.json", "--json", "r.json") == 0
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (found["replies"], found["held_out"]) == (12, 4)
    assert found["gain"]["model"]["ratio"] > 1.1
    printed = capsys.readouterr().out
    assert 'ChatAgentSpec(calibration="c.json")' in printed
    assert "8 fitted to, 4 held out" in printed
    made = read_calibration(tmp_path / "c.json", vocab="v")
    assert (made.made, made.model, made.draft) == ("offline", "m", "d")
    assert made.calibrator(adapts=False).temperature("model", Where("any", "text", 2)) > 2.0


def test_what_cannot_be_calibrated_with_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one = traces()[0]
    written(tmp_path / "bare.jsonl", one.model_copy(update={"rows": [], "top_k": 0}))
    written(tmp_path / "two.jsonl", one, one.model_copy(update={"vocab": "w"}))
    written(tmp_path / "cut.jsonl", one.model_copy(update={"top_k": 4}))
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "prompts.jsonl").write_text('"Hello"\n', encoding="utf-8")
    for arguments, message in (
        ([], "nothing to calibrate with"),
        (["empty.jsonl"], "hold no reply"),
        (["bare.jsonl"], "no trace has the laws"),
        (["two.jsonl"], "different vocabularies: v, w"),
        (["cut.jsonl"], "fewer than 20 tokens of each law"),
        (["nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--prompts", "prompts.jsonl", "--draft", "none"], "takes a draft model"),
    ):
        assert run(monkeypatch, "calibrate", *arguments, "-o", "c.json") == 1
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "c.json").exists()


def test_prompts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    tool = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    lines: list[object] = [
        "Hello",
        {
            "messages": [{"role": "user", "content": "1 + 1"}],
            "tools": [{"type": "function", "function": tool}],
        },
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8")
    first, second = read_prompts(path)
    assert first.messages == ({"role": "user", "content": "Hello"},)
    assert (second.name, [one.name for one in second.tools]) == ("prompts.jsonl:2", ["add"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ("3\n", "prompts.jsonl:1 is no prompt"),
        ('"a"\n{"messages": []}\n', ":2 is no"),
    ],
)
def test_prompts_that_are_none_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_prompts(path)


# ------------------------------------------------------------------------------------------------ bench


def test_the_mechanism_on_a_toy() -> None:
    """Humble, a wrong draft keeps its length; confident, it is slower than none; calibrated, it is back."""
    found = toy_mechanism(replies=8, tokens=48)
    humble, confident, calibrated = found["humble"], found["confident"], found["calibrated"]
    assert humble.speed_to_plain > 1.1
    assert confident.speed_to_plain < 0.95
    assert confident.accepted_length < 0.8 * humble.accepted_length
    assert calibrated.accepted_length > 0.93 * humble.accepted_length


def test_online_calibration_reaches_the_best_temperature() -> None:
    found = online(traces()[:30], start=0.3)
    assert set(found.fractions) == {"text"}
    assert found.fraction_of_best is not None
    assert 0.95 < found.fraction_of_best <= 1.0
    assert online(traces()[:15]).fraction_of_best is None  # too few to tell
    assert found.at_start < 0.55  # what it began with


def test_curves_and_classes() -> None:
    some = traces()[:10]
    found = curve(some)
    best = max(found, key=lambda temperature: found[temperature])
    assert 0.6 <= best <= 2.0
    ((place, (count, alpha, length)),) = by_class(some).items()
    assert place == "text"
    assert count > 300
    assert 1.0 < length < 9.0
    assert 0.4 < alpha < 0.9


def test_rules_of_length_are_compared_on_replies_that_were_held_out() -> None:
    found = lengths(traces()[:15], Price(0.15, 0.05))
    assert {one.rule for one in found} == {"none", "fixed", "p_min", "svip", "ada_edl", "survival"}
    by_rule = {one.rule: one for one in found}
    assert by_rule["none"].speed_to_plain == 1.0
    assert by_rule["survival"].speed_to_plain > 0.95 * found[0].speed_to_plain


def test_the_command_prints_the_toy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "toy.json"
    assert run(monkeypatch, "bench", "calibration", "--only", "toy", "--json", str(path)) == 0
    printed = capsys.readouterr().out
    assert "humble" in printed
    assert "speed to plain" in printed
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["toy_mechanism"]["humble"]["speed_to_plain"] > 1.1
    assert found["mechanism"] is None
    assert run(monkeypatch, "bench", "calibration", "--draft", "none") == 1
    assert "calibration is of a draft model" in capsys.readouterr().err
