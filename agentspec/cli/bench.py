"""`agentspec bench`: measurements on the user's own models and machine."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.bench.options import BenchOptions
from agentspec.cli.bench_output import progress, write
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
    from rich.table import Table

    from agentspec.bench.drafts import Findings
    from agentspec.bench.figures import Series

__all__ = ["app", "drafts_command", "lines", "table"]

app = typer.Typer(name="bench", help="Measure, on your own models and machine.", no_args_is_help=True)

_DEFAULTS = BenchOptions()

_LABELS = {
    "none": "none",
    "grammar": "grammar",
    "lookup": "+ lookup",
    "history": "+ history",
    "all_without_model": "+ both",
    "model": "+ model",
    "all": "all",
}
_CASES = {
    "free_text": "prose, no tools",
    "confident_wrong": "a source that is always wrong, and sure",
    "random_draft": "a draft model with random weights",
    "hot": "temperature 1.5",
}


class _Part(StrEnum):
    """`agentspec.bench.options.Part`, in the form that typer shows as choices."""

    GREEDY = "greedy"
    SAMPLED = "sampled"
    NEVER_SLOWER = "never-slower"


_help = functools.partial(help_of, BenchOptions)


@app.callback()
def _group() -> None:
    """Measure, on your own models and machine."""


@app.command("drafts")
def drafts_command(
    model: Target = DEFAULT_MODEL,
    draft: DraftModel = "auto",
    random_draft: Annotated[
        str | None,
        typer.Option(
            help="A useless draft model for the last cases. By default, the draft with its weights shuffled."
        ),
    ] = None,
    rounds: Annotated[int, _help("rounds")] = _DEFAULTS.rounds,
    subset: Annotated[int | None, _help("subset")] = _DEFAULTS.subset,
    only: Annotated[_Part | None, _help("only")] = None,
    temperature: Annotated[float, _help("temperature")] = _DEFAULTS.temperature,
    seed: Annotated[int, _help("seed")] = _DEFAULTS.seed,
    n_parallel: Annotated[int, _help("n_parallel")] = _DEFAULTS.n_parallel,
    ignore_costs: Annotated[bool, _help("ignore_costs")] = False,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    as_json: JsonFile = None,
) -> None:
    """Measure what each draft source is worth to an agent that calls tools.

    The tool calls of a few agents at work are made again and again within one run: by plain decoding, with
    the grammar's drafts, with one further source, and with all of them. Then come cases in which drafts have
    little to offer: there they should cost nothing.

    A target pass is one run of the big model. Fewer passes for the same reply are what drafts are for.

    All of it takes an hour or more on a CPU; `--subset 12 --only greedy` gives a first impression. What is
    proposed depends on what passes cost on this machine; with `--ignore-costs` it does not.
    """
    from agentspec.bench.chat import open_chat
    from agentspec.bench.drafts import bench_drafts
    from agentspec.bench.stages import plan
    from agentspec.bench.workload import load_workload
    from agentspec.config import RuntimeOptions

    options = BenchOptions.parse(
        {
            "rounds": rounds,
            "subset": subset,
            "only": only,
            "temperature": temperature,
            "seed": seed,
            "n_parallel": n_parallel,
            "ignore_costs": ignore_costs,
        }
    )
    runtime = RuntimeOptions.parse({"n_gpu_layers": layers(n_gpu_layers), "n_threads": n_threads})
    if as_json is not None:
        check_writable(as_json)
    draft_model = draft_of(draft, model)
    opener = functools.partial(
        open_chat, model=model, options=runtime, n_parallel=n_parallel, ignore_costs=ignore_costs
    )
    started = time.perf_counter()
    with _random_draft(random_draft, draft_model, options) as useless:
        planned = plan(load_workload(), options, draft=draft_model, random_draft=useless)
        due = sum(stage.replies(rounds) for _, stages in planned for stage in stages)
        with progress("replies") as report:

            def told(stage: str, _: int, replies: int) -> None:
                report("in all", due)
                report(_shown(stage), replies)

            findings = bench_drafts(planned, opener, options, report=told)
    result = {
        **findings.as_json(),
        "model": model,
        "draft": draft_model,
        "rounds": rounds,
        "subset": subset,
        "temperature": temperature,
        "seed": seed,
        "n_parallel": n_parallel,
        "ignore_costs": ignore_costs,
    }
    write(result, started, as_json, tables=_tables(findings, options), lines=lines(findings))


@contextmanager
def _random_draft(given: str | None, draft: str | None, options: BenchOptions) -> Iterator[str | None]:
    """The useless draft model: the one that is given, or one made of the draft for as long as it is used."""
    if given is not None or draft is None or not options.measures("never-slower"):
        yield given
        return
    from agentspec.bench.scramble import scrambled
    from agentspec.models.pull import ensure

    with tempfile.TemporaryDirectory() as folder:
        yield str(scrambled(ensure(draft), Path(folder) / "random.gguf"))


def _tables(findings: Findings, options: BenchOptions) -> Iterator[Table]:
    parts = (("greedy", findings.greedy), (f"temperature {options.temperature:g}", findings.sampled))
    costs = ", costs ignored" if options.ignore_costs else ""
    for title, configs in parts:
        if configs is not None:
            yield table(title + costs, configs)


def table(title: str, configs: Mapping[str, Series]) -> Table:
    """One part's comparison as people read it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    none = configs["none"]
    sources = ("grammar", "lookup", "history", "model")
    shown = Table(
        title=f"{len(none.counted)} tool calls, {title}, medians of {len(none.rounds)}",
        caption="+: beside the grammar. Last columns: the share of a source's proposals that was accepted.",
        box=SIMPLE_HEAD,
        padding=0,  # the box has a space between columns: this way it fits into 80
    )
    shown.add_column("drafts", no_wrap=True)
    for heading in ("passes", "tok/pass", "tok/s", "speed", "draft s", *sources):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, series in configs.items():
        accepted = series.acceptance
        shown.add_row(
            _LABELS[name],
            f"{series.target_passes:,}",
            f"{series.tokens_per_pass:.2f}",
            f"{series.decode_tps:.1f}",
            f"{series.ratio_to(none):.2f}×",
            f"{series.draft_seconds:.2f}",
            *(f"{accepted[source]:.0%}" if source in accepted else "–" for source in sources),
        )
    return shown


def lines(findings: Findings) -> Iterator[tuple[str, str]]:
    """What is said below the tables: what each line is about, and what it says."""
    if findings.differing is not None:
        differing = f"{findings.differing} greedy ones are not those of plain decoding"
        yield "replies", differing if findings.differing else "the greedy ones are those of plain decoding"
    if findings.second_pass is not None:
        yield "second time", f"history needs {findings.second_pass:.0%} of the passes of the first time"
    if findings.overhead_share is not None:
        yield "overhead", f"{findings.overhead_share:.1%} of decoding is not spent in the models"
    for index, (case, text) in enumerate(_CASES.items() if findings.never_slower else ()):
        ratio = findings.never_slower.get(case)
        speed = "not measured" if ratio is None else f"{ratio:.2f}× with drafts"
        yield "" if index else "never slower", f"{speed}: {text}"


def _shown(stage: str) -> str:
    return stage.replace("_", " ")
