"""Calibration on a real model that drafts for itself: recorded, fitted, used, learned online and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec import ChatAgentSpec
from agentspec.bench.calibration_run import bench_calibration
from agentspec.bench.options import CalibrationBenchOptions
from agentspec.calibration.calibrator import Calibrator, Where
from agentspec.calibration.files import CalibrationFile, read_calibration, write_calibration
from agentspec.calibration.steps import steps
from agentspec.calibration.traces import read_traces
from agentspec.config import RuntimeOptions
from agentspec.errors import CalibrationError
from tests.unit.test_cli import run

pytestmark = pytest.mark.model

TOOL = {
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    cities = ("Paris", "Oslo", "Rome")
    lines = [
        {"messages": [{"role": "user", "content": f"How will it be in {city}?"}], "tools": [TOOL]}
        for city in cities
    ]
    path.write_text("\n".join(map(json.dumps, [*lines, "Tell me of the sea."])), encoding="utf-8")
    return path


def test_prompts_to_a_calibration_that_a_model_takes(
    small_model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = str(small_model)
    arguments = ("--model", model, "--draft", model, "--max-tokens", "24", "--prompts", str(prompts))
    assert run(monkeypatch, "calibrate", *arguments, "-o", "c.json", "--json", "r.json") == 0
    found = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert found["replies"] == 4
    assert {name for name in found["gain"]} == {"model"}
    made = read_calibration(tmp_path / "c.json")
    places = {one.place for one in made.scores}
    assert {"text", "string"} <= places
    # a model that drafts for itself cannot be better: nothing is changed by much
    for place in places:
        assert 0.8 <= made.calibrator(adapts=False).temperature("model", Where("", place, 2)) <= 1.25
    chat = ChatAgentSpec(model=model, draft=model, n_ctx=1024, calibration="c.json", temperature=0.8)
    try:
        reply = chat.invoke("Tell me of the sea.", max_tokens=12)
        assert reply.response_metadata["agentspec"]["tokens"] == 12
    finally:
        chat.close()


def test_a_calibration_of_another_vocabulary_is_refused(small_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    other = CalibrationFile.of(Calibrator(), model="m", draft=None, vocab="v", made="offline")
    write_calibration(path, other)
    chat = ChatAgentSpec(model=str(small_model), n_ctx=512, calibration=str(path))
    with pytest.raises(CalibrationError, match=r"other\.json is for m"):
        chat.invoke("Hello")


def test_what_is_learned_online_is_kept_and_traced(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that is made wrongly sure: what it learns is in the cache folder when the model is closed."""
    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path / "cache"))
    trace = tmp_path / "t.jsonl"
    chat = ChatAgentSpec(
        model=str(small_model),
        draft=str(small_model),
        n_ctx=1024,
        n_parallel=1,
        temperature=0.9,
        draft_temperature=0.2,
        draft_sources=("model",),
        history="off",
        snapshots="off",
        max_tokens=32,
    )
    try:
        for number in range(3):
            chat.invoke("Tell me of the sea.", seed=number, trace_path=str(trace), trace_top_k=16)
    finally:
        chat.close()
    (kept,) = (tmp_path / "cache" / "calibration").iterdir()
    made = read_calibration(kept)
    assert made.made == "online"
    assert made.survival
    for one in read_traces([trace]):
        known = [step for step in steps(one) if step.knows("model")]
        assert all(step.where.place == "text" for step in known)


def test_the_bench_runs(small_model: Path) -> None:
    model = str(small_model)
    told: set[str] = set()
    for part in ("bad-draft", "mechanism"):
        options = CalibrationBenchOptions.parse({"replies": 3, "max_tokens": 12, "rounds": 1, "only": part})
        found = bench_calibration(
            model, model, model, options, RuntimeOptions(), report=lambda part, _: told.add(part)
        )
        if part == "bad-draft":
            assert found.bad_draft is not None
            assert found.bad_draft.before >= 1.0
        else:
            assert found.mechanism is not None
            assert found.price is not None
            assert found.mechanism["confident"].accepted_length < found.mechanism["humble"].accepted_length
    assert told == {"bad draft", "mechanism"}
