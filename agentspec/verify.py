"""The rules of acceptance: which of a block's tokens are kept, and which token follows them.

A draft token x, drawn from draft_probs, is accepted with probability min(1, target_probs[x] /
draft_probs[x]); at the first rejection the replacement is drawn from
normalise(max(0, target_probs - draft_probs)). The tokens that come out have the target's law, whatever the
draft does (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318).

Accepted token:  a draft token that is kept.
Recovered token: the replacement of the first rejected one.
Bonus token:     drawn from the target's law after a block that was accepted whole.

`block_wise` accepts the most tokens that a rule for single blocks can, `token_wise` is the plain form, equal
to it for blocks of point masses and cheaper. `seed_invariant` compares a draft with the target's own draw.

This module must not know models, grammars or draft sources: it sees tokens and distributions. It works with
nothing it is not given, so the proof by enumeration in `tests/exactness` covers all it can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from agentspec.law import probability_of
from agentspec.types import Distribution, FloatArray, Noise, Randomness

__all__ = ["Laws", "Verdict", "block_wise", "residual", "seed_invariant", "token_wise"]


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
    _check_lengths(tokens, draft_probs, target_probs)
    for index, token in enumerate(tokens):
        draft = draft_probs[index]
        target = target_probs[index]
        ratio = probability_of(target, token) / _draft_prob(draft, token, index)
        if ratio < 1.0 and not chance.accept(ratio):
            return Verdict(index, chance.draw(residual(target, draft, token)))
    if len(target_probs) == len(tokens):
        return Verdict(len(tokens), None)
    return Verdict(len(tokens), chance.draw(target_probs[len(tokens)]))


def block_wise(
    tokens: Sequence[int],
    draft_probs: Sequence[Distribution | None],
    target_probs: Laws,
    chance: Randomness,
) -> Verdict:
    """Verifies a block as a whole: block verification of Sun et al. 2025 (arXiv:2403.10444).

    Arguments and errors as in `token_wise`. The expected number of accepted tokens is the highest that any
    exact rule can have which verifies each block on its own, and never below `token_wise`; the two are equal
    where every proposal is a point mass.

    Each prefix of the block has a weight, how likely it is to be accepted so far, capped at 1. Each is tried
    in turn and the longest that passes is kept: a later success overrides an earlier failure, so the loop
    must not end at the first one.
    """
    _check_lengths(tokens, draft_probs, target_probs)
    size = len(tokens)
    weight = kept_weight = 1.0
    accepted = 0
    for index, token in enumerate(tokens):
        ratio = probability_of(target_probs[index], token) / _draft_prob(draft_probs[index], token, index)
        weight = min(1.0, weight * ratio)
        if index + 1 < size:
            excess = _excess(target_probs[index + 1], draft_probs[index + 1], tokens[index + 1], weight)
            total = float(excess.sum()) + 1.0 - weight
            passes = 1.0 if total <= 0.0 else float(excess.sum()) / total
        else:
            passes = weight
        if passes >= 1.0 or chance.accept(passes):
            accepted, kept_weight = index + 1, weight
    if accepted < size:
        law = residual(target_probs[accepted], draft_probs[accepted], tokens[accepted], kept_weight)
        return Verdict(accepted, chance.draw(law))
    if len(target_probs) == size:
        return Verdict(size, None)
    return Verdict(size, chance.draw(target_probs[size]))


def seed_invariant(tokens: Sequence[int], target_probs: Laws, noise: Noise, position: int) -> Verdict:
    """Verifies a block against the target's own draws: a draft token is accepted if it equals them.

    tokens, target_probs: as in `token_wise`
    position:             that of the block's first token in the reply

    The token at a position is a function of the noise there and of the target's law, whatever was proposed,
    so a seed gives one text with any draft, or none. What the draft's token was drawn from does not matter.
    Where a draft draws with the same noise, at least (1 - tv) / (1 + tv) of its tokens are accepted, tv being
    the total variation of the two laws; `token_wise` accepts 1 - tv (Daliri et al. 2024, arXiv:2408.07978).
    """
    for index, token in enumerate(tokens):
        own = noise.draw(target_probs[index], position + index)
        if own != token:
            return Verdict(index, own)
    if len(target_probs) == len(tokens):
        return Verdict(len(tokens), None)
    return Verdict(len(tokens), noise.draw(target_probs[len(tokens)], position + len(tokens)))


def residual(
    target: Distribution, draft: Distribution | None, token: int, weight: float = 1.0
) -> Distribution:
    """normalise(max(0, weight * target - draft)): what the token that replaces a rejected one is drawn from.

    draft None is the point mass at `token`.
    """
    excess = _excess(target, draft, token, weight)
    mass = float(excess.sum())
    if mass <= 0.0:
        # The laws are equal up to rounding, and rounding alone rejected the token: any draw from the
        # target is right.
        return target
    kept = excess > 0.0
    return Distribution(target.ids[kept], excess[kept] / mass)


def _excess(target: Distribution, draft: Distribution | None, token: int, weight: float) -> FloatArray:
    """max(0, weight * target - draft) at the tokens that `target` lists."""
    if draft is None:
        return np.where(target.ids == token, 0.0, weight * target.probs)
    index = np.searchsorted(draft.ids, target.ids)
    index[index == len(draft.ids)] = 0
    draft_probs = np.where(draft.ids[index] == target.ids, draft.probs[index], 0.0)
    return np.maximum(weight * target.probs - draft_probs, 0.0)


def _draft_prob(draft: Distribution | None, token: int, index: int) -> float:
    """The probability a token was proposed with. Raises ValueError if it cannot have been drawn."""
    probability = 1.0 if draft is None else probability_of(draft, token)
    if probability <= 0.0:
        raise ValueError(f"token {token} at {index} was proposed with draft probability 0")
    return probability


def _check_lengths(
    tokens: Sequence[int], draft_probs: Sequence[Distribution | None], target_probs: Laws
) -> None:
    if not len(tokens) == len(draft_probs) <= len(target_probs) <= len(tokens) + 1:
        raise ValueError(f"{len(tokens)} tokens, {len(draft_probs)} draft laws, {len(target_probs)} laws")
