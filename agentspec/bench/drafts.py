"""What each draft source is worth: the same tool calls under every configuration, in one run.

Question:  how many target passes, and how much time, does each source save an agent; does any ever cost time?
Method:    the turns of a fixed workload, in order. A turn's prompt is computed once, by a reply of one token;
           then every configuration answers it, taking turns (A B C A B C), in each of the rounds. A round of
           a configuration is an agent of its own: its history starts empty and learns from that agent's
           replies alone. So no reply is drafted from another one's answer to the same prompt, and the counts
           are those of one agent that works through the workload once.
Figures:   `agentspec.bench.figures` defines them. "none" is plain decoding under the same mask, one token a
           pass. Besides:
           second pass    target passes of the first history agent when it does all its work a second time,
                          over those of the first time
           never slower   decode speed with drafts over that without, in the same run, where drafts have
                          little to offer: prose, a source that is always wrong and always sure, a draft model
                          with random weights, temperature 1.5. The two bad sources work alone, so that no
                          good one hides what they cost.
           Ratios within one run are worth reading; absolute times are this machine's, at this hour.

This module must not know how a reply is made: it is given a function that opens models, and one that answers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from agentspec.bench.figures import Reply, Series
from agentspec.bench.options import BenchOptions
from agentspec.bench.replay import Outcome
from agentspec.bench.stages import CASES, CONFIGS, Setup, Stage
from agentspec.bench.workload import Turn
from agentspec.types import Json

__all__ = ["Answer", "Ask", "Findings", "Report", "bench_drafts"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One reply to make.

    agent: whose history the reply is drafted from and adds to; no other agent's is
    """

    turn: Turn
    sources: tuple[str, ...]
    agent: str
    temperature: float
    seed: int
    max_tokens: int


Answer: TypeAlias = Callable[[Ask], Outcome]

Report: TypeAlias = Callable[[str, int, int], None]
"""Told, after every reply, the stage, how many of its replies are made, and how many it has."""


@dataclass(slots=True)
class Findings:
    """What was measured: series by configuration, None for a part that was left out."""

    greedy: dict[str, Series] | None = None
    second_pass: float | None = None
    sampled: dict[str, Series] | None = None
    never_slower: dict[str, float] = field(default_factory=dict)

    @property
    def overhead_share(self) -> float | None:
        """Of the greedy calls that all sources but the model have drafted."""
        return None if self.greedy is None else self.greedy["all_without_model"].overhead_share

    @property
    def differing(self) -> int | None:
        """How many greedy replies are not the text that plain decoding gives (near-ties aside: none)."""
        if self.greedy is None:
            return None
        return sum(series.differing(self.greedy["none"]) for series in self.greedy.values())

    def as_json(self) -> dict[str, Json]:
        """As schemas/bench.v1.schema.json has it."""
        return {
            "configs": _as_json(self.greedy),
            "sampled_configs": _as_json(self.sampled),
            "history_second_pass_ratio": _rounded(self.second_pass),
            "never_slower": {case: _rounded(self.never_slower.get(case)) for case in CASES},
            "overhead_share": _rounded(self.overhead_share),
            "differing_replies": self.differing,
        }


def bench_drafts(
    planned: Sequence[tuple[Setup, Sequence[Stage]]],
    open_models: Callable[[Setup], AbstractContextManager[Answer]],
    options: BenchOptions,
    *,
    report: Report,
) -> Findings:
    """Measures what was planned. Raises what `open_models` and the answers raise."""
    findings = Findings()
    for setup, stages in planned:
        with open_models(setup) as answer:
            for stage in stages:
                run = _Run(stage, answer, options, report)
                series = run.measure()
                if stage.name in CASES:
                    findings.never_slower[stage.name] = series["drafts"].ratio_to(series["none"])
                elif stage.name == "sampled":
                    findings.sampled = series
                else:
                    findings.greedy = series
                    findings.second_pass = run.second_pass(series)
    return findings


class _Run:
    """One stage under way."""

    def __init__(self, stage: Stage, answer: Answer, options: BenchOptions, report: Report) -> None:
        self._stage = stage
        self._answer = answer
        self._options = options
        self._report = report
        self._due = stage.replies(options.rounds)
        self._done = 0
        self._key = secrets.token_hex(4)  # an agent's name must not have been used before

    def measure(self) -> dict[str, Series]:
        rounds = range(self._options.rounds)
        replies: dict[str, list[list[Reply]]] = {name: [[] for _ in rounds] for name in self._stage.configs}
        every = tuple(dict.fromkeys(name for config in self._stage.configs.values() for name in config))
        for index in range(len(self._stage.turns)):
            self._reply(index, every, "warm-up", 0, max_tokens=1)
            for number in rounds:
                for name, sources in self._stage.configs.items():
                    reply = self._reply(index, sources, name, number, max_tokens=self._stage.max_tokens)
                    replies[name][number].append(reply)
        return {name: Series(made) for name, made in replies.items()}

    def second_pass(self, series: Mapping[str, Series]) -> float | None:
        """See above; None where the stage has none."""
        name = self._stage.second_pass
        if name is None:
            return None
        sources, most = self._stage.configs[name], self._stage.max_tokens
        again = [
            self._reply(index, sources, name, 0, max_tokens=most) for index in range(len(self._stage.turns))
        ]
        first = series[name].rounds[0]
        return sum(reply.target_passes for reply in again) / sum(reply.target_passes for reply in first)

    def _reply(
        self, index: int, sources: tuple[str, ...], config: str, number: int, *, max_tokens: int
    ) -> Reply:
        ask = Ask(
            turn=self._stage.turns[index],
            sources=sources,
            agent=f"{self._key}/{config}/{number}",
            temperature=self._stage.temperature,
            # every configuration draws from the same seeds, every round from others
            seed=self._options.seed + number * len(self._stage.turns) + index,
            max_tokens=max_tokens,
        )
        started = time.perf_counter()
        outcome = self._answer(ask)
        reply = Reply.of(outcome.text, outcome.stats, time.perf_counter() - started)
        self._done += 1
        self._report(self._stage.name, self._done, self._due)
        return reply


def _as_json(series: Mapping[str, Series] | None) -> Json:
    if series is None:
        return None
    return {
        name: series[name].as_json(series["none"]) if name in series else None  # no draft model
        for name in CONFIGS
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
