"""`agentspec bench accuracy`: are the calls right, and does the grammar cost any of that?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.bench_output import Lines, progress, write
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

if TYPE_CHECKING:
    from agentspec.bench.accuracy import Findings

__all__ = ["accuracy_command"]


def accuracy_command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSONL: messages, tools and accepted calls.", show_default=False),
    ],
    model: Target = DEFAULT_MODEL,
    draft: DraftModel = "auto",
    limit: Annotated[int, typer.Option(min=1, help="Most prompts, spread evenly over the file.")] = 300,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    replies: Annotated[
        Path | None,
        typer.Option(
            "--replies",
            metavar="FILE",
            help="Keep every reply in this JSONL file, and take those it holds from it: a run that was "
            "interrupted goes on.",
            dir_okay=False,
        ),
    ] = None,
    as_json: JsonFile = None,
) -> None:
    """Compare calls with accepted ones: under the grammar, and by the model left alone.

    A line of the file is {"messages": [...], "tools": [...], "accepted": [{tool: {argument: [values]}}]}, one
    entry a call; an empty string among the values means that the argument may be left out. Greedy.
    """
    from agentspec.bench.accuracy import bench_accuracy, kept_in, read_records
    from agentspec.bench.chat import ask_with
    from agentspec.bench.workload import spread
    from agentspec.langchain.chat_model import ChatAgentSpec

    if as_json is not None:
        check_writable(as_json)
    if replies is not None:
        check_writable(replies, "--replies")
    started = time.perf_counter()
    records = spread(read_records(file), limit)
    draft_model = draft_of(draft, model)
    chat = ChatAgentSpec(
        model=model,
        draft=draft_model,
        n_parallel=1,
        n_gpu_layers=layers(n_gpu_layers),
        n_threads=n_threads,
        calibration="memory",
        history="memory",
        snapshots="off",
    )
    try:
        ask = ask_with(chat) if replies is None else kept_in(replies, ask_with(chat))
        with progress("prompts") as report:
            findings = bench_accuracy(records, ask, report=lambda due: report("calls", due))
    finally:
        chat.close()
    result = {**findings.as_json(), "model": model, "draft": draft_model, "file": str(file)}
    write(result, started, as_json, lines=lines(findings))


def lines(findings: Findings) -> Lines:
    """What was found: what each line is about, and what it says."""

    def share(count: int) -> str:
        return f"{count} ({count / findings.prompts:.1%})"

    yield (
        "prompts",
        f"{findings.prompts}, each answered with a call that is enforced, and by the model left alone",
    )
    yield (
        "valid",
        f"{share(findings.valid_calls)} enforced, {share(findings.unconstrained_valid_calls)} left alone",
    )
    exact = share(findings.exact_match)
    yield (
        "right",
        f"{exact} enforced, {share(findings.unconstrained_exact_match)} left alone, taken at its best",
    )
    yield "cut", f"{findings.length_stops} ran out of tokens"
    if findings.wrong:
        yield "lost", f"right left alone and wrong enforced: {', '.join(findings.wrong[:12])}"
