"""What `agentspec bench concurrency` and `bench cache` measure, on toy models, and how they say it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agentspec.bench.cache import Findings as CacheFindings
from agentspec.bench.cache import Sample
from agentspec.bench.concurrency import Findings
from agentspec.bench.options import CacheBenchOptions, ConcurrencyOptions
from agentspec.bench.soak import Soak, soak
from agentspec.bench.together import Gap, Odd, Throughput, explain, measure_gap, measure_throughput
from agentspec.cli import main as cli
from agentspec.config import GenerationOptions, SamplingOptions
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.engine import Engine
from agentspec.engine.request import Request
from agentspec.errors import EngineError
from agentspec.testing import TableModel, TableVocab, random_rows
from agentspec.types import LogitsArray, Span

N_VOCAB = 6
N_SLOTS = 4


def table(*, seed: int = 1, n_slots: int = N_SLOTS) -> TableModel:
    return TableModel(
        random_rows(N_VOCAB, seed=seed), n_vocab=N_VOCAB, n_ctx=4096, n_batch=128, n_slots=n_slots
    )


def engine_on(target: TableModel) -> Engine:
    draft = ModelDraft(table(seed=2), n_vocab=N_VOCAB)
    return Engine(Core(target, TableVocab(list("abcdef"), end_ids=[]), [draft], costs=Costs.free()))


def request(*prompt: int, max_tokens: int = 8) -> Request:
    return Request(
        prompt,
        sampling=SamplingOptions(temperature=0.0),
        generation=GenerationOptions(max_tokens=max_tokens),
    )


@pytest.fixture
def engine() -> Iterator[Engine]:
    with engine_on(table()) as made:
        yield made


class Wrong(TableModel):
    """Mixes sequences up whenever several share a pass."""

    def __init__(self) -> None:
        super().__init__(
            random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, n_ctx=4096, n_batch=128, n_slots=N_SLOTS
        )

    def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
        rows = super().decode(spans)
        return [row[::-1].copy() for row in rows] if len(spans) > 1 else rows


# ---------------------------------------------------------------------------------------- throughput


def test_every_reply_at_once_is_what_it_is_alone(engine: Engine) -> None:
    seen: list[None] = []
    found = measure_throughput(engine, [request(one, 1) for one in range(4)], 2, lambda: seen.append(None))
    assert (found.agents, found.odd) == (4, [])
    assert (len(found.alone), len(found.together)) == (2, 2)
    assert found.ratio > 0.0
    assert len(seen) == 4 * (1 + 4 * 2)


def test_replies_that_are_mixed_up_are_noticed() -> None:
    with engine_on(Wrong()) as engine:
        found = measure_throughput(engine, [request(one, 1, max_tokens=60) for one in range(4)], 1, _nothing)
    assert found.odd
    assert all(one.expected != one.found for one in found.odd)


def test_the_ratio_is_that_of_the_medians() -> None:
    assert Throughput(8, alone=[1.0, 2.0, 9.0], together=[6.0, 1.0, 5.0]).ratio == 2.5


def test_a_difference_is_explained_where_it_begins() -> None:
    """Scores that no size of a pass moves: two tokens are a near-tie only where they are equal."""
    rows = TableModel(lambda _: [0.0, 1.0, 1.0, 0.0, 0.0, 0.0], n_vocab=N_VOCAB, n_ctx=4096, n_batch=64)
    tie, no_tie, longer = explain(
        rows, [Odd((0,), (3, 1), (3, 2)), Odd((0,), (3, 1), (3, 0)), Odd((0,), (3,), (3, 1))]
    )
    assert tie is not None
    assert tie.near_tie
    assert no_tie is not None
    assert not no_tie.near_tie
    assert longer is None


# ------------------------------------------------------------------------------------------------ gap


def test_the_gap_is_that_of_the_running_reply(engine: Engine) -> None:
    long = request(*[token % 5 for token in range(900)], max_tokens=1)
    found = measure_gap(engine, request(0, max_tokens=3000), long, _nothing)
    assert found.prompt_tokens == 900
    assert found.worst == max(found.meanwhile) > 0.0
    assert len(found.before) > 5


def test_a_reply_that_ends_too_soon_measures_nothing(engine: Engine) -> None:
    with pytest.raises(EngineError, match="ended before"):
        measure_gap(engine, request(0, max_tokens=2), request(*[1] * 900, max_tokens=1), _nothing)


# ----------------------------------------------------------------------------------------------- soak


def test_a_sound_engine_survives(engine: Engine) -> None:
    seen: list[None] = []
    requests = [request(one, two) for one in range(4) for two in range(4)]
    found = soak(engine, requests, count=400, n_slots=N_SLOTS, progress=lambda: seen.append(None))
    assert (found.requests, found.stuck, found.leaked, found.odd) == (400, 0, 0, [])
    assert 60 < found.cancelled < 240
    assert len(seen) == 400
    assert not engine.closed


def test_wrong_replies_are_noticed() -> None:
    with engine_on(Wrong()) as engine:
        found = soak(engine, [request(one, max_tokens=20) for one in range(4)], count=60, n_slots=N_SLOTS)
    assert found.odd
    assert not found.stuck


def test_a_deadlock_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.bench.soak._PATIENCE", 0.0)
    release = threading.Event()

    class Hangs(TableModel):
        def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
            if self.passes == 20:
                assert release.wait(timeout=60)
            return super().decode(spans)

    class Closing(Engine):
        def close(self) -> None:
            release.set()
            super().close()

    target = Hangs(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, n_ctx=4096, n_batch=128)
    with Closing(Core(target, TableVocab(list("abcdef"), end_ids=[]))) as engine:
        found = soak(engine, [request(0)], count=50, n_slots=2)
    assert found.stuck > 0


def test_slots_that_are_lost_are_counted(engine: Engine) -> None:
    """One more reply than there are slots begins only when another has ended, as if a slot had been lost."""
    found = soak(engine, [request(1, max_tokens=3)], count=20, n_slots=N_SLOTS + 1)
    assert found.leaked == 1


# -------------------------------------------------------------------------------------------- commands


Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `agentspec bench`; returns its exit code."""

    def command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["agentspec", "bench", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        assert isinstance(exited.value.code, int)
        return exited.value.code

    return command


FOUND = Findings(
    throughput=Throughput(8, alone=[10.0], together=[22.0], odd=[Odd((0,), (1,), (2,))]),
    gap=Gap(2000, before=[0.1, 0.1], meanwhile=[0.2, 0.55], seconds=9.5),
    soak=Soak(completed=1300, cancelled=700, rss_start_mb=300.0, rss_end_mb=301.0, seconds=50.0),
    near_ties=1,
)


def test_the_figures_of_concurrency(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[object] = []

    def found(*arguments: object, report: Callable[[str, int], None]) -> Findings:
        asked.extend(arguments)
        report("soak", 2000)
        return FOUND

    monkeypatch.setattr("agentspec.bench.concurrency.bench_concurrency", found)
    path = tmp_path / "bench.json"
    assert run("concurrency", "--only", "soak", "--requests", "50", "--json", str(path)) == 0
    assert isinstance(asked[3], ConcurrencyOptions)
    assert (asked[3].only, asked[3].requests, asked[3].agents) == ("soak", 50, 8)
    figures = json.loads(path.read_text(encoding="utf-8"))
    assert figures["throughput_ratio_8"] == 2.2
    assert figures["replies_equal"] is True
    assert figures["worst_gap_ms"] == 550.0
    assert {"requests": 2000, "cancelled": 700, "deadlocks": 0, "wrong": 0}.items() <= figures["soak"].items()
    assert (figures["soak"]["rss_start_mb"], figures["soak"]["rss_end_mb"]) == (300.0, 301.0)
    printed = capsys.readouterr().out
    assert "8 agents at once: 2.20× that of one after another" in printed
    assert "1 differ from what they are alone: 1 at a proven near-tie, 0 without one" in printed
    assert "worst gap 550 ms between its steps; usually 100 ms" in printed
    assert "2,000 requests in 50 s, 700 cancelled" in printed


def test_the_figures_of_the_cache(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(b"GGUF")
    asked: list[object] = []

    def found(*arguments: object, report: Callable[[str, int], None]) -> CacheFindings:
        asked.extend(arguments)
        report("cold", 2)
        return CacheFindings([Sample(9.0, 1000, 0, 40, 40)], [Sample(0.9, 1000, 980, 41, 41)])

    monkeypatch.setattr("agentspec.bench.cache.bench_cache", found)
    assert run("cache", "--model", str(target), "--agent", "shop", "--json", "-") == 0
    assert asked[:2] == [target, None]
    assert asked[2] == CacheBenchOptions(agent="shop")
    figures = json.loads(capsys.readouterr().out)
    assert figures["ttft_warm_ratio"] == 0.1
    assert (figures["second_turn_prefilled"], figures["second_turn_new_tokens"]) == (41, 41)
    assert run("cache", "--model", str(target)) == 0
    printed = capsys.readouterr().out
    assert "0.90 s with snapshots, 9.00 s without: 0.10" in printed
    assert "980 of 1,000 prompt tokens were there" in printed
    assert "41 prompt tokens computed, 41 of them new" in printed


def _nothing() -> None:
    pass
