"""Imports go downward only, and each foreign library has one home (design, section 2).

Read from the source with `ast`, so an import inside a function or under TYPE_CHECKING counts too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "agentspec"

LAYERS = {
    "types": 0,
    "errors": 0,
    "config": 0,
    "law": 1,
    "samplers": 1,
    "kv_cells": 1,
    "prefix": 1,
    "snapshots": 1,
    "verify": 1,
    "chance": 1,
    "trace": 1,
    "places": 1,
    "timing": 1,
    "plots": 1,
    "llama": 2,
    "grammar": 2,
    "chat": 2,
    "models": 2,
    "drafts": 3,
    "calibration": 3,
    "engine": 4,
    "testing": 5,
    "langchain": 5,
    "bench": 6,
    "proof": 6,
    "cli": 6,
    "__main__": 7,
}

FENCES = {"llama_cpp": "llama", "llguidance": "grammar", "langchain_core": "langchain"}

# runs in environments of peers too, with what each of them has
PEERS_OWN = "agentspec/bench/agents/worker.py"

# within a layer, these pairs (who imports, what) are meant; a wire format is data that grammar and chat share
SIBLINGS = {
    ("config", "errors"),
    ("verify", "law"),
    ("law", "samplers"),
    ("grammar", "chat"),
    ("bench", "proof"),
    ("cli", "bench"),
    ("cli", "proof"),
}


class Import(NamedTuple):
    file: str
    line: int
    unit: str
    target: str


def unit_of(path: Path) -> str:
    """The part of the package that a file belongs to: a folder, or a module of its own."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports() -> Iterator[Import]:
    for path in sorted(PACKAGE.rglob("*.py")):
        unit = unit_of(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    names = [alias.name for alias in node.names]
                case ast.ImportFrom(module=str(module), level=0):
                    names = [f"{module}.{alias.name}" for alias in node.names]
                case ast.ImportFrom():
                    pytest.fail(f"{path}:{node.lineno}: relative import; write it from the root")
                case _:
                    continue
            for name in names:
                yield Import(str(path.relative_to(PACKAGE.parent)), node.lineno, unit, name)


def test_every_part_has_a_layer() -> None:
    units = {unit_of(path) for path in PACKAGE.rglob("*.py")}
    assert units - set(LAYERS) == {"__init__"}


def test_imports_go_downward_only() -> None:
    wrong = []
    for found in imports():
        root, _, rest = found.target.partition(".")
        target = rest.partition(".")[0]
        # the package's own __init__ loads its names lazily from above, and offers the version to all
        if root != "agentspec" or target not in LAYERS or found.unit in ("__init__", target):
            continue
        if (found.unit, target) in SIBLINGS or LAYERS[target] < LAYERS[found.unit]:
            continue
        wrong.append(f"{found.file}:{found.line}: {found.unit} imports {found.target}")
    assert wrong == []


def test_each_foreign_library_has_one_home() -> None:
    wrong = [
        f"{found.file}:{found.line}: {found.target} outside agentspec/{home}"
        for found in imports()
        for library, home in FENCES.items()
        if found.target.partition(".")[0] == library and found.unit != home and found.file != PEERS_OWN
    ]
    assert wrong == []
