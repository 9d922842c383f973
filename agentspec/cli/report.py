"""`agentspec report`: what trace files show of drafts, as a page, as pictures and as figures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.bench_output import progress, write
from agentspec.cli.shared import JsonFile, check_writable
from agentspec.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from agentspec.calibration.measure import Measure
    from agentspec.calibration.report import ReportData
    from agentspec.calibration.traces import ReplyTrace

__all__ = ["report_command"]

_PNG = ".png"


def report_command(
    traces: Annotated[
        list[Path], typer.Argument(help="Trace files, as a chat model writes them with trace_path=...")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page to write: one HTML file that needs no other.")
    ] = Path("report.html"),
    png: Annotated[
        Path | None,
        typer.Option(help="Also draw PNGs: all figures into one FILE.png, or each into a file in a folder."),
    ] = None,
    as_json: JsonFile = None,
) -> None:
    """Show what drafts were worth: a page of figures from trace files.

    Traces are written by ChatAgentSpec(trace_path="traces.jsonl"). The page shows how many tokens a pass of
    the target gave and could have given, how long accepted runs are, what was accepted by source and by place
    in the JSON, and how far the confidence of each source can be relied on. It needs
    pip install 'langchain-agentspec[plots]'.
    """
    from agentspec.calibration import figures
    from agentspec.calibration.page import page
    from agentspec.calibration.report import gather
    from agentspec.plots import as_svg, drawing

    if str(output) == "-":
        raise typer.BadParameter("the page goes into a file")
    with drawing():
        pass  # where nothing can be drawn, nothing is read
    check_writable(output, "--output")
    if png is not None:
        _check_png(png)
    if as_json is not None:
        check_writable(as_json)
    started = time.perf_counter()
    data = gather(_replies(traces))
    svgs = {name: as_svg(figures.figure(name, data), name) for name in figures.names(data)}
    text = page(
        data, svgs, files=[path.name for path in traces], rows_drawn=len(figures.rows(data)), few=figures.FEW
    )
    output.write_text(text, encoding="utf-8")
    written = [str(output), *map(str, _write_png(data, png))]
    lines = [*_lines(data), ("written", ", ".join(written))]
    write(data.as_json(), started, as_json, tables=[_table(data)] if data.sources else [], lines=lines)


def _replies(paths: Sequence[Path]) -> Iterator[ReplyTrace]:
    """The replies of all files, with a bar on stderr."""
    from agentspec.calibration.traces import read_traces

    due = sum(map(_n_lines, paths))
    with progress("replies") as report:
        for reply in read_traces(paths):
            yield reply
            report("reading", due)


def _n_lines(path: Path) -> int:
    """A file that cannot be read is for `read_traces` to name."""
    try:
        with path.open("rb") as lines:
            return sum(not line.isspace() for line in lines)
    except OSError:
        return 0


def _check_png(path: Path) -> None:
    if path.suffix.lower() == _PNG:
        check_writable(path, "--png")
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--png {path} cannot be made: {error.strerror}") from error


def _write_png(data: ReportData, path: Path | None) -> Iterator[Path]:
    from agentspec.calibration import figures
    from agentspec.plots import as_png

    if path is None:
        return
    if path.suffix.lower() == _PNG:
        path.write_bytes(as_png(figures.sheet(data)))
        yield path
        return
    for name in figures.names(data):
        file = path / f"{name}{_PNG}"
        file.write_bytes(as_png(figures.figure(name, data)))
        yield file


def _table(data: ReportData) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    table.add_column("source and class", overflow="fold")
    for heading in ("verified", "accepted", "alpha", "ECE", "over-confident"):
        table.add_column(heading, justify="right", no_wrap=True)

    def add(name: Text, one: Measure) -> None:
        shares = (one.acceptance, one.alpha, one.ece, one.over_confident)
        table.add_row(name, f"{one.count:,}", *(f"{share:.1%}" for share in shares))

    for source, total in data.sources.items():
        add(Text(source, style="bold"), total)
        for place, one in data.places(source).items():
            add(Text(f"  {place}", style="dim"), one)
    return table


def _lines(data: ReportData) -> Iterator[tuple[str, str]]:
    yield "replies", f"{data.replies:,}, {data.tokens:,} tokens in {data.passes:,} target passes"
    yield "tokens a pass", f"{data.achieved:.2f}; plain decoding has 1"
    yield "  expected", f"{data.expected:.2f} by alpha, which leaves out the luck of acceptance"
    yield "  bound", f"{data.bound:.2f} with every proposal of these blocks accepted"
    if not data.sources:
        yield "acceptance", "none to speak of: all that was proposed were forced tokens"
