"""A draft's law made humbler or bolder, and what each degree of it would have been worth.

At temperature t a law's probabilities are raised to the power 1/t: above 1 it is humbler, below 1 bolder, and
at 0 it proposes its most likely token with certainty. Once the target's law at a position is known, so is
the expected acceptance, sum of min(target_probs, draft_probs), of *every* temperature there: nothing needs
to be tried to be learned. A fixed list of temperatures is evaluated whole: unlike a step along the gradient
of that sum it has no size to choose, and the point mass, to which no gradient leads, is one of the list.

It must not know sources, engines or files.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from agentspec.law import point_mass
from agentspec.types import Distribution, FloatArray, IdArray

__all__ = ["NEUTRAL", "TEMPERATURES", "WEIGHTS", "alphas", "mixed", "mixed_alphas", "tempered"]

TEMPERATURES: Final = (0.0, 0.2, 0.3, 0.4, 0.5, 0.63, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0)
"""Those a draft may be given, as factors of its own. Neighbours differ by what acceptance hardly shows."""

NEUTRAL: Final = TEMPERATURES.index(1.0)
"""The one that leaves a draft as it is."""

WEIGHTS: Final = (0.0, 0.15, 0.3, 0.5, 0.7, 0.85, 1.0)
"""Shares that the first of two laws may have in their mixture."""

_MOST: Final = 256
"""Tokens of a draft's law that are looked at, and that are left where it is changed: what is further down is
seldom right, and a law over a whole vocabulary would take milliseconds."""

_DIVISORS: Final = np.array([t for t in TEMPERATURES if t > 0.0])[:, None]


def tempered(law: Distribution, temperature: float) -> Distribution:
    """The law at a temperature; at 0 the point mass at its most likely token, lowest id on ties.

    Of a wide law the head alone is left, unless the temperature is 1.

    Raises ValueError for a temperature below 0.
    """
    if temperature < 0.0:
        raise ValueError(f"a temperature of {temperature}")
    if temperature == 1.0 or len(law.ids) == 1:
        return law
    if temperature == 0.0:
        return point_mass(int(law.ids[np.argmax(law.probs)]))
    ids, probs = _head(law)
    return Distribution(ids, _powers(probs, np.array([[temperature]]))[0])


def mixed(first: Distribution, second: Distribution, weight: float) -> Distribution:
    """The mixture in which `first` has a share of `weight`, from 0 to 1; of wide laws, of their heads."""
    if weight in (0.0, 1.0):
        return first if weight else second
    ids, one, other = _heads(first, second)
    probs = weight * one + (1.0 - weight) * other
    return Distribution(ids, probs / probs.sum())


def alphas(target_probs: Distribution, draft_probs: Distribution) -> FloatArray:
    """The expected acceptance at each of TEMPERATURES, shape (len(TEMPERATURES),)."""
    ids, probs = _head(draft_probs)
    target = _at(target_probs, ids)
    found = np.empty(len(TEMPERATURES))
    found[0] = target[np.argmax(probs)]  # TEMPERATURES begins with 0
    found[1:] = np.minimum(_powers(probs, _DIVISORS), target).sum(axis=1)
    found[NEUTRAL] = np.minimum(probs, target).sum()  # the whole law, of which this is the head
    return np.minimum(found, 1.0)


def mixed_alphas(target_probs: Distribution, first: Distribution, second: Distribution) -> FloatArray:
    """The expected acceptance of the mixtures by each of WEIGHTS, shape (len(WEIGHTS),)."""
    ids, one, other = _heads(first, second)
    weights = np.array(WEIGHTS)[:, None]
    laws = weights * one + (1.0 - weights) * other
    found: FloatArray = np.minimum(laws, _at(target_probs, ids)).sum(axis=1)
    return np.minimum(found, 1.0)


def _powers(probs: FloatArray, temperatures: FloatArray) -> FloatArray:
    """Positive probabilities at temperatures of shape (n, 1), normalised: shape (n, len(probs))."""
    scores = np.log(probs) - np.log(probs.max())
    weights = np.exp(scores / temperatures)
    normalised: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def _head(law: Distribution) -> tuple[IdArray, FloatArray]:
    """The likeliest tokens of a law, those of probability 0 left out; ids ascend."""
    kept = np.flatnonzero(law.probs > 0.0)
    if len(kept) > _MOST:
        kept = np.sort(kept[np.argpartition(-law.probs[kept], _MOST)[:_MOST]])
    return law.ids[kept], law.probs[kept]


def _at(law: Distribution, ids: IdArray) -> FloatArray:
    """The law's probabilities of some tokens; 0 for those it does not list."""
    index = np.searchsorted(law.ids, ids)
    index[index == len(law.ids)] = 0
    return np.where(law.ids[index] == ids, law.probs[index], 0.0)


def _heads(first: Distribution, second: Distribution) -> tuple[IdArray, FloatArray, FloatArray]:
    """The tokens of both heads, with the probabilities that each law has there, summing to 1."""
    one, other = Distribution(*_head(first)), Distribution(*_head(second))
    ids = np.union1d(one.ids, other.ids)
    left, right = _at(one, ids), _at(other, ids)
    return ids, left / left.sum(), right / right.sum()
