"""Puts the commands together, and turns errors into one readable message and an exit code.

Exit codes: 0 done, 1 an error of agentspec's own tree, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from agentspec.cli import (
    bench,
    bench_accuracy,
    bench_agents,
    bench_calibration,
    bench_engine,
    bench_schemas,
    cache,
    calibrate,
    models,
    prove,
    pull,
    report,
    version,
)
from agentspec.errors import AgentSpecError

__all__ = ["app", "main"]

app = typer.Typer(
    name="agentspec",
    help="Validated tool calls on local models, fast, by exact speculative decoding.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    add_completion=False,
)
app.command("pull")(pull.pull_command)
app.command("models")(models.models_command)
app.command("prove")(prove.prove_command)
app.command("calibrate")(calibrate.calibrate_command)
app.command("report")(report.report_command)
bench.app.command("concurrency")(bench_engine.concurrency_command)
bench.app.command("cache")(bench_engine.cache_command)
bench.app.command("accuracy")(bench_accuracy.accuracy_command)
bench.app.command("agents")(bench_agents.agents_command)
bench.app.command("calibration")(bench_calibration.calibration_command)
bench.app.command("schemas")(bench_schemas.schemas_command)
app.add_typer(bench.app)
app.add_typer(cache.app)
app.command("version")(version.version_command)


@app.callback()
def _root(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the versions and exit.", callback=version.print_and_exit, is_eager=True
        ),
    ] = False,
) -> None:
    """Validated tool calls on local models, fast, by exact speculative decoding."""


def main() -> None:
    """Entry point of the `agentspec` script. Wrong usage and Ctrl-C are typer's to report."""
    try:
        app()
    except AgentSpecError as error:
        _print_error(error)
        sys.exit(1)


def _print_error(error: AgentSpecError) -> None:
    from rich.console import Console
    from rich.text import Text

    message = Text.assemble(("error: ", "bold red"), (error.message, "red"))
    if error.hint:
        message.append(f"\nhint: {error.hint}")
    Console(stderr=True).print(message, soft_wrap=True, highlight=False)
