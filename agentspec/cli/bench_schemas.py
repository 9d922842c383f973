"""`agentspec bench schemas`: what becomes of your tools' schemas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.bench_output import Lines, progress, write
from agentspec.cli.shared import JsonFile, Target, check_writable
from agentspec.config import DEFAULT_MODEL

if TYPE_CHECKING:
    from rich.table import Table

    from agentspec.bench.schemas import Findings

__all__ = ["schemas_command"]

_SHOWN = 20  # of the tools that are not enforced whole


def schemas_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="Files or folders of *.json or *.jsonl with tools.", show_default=False
        ),
    ],
    model: Target = DEFAULT_MODEL,
    seed: Annotated[int, typer.Option(help="Decides the texts along which masks are timed.")] = 0,
    as_json: JsonFile = None,
) -> None:
    """Try tool schemas: which are enforced whole, which in part, and which are refused, and why.

    Takes tools in OpenAI, Anthropic and MCP form, and bare JSON Schemas. Of the model, only its vocabulary is
    loaded; it decides how long masks take.
    """
    from agentspec.bench.schemas import bench_schemas, read_tools
    from agentspec.grammar.tokenizer import GrammarTokenizer
    from agentspec.llama import Model
    from agentspec.models.pull import ensure

    if as_json is not None:
        check_writable(as_json)
    started = time.perf_counter()
    tools = read_tools(paths)
    with Model.load(ensure(model), vocab_only=True) as loaded, progress("tools") as report:
        tokenizer = GrammarTokenizer(loaded.vocab)
        findings = bench_schemas(tools, tokenizer, seed=seed, report=lambda due: report("schemas", due))
    write(
        {**findings.as_json(), "model": model, "seed": seed},
        started,
        as_json,
        tables=_tables(findings),
        lines=lines(findings),
    )
    if findings.crashed:
        raise typer.Exit(1)


def _tables(findings: Findings) -> Iterator[Table]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rows = [
        *(("crashed", found, reason) for found, reason in findings.crashed),
        *(("refused", found, reason) for found, reason in findings.refused),
        *(("in part", found, f"not {', '.join(places)}") for found, places in findings.superset),
    ]
    if not rows:
        return
    shown = Table(box=SIMPLE_HEAD, padding=0)
    for heading in ("", "tool", "why"):
        shown.add_column(heading, overflow="fold")
    for label, found, reason in rows[:_SHOWN]:
        shown.add_row(label, found.tool.name, reason.removeprefix(f"tool {found.tool.name!r}: "))
    if len(rows) > _SHOWN:
        shown.caption = f"and {len(rows) - _SHOWN} more: see --json"
    yield shown


def lines(findings: Findings) -> Lines:
    """What was found: what each line is about, and what it says."""
    share = findings.compiled / findings.total
    yield "schemas", f"{findings.total:,}: {findings.compiled:,} enforced whole ({share:.1%})"
    yield "", f"{len(findings.superset)} in part: the rest of these is checked after each call"
    yield "", f"{len(findings.refused)} refused, {len(findings.crashed)} crashed"
    figures = findings.as_json()
    for label, key, unit in (("compiling", "compile_ms", "ms"), ("a mask", "mask_us", "µs")):
        times = figures[key]
        if isinstance(times, dict):
            median, rare, most = (f"{times[name]:.4g} {unit}" for name in ("median", "p99", "max"))
            yield label, f"{median} as a rule, one in a hundred {rare}, at most {most}"
