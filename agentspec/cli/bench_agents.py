"""`agentspec bench agents`: does an agent get its work done, against others, in one run?"""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec import __version__
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
from agentspec.config import DEFAULT_MODEL, available_cpus

if TYPE_CHECKING:
    from rich.table import Table

    from agentspec.bench.agents.run import Outcome
    from agentspec.types import Json

__all__ = ["agents_command", "lines", "table"]


class _World(StrEnum):
    """`agentspec.bench.agents.worlds.WORLDS`, in the form that typer shows as choices."""

    SHOP = "shop"
    OFFICE = "office"
    FILES = "files"


class _System(StrEnum):
    """`agentspec.bench.agents.systems.SYSTEMS`, in the form that typer shows as choices."""

    AGENTSPEC = "agentspec"
    NO_DRAFTS = "agentspec-no-drafts"
    CHAT_LLAMA_CPP = "chat-llama-cpp"
    LLAMA_SERVER = "llama-server"


def agents_command(
    model: Target = DEFAULT_MODEL,
    draft: DraftModel = "auto",
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Only so many tasks, spread evenly over them: for a quick look.")
    ] = None,
    only: Annotated[_World | None, typer.Option(help="The tasks of one world alone.")] = None,
    systems: Annotated[
        list[_System] | None,
        typer.Option("--systems", help="Only this system; may be given again. Without it, all of them."),
    ] = None,
    max_steps: Annotated[int, typer.Option(min=1, help="Replies after which a task has failed.")] = 7,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a reply.")] = 200,
    llama_server: Annotated[
        Path | None,
        typer.Option(
            "--llama-server",
            metavar="FILE",
            help="A llama-server of your own, in place of one that is compiled for this.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep what each system did with each task in this file (JSON lines): a run that was "
            "interrupted goes on from there.",
        ),
    ] = None,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    as_json: JsonFile = None,
) -> None:
    """Let agents work on tasks, on this model, by agentspec and by others.

    Each task is a request in a small world of tools: a shop (orders in a database), an office (calendar and
    mail), a folder of notes. It has succeeded where exactly what was asked for has changed, and the answer
    says what was asked. All systems run LangChain's create_agent on the same file, at temperature 0, taking
    turns task by task:

    - agentspec: with its drafts

    - agentspec-no-drafts: the same by plain decoding; the ratio of both is what drafts are worth

    - chat-llama-cpp: langchain-community's ChatLlamaCpp

    - llama-server: behind langchain-openai's ChatOpenAI

    The environments of the last two, and llama-server itself, are made the first time (minutes, from PyPI)
    and kept in the cache folder. What cannot be made is reported with its error.

    All tasks by all systems take hours on two CPUs; `--tasks 6` gives a first impression, and with `--rows`
    nothing of it is lost.
    """
    from agentspec.bench.agents.kept import KeptRows
    from agentspec.bench.agents.run import bench_agents
    from agentspec.bench.agents.systems import SYSTEMS, Settings, open_system
    from agentspec.bench.agents.worlds import TASKS
    from agentspec.bench.workload import spread
    from agentspec.models.pull import ensure

    if as_json is not None:
        check_writable(as_json)
    started = time.perf_counter()
    fitting = [task for task in TASKS if only in (None, task.world)]
    chosen = spread(fitting, tasks or len(fitting))
    names = [system for system in SYSTEMS if not systems or system in systems]
    draft_model = draft_of(draft, model)
    if draft_model is not None:
        ensure(draft_model)
    settings = Settings(
        model=model,
        path=ensure(model),
        draft=draft_model,
        n_threads=n_threads or available_cpus(),
        n_gpu_layers=layers(n_gpu_layers),
        max_tokens=max_tokens,
        server=llama_server,
    )
    with progress("tasks") as report:
        outcomes = bench_agents(
            chosen,
            names,
            functools.partial(open_system, settings=settings),
            max_steps=max_steps,
            kept=None if rows is None else KeptRows(rows),
            report=lambda system: report(system, len(chosen)),
        )
    result: dict[str, Json] = {
        "systems": {name: outcome.as_json() for name, outcome in outcomes.items()},
        "drafts_ratio": drafts_ratio(outcomes),
        "model": model,
        "draft": draft_model,
        "machine": {"cpus": available_cpus(), "architecture": platform.machine()},
        "versions": {"agentspec": __version__, "python": platform.python_version()},
        "n_threads": settings.n_threads,
        "n_gpu_layers": settings.n_gpu_layers,
        "n_ctx": settings.n_ctx,
        "max_steps": max_steps,
        "max_tokens": max_tokens,
    }
    write(result, started, as_json, tables=[table(outcomes)], lines=lines(outcomes))


def drafts_ratio(outcomes: Mapping[str, Outcome]) -> float | None:
    """How many times as fast as plain decoding agentspec decodes, in this run."""
    both = [outcomes[name].decode_tps for name in ("agentspec", "agentspec-no-drafts") if name in outcomes]
    match both:
        case [float(drafted), float(plain)]:
            return round(drafted / plain, 3)
        case _:
            return None


def table(outcomes: Mapping[str, Outcome]) -> Table:
    """The comparison as people read it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = Table(box=SIMPLE_HEAD, padding=0)
    shown.add_column("system", no_wrap=True)
    for heading in ("tasks", "succeeded", "invalid calls", "steps", "tok/s", "seconds"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, outcome in outcomes.items():
        shown.add_row(
            name,
            str(len(outcome.rows)),
            f"{outcome.succeeded}",
            f"{outcome.invalid_calls}",
            f"{outcome.steps}",
            "–" if outcome.decode_tps is None else f"{outcome.decode_tps:.1f}",
            f"{outcome.seconds:.0f}",
        )
    return shown


def lines(outcomes: Mapping[str, Outcome]) -> Iterator[tuple[str, str]]:
    """What is said below the table: what each line is about, and what it says."""
    ratio = drafts_ratio(outcomes)
    if ratio is not None:
        yield "drafts", f"{ratio:.2f}× plain decoding"
    for name, outcome in outcomes.items():
        yield f"{name} ", "" if outcome.error is None else f"error: {outcome.error}"
        if outcome.form:
            yield "  form", outcome.form
        for row in outcome.rows:
            if row.reason:
                yield f"  {row.task.world}", f"{row.task.name}: {row.reason}"
