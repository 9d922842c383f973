"""The C calls of llama.cpp's samplers, to which agentspec's own are held; as `capi`, and with its rules."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final, NewType

import llama_cpp.llama_cpp as _c
import numpy as np
import numpy.typing as npt

from agentspec.llama.capi import pointer
from agentspec.types import LogitsArray

__all__ = [
    "SamplerHandle",
    "chain_add",
    "free_sampler",
    "logit_bias_sampler",
    "min_p_sampler",
    "new_sampler_chain",
    "penalties_sampler",
    "sampler_accept",
    "sampler_apply",
    "temperature_sampler",
    "top_k_sampler",
    "top_p_sampler",
    "typical_sampler",
]

SamplerHandle = NewType("SamplerHandle", int)

_CANDIDATE: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


def new_sampler_chain() -> SamplerHandle:
    """An empty chain, which owns the samplers that are added to it."""
    params = _c.llama_sampler_chain_default_params()
    params.no_perf = True
    return _handle(_c.llama_sampler_chain_init(params))


def chain_add(chain: SamplerHandle, sampler: SamplerHandle) -> None:
    _c.llama_sampler_chain_add(_sampler(chain), _sampler(sampler))


def free_sampler(sampler: SamplerHandle) -> None:
    """Frees a chain with all its samplers, or a sampler that is in no chain."""
    _c.llama_sampler_free(_sampler(sampler))


def logit_bias_sampler(n_vocab: int, bias: Mapping[int, float]) -> SamplerHandle:
    entries = (_c.llama_logit_bias * len(bias))()
    for entry, (token, value) in zip(entries, bias.items(), strict=True):
        entry.token, entry.bias = token, value
    return _handle(_c.llama_sampler_init_logit_bias(n_vocab, len(bias), entries))


def penalties_sampler(
    n_vocab: int, last_n: int, repeat: float, frequency: float, presence: float
) -> SamplerHandle:
    return _handle(_c.llama_sampler_init_penalties(n_vocab, last_n, repeat, frequency, presence))


def top_k_sampler(k: int) -> SamplerHandle:
    return _handle(_c.llama_sampler_init_top_k(k))


def typical_sampler(mass: float, min_keep: int) -> SamplerHandle:
    return _handle(_c.llama_sampler_init_typical(mass, min_keep))


def top_p_sampler(mass: float, min_keep: int) -> SamplerHandle:
    return _handle(_c.llama_sampler_init_top_p(mass, min_keep))


def min_p_sampler(share: float, min_keep: int) -> SamplerHandle:
    return _handle(_c.llama_sampler_init_min_p(share, min_keep))


def temperature_sampler(temperature: float) -> SamplerHandle:
    return _handle(_c.llama_sampler_init_temp(temperature))


def sampler_accept(sampler: SamplerHandle, token: int) -> None:
    _c.llama_sampler_accept(_sampler(sampler), token)


def sampler_apply(
    sampler: SamplerHandle, ids: npt.NDArray[np.int32], logits: LogitsArray
) -> tuple[npt.NDArray[np.int32], LogitsArray]:
    """The tokens that a sampler keeps and their logits after it, in the order it leaves them in."""
    candidates = np.zeros(len(ids), _CANDIDATE)
    candidates["id"], candidates["logit"] = ids, logits
    array = _c.llama_token_data_array()
    array.data = pointer(candidates, _c.llama_token_data)
    array.size, array.selected, array.sorted = len(ids), -1, False
    _c.llama_sampler_apply(_sampler(sampler), ctypes.byref(array))
    # a sampler may point the array at memory of its own, so the result is not read from `candidates`
    kept = np.ctypeslib.as_array(array.data, (array.size,))
    return kept["id"].copy(), kept["logit"].copy()


def _sampler(handle: SamplerHandle) -> Any:
    return ctypes.cast(handle, _c.llama_sampler_p_ctypes)


def _handle(sampler: Any) -> SamplerHandle:
    return SamplerHandle(ctypes.cast(sampler, ctypes.c_void_p).value or 0)
