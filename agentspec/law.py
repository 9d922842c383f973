"""The law: a row of logits, the legal tokens and the sampler settings, to a distribution.

The same function makes the target's law and the draft's. The order of operations is llama.cpp's default
chain with the mask put first: mask, top-k, top-p, min-p, temperature, normalise. Temperature 0 is the point
mass at the most likely token, lowest id on ties.

Distributions are sparse: where ten tokens are legal, ten numbers are worked on. This module must not know
where logits come from, nor what a distribution will be used for.
"""

from __future__ import annotations

import numpy as np

from agentspec.config import SamplingOptions
from agentspec.types import Distribution, FloatArray, IdArray, Legal, LogitsArray

__all__ = ["point_mass", "probabilities", "probability_of"]

_TOP_P_CANDIDATES = 512
"""top-p sorts this many tokens, and 16 times as many whenever that was too few."""


def probabilities(logits: LogitsArray, legal: Legal, sampling: SamplingOptions) -> Distribution:
    """The law of the next token.

    logits: shape (n_vocab,); legal: ids within the row, not empty, or None for all of them.
    Raises ValueError when no legal token has a finite logit.
    """
    ids: IdArray = np.arange(len(logits), dtype=np.int64) if legal is None else legal
    scores = logits if legal is None else logits[legal]
    if scores.size == 0:
        raise ValueError("no token is legal")
    best = int(np.argmax(scores))  # the first of equals, so the lowest id
    if not np.isfinite(scores[best]):
        raise ValueError(f"logits are not finite: the best legal token {int(ids[best])} has {scores[best]}")
    if sampling.temperature == 0.0:
        return point_mass(int(ids[best]))

    if 0 < sampling.top_k < len(ids):
        ids, scores = _take(ids, scores, _top_k(scores, sampling.top_k))
    if sampling.top_p < 1.0:
        ids, scores = _take(ids, scores, _top_p(scores, sampling.top_p))
    if sampling.min_p > 0.0:
        floor = float(np.max(scores)) + float(np.log(sampling.min_p))
        ids, scores = _take(ids, scores, np.flatnonzero(scores >= floor))
    return Distribution(ids, _softmax(scores, sampling.temperature))


def point_mass(token: int) -> Distribution:
    """The distribution that is certain of one token."""
    return Distribution(np.array([token], dtype=np.int64), np.ones(1))


def probability_of(distribution: Distribution, token: int) -> float:
    """The probability of one token; 0 for a token the distribution does not list."""
    index = int(np.searchsorted(distribution.ids, token))
    if index < len(distribution.ids) and int(distribution.ids[index]) == token:
        return float(distribution.probs[index])
    return 0.0


def _take(ids: IdArray, scores: LogitsArray, kept: IdArray) -> tuple[IdArray, LogitsArray]:
    return ids[kept], scores[kept]


def _softmax(scores: LogitsArray, temperature: float = 1.0) -> FloatArray:
    below_best = scores.astype(np.float64) - float(np.max(scores))  # first, so that the best stays finite
    with np.errstate(over="ignore"):  # a tiny temperature takes the others to -inf, which is right
        weights = np.exp(below_best / temperature)
    normalised: FloatArray = weights / weights.sum()
    return normalised


def _descending(scores: LogitsArray) -> IdArray:
    """Indices by falling score; equals by rising index."""
    return np.argsort(-scores, kind="stable")


def _top_k(scores: LogitsArray, k: int) -> IdArray:
    """Indices of the k best scores, ascending; of equals at the border, the lowest indices."""
    border = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > border)
    equal = np.flatnonzero(scores == border)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _top_p(scores: LogitsArray, top_p: float) -> IdArray:
    """Indices of the smallest set of best scores whose mass reaches top_p, ascending."""
    probs = _softmax(scores)
    size = min(_TOP_P_CANDIDATES, len(scores))
    while True:
        candidates = _top_k(scores, size)
        order = candidates[_descending(scores[candidates])]
        mass = np.cumsum(probs[order])
        if mass[-1] >= top_p or size == len(scores):
            break
        size = min(16 * size, len(scores))
    kept = int(np.searchsorted(mass, top_p, side="left")) + 1  # the token that reaches top_p is kept
    return np.sort(order[:kept])
