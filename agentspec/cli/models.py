"""`agentspec models`: lists the catalogue and what of it is here."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

__all__ = ["models_command"]


def models_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the models known by name, and which of them are downloaded.

    "target" models write the reply, "draft" models propose tokens for a target, "test" models are for tests.
    Any other GGUF can be used by its path, or from the hub as hf:owner/repo/file.gguf.
    """
    from agentspec.models.catalogue import catalogue
    from agentspec.models.store import local_path, models_dir

    entries = [(file, local_path(file).is_file()) for file in catalogue().values()]
    if as_json:
        listed = [
            {
                "name": file.name,
                "roles": list(file.roles),
                "bytes": file.bytes,
                "license": file.license,
                "description": file.description,
                "path": str(local_path(file)),
                "present": present,
            }
            for file, present in entries
        ]
        sys.stdout.write(json.dumps({"folder": str(models_dir()), "models": listed}) + "\n")
        return

    for file, present in entries:
        size = f"{file.bytes / 1e6:,.0f} MB" if file.bytes else ""
        here = "downloaded" if present else ""
        row = f"{file.name:<29}{'/'.join(file.roles):<14}{size:>9}  {file.license:<12}{here}"
        sys.stdout.write(f"{row.rstrip()}\n    {file.description}\n")
    sys.stdout.write(f"folder: {models_dir()}\n")
