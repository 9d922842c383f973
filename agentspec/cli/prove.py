"""`agentspec prove`: checks on the user's own models that drafts leave the replies' law as it is.

Exit codes: 0 exact, 3 not exact, others as everywhere.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.shared import GpuLayers, JsonFile, Target, Threads, check_writable, help_of, layers
from agentspec.config import DEFAULT_MODEL, ProofOptions

if TYPE_CHECKING:
    from agentspec.proof.prove import Proof, Report
    from agentspec.types import Json

__all__ = ["prove_command"]


_DEFAULTS = ProofOptions()


_help = functools.partial(help_of, ProofOptions)


def prove_command(
    model: Target = DEFAULT_MODEL,
    draft: Annotated[
        str | None, typer.Option(help="The draft model. Without one, only the grammar's drafts are checked.")
    ] = None,
    samples: Annotated[int, _help("samples")] = _DEFAULTS.samples,
    tokens: Annotated[int, _help("tokens")] = _DEFAULTS.tokens,
    temperature: Annotated[float, _help("temperature")] = _DEFAULTS.temperature,
    greedy_prompts: Annotated[int, _help("greedy_prompts")] = _DEFAULTS.greedy_prompts,
    alpha: Annotated[float, _help("alpha")] = _DEFAULTS.alpha,
    seed: Annotated[int, _help("seed")] = _DEFAULTS.seed,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    as_json: JsonFile = None,
    break_rule: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Check that drafts leave the law of the replies as it is, on your own models.

    Short continuations are sampled with drafts and from the target's law alone, and compared by a test whose
    power is stated; greedy replies with and without drafts must be the same tokens. More samples find smaller
    differences. The exit code is 0 for "exact" and 3 for "not exact".
    """
    from agentspec.config import RuntimeOptions
    from agentspec.engine.rules import make_rule
    from agentspec.models.pull import ensure
    from agentspec.proof.pair import open_pair
    from agentspec.proof.prove import prove
    from agentspec.proof.rules import broken

    options = ProofOptions.parse(
        {
            "samples": samples,
            "tokens": tokens,
            "temperature": temperature,
            "greedy_prompts": greedy_prompts,
            "alpha": alpha,
            "seed": seed,
        }
    )
    if as_json is not None:
        check_writable(as_json)
    runtime = RuntimeOptions.parse({"n_gpu_layers": layers(n_gpu_layers), "n_threads": n_threads})
    started = time.perf_counter()
    with (
        open_pair(
            ensure(model),
            None if draft is None else ensure(draft),
            options=runtime,
            draft_options=runtime,
            reply=options.longest,
        ) as pair,
        _progress() as report,
    ):
        proof = prove(pair, options, report=report, rules=broken if break_rule else make_rule)
    seconds = time.perf_counter() - started
    result = _as_json(proof, options, model, draft, seconds)
    if as_json is not None and str(as_json) == "-":
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        _print(proof, model, draft)
        if as_json is not None:
            as_json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(0 if proof.exact else 3)


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar for each stage, on stderr; lines in a log."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    tasks = {}
    columns = (
        TextColumn("{task.description:<13}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:

        def report(stage: str, done: int, due: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=due)
                if not console.is_terminal:
                    console.print(f"{stage}: {due} replies")
            bars.update(tasks[stage], completed=done)

        yield report


def _as_json(
    proof: Proof, options: ProofOptions, model: str, draft: str | None, seconds: float
) -> dict[str, Json]:
    comparison = proof.comparison
    return {
        "verdict": "exact" if proof.exact else "not exact",
        "p_value": comparison.p_value,
        "alpha": comparison.alpha,
        "samples": comparison.samples[0],
        "detectable_tv": comparison.detectable_tv,
        "statistic": comparison.statistic,
        "statistic_expected": comparison.expected,
        "statistic_spread": comparison.spread,
        "cells": comparison.cells,
        "greedy_prompts": proof.greedy_prompts,
        "greedy_mismatches": proof.mismatches,
        "greedy_near_ties": proof.near_ties,
        "model": model,
        "draft": draft,
        "sources": {
            name: {"proposed": count.proposed, "accepted": count.accepted}
            for name, count in sorted(proof.drafted.sources.items())
        },
        "tokens": options.tokens,
        "temperature": options.temperature,
        "seed": options.seed,
        "seconds": round(seconds, 1),
    }


def _print(proof: Proof, model: str, draft: str | None) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for label, text in _lines(proof, model, draft):
        console.print(Text.assemble((f"{label:<14}", "dim"), text), soft_wrap=True)
    verdict = ("exact", "bold green") if proof.exact else ("not exact", "bold red")
    console.print(Text.assemble((f"{'verdict':<14}", "dim"), verdict))


def _lines(proof: Proof, model: str, draft: str | None) -> Iterator[tuple[str, str]]:
    """The summary: what each line is about, and what it says."""
    found = proof.comparison
    yield "target", model
    yield "draft", draft or "none: only the grammar's drafts were checked"
    for name, count in sorted(proof.drafted.sources.items()):
        yield (
            f"  {name}",
            f"{count.accepted / count.proposed:.0%} of {count.proposed:,} proposed tokens accepted",
        )
    yield "sampled", "{:,} continuations with drafts, {:,} from the target alone".format(*found.samples)
    yield (
        "  statistic",
        f"{found.statistic:.1f}, where one law gives {found.expected:.1f} ± {found.spread:.1f} (chi-square)",
    )
    yield "  p-value", f"{found.p_value:.2g}; {found.alpha:.2g} or less says that the laws differ"
    if found.detectable_tv < 1.0:
        yield (
            "  power",
            f"a total variation of {found.detectable_tv:.3f} in every prompt is found with probability 0.99",
        )
    else:
        yield "  power", "none: the samples are too few to find any difference"
    yield "greedy", _greedy(proof)
    for prompt, difference in proof.differences.items():
        nature = "near-tie" if difference is not None and difference.near_tie else "mismatch"
        where = "one reply goes on after the other's end" if difference is None else str(difference)
        yield f"  {nature}", f"prompt {prompt + 1}, {where}"


def _greedy(proof: Proof) -> str:
    if not proof.greedy_prompts:
        return "not compared"
    prompts = f"{proof.greedy_prompts} prompts"
    if not proof.differences:
        return f"{prompts}: the same tokens with and without drafts"
    same = proof.greedy_prompts - len(proof.differences)
    return f"{prompts}: {same} the same, {proof.near_ties} differ at a near-tie, {proof.mismatches} differ"
