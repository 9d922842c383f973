"""How often proposals are accepted: by source, by kind of place, by the source's own confidence.

A source says how sure it is of a proposal; what that is worth is learned here, from blocks that are over. An
estimate starts near what the source says and moves to what happened; it forgets slowly, so that it follows an
agent whose habits change. Only the past enters, so a block whose length depends on it keeps the law.

It must not know what was proposed, only how it went.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

import numpy as np

from agentspec.config import SamplingOptions
from agentspec.places import PlaceKind
from agentspec.types import Distribution, Legal

__all__ = ["Cell", "ContextClass", "Survival", "agreement", "context_class", "heat"]

ContextClass = PlaceKind | Literal["enum"]
"""`PlaceKind`, and "enum": in a string of which the grammar leaves few continuations."""

_FEW: Final = 64
"""Legal tokens up to which a place counts as a choice among few."""

_EDGES: Final = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95, 0.985)
_PRIORS: Final = (0.05, 0.15, 0.3, 0.45, 0.6, 0.72, 0.8, 0.85, 0.9, 0.92)
"""What each bin of confidence is taken to be worth before anything has happened: a little less than it says,
so that a source has to earn long runs."""

_PRIOR_WEIGHT: Final = 3.0
_MEMORY: Final = 80.0
"""Outcomes after which older ones fade."""


class Cell(NamedTuple):
    """What estimates are kept by.

    place: its `ContextClass`
    level: the bin of the source's confidence; None for the source as a whole in such places
    heat:  of the target's law, see `heat`
    """

    source: str
    place: str
    level: int | None
    heat: int

    @classmethod
    def of(cls, source: str, place: str, confidence: float | None, heat: int) -> Cell:
        return cls(source, place, None if confidence is None else bisect_right(_EDGES, confidence), heat)


class Survival:
    """Acceptance estimates.

    memory: outcomes after which older ones fade
    """

    def __init__(self, memory: float = _MEMORY) -> None:
        self._memory = memory
        self._counts: dict[Cell, tuple[float, float]] = {}  # accepted, all

    def estimate(self, cell: Cell) -> float:
        """The probability that a proposal is accepted if all before it are, in (0, 1)."""
        accepted, count = self._counts.get(cell, (0.0, 0.0))
        prior = 0.6 if cell.level is None else _PRIORS[cell.level]
        return (accepted + _PRIOR_WEIGHT * prior) / (count + _PRIOR_WEIGHT)

    def items(self) -> Iterable[tuple[Cell, tuple[float, float]]]:
        """Everything that was learned: how many were accepted, and of how many."""
        return list(self._counts.items())

    def put(self, cell: Cell, counts: tuple[float, float]) -> None:
        """Sets what was learned earlier."""
        self._counts[cell] = counts

    def learn(self, cell: Cell, *, accepted: float) -> None:
        """Adds what became of a verified proposal: whether it was accepted, or how likely that was."""
        good, count = self._counts.get(cell, (0.0, 0.0))
        fade = min(1.0, (self._memory - 1.0) / count) if count else 1.0
        self._counts[cell] = (good * fade + accepted, count * fade + 1.0)


def context_class(place: PlaceKind, legal: Legal) -> ContextClass:
    """The class of a place, given what its grammar allows."""
    return "enum" if place == "string" and legal is not None and len(legal) <= _FEW else place


def heat(sampling: SamplingOptions) -> int:
    """How much chance is in the target's law: 0 for greedy, up to 3."""
    if sampling.temperature == 0.0:
        return 0
    return 1 if sampling.temperature <= 0.5 else 2 if sampling.temperature <= 1.0 else 3


def agreement(law: Distribution) -> float:
    """The probability that two draws are equal: how sure a distribution is of itself."""
    return float(np.dot(law.probs, law.probs))
