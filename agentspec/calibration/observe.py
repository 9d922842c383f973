"""What is known of one proposal once it is verified: both distributions at its position.

The expected acceptance of a token drawn from `draft_probs` is alpha = sum over tokens of
min(target_probs, draft_probs), one minus their total variation (Leviathan et al. 2023, arXiv:2211.17192,
section 3). It says in one observation what acceptance shows in many, and depends on no chance.

It must not know sources, engines or files.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agentspec.law import probability_of
from agentspec.types import Distribution, Proposal

__all__ = ["Observation", "observe", "overlap"]


class Observation(NamedTuple):
    """One proposal that was verified.

    token:       its id
    source:      who proposed it
    place:       its context class (`agentspec.places`)
    confidence:  how likely the source thought it to be right: draft_probs[token], or what it said of a
                 certain token
    target_prob: target_probs[token]
    alpha:       expected acceptance of what it was drawn from; of a certain token, target_prob
    accepted:    whether it was kept
    forced:      whether no other token was legal, so that nothing could be learned
    """

    token: int
    source: str
    place: str
    confidence: float
    target_prob: float
    alpha: float
    accepted: bool
    forced: bool = False


def observe(
    proposal: Proposal,
    place: str,
    confidence: float,
    target_probs: Distribution,
    *,
    accepted: bool,
    forced: bool = False,
) -> Observation:
    """What one verified proposal shows.

    confidence: of a certain token; of a drawn one its own draft probability is taken
    """
    token, draft_probs, source = proposal
    target_prob = probability_of(target_probs, token)
    if draft_probs is None:
        return Observation(token, source, place, confidence, target_prob, target_prob, accepted, forced)
    confidence, alpha = probability_of(draft_probs, token), overlap(target_probs, draft_probs)
    return Observation(token, source, place, confidence, target_prob, alpha, accepted, forced)


def overlap(one: Distribution, other: Distribution) -> float:
    """The sum over tokens of the smaller of two probabilities, in [0, 1]."""
    if len(one.ids) > len(other.ids):
        one, other = other, one
    index = np.searchsorted(other.ids, one.ids)
    index[index == len(other.ids)] = 0
    matched = np.where(other.ids[index] == one.ids, other.probs[index], 0.0)
    return min(1.0, float(np.minimum(one.probs, matched).sum()))
