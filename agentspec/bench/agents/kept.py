"""Rows of an earlier run: a comparison takes hours, and goes on where it was interrupted.

It must not know what rows are compared for.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from agentspec.bench.agents.run import Row
from agentspec.bench.agents.world import Task
from agentspec.errors import ConfigError

__all__ = ["KeptRows"]


class _Line(BaseModel):
    """A row, as `Row.as_json` writes it, and whose it is."""

    model_config = ConfigDict(extra="forbid")

    system: str
    task: str
    world: str
    succeeded: bool
    reason: str
    answer: str
    calls: list[JsonValue]
    invalid_calls: list[str]
    steps: int = Field(ge=0)
    tokens: int = Field(ge=0)
    decode_seconds: float = Field(ge=0.0)
    seconds: float = Field(ge=0.0)


class KeptRows:
    """The rows in a file of JSON lines, and those that are added to it.

    Raises ConfigError where the file is something else, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[tuple[str, str], _Line] = {}
        try:
            path.touch()
            for text in path.read_text(encoding="utf-8").splitlines():
                line = _Line.model_validate_json(text)
                self._lines[line.system, line.task] = line
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            raise ConfigError(
                f"{path} does not hold the rows of an earlier run: {error}",
                hint="name a new file, or delete this one",
            ) from error

    def get(self, system: str, task: Task) -> Row | None:
        """What a system did with a task; None where that is not known."""
        line = self._lines.get((system, task.name))
        if line is None:
            return None
        return Row(
            task,
            answer=line.answer,
            reason=line.reason,
            calls=line.calls,
            invalid=line.invalid_calls,
            steps=line.steps,
            tokens=line.tokens,
            decode_seconds=line.decode_seconds,
            seconds=line.seconds,
        )

    def add(self, system: str, row: Row) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"system": system, **row.as_json()}) + "\n")
