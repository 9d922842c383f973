"""`agentspec bench concurrency` and `agentspec bench cache`: many agents on one engine, and what is kept."""

from __future__ import annotations

import functools
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.bench.options import CacheBenchOptions, ConcurrencyOptions
from agentspec.cli.bench_output import Lines, progress, write
from agentspec.cli.shared import (
    DraftModel,
    GpuLayers,
    JsonFile,
    Target,
    Threads,
    check_writable,
    draft_of,
    help_of,
    layers,
)
from agentspec.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from agentspec.bench.cache import Findings as CacheFindings
    from agentspec.bench.concurrency import Findings

__all__ = ["cache_command", "concurrency_command"]

_CONCURRENCY = ConcurrencyOptions()
_CACHE = CacheBenchOptions()
_help = functools.partial(help_of, ConcurrencyOptions)
_cache_help = functools.partial(help_of, CacheBenchOptions)


class _Part(StrEnum):
    """`agentspec.bench.options.ConcurrencyPart`, in the form that typer shows as choices."""

    THROUGHPUT = "throughput"
    GAP = "gap"
    SOAK = "soak"


class _Agent(StrEnum):
    """The agents of the workload."""

    TRAVEL = "travel"
    SHOP = "shop"
    OFFICE = "office"
    OPERATIONS = "operations"
    HOME = "home"


_AGENT = _Agent(_CACHE.agent)


def concurrency_command(
    model: Target = DEFAULT_MODEL,
    draft: DraftModel = "auto",
    soak_model: Annotated[
        str, typer.Option(help="The model of the soak, which is about the engine: a small one will do.")
    ] = "smollm2-135m-instruct",
    agents: Annotated[int, _help("agents")] = _CONCURRENCY.agents,
    rounds: Annotated[int, _help("rounds")] = _CONCURRENCY.rounds,
    prompt_tokens: Annotated[int, _help("prompt_tokens")] = _CONCURRENCY.prompt_tokens,
    requests: Annotated[int, _help("requests")] = _CONCURRENCY.requests,
    seed: Annotated[int, _help("seed")] = _CONCURRENCY.seed,
    only: Annotated[_Part | None, _help("only")] = None,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    as_json: JsonFile = None,
) -> None:
    """Measure what agents gain, and cost each other, on one engine.

    First several agents make tool calls one after another and all at once; then a long prompt is loaded while
    another reply goes on; then thousands of short requests come from threads and asyncio tasks, some of them
    cancelled. A quarter of an hour on two CPU cores.
    """
    from agentspec.bench.concurrency import bench_concurrency
    from agentspec.config import RuntimeOptions

    options = ConcurrencyOptions.parse(
        {
            "agents": agents,
            "rounds": rounds,
            "prompt_tokens": prompt_tokens,
            "requests": requests,
            "seed": seed,
            "only": only,
        }
    )
    runtime = RuntimeOptions.parse({"n_gpu_layers": layers(n_gpu_layers), "n_threads": n_threads})
    if as_json is not None:
        check_writable(as_json)
    started = time.perf_counter()
    with progress("replies") as report:
        findings = bench_concurrency(
            model, draft_of(draft, model), soak_model, options, runtime, report=report
        )
    settings = {"model": model, "draft": draft_of(draft, model), "soak_model": soak_model, "rounds": rounds}
    write({**findings.as_json(), **settings}, started, as_json, lines=concurrency_lines(findings))


def cache_command(
    model: Target = DEFAULT_MODEL,
    draft: DraftModel = "auto",
    agent: Annotated[_Agent, _cache_help("agent")] = _AGENT,
    rounds: Annotated[int, _cache_help("rounds")] = _CACHE.rounds,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    as_json: JsonFile = None,
) -> None:
    """Measure what snapshots of tools save a new process, and kept conversations their next turn.

    Every sample is a process of its own, with snapshots in a folder of its own; yours are left alone.
    """
    from agentspec.bench.cache import bench_cache
    from agentspec.config import RuntimeOptions
    from agentspec.models.pull import ensure

    options = CacheBenchOptions.parse({"agent": agent, "rounds": rounds})
    runtime = RuntimeOptions.parse({"n_gpu_layers": layers(n_gpu_layers), "n_threads": n_threads})
    if as_json is not None:
        check_writable(as_json)
    draft_model = draft_of(draft, model)
    started = time.perf_counter()
    paths = ensure(model), None if draft_model is None else ensure(draft_model)
    with progress("processes") as report:
        findings = bench_cache(*paths, options, runtime.model_dump(mode="json"), report=report)
    settings = {"model": model, "draft": draft_model, "agent": agent.value, "rounds": rounds}
    write({**findings.as_json(), **settings}, started, as_json, lines=cache_lines(findings))


def concurrency_lines(findings: Findings) -> Lines:
    """What was found: what each line is about, and what it says."""
    from statistics import median

    if (one := findings.throughput) is not None:
        alone, together = median(one.alone), median(one.together)
        yield "throughput", f"{one.agents} agents at once: {one.ratio:.2f}× that of one after another"
        yield "", f"{together:.1f} and {alone:.1f} tokens per second, medians of {len(one.alone)} rounds"
        yield "replies", _same(len(one.odd), findings.wrong_calls)
    if (gap := findings.gap) is not None:
        usual = 1e3 * median(gap.before)
        loaded = f"{gap.prompt_tokens:,} tokens, loaded in {gap.seconds:.1f} s"
        yield "a long prompt", f"{loaded} while a reply went on"
        yield "", f"worst gap {1e3 * gap.worst:.0f} ms between its steps; usually {usual:.0f} ms"
    if (soak := findings.soak) is not None:
        yield "soak", f"{soak.requests:,} requests in {soak.seconds:.0f} s, {soak.cancelled:,} cancelled"
        yield "", f"{int(soak.stuck > 0)} deadlocks, {soak.leaked} slots lost"
        yield "", _same(len(soak.odd), findings.wrong_in_soak)
        if soak.rss_start_mb is not None and soak.rss_end_mb is not None:
            yield "", f"memory {soak.rss_start_mb:.0f} MB after a tenth, {soak.rss_end_mb:.0f} MB at the end"


def cache_lines(findings: CacheFindings) -> Lines:
    """What was found: what each line is about, and what it says."""
    from statistics import median

    cold, warm = ([one.first_token for one in kind] for kind in (findings.cold, findings.warm))
    last = findings.warm[-1]
    took = f"{median(warm):.2f} s with snapshots, {median(cold):.2f} s without"
    yield "first token", f"{took}: {findings.ratio:.2f}"
    yield "", f"{last.reused:,} of {last.prompt_tokens:,} prompt tokens were there, in a new process"
    yield "second turn", f"{last.prefilled} prompt tokens computed, {last.new_tokens} of them new"


def _same(differing: int, wrong: int) -> str:
    if not differing:
        return "every reply is what it is alone"
    ties = differing - wrong
    return f"{differing} differ from what they are alone: {ties} at a proven near-tie, {wrong} without one"
