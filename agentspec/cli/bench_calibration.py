"""`agentspec bench calibration`: what a draft's confidence is worth, and what calibrating it brings."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.bench.options import CalibrationBenchOptions
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
from agentspec.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from agentspec.bench.calibration import CalibrationFindings

__all__ = ["calibration_command"]

_DEFAULTS = CalibrationBenchOptions()
_help = functools.partial(help_of, CalibrationBenchOptions)


class _Part(StrEnum):
    """`agentspec.bench.options.CalibrationPart`, in the form that typer shows as choices."""

    TOY = "toy"
    MECHANISM = "mechanism"
    REPLAYS = "replays"
    USELESS = "useless"
    BAD_DRAFT = "bad-draft"


def calibration_command(
    model: Target = DEFAULT_MODEL,
    draft: DraftModel = "auto",
    small_model: Annotated[
        str, typer.Option(help="A small model that drafts for itself: one that cannot be better calibrated.")
    ] = "smollm2-135m-instruct",
    replies: Annotated[int, _help("replies")] = _DEFAULTS.replies,
    max_tokens: Annotated[int, _help("max_tokens")] = _DEFAULTS.max_tokens,
    length: Annotated[int, _help("length")] = _DEFAULTS.length,
    rounds: Annotated[int, _help("rounds")] = _DEFAULTS.rounds,
    seed: Annotated[int, _help("seed")] = _DEFAULTS.seed,
    only: Annotated[_Part | None, _help("only")] = None,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Draw the curves here, as PNG (needs the extra 'plots')."),
    ] = None,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    as_json: JsonFile = None,
) -> None:
    """Measure what a draft's confidence is worth.

    The same wrong draft is made humble and confident; then calibration, online and from traces, has to bring
    back what confidence lost, and to cost nothing where there is nothing to bring back. Accepted lengths by
    draft temperature, by kind of place and by rule of draft length are replayed from recorded replies.

    An hour or more on two CPU cores. `--only toy` takes seconds and no model.
    """
    from agentspec.bench.calibration_run import bench_calibration
    from agentspec.config import RuntimeOptions

    options = CalibrationBenchOptions.parse(
        {
            "replies": replies,
            "max_tokens": max_tokens,
            "length": length,
            "rounds": rounds,
            "seed": seed,
            "only": only,
        }
    )
    runtime = RuntimeOptions.parse({"n_gpu_layers": layers(n_gpu_layers), "n_threads": n_threads})
    if as_json is not None:
        check_writable(as_json)
    draft_model = draft_of(draft, model)
    if draft_model is None:
        raise ConfigError("calibration is of a draft model", hint="give --draft")
    started = time.perf_counter()
    with progress("replies") as report:
        findings = bench_calibration(model, draft_model, small_model, options, runtime, report=report)
    if plots is not None and findings.curves:
        _draw(findings, plots)
    settings = {
        "model": model,
        "draft": draft_model,
        "small_model": small_model,
        **options.model_dump(mode="json"),
    }
    write(
        {**findings.as_json(), **settings},
        started,
        as_json,
        tables=_tables(findings),
        lines=_lines(findings),
    )


def _draw(findings: CalibrationFindings, folder: Path) -> None:
    from agentspec.plots import as_png, curves

    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure = curves(
            {
                f"target at {target:g}": [(draft, found[draft]) for draft in sorted(found) if draft]
                for target, found in sorted(findings.curves.items())
            },
            xlabel="draft temperature, as a factor of the target's (of 1 for a greedy target)",
            ylabel="tokens per target pass",
            title="Accepted length by the draft's temperature",
            log_x=True,
        )
        (folder / "temperature.png").write_bytes(as_png(figure))
    except OSError as error:
        raise ConfigError(f"--plots {folder} cannot be written: {error.strerror}") from error


def _tables(findings: CalibrationFindings) -> Iterator[Table]:
    for title, found in (("a toy", findings.toy), ("the models", findings.mechanism)):
        if found is not None:
            shown = _new(f"the same draft, drafting forced: {title}", "draft", "tok/pass", "speed to plain")
            for name, one in found.items():
                shown.add_row(name, f"{one.accepted_length:.2f}", f"{one.speed_to_plain:.2f}×")
            yield shown
    if findings.curves:
        shown = _new("tokens per pass, by draft temperature", "target at")
        for temperature in next(iter(findings.curves.values())):
            shown.add_column(f"{temperature:g}", justify="right")
        for target, curve in sorted(findings.curves.items()):
            shown.add_row(f"{target:g}", *(f"{length:.1f}" for length in curve.values()))
        yield shown
    if findings.classes:
        shown = _new("by kind of place", "place", "positions", "alpha", "tok/pass")
        for name, (count, alpha, length) in findings.classes.items():
            shown.add_row(name, f"{count:,}", f"{alpha:.2f}", f"{length:.2f}")
        yield shown
    if findings.lengths:
        shown = _new("rules of draft length, on replies held out", "rule", "setting", "tok/pass", "speed")
        for rule in findings.lengths:
            setting = "–" if rule.setting is None else f"{rule.setting:g}"
            shown.add_row(rule.rule, setting, f"{rule.accepted_length:.2f}", f"{rule.speed_to_plain:.3f}×")
        yield shown


def _new(title: str, first: str, *numbers: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(title=title, box=SIMPLE_HEAD, padding=0, min_width=len(title))
    shown.add_column(first, no_wrap=True)
    for heading in numbers:
        shown.add_column(heading, justify="right", no_wrap=True)
    return shown


def _lines(findings: CalibrationFindings) -> Iterator[tuple[str, str]]:
    if (online := findings.online) is not None:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in online.fractions.items())
        yield "online", f"of the best fixed temperature, from a bad start: {shares}"
    if (useless := findings.cost_when_useless) is not None:
        yield "useless", f"calibration costs {useless:.1%} of speed where there is nothing to gain"
    for name, one in (("good draft", findings.good_draft), ("bad draft", findings.bad_draft)):
        if one is not None:
            yield name, f"{one.before:.2f} tokens per pass, {one.after:.2f} calibrated from traces"
    if findings.lengths and (price := findings.price) is not None:
        yield "prices", f"a drafted token {price.draft:.2f} plain passes, a checked one {price.check:.2f}"
