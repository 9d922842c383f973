"""Exact laws to compare, and the engine's rules on a chance that is enumerated."""

from __future__ import annotations

from collections.abc import Callable

from agentspec.config import DraftOptions
from agentspec.engine.rules import Rule, SampledRule, SeedInvariantRule
from agentspec.testing import Law, generate, target_law, total_variation
from agentspec.types import Distribution, Randomness

__all__ = ["EnumeratedNoise", "Law", "enumerated", "generate", "target_law", "total_variation"]


class EnumeratedNoise:
    """Noise whose draws are choices of an enumerated chance. Each position is drawn once."""

    def __init__(self, chance: Randomness) -> None:
        self._chance = chance
        self._drawn: set[int] = set()

    def draw(self, distribution: Distribution, position: int) -> int:
        assert position not in self._drawn
        self._drawn.add(position)
        return self._chance.draw(distribution)


class EnumeratedInvariantRule(SeedInvariantRule):
    """The seed-invariant rule on enumerated noise; drafts draw with a chance of their own."""

    def __init__(self, chance: Randomness) -> None:
        super().__init__(EnumeratedNoise(chance))
        self._chance = chance

    def draw(self, distribution: Distribution, position: int) -> int:  # noqa: ARG002 - it has no places
        return self._chance.draw(distribution)


def enumerated(chance: Randomness) -> Callable[[DraftOptions, int], Rule]:
    """The rules that `make_rule` makes, on a chance that is enumerated in place of a seed."""

    def make(options: DraftOptions, _: int) -> Rule:
        if options.verifier == "seed_invariant":
            return EnumeratedInvariantRule(chance)
        return SampledRule(chance, block=options.verifier != "token_wise")

    return make
