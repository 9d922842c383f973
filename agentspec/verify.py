"""The acceptance rule of speculative decoding, and the chance it runs on.

A draft token x, drawn from draft_probs, is accepted with probability min(1, target_probs[x] /
draft_probs[x]); at the first rejection the replacement is drawn from
normalise(max(0, target_probs - draft_probs)). The tokens that come out have the target's law, whatever the
draft does (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318).

Accepted token:  a draft token that is kept.
Recovered token: the replacement of the first rejected one.
Bonus token:     drawn from the target's law after a block that was accepted whole.

This module must not know models, grammars or draft sources: it sees tokens and distributions. It works with
nothing it is not given, so the proof by enumeration in `tests/exactness` covers all it can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from agentspec.law import probability_of
from agentspec.types import Distribution, Randomness

__all__ = ["Laws", "SeededRandomness", "Verdict", "residual", "token_wise"]


class Laws(Protocol):
    """The target's laws at the positions of a block: laws[i] is that of position i.

    Computed on demand, since a row after the first rejection is never needed. For a block of n tokens there
    are n + 1 laws, or n where the block ends the reply and no bonus token can follow.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Distribution: ...


class Verdict(NamedTuple):
    """accepted: how many of the block's tokens are kept. token: the recovered or bonus token that follows
    them; None where the block was accepted whole and ends the reply."""

    accepted: int
    token: int | None


def token_wise(
    tokens: Sequence[int],
    draft_probs: Sequence[Distribution | None],
    target_probs: Laws,
    chance: Randomness,
) -> Verdict:
    """Verifies a block token by token.

    tokens:       the block, shape (n,)
    draft_probs:  draft_probs[i] is what tokens[i] was drawn from; None for a point mass, shape (n,)
    target_probs: the target's laws, shape (n + 1,), or (n,) for a block that ends the reply

    Chance is used once per token whose acceptance is uncertain and once for the token that follows.
    Raises ValueError for a token that its own distribution says cannot have been drawn.
    """
    if not len(tokens) == len(draft_probs) <= len(target_probs) <= len(tokens) + 1:
        raise ValueError(f"{len(tokens)} tokens, {len(draft_probs)} draft laws, {len(target_probs)} laws")
    for index, token in enumerate(tokens):
        draft = draft_probs[index]
        target = target_probs[index]
        draft_prob = 1.0 if draft is None else probability_of(draft, token)
        if draft_prob <= 0.0:
            raise ValueError(f"token {token} at {index} was proposed with draft probability 0")
        ratio = probability_of(target, token) / draft_prob
        if ratio < 1.0 and not chance.accept(ratio):
            return Verdict(index, chance.draw(residual(target, draft, token)))
    if len(target_probs) == len(tokens):
        return Verdict(len(tokens), None)
    return Verdict(len(tokens), chance.draw(target_probs[len(tokens)]))


def residual(target: Distribution, draft: Distribution | None, token: int) -> Distribution:
    """normalise(max(0, target - draft)): what the token that replaces a rejected one is drawn from.

    draft None is the point mass at `token`.
    """
    if draft is None:
        excess = np.where(target.ids == token, 0.0, target.probs)
    else:
        excess = np.maximum(target.probs - _probs_at(draft, target), 0.0)
    mass = float(excess.sum())
    if mass <= 0.0:
        # The laws are equal up to rounding, and rounding alone rejected the token: any draw from the
        # target is right.
        return target
    kept = excess > 0.0
    return Distribution(target.ids[kept], excess[kept] / mass)


def _probs_at(source: Distribution, target: Distribution) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The probabilities that `source` gives to the tokens that `target` lists."""
    index = np.searchsorted(source.ids, target.ids)
    index[index == len(source.ids)] = 0
    return np.where(source.ids[index] == target.ids, source.probs[index], 0.0)


class SeededRandomness:
    """Randomness from a seed: one generator per request, one uniform number per decision.

    A draw from a point mass uses none, and neither does a decision that is certain.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def accept(self, probability: float) -> bool:
        """True with the given probability."""
        if probability <= 0.0:
            return False
        return float(self._generator.random()) < probability

    def draw(self, distribution: Distribution) -> int:
        """A token by inversion of the cumulated probabilities."""
        if len(distribution.ids) == 1:
            return int(distribution.ids[0])
        cumulated = np.cumsum(distribution.probs)
        point = float(self._generator.random()) * float(cumulated[-1])
        index = int(np.searchsorted(cumulated, point, side="right"))
        return int(distribution.ids[min(index, len(distribution.ids) - 1)])
