"""The options of `agentspec bench drafts`: what is measured, and how often.

Imports next to nothing, so that the command's help does not wait for numpy.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentspec.config import Options

__all__ = ["BenchOptions", "Part"]

Part = Literal["greedy", "sampled", "never-slower"]


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
