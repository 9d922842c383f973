"""What a proof compares, and how much of it: the defaults and help texts of `agentspec prove`, too."""

from __future__ import annotations

from pydantic import Field

from agentspec.config import Options

__all__ = ["ProofOptions"]


class ProofOptions(Options):
    """The size of a proof: it decides how small a difference is found."""

    samples: int = Field(4000, ge=500, description="Sampled continuations with drafts, and as many without.")
    tokens: int = Field(
        3, ge=2, le=16, description="Tokens of each; twice as many where a grammar fixes some of them."
    )
    temperature: float = Field(1.0, gt=0.0, le=100.0, description="Temperature of the sampled ones.")
    greedy_prompts: int = Field(12, ge=0, le=12, description="Prompts whose greedy replies are compared.")
    greedy_tokens: int = Field(48, ge=1, le=512, description="Most tokens of a greedy reply.")
    alpha: float = Field(
        1e-4,
        ge=1e-4,
        le=0.5,
        description="Probability of a false alarm: of finding a difference between equal laws.",
    )
    seed: int = Field(0, ge=0, description="Seed of the samples and of the test.")

    @property
    def longest(self) -> int:
        """Tokens of the longest reply."""
        return max(2 * self.tokens, self.greedy_tokens)
