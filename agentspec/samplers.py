"""The samplers that make up the law, one function each.

Each takes the scores of the tokens that are still in: shape (n,), the logits as they stand at that point, by
ascending id. `add_bias` and `penalise` return changed scores; `top_k`, `typical`, `top_p` and `min_p` return
the indices they keep, ascending and never empty, and need a finite best score. Nothing is changed in place.

Formulas and borders are those of llama.cpp's samplers (src/llama-sampler.cpp), including that scores are
changed in float32. Where its result rests on how its sort happens to order equals, here the lower id goes
first. This module must not know the order of the chain, nor its options.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from agentspec.types import FloatArray, IdArray, LogitsArray

__all__ = ["add_bias", "min_p", "penalise", "softmax", "top_k", "top_p", "typical"]

_CANDIDATES = 512
"""top-p and typical sort this many tokens, and 16 times as many whenever that was too few."""


def add_bias(ids: IdArray, scores: LogitsArray, bias: Mapping[int, float]) -> LogitsArray:
    """Adds bias[id] to the score of each id that is in; other ids of `bias` are ignored."""
    at, found = _find(ids, np.fromiter(bias.keys(), np.int64, len(bias)))
    changed = scores.copy()
    with np.errstate(over="ignore", invalid="ignore"):  # what comes out infinite or NaN is seen at the end
        changed[at] += np.fromiter(bias.values(), np.float64, len(bias)).astype(np.float32)[found]
    return changed


def penalise(
    ids: IdArray,
    scores: LogitsArray,
    recent: Sequence[int],
    *,
    repeat: float,
    frequency: float,
    presence: float,
) -> LogitsArray:
    """Lowers the scores of the tokens in `recent`.

    Positive scores are divided by `repeat` and the others multiplied with it (Keskar et al. 2019,
    arXiv:1909.05858, divides both); then each loses count * frequency + presence.
    """
    tokens, counts = np.unique(np.asarray(recent, dtype=np.int64), return_counts=True)
    at, found = _find(ids, tokens)
    changed = scores.copy()
    factor = np.float32(repeat)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # as in add_bias
        hit = changed[at]
        hit = np.where(hit <= 0, hit * factor, hit / factor)
        changed[at] = hit - (counts[found].astype(np.float32) * np.float32(frequency) + np.float32(presence))
    return changed


def top_k(scores: LogitsArray, k: int) -> IdArray:
    """The k best scores, 0 < k <= n (Fan et al. 2018, arXiv:1805.04833)."""
    border = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > border)
    equal = np.flatnonzero(scores == border)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


def typical(scores: LogitsArray, mass: float) -> IdArray:
    """The most typical tokens: the fewest whose mass is above `mass` (Meister et al. 2022, arXiv:2202.00666).

    A token is the more typical the nearer its surprise, -log p, is to the entropy. The most likely token may
    well not be typical.
    """
    probs = softmax(scores)
    with np.errstate(divide="ignore"):  # a token of probability 0 is infinitely surprising,
        surprise = -np.log(probs)
    possible = probs > 0.0  # and adds nothing to the entropy
    entropy = np.sum(probs[possible] * surprise[possible])
    return _head(np.abs(surprise - entropy), probs, mass, until="above")


def top_p(scores: LogitsArray, mass: float) -> IdArray:
    """The fewest best tokens whose mass reaches `mass` (Holtzman et al. 2020, arXiv:1904.09751)."""
    return _head(-scores, softmax(scores), mass, until="reached")


def min_p(scores: LogitsArray, share: float) -> IdArray:
    """The tokens at least `share` > 0 times as likely as the best (Nguyen et al. 2024, arXiv:2407.01082)."""
    floor = float(np.max(scores)) + math.log(share)
    return np.flatnonzero(scores >= np.float32(floor))


def softmax(scores: LogitsArray, temperature: float = 1.0) -> FloatArray:
    """Probabilities at a temperature above 0, shape (n,)."""
    below_best = scores.astype(np.float64) - float(np.max(scores))  # first, so that the best stays finite
    with np.errstate(over="ignore"):  # a tiny temperature takes the others to -inf, which is right
        weights = np.exp(below_best / temperature)
    normalised: FloatArray = weights / weights.sum()
    return normalised


def _find(ids: IdArray, tokens: IdArray) -> tuple[IdArray, npt.NDArray[np.bool_]]:
    """Where in `ids` the tokens are, and which of the tokens were found."""
    at = np.minimum(np.searchsorted(ids, tokens), len(ids) - 1)
    found = ids[at] == tokens
    return at[found], found


def _head(
    keys: LogitsArray | FloatArray, probs: FloatArray, mass: float, *, until: Literal["reached", "above"]
) -> IdArray:
    """The shortest head of the order by rising key whose mass has reached, or is above, `mass`; ascending."""
    side: Literal["left", "right"] = "left" if until == "reached" else "right"
    size = min(_CANDIDATES, len(keys))
    while True:
        border = np.partition(keys, size - 1)[size - 1]
        candidates = np.flatnonzero(keys <= border)  # all equals of the last too: a head of the full order
        order = candidates[np.argsort(keys[candidates], kind="stable")]
        short = np.searchsorted(np.cumsum(probs[order]), mass, side=side)  # the longest head that falls short
        if short < len(order) or len(order) == len(keys):
            return np.sort(order[: short + 1])
        size = min(16 * size, len(keys))
