"""The options of the `agentspec bench` commands: what is measured, and how often.

Imports next to nothing, so that the command's help does not wait for numpy.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentspec.config import Options

__all__ = [
    "BenchOptions",
    "CacheBenchOptions",
    "CalibrationBenchOptions",
    "CalibrationPart",
    "ConcurrencyOptions",
    "ConcurrencyPart",
    "Part",
]

Part = Literal["greedy", "sampled", "never-slower"]
ConcurrencyPart = Literal["throughput", "gap", "soak"]
CalibrationPart = Literal["toy", "mechanism", "replays", "useless", "bad-draft"]


class BenchOptions(Options):
    """What `agentspec bench drafts` measures, and how often."""

    rounds: int = Field(
        3, ge=1, description="How often every configuration answers each prompt; figures are medians."
    )
    subset: int | None = Field(
        None, ge=1, description="Only so many prompts, spread evenly over the workload: for a quick look."
    )
    only: Part | None = Field(None, description="One part alone: greedy, sampled or never-slower.")
    temperature: float = Field(0.7, gt=0.0, le=100.0, description="Temperature of the sampled part.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the sampled replies.")
    n_parallel: int = Field(
        1,
        ge=1,
        le=255,
        description="Sequences that the context can hold; the agents work one after another.",
    )

    ignore_costs: bool = Field(
        False,
        description="Propose whatever is offered, as if a pass took the same time at every size: passes and "
        "acceptance then show what the sources know, on any machine; speed shows nothing.",
    )

    @model_validator(mode="after")
    def _costs_decide_what_is_never_slower(self) -> Self:
        if self.ignore_costs and self.only == "never-slower":
            raise ValueError("ignore_costs leaves out what never-slower measures: choose one of them")
        return self

    def measures(self, part: Part) -> bool:
        if part == "never-slower" and self.ignore_costs:
            return False
        return self.only in (None, part)


class ConcurrencyOptions(Options):
    """What `agentspec bench concurrency` measures, and how often."""

    agents: int = Field(8, ge=1, le=64, description="Agents at once; the context has room for each.")
    rounds: int = Field(3, ge=1, description="How often all agents work, at once and one after another.")
    prompt_tokens: int = Field(
        2000, ge=100, le=2900, description="Length of the prompt that is loaded while a reply goes on."
    )
    requests: int = Field(2000, ge=10, description="Requests of the soak.")
    seed: int = Field(0, ge=0, lt=2**63, description="Decides which requests of the soak are cancelled when.")
    only: ConcurrencyPart | None = Field(None, description="One part alone: throughput, gap or soak.")

    def measures(self, part: ConcurrencyPart) -> bool:
        return self.only in (None, part)


class CacheBenchOptions(Options):
    """What `agentspec bench cache` measures, and how often."""

    rounds: int = Field(3, ge=1, description="New processes of each kind; figures are medians.")
    agent: Literal["travel", "shop", "office", "operations", "home"] = Field(
        "office", description="The agent of the workload whose instructions and tools are read."
    )


class CalibrationBenchOptions(Options):
    """What `agentspec bench calibration` measures, and how often."""

    replies: int = Field(
        30, ge=3, description="Replies that are recorded at temperature 0.8; a fifth of them at the others."
    )
    max_tokens: int = Field(64, ge=8, le=512, description="Most tokens of a reply.")
    length: int = Field(
        2, ge=1, le=12, description="Drafted tokens of each block where drafting is forced and timed."
    )
    rounds: int = Field(3, ge=1, description="How often what is timed is done; figures are medians.")
    seed: int = Field(0, ge=0, lt=2**62, description="Seed of the replies.")
    only: CalibrationPart | None = Field(
        None, description="One part alone: toy, mechanism, replays, useless or bad-draft."
    )

    def measures(self, part: CalibrationPart) -> bool:
        return self.only in (None, part)
