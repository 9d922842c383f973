"""`agentspec calibrate`: how bold drafts should be, from recorded replies."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.bench_output import progress, write
from agentspec.cli.shared import (
    DraftModel,
    GpuLayers,
    JsonFile,
    Target,
    Threads,
    check_writable,
    draft_of,
    layers,
)
from agentspec.config import DEFAULT_MODEL
from agentspec.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from rich.table import Table

    from agentspec.calibration.fit import Gain
    from agentspec.calibration.traces import ReplyTrace

__all__ = ["calibrate_command"]

_LEAST_TOP_K = 20


def calibrate_command(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the calibration is written.")
    ],
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TRACES", help="Trace files of replies, written with trace_path and trace_top_k=64."
        ),
    ] = None,
    model: Target = DEFAULT_MODEL,
    draft: DraftModel = "auto",
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Prompts to run and record: JSON lines, each "a prompt" or {"messages": [...], '
            '"tools": [...]}.',
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Temperature of the prompts that are run.")
    ] = 0.8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of their replies.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="Seed of their replies.")] = 0,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    as_json: JsonFile = None,
) -> None:
    """Fit how bold each draft should be, and how long blocks pay, to recorded replies.

    A draft that is surer than it is right loses what it proposes. From traces, or from prompts that are run
    for this, the temperature is found at which each source, in each kind of place, would have had most of its
    tokens accepted. Two thirds of the replies are fitted to; what it brings is shown on the others.

    The file is used with `ChatAgentSpec(calibration="FILE")`. Without one, the same is learned while an agent
    works; a file is for agents that are to start calibrated, or to stay as they are.
    """
    from agentspec.calibration.files import CalibrationFile, write_calibration
    from agentspec.calibration.fit import chosen_by, fit, gain, split

    if not traces and prompts is None:
        raise ConfigError(
            "there is nothing to calibrate with",
            hint="give trace files, or --prompts FILE; traces are written with "
            "ChatAgentSpec(trace_path=..., trace_top_k=64)",
        )
    check_writable(output, "--output")
    if as_json is not None:
        check_writable(as_json)
    draft_model = draft_of(draft, model)
    started = time.perf_counter()
    kept = _read(traces or [])
    if prompts is not None:
        kept += _run(
            prompts,
            model=model,
            draft=draft_model,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
            n_gpu_layers=n_gpu_layers,
            n_threads=n_threads,
        )
    _check(kept)
    fitted, held_out = split(kept)
    learned = fit(fitted)
    sources = sorted({name for one in kept for row in one.rows for name in row.offers})
    gains = {name: gain(learned, held_out, name) for name in sources}
    final = fit(kept)  # what was held out is not to be wasted
    write_calibration(
        output,
        CalibrationFile.of(
            final, model=kept[-1].model, draft=kept[-1].draft, vocab=kept[-1].vocab, made="offline"
        ),
    )
    chosen = {name: chosen_by(final, name) for name in sources}
    write(
        {
            "replies": len(kept),
            "held_out": len(held_out),
            "gain": {name: one.as_json() for name, one in gains.items()},
            "temperatures": {name: dict(found) for name, found in chosen.items()},
            "output": str(output),
        },
        started,
        as_json,
        tables=[_table(gains, chosen)] if gains else [],
        lines=_lines(gains, len(fitted), len(held_out), output),
    )


def _read(paths: list[Path]) -> list[ReplyTrace]:
    from agentspec.calibration.traces import read_traces

    return list(read_traces(paths))


def _run(
    prompts: Path,
    *,
    model: str,
    draft: str | None,
    temperature: float,
    max_tokens: int,
    seed: int,
    n_gpu_layers: str,
    n_threads: int | None,
) -> list[ReplyTrace]:
    from agentspec.bench.record import read_prompts, record
    from agentspec.config import RuntimeOptions

    if draft is None:
        raise ConfigError("to run prompts takes a draft model", hint="give --draft")
    turns = read_prompts(prompts)
    with progress("replies") as report:
        return record(
            turns,
            model=model,
            draft=draft,
            temperature=temperature,
            draft_temperature=1.0 if temperature == 0.0 else None,
            max_tokens=max_tokens,
            seed=seed,
            options=RuntimeOptions.parse({"n_gpu_layers": layers(n_gpu_layers), "n_threads": n_threads}),
            progress=lambda: report("prompts", len(turns)),
        )


def _check(kept: list[ReplyTrace]) -> None:
    """Raises TraceError where nothing can be fitted to these."""
    if not any(one.blocks for one in kept):
        raise TraceError("the traces hold no reply")
    vocabularies = sorted({one.vocab for one in kept})
    if len(vocabularies) > 1:
        raise TraceError(
            f"the traces are of targets with different vocabularies: {', '.join(vocabularies)}",
            hint="calibrate each target with its own traces",
        )
    if any(one.rows and one.top_k < _LEAST_TOP_K for one in kept):
        raise TraceError(
            f"a trace has fewer than {_LEAST_TOP_K} tokens of each law",
            hint="what is cut off would be taken for wrong: write traces with trace_top_k=64",
        )
    if not any(row.offers for one in kept for row in one.rows):
        raise TraceError(
            "no trace has the laws that drafts offered",
            hint="they are written with trace_top_k=64, at a temperature above 0",
        )


def _table(gains: Mapping[str, Gain], chosen: Mapping[str, Mapping[str, float]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(
        title="expected acceptance on replies that were held out",
        caption="temperature: for all tool sets, a factor of the draft's; 0 is its best token for certain",
        box=SIMPLE_HEAD,
        padding=0,
    )
    shown.add_column("source")
    shown.add_column("place")
    for heading in ("positions", "before", "after", "temperature"):
        shown.add_column(heading, justify="right")
    for name, one in gains.items():
        for place, alpha in sorted(one.places.items(), key=lambda item: -item[1].count):
            temperatures = [
                f"{found:g}" for where, found in chosen[name].items() if where.startswith(f"{place},")
            ]
            shown.add_row(
                name,
                place,
                f"{alpha.count:,}",
                f"{alpha.before:.1%}",
                f"{alpha.after:.1%}",
                ", ".join(temperatures),
            )
    return shown


def _lines(gains: Mapping[str, Gain], fitted: int, held_out: int, output: Path) -> Iterator[tuple[str, str]]:
    yield "replies", f"{fitted:,} fitted to, {held_out:,} held out, then fitted to all"
    for name, one in gains.items():
        if one.before:
            yield name, f"{one.before:.2f} tokens per pass before, {one.after:.2f} after: {one.ratio:.2f}×"
    yield "written", f'{output}: ChatAgentSpec(calibration="{output}")'
