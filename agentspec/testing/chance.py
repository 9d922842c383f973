"""Chance replaced by enumeration: the law of anything that uses `Randomness`, computed instead of sampled.

It must not know what is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from agentspec.types import Distribution

__all__ = ["ScriptedChance", "enumerate_law"]

Outcome = TypeVar("Outcome")


class ScriptedChance:
    """Randomness that follows a script of choices, and takes the first possible choice after its end.

    choices: what was chosen at each decision, with the probability of that choice and how many
             possible choices there were
    """

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.choices: list[tuple[int, float, int]] = []

    def accept(self, probability: float) -> bool:
        outcomes = [(True, probability), (False, 1.0 - probability)]
        possible = [outcome for outcome in outcomes if outcome[1] > 0.0]
        return possible[self._choose([weight for _, weight in possible])][0]

    def draw(self, distribution: Distribution) -> int:
        pairs = zip(distribution.ids, distribution.probs, strict=True)
        possible = [(int(token), float(weight)) for token, weight in pairs if weight > 0.0]
        return possible[self._choose([weight for _, weight in possible])][0]

    @property
    def probability(self) -> float:
        """The probability of all the choices made."""
        return float(np.prod([weight for _, weight, _ in self.choices])) if self.choices else 1.0

    def _choose(self, weights: Sequence[float]) -> int:
        at = len(self.choices)
        choice = self._script[at] if at < len(self._script) else 0
        self.choices.append((choice, weights[choice], len(weights)))
        return choice


def enumerate_law(run: Callable[[ScriptedChance], Outcome]) -> dict[Outcome, float]:
    """The exact law of `run`'s outcome: runs it once for every sequence of random decisions.

    `run` must depend on nothing but the chance it is given, and its outcomes must be hashable.
    """
    law: dict[Outcome, float] = {}
    script: list[int] | None = []
    while script is not None:
        chance = ScriptedChance(script)
        outcome = run(chance)
        law[outcome] = law.get(outcome, 0.0) + chance.probability
        script = _next_script(chance.choices)
    return law


def _next_script(choices: Sequence[tuple[int, float, int]]) -> list[int] | None:
    """The script after this one in depth-first order; None after the last."""
    for at in range(len(choices) - 1, -1, -1):
        choice, _, count = choices[at]
        if choice + 1 < count:
            return [taken for taken, _, _ in choices[:at]] + [choice + 1]
    return None
