"""How one reply's tokens are drawn and its blocks verified: one object holds chance and rule together.

What a rule does depends on the request alone. It must not know sequences, sessions or draft sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentspec.chance import GumbelNoise, SeededRandomness
from agentspec.config import DraftOptions
from agentspec.types import Distribution, Noise, Proposal, Randomness
from agentspec.verify import Laws, Verdict, block_wise, seed_invariant, token_wise

__all__ = ["Rule", "SampledRule", "SeedInvariantRule", "make_rule"]


class Rule(Protocol):
    """The chance of one reply, and the rule of acceptance that it runs on.

    position: a token's place in the reply, 0 for the first
    """

    def draw(self, distribution: Distribution, position: int) -> int:
        """A draft's draw."""
        ...

    def verify(self, block: Sequence[Proposal], target_probs: Laws, position: int) -> Verdict:
        """What is kept of a block whose first token is at `position`, and the token that follows it."""
        ...


class SampledRule:
    """Block verification where a block holds a drawn token, else the token-wise rule, its equal there.

    block: False verifies every block token by token

    Up to its first drawn token a block holds certain ones only, so whether there is one depends on the
    prefix alone, and the rule may be chosen by it. A draw from a point mass counts as certain.
    """

    def __init__(self, chance: Randomness, *, block: bool = True) -> None:
        self._chance = chance
        self._block = block

    def draw(self, distribution: Distribution, position: int) -> int:  # noqa: ARG002 - chance has no places
        return self._chance.draw(distribution)

    def verify(self, block: Sequence[Proposal], target_probs: Laws, position: int) -> Verdict:  # noqa: ARG002
        soft = any(part.draft_probs is not None and len(part.draft_probs.ids) > 1 for part in block)
        rule = block_wise if self._block and soft else token_wise
        tokens = [part.token for part in block]
        return rule(tokens, [part.draft_probs for part in block], target_probs, self._chance)


class SeedInvariantRule:
    """Draft tokens are kept where they equal the target's own draw; drafts draw with the same noise."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise

    def draw(self, distribution: Distribution, position: int) -> int:
        return self._noise.draw(distribution, position)

    def verify(self, block: Sequence[Proposal], target_probs: Laws, position: int) -> Verdict:
        return seed_invariant([part.token for part in block], target_probs, self._noise, position)


def make_rule(options: DraftOptions, seed: int) -> Rule:
    """The rule that a request asks for. "auto", unless it was decided before, is the block rule."""
    if options.verifier == "seed_invariant":
        return SeedInvariantRule(GumbelNoise(seed))
    return SampledRule(SeededRandomness(seed), block=options.verifier != "token_wise")
