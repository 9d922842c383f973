"""What several commands do with their options alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from typer.models import OptionInfo

from agentspec.config import DEFAULT_DRAFT, DEFAULT_MODEL, Options
from agentspec.errors import ConfigError

__all__ = [
    "DraftModel",
    "GpuLayers",
    "JsonFile",
    "Target",
    "Threads",
    "check_writable",
    "draft_of",
    "help_of",
    "layers",
]

Target: TypeAlias = Annotated[
    str, typer.Option(help="The target: a catalogue name, a path, or hf:owner/repo/file.gguf.")
]
DraftModel: TypeAlias = Annotated[
    str,
    typer.Option(help="The draft model, or none. 'auto' is the default target's own, and none for others."),
]
GpuLayers: TypeAlias = Annotated[
    str, typer.Option(help="Layers of the models on the GPU: a count, -1 for all, or auto.")
]
Threads: TypeAlias = Annotated[int | None, typer.Option(help="CPU threads.")]
JsonFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--json", help="Write the result as JSON to this file; - writes it to stdout."),
]


def help_of(options: type[Options], name: str) -> OptionInfo:
    """The command's option for a field of an option class."""
    option: OptionInfo = typer.Option(help=options.model_fields[name].description)
    return option


def check_writable(path: Path, option: str = "--json") -> None:
    """Raises ConfigError where a result could not be written, before minutes have gone into it.

    path: what `option` was given; "-" is stdout
    """
    if str(path) == "-":
        return
    if path.is_dir():
        raise ConfigError(f"{option} {path} cannot be written: it is a folder")
    is_there = path.exists() or path.is_symlink()
    try:
        path.touch()
        if not is_there:
            path.unlink()  # an empty result would look like one
    except OSError as error:
        raise ConfigError(f"{option} {path} cannot be written: {error.strerror}") from error


def draft_of(draft: str, model: str) -> str | None:
    """`--draft`: a model, "none", or "auto" for the default target's own."""
    if draft == "auto":
        return DEFAULT_DRAFT if model == DEFAULT_MODEL else None
    return None if draft == "none" else draft


def layers(text: str) -> int | str:
    """`--n-gpu-layers`: a count, or a word for `RuntimeOptions` to judge."""
    try:
        return int(text)
    except ValueError:
        return text
