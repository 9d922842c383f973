"""The bench's own way to real models."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from agentspec.bench.agents.run import bench_agents
from agentspec.bench.agents.systems import Settings, open_system
from agentspec.bench.agents.worlds import TASKS
from agentspec.bench.cache import bench_cache
from agentspec.bench.chat import open_chat
from agentspec.bench.concurrency import bench_concurrency
from agentspec.bench.drafts import Ask
from agentspec.bench.figures import Reply
from agentspec.bench.options import CacheBenchOptions, ConcurrencyOptions
from agentspec.bench.stages import ConfidentWrong, Setup
from agentspec.bench.workload import load_workload
from agentspec.config import RuntimeOptions

pytestmark = pytest.mark.model

NAME = "confident_wrong"


def test_where_costs_are_ignored_a_source_that_always_fails_goes_on(small_model: Path) -> None:
    setup = Setup(None, ((NAME, lambda _: ConfidentWrong()),))
    with open_chat(setup, model=str(small_model), options=RuntimeOptions(), ignore_costs=True) as answer:
        outcome = answer(Ask(load_workload().prose[0], (NAME,), "", 0.0, 0, 48))
    reply = Reply.of(outcome.text, outcome.stats, wall=1.0)
    proposed, accepted = reply.sources[NAME]
    assert proposed > 6 * reply.target_passes  # eight at a time, as far as the reply has room
    assert accepted < reply.target_passes


def test_a_new_process_reads_the_tools_from_disk_and_a_second_turn_computes_what_is_new(
    target_model: Path,
) -> None:
    options = CacheBenchOptions(rounds=1, agent="home")
    found = bench_cache(target_model, None, options, {}, report=lambda *_: None)
    (cold,), (warm,) = found.cold, found.warm
    assert cold.reused == 0
    assert warm.prompt_tokens / 2 < warm.reused < warm.prompt_tokens
    for sample in (cold, warm):
        # besides what is new, the forced end of the reply, which no pass has needed yet
        assert 0 < sample.new_tokens <= sample.prefilled <= sample.new_tokens + 8 < sample.prompt_tokens / 2


def test_threads_tasks_and_cancelled_readers_break_nothing(small_model: Path) -> None:
    """And a stream goes on while a prompt is loaded."""
    model = str(small_model)
    for part in ("soak", "gap"):
        options = ConcurrencyOptions(agents=2, prompt_tokens=300, requests=120, only=part)
        found = bench_concurrency(
            model, None, model, options, RuntimeOptions(n_threads=1), report=lambda *_: None
        )
        if part == "soak":
            assert found.soak is not None
            assert (found.soak.requests, found.soak.stuck, found.soak.leaked) == (120, 0, 0)
            assert 20 < found.soak.cancelled < 60
            assert len(found.soak.odd) < 60  # near-ties of a small model, of which not all can be proven
        else:
            assert found.gap is not None
            assert found.gap.prompt_tokens == 300
            assert len(found.gap.meanwhile) > 2


def test_a_small_model_does_no_work_and_makes_no_invalid_call(small_model: Path) -> None:
    settings = Settings(str(small_model), small_model, None, n_threads=1, max_tokens=40)
    outcomes = bench_agents(
        TASKS[:1],
        ["agentspec", "agentspec-no-drafts"],
        functools.partial(open_system, settings=settings),
        max_steps=2,
    )
    drafted, plain = outcomes.values()
    assert drafted.error is plain.error is None
    assert drafted.invalid_calls == plain.invalid_calls == 0
    for outcome in (drafted, plain):
        assert 0 < outcome.steps <= 2
        assert outcome.decode_tps
