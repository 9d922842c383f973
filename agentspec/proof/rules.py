"""The rules that a proof compares the engine's own with.

`TargetOnlyRule` needs no theory to be exact: it draws every token from the target's law, and keeps a draft
token only where that draw happens to be the same. `BrokenRule` is wrong on purpose, to see that a proof can
fail. This module must not know models or the engine's loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.chance import SeededRandomness
from agentspec.config import DraftOptions
from agentspec.engine.rules import Rule
from agentspec.law import probability_of
from agentspec.types import Distribution, Proposal, Randomness
from agentspec.verify import Laws, Verdict

__all__ = ["BrokenRule", "TargetOnlyRule", "broken", "target_only"]


class TargetOnlyRule:
    """Every token is a draw from the target's law at its place; drafts only decide how long a pass lasts."""

    def __init__(self, chance: Randomness) -> None:
        self._chance = chance

    def draw(self, distribution: Distribution, position: int) -> int:  # noqa: ARG002 - chance has no places
        return self._chance.draw(distribution)

    def verify(self, block: Sequence[Proposal], target_probs: Laws, position: int) -> Verdict:  # noqa: ARG002
        for index in range(len(target_probs)):
            token = self._chance.draw(target_probs[index])
            if index == len(block) or token != block[index].token:
                return Verdict(index, token)
        return Verdict(len(block), None)


class BrokenRule:
    """Replaces a rejected token by a draw from the target's law, where the residual belongs."""

    def __init__(self, chance: Randomness) -> None:
        self._chance = chance

    def draw(self, distribution: Distribution, position: int) -> int:  # noqa: ARG002 - as above
        return self._chance.draw(distribution)

    def verify(self, block: Sequence[Proposal], target_probs: Laws, position: int) -> Verdict:  # noqa: ARG002
        for index, part in enumerate(block):
            law = target_probs[index]
            draft_prob = 1.0 if part.draft_probs is None else probability_of(part.draft_probs, part.token)
            if not self._chance.accept(probability_of(law, part.token) / draft_prob):
                return Verdict(index, self._chance.draw(law))
        if len(target_probs) == len(block):
            return Verdict(len(block), None)
        return Verdict(len(block), self._chance.draw(target_probs[len(block)]))


def target_only(options: DraftOptions, seed: int) -> Rule:  # noqa: ARG001 - whatever the request asks for
    return TargetOnlyRule(SeededRandomness(seed))


def broken(options: DraftOptions, seed: int) -> Rule:  # noqa: ARG001 - as above
    return BrokenRule(SeededRandomness(seed))
