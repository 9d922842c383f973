"""The main job in one command: an agent at work, then its tool-call turns again under each draft.

    make demo                                       (or python -m examples.demo --rounds 1)

Prints the agent's steps, a table that compares decoding without drafts, with the grammar draft, with grammar
and model drafts, and with all sources, and as its last line one JSON object with the figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from langchain_core.messages import AIMessage, AnyMessage, SystemMessage
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentspec import ChatAgentSpec
from agentspec.bench.replay import Figures, Outcome, Replay, peak_rss_mb
from examples import agent

CONFIGS: dict[str, tuple[str, ...]] = {
    "none": (),
    "grammar": ("grammar",),
    "grammar+model": ("grammar", "model"),
    "all": ("grammar", "lookup", "history", "model"),
}

console = Console(highlight=False)


def tool_call_turns(conversation: Sequence[AnyMessage]) -> list[list[AnyMessage]]:
    """What the model was given each time it answered with a call."""
    return [
        [SystemMessage(agent.SYSTEM), *conversation[:index]]
        for index, message in enumerate(conversation)
        if isinstance(message, AIMessage) and (message.tool_calls or message.invalid_tool_calls)
    ]


def replay(model: ChatAgentSpec, turns: Sequence[list[AnyMessage]], rounds: int) -> dict[str, Figures]:
    """The turns again under each configuration, with the same law: only what is proposed differs."""
    # what LangChain's agent binds: the answer is one more tool, and every reply is a call
    bound = model.bind_tools([*agent.TOOLS, agent.Answer], tool_choice="any")

    def answer(messages: list[AnyMessage], sources: tuple[str, ...], name: str) -> Outcome:
        reply = bound.invoke(messages, draft_sources=sources, agent=name)
        text = json.dumps([reply.text, [(call["name"], call["args"]) for call in reply.tool_calls]])
        return Outcome(text, reply.response_metadata["agentspec"])

    bench = Replay(answer, CONFIGS)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        total = bench.replies(len(turns), rounds)
        task = progress.add_task(f"replaying {len(turns)} turns under {len(CONFIGS)} drafts", total=total)
        return bench.run(turns, rounds=rounds, progress=lambda: progress.advance(task))


def table(figures: dict[str, Figures]) -> Table:
    """The comparison as people read it."""
    sources = sorted({source for one in figures.values() for source in one.acceptance})
    shown = Table(
        title=f"the same {figures['none'].tokens} tokens by draft (greedy, warm prefix, medians)",
        caption="last columns: the share of proposals that was accepted",
        box=SIMPLE_HEAD,
        padding=0,  # the box has a space between columns: this way it fits into 80
    )
    shown.add_column("draft", no_wrap=True)
    for heading in ("passes", "tok/pass", "tok/s", "speed", *sources):
        shown.add_column(heading, justify="right", no_wrap=True)
    plain = figures["none"].tokens_per_second
    for name, one in figures.items():
        shown.add_row(
            name,
            str(one.target_passes),
            f"{one.tokens_per_pass:.1f}",
            f"{one.tokens_per_second:.1f}",
            f"{one.tokens_per_second / plain:.2f}×",
            *(f"{one.acceptance[source]:.0%}" if source in one.acceptance else "–" for source in sources),
        )
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each turn is measured, after a warm-up.")] = 3,
) -> None:
    """An agent at work on local models, then its tool-call turns again under each draft."""
    # as if it were the first run
    model = ChatAgentSpec(temperature=0.0, history="memory", calibration="memory", snapshots="off")
    console.rule("an agent at work")
    conversation = agent.run(model)
    turns = tool_call_turns(conversation)
    replies = [message for message in conversation if isinstance(message, AIMessage)]
    valid = sum(len(reply.tool_calls) for reply in replies)
    invalid = sum(len(reply.invalid_tool_calls) for reply in replies)

    console.rule("its tool-call turns again")
    if not turns:
        raise SystemExit("the agent called no tool: nothing to measure")
    figures = replay(model, turns, rounds)
    console.print(table(figures))
    same = all(one.texts == figures["none"].texts for one in figures.values())
    console.print(
        "every draft gave the same calls" if same else "the calls differ between drafts: see README"
    )
    peak = peak_rss_mb()
    console.print(f"peak memory of this process: {peak:.0f} MB" if peak else "peak memory: unknown")

    summary: dict[str, Any] = {
        "tool_calls": valid + invalid,
        "valid_tool_calls": valid,
        "configs": {name: one.as_json() for name, one in figures.items()},
        "peak_rss_mb": round(peak, 1) if peak else None,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    typer.run(main)
