"""What the bench commands show while they measure and at the end, for people and for machines."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table

    from agentspec.types import Json

__all__ = ["Lines", "Report", "progress", "write"]

Lines: TypeAlias = Iterable[tuple[str, str]]
"""What each line is about, and what it says."""

Report: TypeAlias = Callable[[str, int], None]
"""Told, after every piece of work, the part it is of and how many pieces that part has."""


@contextmanager
def progress(unit: str) -> Iterator[Report]:
    """A bar for each part, on stderr; one line for each in a log. unit: what pieces of work are called."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<15}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left", style="progress.remaining"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(part: str, due: int) -> None:
            if part not in tasks:
                tasks[part] = bars.add_task(part, total=due)
                if not console.is_terminal:
                    console.print(f"{part}: {due} {unit}")
            bars.update(tasks[part], advance=1)

        yield report


def write(
    result: Mapping[str, Json],
    started: float,
    as_json: Path | None,
    *,
    tables: Iterable[Table] = (),
    lines: Lines = (),
) -> None:
    """Writes a result where it was asked for, and shows it unless stdout is for JSON.

    started: when the command began, on `time.perf_counter`'s clock
    as_json: of `--json`
    """
    from rich.console import Console
    from rich.text import Text

    result = {
        "version": 1,
        **result,
        "platform": platform.platform(),
        "seconds": round(time.perf_counter() - started, 1),
    }
    if as_json is not None and str(as_json) == "-":
        sys.stdout.write(json.dumps(result) + "\n")
        return
    console = Console(highlight=False)
    for table in tables:
        console.print(table)
    for label, text in lines:
        console.print(Text.assemble((f"{label:<15}", "dim"), text), soft_wrap=True)
    if as_json is not None:
        as_json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
