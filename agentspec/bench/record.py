"""Turns, recorded: what target and draft held likely at every position of the replies.

The draft is asked everywhere, whether that pays or not, and taken as it is: what is fitted to such traces, or
trained on them, is not to depend on what was believed before. It must not know what traces are for.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from agentspec.bench.workload import Turn
from agentspec.calibration.traces import ReplyTrace, read_traces
from agentspec.config import RuntimeOptions
from agentspec.engine.loading import RuntimeSpec, open_runtime
from agentspec.langchain.chat_model import ChatAgentSpec
from agentspec.langchain.tools import OpenAITool

__all__ = ["read_prompts", "record"]

_TOP_K = 64  # the draft model offers no more


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
