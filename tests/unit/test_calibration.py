"""What proposals show: observed, recorded by the engine, written down, read back, measured."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentspec.calibration.measure import Measure, measure
from agentspec.calibration.observe import Observation, observe, overlap
from agentspec.calibration.recording import Recording
from agentspec.calibration.traces import ReplyTrace, append_trace, read_traces, recorded, trace_schema
from agentspec.config import SamplingOptions
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.errors import TraceError
from agentspec.testing import TableModel, TrieMatcher, random_rows
from agentspec.types import Distribution, Proposal
from tests.unit.test_engine import N_VOCAB, model, request, run, vocab

SCHEMA = Path(__file__).parents[2] / "schemas/trace.v1.schema.json"

WARM = SamplingOptions(temperature=1.0)


def law(**probs: float) -> Distribution:
    """By token: a is 0, b is 1, and so on."""
    ids = [ord(name) - ord("a") for name in probs]
    return Distribution(np.array(ids, dtype=np.int64), np.array([*probs.values()]))


# ------------------------------------------------------------------------------------------- one proposal


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (law(a=0.5, b=0.5), law(a=0.5, b=0.5), 1.0),
        (law(a=0.9, b=0.1), law(a=0.5, b=0.5), 0.6),
        (law(a=0.2, c=0.8), law(a=0.5, b=0.3, d=0.2), 0.2),
        (law(a=1.0), law(b=1.0), 0.0),
        (law(d=1.0), law(a=0.5, b=0.5), 0.0),
    ],
)
def test_overlap_is_one_less_the_total_variation(
    one: Distribution, other: Distribution, shared: float
) -> None:
    assert overlap(one, other) == pytest.approx(shared)
    assert overlap(other, one) == pytest.approx(shared)


def test_what_a_drawn_and_a_certain_token_show() -> None:
    target, draft = law(a=0.2, b=0.8), law(a=0.6, b=0.4)
    drawn = observe(Proposal(0, draft, "model"), "key", 1.0, target, accepted=False)
    assert drawn.alpha == pytest.approx(0.6)
    assert drawn == Observation(0, "model", "key", 0.6, 0.2, drawn.alpha, accepted=False)
    certain = observe(Proposal(1, None, "lookup"), "string", 0.9, target, accepted=True)
    assert certain == Observation(1, "lookup", "string", 0.9, 0.8, 0.8, accepted=True)


# ------------------------------------------------------------------------------------------- measures


def seen(confidence: float, target_prob: float, **more: object) -> Observation:
    one = Observation(0, "model", "key", confidence, target_prob, target_prob, accepted=False)
    return one._replace(**more)  # type: ignore[arg-type]


def test_a_calibrated_source_has_no_error_and_a_bold_one_loses_by_it() -> None:
    calibrated = measure([seen(0.25, 0.25), seen(0.75, 0.75)])["model", "key"]
    assert (calibrated.ece, calibrated.over_confident) == (0.0, 0.0)
    assert calibrated.alpha == 0.5
    bold = measure([seen(0.95, 0.35), seen(0.95, 0.55)])["model", "key"]
    assert bold.ece == pytest.approx(0.5)
    assert bold.over_confident == pytest.approx(0.5 * 2 / 1.1)
    humble = measure([seen(0.35, 0.95)])["model", "key"]
    assert humble.ece == pytest.approx(0.6)
    assert humble.over_confident == 0.0


def test_measures_are_by_source_and_place_and_leave_forced_tokens_out() -> None:
    found = measure(
        [
            seen(1.0, 1.0, accepted=True),
            seen(0.5, 0.0, place="string"),
            seen(0.5, 0.5, source="lookup", accepted=True),
            seen(1.0, 1.0, source="grammar", forced=True),
        ]
    )
    assert {key: (one.count, one.accepted) for key, one in found.items()} == {
        ("model", "key"): (1, 1),
        ("model", "string"): (1, 0),
        ("model", ""): (2, 1),
        ("lookup", "key"): (1, 1),
        ("lookup", ""): (1, 1),
    }
    assert found["model", ""].acceptance == 0.5
    assert json.loads(json.dumps(found["model", ""].as_json()))["reliability"] == [
        {"proposed": 1, "confidence": 0.5, "target_prob": 0.0},
        {"proposed": 1, "confidence": 1.0, "target_prob": 1.0},
    ]
    nothing = Measure()
    assert (nothing.alpha, nothing.acceptance, nothing.ece, nothing.over_confident) == (0, 0, 0, 0)


# ------------------------------------------------------------------------------------------- recordings


def another() -> ModelDraft:
    return ModelDraft(TableModel(random_rows(N_VOCAB, seed=9), n_vocab=N_VOCAB), n_vocab=N_VOCAB)


def replies(*requests: Request, end: bool = False) -> list[tuple[Recording, dict[str, tuple[int, int]]]]:
    """What was recorded, and what the trace counted."""
    core = Core(model(), vocab(end=end), [GrammarDraft(), another()], costs=Costs.free())
    found = []
    for stream in run(core, *requests):
        recording = stream.result.recording
        assert recording is not None
        sources = stream.result.trace.sources
        found.append((recording, {name: (one.proposed, one.accepted) for name, one in sources.items()}))
    return found


def recording_request(seed: int = 7, top_k: int = 0, **changes: object) -> Request:
    plain = request(max_tokens=12)
    generation = plain.generation.model_copy(update={"seed": seed})
    return replace(plain, sampling=WARM, generation=generation, recorded=top_k, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_a_recording_is_what_the_trace_counts(seed: int) -> None:
    ((recording, counted),) = replies(recording_request(seed))
    accepted = [one for block in recording.blocks for one in block.observations if one.accepted]
    assert sum(block.proposed for block in recording.blocks) == sum(n for n, _ in counted.values())
    assert len(accepted) == sum(n for _, n in counted.values())
    for block in recording.blocks:
        assert all(one.accepted for one in block.observations[:-1])
        for offset, one in enumerate(block.observations):
            if one.accepted:
                assert recording.tokens[block.at + offset] == one.token
    assert len(recording.tokens) == 12
    assert all(0.0 <= one.alpha <= 1.0 for block in recording.blocks for one in block.observations)


def test_rows_hold_both_laws() -> None:
    ((recording, _),) = replies(recording_request(top_k=3))
    assert [row.at for row in recording.rows][:2] == [0, 1]
    drafted = [row for row in recording.rows if row.draft_probs is not None]
    assert drafted
    for row in recording.rows:
        assert 3 <= len(row.ids) <= 6
        assert len(set(row.ids)) == len(row.ids)
        assert list(row.target_probs[:3]) == sorted(row.target_probs[:3], reverse=True)
    for row in recording.rows:
        scores = np.array(model().logits([0, 1, 2, *recording.tokens[: row.at]]), dtype=np.float64)
        probs = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        assert row.target_probs == pytest.approx([probs[token] for token in row.ids])


def test_forced_tokens_are_marked() -> None:
    matcher = TrieMatcher([(1, 2, 3, 4), (1, 2, 3, 5)])
    ((recording, _),) = replies(recording_request(matcher=matcher))
    forced = [one.forced for block in recording.blocks for one in block.observations]
    assert forced[:3] == [True, True, True]
    assert not any(forced[3:])


def test_nothing_is_recorded_that_was_not_asked_for_and_recording_changes_nothing() -> None:
    core = Core(model(), vocab(), [another()], costs=Costs.free())
    plain, recorded_ = run(core, replace(recording_request(), recorded=None), recording_request(top_k=5))
    assert plain.result.recording is None
    assert [step.tokens for step in plain] == [step.tokens for step in recorded_]


def test_mean_expected_acceptance_is_the_rate_of_acceptance() -> None:
    """Alpha is acceptance without its chance, of tokens verified one by one."""
    alphas: list[float] = []
    accepted: list[bool] = []
    for seed in range(300):
        one = recording_request(seed)
        options = one.draft.model_copy(update={"max_block": 1, "verifier": "token_wise"})
        ((recording, _),) = replies(replace(one, draft=options))
        for block in recording.blocks:
            alphas += [one.alpha for one in block.observations]
            accepted += [one.accepted for one in block.observations]
    assert len(alphas) > 2000
    spread = math.sqrt(sum(alpha * (1 - alpha) for alpha in alphas)) / len(alphas)
    assert abs(np.mean(alphas) - np.mean(accepted)) < 4 * spread


# ------------------------------------------------------------------------------------------- files


def trace(recording: Recording) -> ReplyTrace:
    return ReplyTrace(
        model="m",
        draft=None,
        vocab="v",
        law="off",
        sampling={"temperature": 1.0},
        tool_set="",
        agent="",
        prompt=[0, 1, 2],
        finish_reason="length",
        **recorded(recording),
    )


def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "traces.jsonl"
    two = replies(recording_request(1), recording_request(2, top_k=2))
    written = [trace(recording) for recording, _ in two]
    for reply in written:
        append_trace(path, reply)
    assert list(read_traces([path])) == written
    assert path.stat().st_mode & 0o077 == 0  # it holds conversations
    recording, _ = two[0]
    plain = [one for block in recording.blocks for one in block.observations]
    for read, one in zip(written[0].observations(), plain, strict=True):
        assert read[:3] == one[:3]
        assert read[3:6] == pytest.approx(one[3:6], abs=1e-6)
        assert read[6:] == one[6:]


def test_the_schema_is_the_formats_own() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == {"$id": "trace.v1", **trace_schema()}


def broken_lines() -> Sequence[tuple[str, str]]:
    line = json.loads(trace(replies(recording_request())[0][0]).model_dump_json())
    block = next(block for block in line["blocks"] if block["tokens"])

    def changed(**values: object) -> str:
        return json.dumps({**line, **values})

    def with_block(**values: object) -> str:
        return changed(blocks=[{**block, **values}])

    return [
        (json.dumps(line)[:-40], "JSON"),
        ("[]", "object"),
        (changed(version="trace.v2"), "version"),
        (changed(prompt=["a"]), "prompt.0"),
        (changed(more=1), "more"),
        (with_block(alpha=[]), "columns"),
        (with_block(proposed=0), "accepted of 0"),
        (with_block(alpha=[1.5] * len(block["alpha"])), "alpha"),
    ]


@pytest.mark.parametrize("index", range(8))
def test_a_line_that_is_none_is_named(tmp_path: Path, index: int) -> None:
    text, reason = broken_lines()[index]
    path = tmp_path / "traces.jsonl"
    good = trace(Recording())
    append_trace(path, good)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(f"\n{text}\n")
    read = read_traces([path])
    assert next(read) == good
    with pytest.raises(TraceError, match=rf"traces\.jsonl:3 .*{reason}"):
        next(read)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.jsonl cannot be read"):
        list(read_traces([tmp_path / "nowhere.jsonl"]))
    (tmp_path / "latin").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(TraceError, match="latin cannot be read"):
        list(read_traces([tmp_path / "latin"]))
    with pytest.raises(TraceError, match="cannot be written"):
        append_trace(tmp_path / "latin" / "traces.jsonl", trace(Recording()))


def test_several_files_are_one_after_another(tmp_path: Path) -> None:
    for name in "ab":
        append_trace(tmp_path / name, trace(Recording()).model_copy(update={"agent": name}))
    read = read_traces(tmp_path / name for name in itertools.chain("ba"))
    assert [one.agent for one in read] == ["b", "a"]
