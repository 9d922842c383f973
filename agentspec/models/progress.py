"""How a download tells the user where it is: a bar on a terminal, plain lines elsewhere, or nothing.

It is told absolute byte counts and knows nothing of sources or files.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress

__all__ = ["ConsoleProgress", "Progress", "SilentProgress"]

_LINE_SECONDS = 15.0


class Progress(Protocol):
    """What a download reports to."""

    def begin(self, label: str, total: int | None) -> None:
        """A source starts to send; `total` is in bytes, None where it is unknown."""
        ...

    def update(self, done: int) -> None:
        """So many bytes of the file are here now. It may fall, when a source starts over."""
        ...

    def note(self, text: str) -> None:
        """Something the user should know, such as a source that did not answer."""
        ...


class SilentProgress:
    def begin(self, label: str, total: int | None) -> None:
        pass

    def update(self, done: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class ConsoleProgress:
    """On a terminal a bar with bytes, speed and time left; in a log, a line now and then. To stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task: TaskID | None = None
        self._label = ""
        self._total: int | None = None
        self._line_due = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, label: str, total: int | None) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(escape(label), total=total)
        self._label, self._total = label, total
        self._line_due = time.monotonic() + _LINE_SECONDS
        if not self._console.is_terminal:
            self._print(label)

    def update(self, done: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=done)
        now = time.monotonic()
        if not self._console.is_terminal and now >= self._line_due:
            self._line_due = now + _LINE_SECONDS
            of_total = f" of {self._total / 1e6:.0f}" if self._total else ""
            self._print(f"{self._label}: {done / 1e6:.0f}{of_total} MB")

    def note(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
