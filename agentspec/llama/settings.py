"""What llama.cpp is told when a context is made, checked before it hears of it: on many values it asserts."""

from __future__ import annotations

import warnings
from typing import Literal

from agentspec.config import RuntimeOptions, available_cpus
from agentspec.errors import ConfigError
from agentspec.llama import capi
from agentspec.llama.capi import ContextSettings
from agentspec.llama.model import Model

__all__ = ["context_settings", "is_pinned"]

_CTX_STEP = 256  # llama.cpp rounds n_ctx up to it, but n_batch it bounds by what it was given
# A decode runs in pieces of this many tokens on a CPU: buffers for activations grow with it (1.5B: 69 MB at
# 512, 19 MB at 128), while a longer prompt gains 2 % of speed by it.
_CPU_UBATCH = 128
_QUANTIZED_BLOCK = 32  # values in one block of each quantized KV type


def is_pinned(model: Model) -> bool:
    """Whether a slot's tokens belong to a second sequence as well, so that llama.cpp does not forget them.

    A cell that no window reaches any more is free to llama.cpp, `swa_full` or not: a slot can lose positions
    to another slot's pass, and a truncation to before them would succeed and leave wrong logits. A cell of
    two sequences is never taken. Hybrid memory, where only whole sequences are removed and copied, needs no
    pins, and could not take them.
    """
    return capi.model_window(model.handle) > 0 and not capi.model_is_hybrid(model.handle)


def _is_cut_anywhere(model: Model) -> bool:
    """Whether its memory is nothing but a cache without windows. Every sequence of others costs memory."""
    handle = model.handle
    return not (is_pinned(model) or capi.model_is_recurrent(handle) or capi.model_is_hybrid(handle))


def _flash_attention(model: Model, n_slots: int, options: RuntimeOptions) -> bool | Literal["auto"]:
    """What "auto" comes to.

    On a CPU llama.cpp's flash attention takes up to twice as long for a block, but it skips what other
    sequences hold; the plain one computes all of the cache, which is nothing more where there is one.
    """
    if options.flash_attn != "auto":
        return options.flash_attn
    needed = "_" in options.type_v  # quantized values are read by flash attention alone
    return False if n_slots == 1 and not model.n_gpu_layers and not needed else "auto"


def context_settings(
    model: Model, n_ctx: int, n_slots: int, options: RuntimeOptions, n_outputs: int
) -> ContextSettings:
    """llama.cpp's settings of a context; the arguments are those of `Context`.

    Raises ConfigError on values that cannot be used. More context than the model was trained for is cut, with
    a warning to the caller of `Context`.
    """
    if model.vocab_only:
        raise ConfigError(f"{model.name} was loaded with vocab_only, so it cannot be run")
    sequences = 2 if is_pinned(model) else 1  # a slot
    spare = 1 if _is_cut_anywhere(model) else 0  # see `Context.state`
    for name, value, most in (
        ("n_ctx", n_ctx, 2**31 - 256),
        ("n_slots", n_slots, (capi.max_sequences() - spare) // sequences),
        ("n_outputs", n_outputs, 2**16),
    ):
        if not 1 <= value <= most:
            raise ConfigError(f"{name}={value} is not between 1 and {most}")
    for name, kind in (("type_k", options.type_k), ("type_v", options.type_v)):
        if "_" in kind and (model.head_size or 0) % _QUANTIZED_BLOCK:
            raise ConfigError(
                f"{name}={kind!r} needs heads of a multiple of {_QUANTIZED_BLOCK} values; "
                f"those of {model.name} have {model.head_size}",
                hint="use 'f16'",
            )
    trained = model.n_ctx_train
    if 0 < trained < n_ctx:
        warnings.warn(
            f"n_ctx={n_ctx} is more than the {trained} tokens {model.name} was trained for; using {trained}",
            RuntimeWarning,
            stacklevel=3,
        )
        n_ctx = trained
    n_ctx = -(-n_ctx // _CTX_STEP) * _CTX_STEP
    return ContextSettings(
        n_ctx=n_ctx,
        n_batch=min(options.n_batch, n_ctx),
        n_ubatch=min(options.n_batch, n_ctx, n_ctx if model.n_gpu_layers else _CPU_UBATCH),
        n_seq_max=n_slots * sequences + spare,
        # llama.cpp asserts that there is one a sequence
        n_outputs_max=max(n_outputs, n_slots * sequences + spare),
        n_threads=min(options.n_threads or available_cpus(), capi.MAX_THREADS),
        flash_attn=capi.FLASH_ATTN[_flash_attention(model, n_slots, options)],
        type_k=capi.KV_TYPES[options.type_k],
        type_v=capi.KV_TYPES[options.type_v],
    )
