"""The options of `agentspec bench drafts`: what is measured, and how often.

Imports next to nothing, so that the command's help does not wait for numpy.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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

    def measures(self, part: Part) -> bool:
        return self.only in (None, part)
