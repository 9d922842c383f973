"""`agentspec pull`: downloads models."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

__all__ = ["pull_command"]


def pull_command(
    names: Annotated[
        list[str],
        typer.Argument(help="Names from `agentspec models`, or hub files as hf:owner/repo/file.gguf."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Download models into the cache folder, ready for use.

    Each file is checked by its SHA-256. A model that is there already is not downloaded again, and a
    download that was cut goes on where it stopped. The folder is that of your system's caches;
    AGENTSPEC_CACHE chooses another.
    """
    from agentspec.models.progress import ConsoleProgress
    from agentspec.models.pull import pull

    files = []
    for name in names:
        with ConsoleProgress() as progress:
            path = pull(name, progress=progress)
        files.append({"name": name, "path": str(path), "bytes": path.stat().st_size})
        if not as_json:
            sys.stdout.write(f"{name}: {path}\n")
    if as_json:
        sys.stdout.write(json.dumps({"models": files}) + "\n")
