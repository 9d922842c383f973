"""`agentspec cache`: the prompts whose computed state is kept on disk."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentspec.cli.shared import DraftModel, GpuLayers, Target, Threads, draft_of, layers
from agentspec.config import DEFAULT_MODEL
from agentspec.errors import ConfigError

if TYPE_CHECKING:
    from agentspec.snapshots import Stored
    from agentspec.types import Json

__all__ = ["app", "cache_clear", "cache_list", "cache_warm"]

app = typer.Typer(
    name="cache",
    help="Show, clear or fill what is kept of prompts, so that they are not computed again.",
    no_args_is_help=True,
)

_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.callback()
def _group() -> None:
    """Show, clear or fill what is kept of prompts, so that they are not computed again."""


@app.command("list")
def cache_list(as_json: _Json = False) -> None:
    """List the snapshots: the state of instructions and tools that a model has read before.

    The folder is shared by all processes. It is bounded; what was not used for longest goes first.
    """
    from agentspec.snapshots import default_folder, stored

    found = stored(default_folder())
    if as_json:
        _write({"folder": str(default_folder()), "snapshots": [_as_json(one) for one in found]})
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if found:
        table = Table(box=SIMPLE_HEAD)
        table.add_column("model")
        for heading in ("tokens", "MB"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("last used", no_wrap=True)
        for one in found:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used))
            table.add_row(one.model, f"{one.n_tokens:,}", f"{one.n_bytes / 1e6:,.1f}", when)
        console.print(table)
    total = sum(one.n_bytes for one in found)
    console.print(f"{len(found)} snapshots, {total / 1e6:,.1f} MB, in {default_folder()}", soft_wrap=True)


@app.command("clear")
def cache_clear(
    model: Annotated[str | None, typer.Option(help="Only those of this model, as `list` names it.")] = None,
    as_json: _Json = False,
) -> None:
    """Delete snapshots. Processes that run go on, and compute what they miss."""
    from agentspec.snapshots import clear, default_folder

    try:
        gone = clear(default_folder(), model)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be deleted: {error.strerror}") from error
    n_bytes = sum(one.n_bytes for one in gone)
    if as_json:
        _write({"deleted": len(gone), "bytes": n_bytes})
    else:
        sys.stdout.write(f"{len(gone)} snapshots deleted, {n_bytes / 1e6:,.1f} MB\n")


@app.command("warm")
def cache_warm(
    tools: Annotated[Path, typer.Argument(help="A JSON file: a tool schema, or a list of them.")],
    system: Annotated[str, typer.Option(help="The instructions that conversations begin with.")] = "",
    model: Target = DEFAULT_MODEL,
    draft: DraftModel = "auto",
    n_ctx: Annotated[int | None, typer.Option(help="Context size, where the tools need more.")] = None,
    n_parallel: Annotated[int | None, typer.Option(help="Sequences at once, as your program has it.")] = None,
    n_gpu_layers: GpuLayers = "auto",
    n_threads: Threads = None,
    as_json: _Json = False,
) -> None:
    """Let the models read instructions and tools now, so that the first reply need not wait for that.

    Use the system prompt, the tools and the options that your program has: only exactly what it sends is of
    use to it.
    """
    from agentspec.config import ContextOptions, RuntimeOptions
    from agentspec.engine.loading import RuntimeSpec, open_runtime
    from agentspec.langchain.chat_model import ChatAgentSpec
    from agentspec.snapshots import default_folder, stored

    schemas = _schemas(tools)
    options = RuntimeOptions.parse({"n_gpu_layers": layers(n_gpu_layers), "n_threads": n_threads})
    spec = RuntimeSpec(
        model=model,
        draft=draft_of(draft, model),
        n_ctx=n_ctx or ContextOptions().n_ctx,
        n_parallel=n_parallel or ContextOptions().n_parallel,
        target=options,
        draft_runtime=options,
        calibration="memory",
        history="off",
        ignore_costs=True,  # the draft model is to read the prompt, whether it would pay or not
    )
    started = time.time()
    runtime = open_runtime(spec)
    try:
        chat = ChatAgentSpec.from_runtime(runtime).bind_tools(schemas, tool_choice="any")
        reply = chat.invoke(
            [*([("system", system)] if system else []), ("user", "Hello")],
            max_tokens=8,
            draft_sources=("model",) if spec.draft else (),
        )
    finally:
        runtime.close()  # which waits for the files
    used = [one for one in stored(default_folder()) if one.used >= started]
    if as_json:
        statistics = reply.response_metadata["agentspec"]
        _write({"prefill": statistics["prefill"], "snapshots": [_as_json(one) for one in used]})
        return
    for one in used:
        sys.stdout.write(f"{one.model}: {one.n_tokens:,} tokens, {one.n_bytes / 1e6:,.1f} MB\n")
    if not used:
        sys.stdout.write("nothing was stored: it is too short, or this model's memory gives no state\n")


def _schemas(path: Path) -> list[dict[str, object]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    schemas = found if isinstance(found, list) else [found]
    if not schemas or not all(isinstance(schema, dict) for schema in schemas):
        raise ConfigError(f"{path} holds no tool schema", hint="see the folder schemas for examples")
    return schemas


def _as_json(one: Stored) -> dict[str, Json]:
    return {
        "path": str(one.path),
        "model": one.model,
        "n_tokens": one.n_tokens,
        "bytes": one.n_bytes,
        "used": one.used,
    }


def _write(result: dict[str, Json]) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
