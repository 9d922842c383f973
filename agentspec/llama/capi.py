"""The C calls that models and contexts need, as typed functions on plain values.

Each is one call of llama.cpp. None checks its arguments: llama.cpp asserts on many wrong ones, which ends
the process, so the callers (`model`, `vocab`, `context`) validate before they call. Handles are
addresses.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NewType

import llama_cpp.llama_cpp as _c
import numpy as np
import numpy.typing as npt

from agentspec.types import LogitsArray, State

__all__ = [
    "FLASH_ATTN",
    "KV_TYPES",
    "MAX_DEVICES",
    "SPLIT_MODES",
    "AdapterHandle",
    "Batch",
    "ContextHandle",
    "ContextSettings",
    "MemoryHandle",
    "ModelHandle",
    "ModelSettings",
    "TokenAttribute",
    "VocabHandle",
    "pointer",
]

ModelHandle = NewType("ModelHandle", int)
VocabHandle = NewType("VocabHandle", int)
ContextHandle = NewType("ContextHandle", int)
MemoryHandle = NewType("MemoryHandle", int)
AdapterHandle = NewType("AdapterHandle", int)

SPLIT_MODES: Final = {
    "none": int(_c.LLAMA_SPLIT_MODE_NONE),
    "layer": int(_c.LLAMA_SPLIT_MODE_LAYER),
    "row": int(_c.LLAMA_SPLIT_MODE_ROW),
}
FLASH_ATTN: Final[dict[bool | str, int]] = {
    "auto": int(_c.LLAMA_FLASH_ATTN_TYPE_AUTO),
    False: int(_c.LLAMA_FLASH_ATTN_TYPE_DISABLED),
    True: int(_c.LLAMA_FLASH_ATTN_TYPE_ENABLED),
}
KV_TYPES: Final = {
    "f32": int(_c.GGML_TYPE_F32),
    "f16": int(_c.GGML_TYPE_F16),
    "bf16": 30,  # enum ggml_type; llama_cpp leaves it out
    "q8_0": int(_c.GGML_TYPE_Q8_0),
    "q5_1": int(_c.GGML_TYPE_Q5_1),
    "q5_0": int(_c.GGML_TYPE_Q5_0),
    "q4_1": int(_c.GGML_TYPE_Q4_1),
    "q4_0": int(_c.GGML_TYPE_Q4_0),
}
MAX_DEVICES: Final = int(_c.LLAMA_MAX_DEVICES)
MAX_THREADS: Final = 512  # GGML_MAX_N_THREADS


class TokenAttribute:
    """Bits of `token_attributes` (enum llama_token_attr)."""

    UNKNOWN: Final = int(_c.LLAMA_TOKEN_ATTR_UNKNOWN)
    CONTROL: Final = int(_c.LLAMA_TOKEN_ATTR_CONTROL)
    USER_DEFINED: Final = int(_c.LLAMA_TOKEN_ATTR_USER_DEFINED)
    BYTE: Final = int(_c.LLAMA_TOKEN_ATTR_BYTE)


# -------------------------------------------------------------------------------------------- models


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is set of llama_model_params; the rest keeps llama.cpp's defaults."""

    n_gpu_layers: int
    split_mode: int
    main_gpu: int
    tensor_split: tuple[float, ...] | None
    use_extra_bufts: bool
    mmap: bool
    vocab_only: bool


def load_model(path: Path, settings: ModelSettings) -> ModelHandle | None:
    """None where llama.cpp refused; its log says why."""
    params = _c.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    params.split_mode = settings.split_mode
    params.main_gpu = settings.main_gpu
    params.use_extra_bufts = settings.use_extra_bufts
    params.vocab_only = settings.vocab_only
    # AUTO is mmap, except on devices that cannot map host memory
    params.load_mode = _c.LLAMA_LOAD_MODE_AUTO if settings.mmap else _c.LLAMA_LOAD_MODE_NONE
    shares = None
    if settings.tensor_split is not None:
        # llama.cpp reads llama_max_devices() values, whatever the number of devices
        shares = (ctypes.c_float * MAX_DEVICES)(*settings.tensor_split)
        params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
    address = _c.llama_model_load_from_file(os.fsencode(path), params)
    return ModelHandle(int(address)) if address else None


def free_model(model: ModelHandle) -> None:
    _c.llama_model_free(model)


def model_has_encoder(model: ModelHandle) -> bool:
    return bool(_c.llama_model_has_encoder(model))


def model_has_decoder(model: ModelHandle) -> bool:
    return bool(_c.llama_model_has_decoder(model))


def model_is_diffusion(model: ModelHandle) -> bool:
    return bool(_c.llama_model_is_diffusion(model))


def model_is_recurrent(model: ModelHandle) -> bool:
    """Whether every layer keeps a state in place of a cache."""
    return bool(_c.llama_model_is_recurrent(model))


def model_is_hybrid(model: ModelHandle) -> bool:
    """Whether some layers are recurrent and others attend."""
    return bool(_c.llama_model_is_hybrid(model))


def model_window(model: ModelHandle) -> int:
    """Tokens that the layers with a sliding window look back, itself included; 0 where there are none."""
    return int(_c.llama_model_n_swa(model))


# ------------------------------------------------------------------------------------------ adapters


def load_adapter(model: ModelHandle, path: Path) -> AdapterHandle | None:
    """A LoRA adapter, which the model owns. None where llama.cpp refused; its log says why."""
    adapter = _c.llama_adapter_lora_init(model, os.fsencode(path))
    address = ctypes.cast(adapter, ctypes.c_void_p).value
    return AdapterHandle(address) if address else None


def adapter_waits(adapter: AdapterHandle) -> bool:
    """Whether it is to act only after certain tokens (an activated LoRA)."""
    return int(_c.llama_adapter_get_alora_n_invocation_tokens(_adapter(adapter))) > 0


def set_adapters(context: ContextHandle, adapters: Sequence[tuple[AdapterHandle, float]]) -> None:
    """Adds adapters to the weights that a context computes with, each at its scale."""
    handles = (_c.llama_adapter_lora_p_ctypes * len(adapters))(*[_adapter(one) for one, _ in adapters])
    scales = (ctypes.c_float * len(adapters))(*[scale for _, scale in adapters])
    _c.llama_set_adapters_lora(context, handles, len(adapters), scales)


def _adapter(handle: AdapterHandle) -> Any:
    return ctypes.cast(handle, _c.llama_adapter_lora_p_ctypes)


# ---------------------------------------------------------------------------------------- vocabulary


def model_vocab(model: ModelHandle) -> VocabHandle:
    return VocabHandle(int(_c.llama_model_get_vocab(model)))


def vocab_is_none(vocab: VocabHandle) -> bool:
    """Whether the model has no vocabulary; every other vocabulary call asserts on such a one."""
    return int(_c.llama_vocab_type(vocab)) == int(_c.LLAMA_VOCAB_TYPE_NONE)


def vocab_n_tokens(vocab: VocabHandle) -> int:
    return int(_c.llama_vocab_n_tokens(vocab))


def vocab_bos(vocab: VocabHandle) -> int:
    return int(_c.llama_vocab_bos(vocab))


def vocab_eos(vocab: VocabHandle) -> int:
    return int(_c.llama_vocab_eos(vocab))


def vocab_eot(vocab: VocabHandle) -> int:
    return int(_c.llama_vocab_eot(vocab))


def vocab_add_bos(vocab: VocabHandle) -> bool:
    return bool(_c.llama_vocab_get_add_bos(vocab))


def token_attributes(vocab: VocabHandle, n_tokens: int) -> list[int]:
    """The `TokenAttribute` bits of tokens 0 to n_tokens - 1."""
    attributes = _c.llama_vocab_get_attr
    return [int(attributes(vocab, token)) for token in range(n_tokens)]


def end_tokens(vocab: VocabHandle, n_tokens: int) -> frozenset[int]:
    """The end-of-generation ids among tokens 0 to n_tokens - 1."""
    is_end = _c.llama_vocab_is_eog
    return frozenset(token for token in range(n_tokens) if is_end(vocab, token))


def token_pieces(vocab: VocabHandle, n_tokens: int) -> list[bytes]:
    """The bytes of tokens 0 to n_tokens - 1, special tokens spelled out."""
    piece = _c.llama_token_to_piece
    size = 256
    buffer = ctypes.create_string_buffer(size)
    pieces = []
    for token in range(n_tokens):
        length = piece(vocab, token, buffer, size, 0, True)
        if length < 0:  # that many bytes are needed
            size = -length
            buffer = ctypes.create_string_buffer(size)
            length = piece(vocab, token, buffer, size, 0, True)
        pieces.append(buffer.raw[:length])
    return pieces


def tokenize(vocab: VocabHandle, text: bytes, *, special: bool) -> list[int]:
    """Token ids of `text`, which must be valid UTF-8; nothing is added in front or behind."""
    room = len(text) + 16
    buffer = (ctypes.c_int32 * room)()
    count = int(_c.llama_tokenize(vocab, text, len(text), buffer, room, False, special))
    if count < 0:  # that many tokens are needed
        room = -count
        buffer = (ctypes.c_int32 * room)()
        count = int(_c.llama_tokenize(vocab, text, len(text), buffer, room, False, special))
    return buffer[: max(count, 0)]


# ------------------------------------------------------------------------------------------ contexts


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What is set of llama_context_params; the rest keeps llama.cpp's defaults."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_outputs_max: int
    n_threads: int
    flash_attn: int
    type_k: int
    type_v: int


def max_sequences() -> int:
    return int(_c.llama_max_parallel_sequences())


def new_context(model: ModelHandle, settings: ContextSettings) -> ContextHandle | None:
    """None where llama.cpp refused; its log says why."""
    params = _c.llama_context_default_params()
    params.n_ctx = settings.n_ctx
    params.n_batch, params.n_ubatch = settings.n_batch, settings.n_ubatch
    params.n_seq_max = settings.n_seq_max
    params.n_outputs_max = settings.n_outputs_max
    params.n_threads = params.n_threads_batch = settings.n_threads
    params.flash_attn_type = settings.flash_attn
    params.type_k, params.type_v = settings.type_k, settings.type_v
    params.kv_unified = True  # copying a prefix between sequences is then metadata only
    params.offload_kqv = True
    # a sliding-window cache forgets what a rewind would need, and reports success all the same
    params.swa_full = True
    params.embeddings = False
    params.no_perf = True
    address = _c.llama_init_from_model(model, params)
    return ContextHandle(int(address)) if address else None


def free_context(context: ContextHandle) -> None:
    _c.llama_free(context)


def context_n_ctx(context: ContextHandle) -> int:
    return int(_c.llama_n_ctx(context))


def context_n_batch(context: ContextHandle) -> int:
    return int(_c.llama_n_batch(context))


def context_memory(context: ContextHandle) -> MemoryHandle | None:
    """None for a model that keeps nothing between passes (an encoder)."""
    address = _c.llama_get_memory(context)
    return MemoryHandle(int(address)) if address else None


def memory_remove(memory: MemoryHandle, sequence: int, start: int) -> bool:
    """Removes positions from `start` on. False, and nothing removed, where the cache cannot do it."""
    return bool(_c.llama_memory_seq_rm(memory, sequence, start, -1))


def memory_copy(memory: MemoryHandle, source: int, target: int, length: int) -> None:
    """Lets `target` share the first `length` positions of `source`."""
    _c.llama_memory_seq_cp(memory, source, target, 0, length)


def sequence_state(context: ContextHandle, sequence: int) -> bytearray:
    """A sequence's cells as bytes; none where llama.cpp gives none."""
    size = int(_c.llama_state_seq_get_size(context, sequence))
    if not size:
        return bytearray()
    state = bytearray(size)
    written = int(_c.llama_state_seq_get_data(context, _bytes_of(state), size, sequence))
    return state if written == size else bytearray()


def restore_sequence(context: ContextHandle, sequence: int, state: State) -> bool:
    """Puts such bytes into an empty sequence; False where llama.cpp does not take them."""
    return int(_c.llama_state_seq_set_data(context, _bytes_of(state), len(state), sequence)) == len(state)


def _bytes_of(state: State) -> Any:
    # Any, because llama_cpp declares these arguments as arrays
    return np.frombuffer(state, np.uint8).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def memory_last_position(memory: MemoryHandle, sequence: int) -> int:
    """-1 for an empty sequence."""
    return int(_c.llama_memory_seq_pos_max(memory, sequence))


class Batch:
    """The arguments of a decode, in arrays that are allocated once: shape (capacity,) each.

    token, position, wanted: the id, the place in its sequence, and 1 where the row of logits is wanted
    twins: whether each token also belongs to sequence n_sequences + s, where s is its own
    """

    def __init__(self, capacity: int, n_sequences: int, *, twins: bool) -> None:
        self.token = np.zeros(capacity, np.int32)
        self.position = np.zeros(capacity, np.int32)
        self.wanted = np.zeros(capacity, np.int8)
        self._counts = np.full(capacity, 2 if twins else 1, np.int32)
        # llama_batch.seq_id holds one pointer a token, each to that token's sequence ids: a row of `_ids`
        self._ids = np.ascontiguousarray(np.arange(2 * n_sequences, dtype=np.int32).reshape(2, -1).T)
        rows = np.arange(n_sequences, dtype=np.uintp)
        self._addresses = self._ids.ctypes.data + self._ids.strides[0] * rows
        self._pointers = np.zeros(capacity, np.uintp)
        self._struct = _c.llama_batch()
        self._struct.token = pointer(self.token, ctypes.c_int32)
        self._struct.pos = pointer(self.position, ctypes.c_int32)
        self._struct.n_seq_id = pointer(self._counts, ctypes.c_int32)
        self._struct.seq_id = pointer(self._pointers, ctypes.POINTER(ctypes.c_int32))
        self._struct.logits = pointer(self.wanted, ctypes.c_int8)

    def assign(self, start: int, stop: int, sequence: int) -> None:
        """Puts the tokens at start..stop - 1 into a sequence."""
        self._pointers[start:stop] = self._addresses[sequence]

    def decode(self, context: ContextHandle, count: int) -> int:
        """Decodes the first `count` tokens and returns llama_decode's code; 0 is success."""
        self._struct.n_tokens = count
        return int(_c.llama_decode(context, self._struct))


def pointer(array: npt.NDArray[np.generic], kind: type[ctypes._CDataType]) -> Any:
    """An array's data, for a field of a struct."""
    # Any, because llama_cpp declares these fields as arrays
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def logits_row(context: ContextHandle, index: int, n_vocab: int) -> LogitsArray | None:
    """A copy of the logits after the batch's token `index`; None where there are none."""
    pointer = _c.llama_get_logits_ith(context, index)
    if not pointer:
        return None
    row: npt.NDArray[np.float32] = np.ctypeslib.as_array(pointer, (n_vocab,))
    return row.copy()
