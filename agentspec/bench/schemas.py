"""`agentspec bench schemas`: what becomes of tool schemas, and how long grammars and masks take.

Every tool is judged by itself: compiled whole, enforced in part (a superset), refused with its reason, or
crashed, which none may. Masks are timed along a walk over legal tokens that a seed decides.

It must not know how results are shown.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from agentspec.errors import AgentSpecError, ConfigError
from agentspec.grammar.enforce import enforceable_tool
from agentspec.grammar.reply import compile_arguments
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.types import BoundTool, Json, Matcher

__all__ = ["Findings", "FoundTool", "bench_schemas", "read_tools"]

_WALK = 48  # tokens, of which those that are not forced have their mask timed


class FoundTool(NamedTuple):
    """A tool, and where it was found."""

    tool: BoundTool
    where: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What became of the tools. Seconds: of compiling each, and of each mask.

    superset: the pointers that a grammar does not enforce, by tool
    refused, crashed: why, by tool
    """

    total: int = 0
    superset: list[tuple[FoundTool, list[str]]] = field(default_factory=list)
    refused: list[tuple[FoundTool, str]] = field(default_factory=list)
    crashed: list[tuple[FoundTool, str]] = field(default_factory=list)
    compile_seconds: list[float] = field(default_factory=list)
    mask_seconds: list[float] = field(default_factory=list)

    @property
    def compiled(self) -> int:
        """Tools that are enforced whole."""
        return self.total - len(self.superset) - len(self.refused) - len(self.crashed)

    def as_json(self) -> dict[str, Json]:
        """The figures by name, as the documentation of the command has them."""
        return {
            "total": self.total,
            "compiled": self.compiled,
            "superset": len(self.superset),
            "refused": len(self.refused),
            "crashed": len(self.crashed),
            "compile_ms": _spread(self.compile_seconds, 1e3),
            "mask_us": _spread(self.mask_seconds, 1e6),
            "superset_tools": [
                {"tool": found.tool.name, "where": found.where, "not_enforced": list(pointers)}
                for found, pointers in self.superset
            ],
            "refused_tools": _reasons(self.refused),
            "crashed_tools": _reasons(self.crashed),
        }


def _reasons(tools: Iterable[tuple[FoundTool, str]]) -> list[Json]:
    return [{"tool": found.tool.name, "where": found.where, "reason": reason} for found, reason in tools]


def _spread(seconds: Sequence[float], unit: float) -> Json:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return {
        "median": round(unit * statistics.median(ordered), 3),
        "p99": round(unit * ordered[math.ceil(0.99 * (len(ordered) - 1))], 3),
        "max": round(unit * ordered[-1], 3),
    }


def bench_schemas(
    tools: Sequence[FoundTool],
    tokenizer: GrammarTokenizer,
    *,
    seed: int = 0,
    report: Callable[[int], None] = lambda _: None,
) -> Findings:
    """Judges and times. report: told after every tool how many there are in all."""
    chance = random.Random(seed)
    findings = Findings(total=len(tools))
    for found in tools:
        started = time.perf_counter()
        try:
            relaxations = enforceable_tool(found.tool).relaxations
            grammar = compile_arguments(tokenizer, found.tool)
            findings.compile_seconds.append(time.perf_counter() - started)
            findings.mask_seconds.extend(_walk(grammar.start(), tokenizer.end_ids, chance))
        except AgentSpecError as error:
            findings.refused.append((found, error.message))
        except Exception as error:  # noqa: BLE001 - what must not happen is counted, and shown
            findings.crashed.append((found, f"{type(error).__name__}: {error}"))
        else:
            if relaxations:
                findings.superset.append((found, [one.pointer for one in relaxations]))
        report(len(tools))
    return findings


def _walk(state: Matcher, end_ids: frozenset[int], chance: random.Random) -> Iterator[float]:
    """Seconds of every mask on the way."""
    for _ in range(_WALK):
        if state.done():
            return
        forced = state.forced()
        if forced:
            token = forced[0]
        else:
            started = time.perf_counter()
            legal = state.legal()
            yield time.perf_counter() - started
            assert legal is not None  # a grammar that binds lists its tokens
            token = int(legal[chance.randrange(len(legal))])
        if token in end_ids:
            return
        state.advance(token)


# ------------------------------------------------------------------------------------------------ files


def read_tools(paths: Iterable[Path]) -> list[FoundTool]:
    """The tools in files and folders (`*.json`, `*.jsonl`), each schema of each name once.

    Whatever has the form of a tool is one, at any depth: OpenAI's, Anthropic's, MCP's, or a JSON Schema with
    `properties` that stands by itself, named by its title or its file.

    Raises ConfigError for a path that cannot be read, or is not JSON, and where no tool is found.
    """
    found: dict[tuple[str, str], FoundTool] = {}
    files = [file for path in paths for file in _files(path)]
    for file in files:
        for where, value in _values(file):
            for tool in _tools(value, file.stem):
                key = (tool.name, json.dumps(tool.parameters))
                found.setdefault(key, FoundTool(tool, where))
    if not found:
        raise ConfigError(
            f"no tool in {len(files)} files",
            hint="give files or folders of *.json or *.jsonl with tools in OpenAI, Anthropic or MCP form",
        )
    return list(found.values())


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(one for one in path.rglob("*") if one.suffix in (".json", ".jsonl") and one.is_file())
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    return [path]


def _values(file: Path) -> Iterator[tuple[str, Json]]:
    """The JSON values of a file, with where they are."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    numbered = enumerate(text.splitlines(), start=1) if file.suffix == ".jsonl" else [(0, text)]
    for number, part in numbered:
        where = f"{file}:{number}" if number else str(file)
        if part.strip():
            try:
                yield where, json.loads(part)
            except ValueError as error:
                raise ConfigError(f"{where} is not JSON: {error}") from error


def _tools(value: Json, stem: str) -> Iterator[BoundTool]:
    if isinstance(value, list):
        for one in value:
            yield from _tools(one, stem)
    elif isinstance(value, Mapping):
        tool = _tool(value, stem)
        if tool is not None:
            yield tool
            return
        for one in value.values():
            yield from _tools(one, stem)


def _tool(value: Mapping[str, Json], stem: str) -> BoundTool | None:
    match value:
        case {"name": str(name), "parameters": schema}:
            pass
        case {"name": str(name), "input_schema": schema} | {"name": str(name), "inputSchema": schema}:
            pass
        case {"type": "object", "properties": Mapping()}:
            name, schema = str(value.get("title") or stem), value
        case _:
            return None
    # whatever the schema is: that it is none is for `enforceable_tool` to say
    return BoundTool(name, "", cast(Mapping[str, Json], schema))
