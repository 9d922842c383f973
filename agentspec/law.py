"""The law: a row of logits, the legal tokens and the sampler settings, to a distribution.

The same function makes the target's law and the draft's. The order of operations is llama.cpp's default
chain with the mask put first: mask, logit bias, penalties, top-k, typical, top-p, min-p, temperature,
normalise. Temperature 0 is the point mass at the most likely of the tokens that are left, lowest id on ties.
`tests/unit/test_llama_samplers.py` holds it to llama.cpp's own samplers.

Distributions are sparse: where ten tokens are legal, ten numbers are worked on. This module must not know
where logits come from, nor what a distribution will be used for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentspec import samplers
from agentspec.config import SamplingOptions
from agentspec.types import Distribution, IdArray, Legal, LogitsArray

__all__ = ["point_mass", "probabilities", "probability_of"]


def probabilities(
    logits: LogitsArray, legal: Legal, sampling: SamplingOptions, before: Sequence[int]
) -> Distribution:
    """The law of the next token.

    logits: shape (n_vocab,); never modified
    legal:  ids within the row, not empty, or None for all of them
    before: every token before the position (prompt, reply and block), which the penalties read

    Ids of the bias, and tokens before, that are not legal or beyond the row are ignored. Raises ValueError
    when no legal token is left with a finite score.
    """
    if sampling.temperature == 0.0 and (known := _best_of_all(logits, legal, sampling)) is not None:
        return point_mass(known)
    ids: IdArray = np.arange(len(logits), dtype=np.int64) if legal is None else legal
    scores = logits if legal is None else logits[legal]
    if scores.size == 0:
        raise ValueError("no token is legal")
    if sampling.logit_bias:
        scores = samplers.add_bias(ids, scores, sampling.logit_bias)
    if sampling.penalises:
        scores = samplers.penalise(
            ids,
            scores,
            before if sampling.repeat_last_n < 0 else before[-sampling.repeat_last_n :],
            repeat=sampling.repeat_penalty,
            frequency=sampling.frequency_penalty,
            presence=sampling.presence_penalty,
        )
    best = int(np.argmax(scores))  # the first of equals, so the lowest id; the first NaN, if there is one
    if not np.isfinite(scores[best]):
        raise ValueError(_no_best(int(ids[best]), float(scores[best]), sampling))
    if sampling.temperature == 0.0 and sampling.typical_p == 1.0:
        return point_mass(int(ids[best]))  # only typical can remove the best

    if 0 < sampling.top_k < len(ids):
        ids, scores = _take(ids, scores, samplers.top_k(scores, sampling.top_k))
    if sampling.typical_p < 1.0:
        ids, scores = _take(ids, scores, samplers.typical(scores, sampling.typical_p))
    if sampling.temperature == 0.0:
        return point_mass(int(ids[np.argmax(scores)]))
    if sampling.top_p < 1.0:
        ids, scores = _take(ids, scores, samplers.top_p(scores, sampling.top_p))
    if sampling.min_p > 0.0:
        ids, scores = _take(ids, scores, samplers.min_p(scores, sampling.min_p))
    return Distribution(ids, samplers.softmax(scores, sampling.temperature))


def _best_of_all(logits: LogitsArray, legal: Legal, sampling: SamplingOptions) -> int | None:
    """The most likely token of all, where nothing but a mask may rule it out, and does not; else None.

    Most rows are decided by this: to gather the scores of 150,000 legal tokens takes longer than the rest.
    """
    if sampling.logit_bias or sampling.penalises or sampling.typical_p < 1.0:
        return None
    best = int(np.argmax(logits))
    if legal is not None:
        index = int(np.searchsorted(legal, best))
        if index == len(legal) or legal[index] != best:
            return None
    return best if np.isfinite(logits[best]) else None


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


def _no_best(token: int, score: float, sampling: SamplingOptions) -> str:
    if score == -np.inf and -np.inf in sampling.logit_bias.values():
        return "every legal token is ruled out, by a logit bias of -inf or by the model"
    changed = ", after logit bias and penalties," if sampling.logit_bias or sampling.penalises else ""
    return f"logits are not finite: the best legal token {token}{changed} has {score}"
