"""llama.cpp's own sampler chain, as a function of the same arguments as `agentspec.law.probabilities`.

It is here so that tests can hold the law to llama.cpp; nothing else uses it. It must not know the law.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from agentspec.config import SamplingOptions
from agentspec.llama import capi_samplers as capi
from agentspec.types import Distribution, IdArray, Legal, LogitsArray

__all__ = ["reference_probabilities"]

_MIN_KEEP = 0  # llama.cpp's default: the samplers may keep as few tokens as they like


def reference_probabilities(
    logits: LogitsArray, legal: Legal, sampling: SamplingOptions, before: Sequence[int]
) -> Distribution:
    """The law of the next token, by llama.cpp.

    logits: shape (n_vocab,); legal: the tokens that llama.cpp is given at all, None for the whole row;
    before: the tokens it is made to accept first.

    Raises ValueError for what llama.cpp has no defined answer to: no token, a logit that is NaN or +inf, a
    number that float32 cannot hold. Where a candidate's probability is 0 in float32, as with a bias of -inf,
    its typical sampler computes with NaN and its answer means nothing: leave such tokens out of `legal`.
    """
    ids: IdArray = np.arange(len(logits), dtype=np.int64) if legal is None else legal
    _check(logits[ids])
    chain = capi.new_sampler_chain()
    try:
        for sampler in _samplers(sampling, len(logits), len(before)):
            capi.chain_add(chain, sampler)
        for token in before:
            capi.sampler_accept(chain, token)
        left, scores = capi.sampler_apply(chain, ids.astype(np.int32), logits[ids])
    finally:
        capi.free_sampler(chain)
    order = np.argsort(left)
    weights = np.exp(scores[order].astype(np.float64) - float(np.max(scores)))
    return Distribution(left[order].astype(np.int64), weights / weights.sum())


def _samplers(sampling: SamplingOptions, n_vocab: int, n_before: int) -> Iterator[capi.SamplerHandle]:
    """In the order of llama.cpp's default chain; each must be added to a chain before the next is made."""
    # -1 means "all" to llama.cpp's front ends only; the sampler itself reserves room for its window
    window = n_before if sampling.repeat_last_n < 0 else min(sampling.repeat_last_n, n_before)
    bias = {token: value for token, value in sampling.logit_bias.items() if token < n_vocab}
    yield capi.logit_bias_sampler(n_vocab, bias)
    yield capi.penalties_sampler(
        n_vocab, window, sampling.repeat_penalty, sampling.frequency_penalty, sampling.presence_penalty
    )
    yield capi.top_k_sampler(min(sampling.top_k, n_vocab))
    yield capi.typical_sampler(sampling.typical_p, _MIN_KEEP)
    yield capi.top_p_sampler(sampling.top_p, _MIN_KEEP)
    yield capi.min_p_sampler(sampling.min_p, _MIN_KEEP)
    yield capi.temperature_sampler(sampling.temperature)


def _check(logits: LogitsArray) -> None:
    """Sorting with NaN among the keys, which these would lead to, is undefined in C++."""
    if not logits.size:
        raise ValueError("no token is legal")
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise ValueError("a logit is NaN or +inf")
    if np.max(logits) == -np.inf:
        raise ValueError("no legal token has a finite logit")
