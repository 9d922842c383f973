"""Turns, recorded: what target and draft held likely at every position of the replies.

The draft is asked everywhere, whether that pays or not, and taken as it is: what is fitted to such traces, or
trained on them, is not to depend on what was believed before. It must not know what traces are for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from agentspec.bench.workload import Turn
from agentspec.calibration.traces import ReplyTrace, read_traces
from agentspec.config import RuntimeOptions
from agentspec.engine.loading import RuntimeSpec, open_runtime
from agentspec.errors import ConfigError
from agentspec.langchain.chat_model import ChatAgentSpec
from agentspec.langchain.tools import OpenAITool, sound_tools

__all__ = ["read_prompts", "record"]

_TOP_K = 64  # the draft model offers no more


class _Prompt(BaseModel):
    """messages and tools in OpenAI's form"""

    model_config = ConfigDict(extra="ignore")

    messages: list[dict[str, JsonValue]] = Field(min_length=1)
    tools: list[dict[str, JsonValue]] = Field(default_factory=list)


_HINT = 'lines are JSON: "a prompt", or {"messages": [...], "tools": [...]} as OpenAI has them'

_LINE: TypeAdapter[str | _Prompt] = TypeAdapter(str | _Prompt)


def read_prompts(path: Path) -> list[Turn]:
    """The prompts of a file of JSON lines: each a string, or an object with messages and, perhaps, tools.

    Raises ConfigError naming the file and the line, or the file that has none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the prompts {path} cannot be read: {error}") from error
    found = list(_prompts(path, lines))
    if not found:
        raise ConfigError(f"{path} has no prompts", hint=_HINT)
    return found


def _prompts(path: Path, lines: Sequence[str]) -> Iterator[Turn]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            one = _LINE.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            at = ".".join(map(str, first["loc"][1:]))
            raise ConfigError(
                f"{path}:{number} is no prompt: {at + ': ' if at else ''}{first['msg']}", hint=_HINT
            ) from error
        name = f"{path.name}:{number}"
        if isinstance(one, str):
            yield Turn(name, ({"role": "user", "content": one},))
        else:
            tools = sound_tools(one.tools, whole=False) if one.tools else []
            yield Turn(name, tuple(one.messages), tuple(tool.bound for tool in tools))


def record(
    turns: Sequence[Turn],
    *,
    model: str,
    draft: str,
    temperature: float,
    draft_temperature: float | None = None,
    max_tokens: int,
    seed: int,
    options: RuntimeOptions,
    into: Path | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[ReplyTrace]:
    """Answers each turn once.

    draft_temperature: as in DraftOptions; at temperature 0 it is what makes the draft give laws at all
    into:              a trace file to add to; None for one that is thrown away

    Raises what loading models and answering raise.
    """
    spec = RuntimeSpec(
        model=model,
        draft=draft,
        n_parallel=1,
        target=options,
        draft_runtime=options,
        calibration="off",
        history="off",
        snapshots="off",
        ignore_costs=True,
    )
    with tempfile.TemporaryDirectory() as folder, closing(open_runtime(spec)) as runtime:
        path = Path(folder) / "traces.jsonl" if into is None else into
        chat = ChatAgentSpec.from_runtime(runtime)
        before = sum(1 for _ in read_traces([path])) if path.exists() else 0
        for number, turn in enumerate(turns):
            tools = [OpenAITool(tool) for tool in turn.tools]
            (chat.bind_tools(tools, tool_choice="any") if tools else chat).invoke(
                [dict(message) for message in turn.messages],
                draft_sources=("grammar", "model"),
                max_block=32,
                max_model_tokens=16,
                draft_temperature=draft_temperature,
                temperature=temperature,
                verifier="token_wise",
                seed=seed + number,
                max_tokens=max_tokens,
                trace_path=str(path),
                trace_top_k=_TOP_K,
            )
            progress()
        return list(read_traces([path]))[before:]
