"""Makes GGUF models of a few hundred kilobytes with random weights, for tests that run llama.cpp.

    python -m tools.tiny_gguf --arch mamba -o tiny.gguf [--seed N] [--window N]

One architecture for each kind of memory that llama.cpp has:

    llama     attention: any part of a sequence can be removed
    cohere2   attention that in every other layer looks only `window` tokens back
    mamba     recurrent: a sequence is one state, which cannot go back
    lfm2      hybrid: a short convolution, which cannot go back, and attention

What they write makes no sense, but it depends on every token before it, so a wrong cache shows in the logits.
All have one vocabulary: every byte, merges learned from a paragraph, and the special tokens and the chat
template of the Hermes format. The same arguments make the same bytes.

Tensor names and shapes follow llama.cpp's src/models/*.cpp; the file format is
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. It must not know who runs the models.
"""

from __future__ import annotations

import argparse
import re
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ARCHITECTURES", "N_VOCAB", "WINDOW", "gguf_bytes", "main", "tiny_gguf"]

Value: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[int]
Tensors: TypeAlias = dict[str, npt.NDArray[np.float32]]

N_VOCAB = 384
WINDOW = 16
"""Tokens that a layer with a sliding window looks back, itself included, unless told otherwise."""

_WIDTH, _N_LAYERS, _N_HEADS, _N_KV_HEADS, _FFN_WIDTH = 64, 2, 2, 1, 128
_KV_WIDTH = _WIDTH // _N_HEADS * _N_KV_HEADS
_STATE, _INNER, _KERNEL, _RANK = 16, 2 * _WIDTH, 4, 4  # Mamba's sizes
_SHORT_KERNEL = 3


def tiny_gguf(arch: str, *, seed: int = 0, window: int = WINDOW) -> bytes:
    """A GGUF of the architecture, one of `ARCHITECTURES`, its weights drawn with `seed`.

    window: tokens that a layer with a sliding window looks back; the other architectures have none

    Raises ValueError for another architecture.
    """
    if arch not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHITECTURES)}")
    weights = _Weights(seed)
    weights.matrix("token_embd", N_VOCAB, _WIDTH)
    weights.ones("token_embd_norm" if arch == "lfm2" else "output_norm", _WIDTH)
    sizes: dict[str, Value] = {
        "context_length": 2048,
        "embedding_length": _WIDTH,
        "block_count": _N_LAYERS,
        **ARCHITECTURES[arch](weights, window),
    }
    metadata: dict[str, Value] = {
        "general.architecture": arch,
        "general.name": f"tiny {arch}, seed {seed}",
        **{f"{arch}.{key}": value for key, value in sizes.items()},
        **_vocabulary(),
    }
    return gguf_bytes(metadata, weights.tensors)


# ------------------------------------------------------------------------------------- architectures


class _Weights:
    """Tensors by name, random and of a scale that keeps activations near 1."""

    def __init__(self, seed: int) -> None:
        self.tensors: Tensors = {}
        self._random = np.random.RandomState(seed)  # frozen by NumPy: the same numbers in every release

    def matrix(self, name: str, rows: int, columns: int, *, gain: float = 1.0) -> None:
        """The weight of a linear map from `columns` values to `rows`."""
        self.add(f"{name}.weight", gain / np.sqrt(columns) * self._random.standard_normal((rows, columns)))

    def ones(self, name: str, length: int) -> None:
        self.add(f"{name}.weight", np.ones(length))

    def add(self, name: str, values: npt.NDArray[np.float64]) -> None:
        self.tensors[name] = values.astype(np.float32)

    def attention(self, block: str) -> None:
        # sharp enough that a single token of the past matters
        self.matrix(f"{block}.attn_q", _WIDTH, _WIDTH, gain=1.5)
        self.matrix(f"{block}.attn_k", _KV_WIDTH, _WIDTH, gain=1.5)
        self.matrix(f"{block}.attn_v", _KV_WIDTH, _WIDTH)
        self.matrix(f"{block}.attn_output", _WIDTH, _WIDTH)

    def feed_forward(self, block: str) -> None:
        self.matrix(f"{block}.ffn_gate", _FFN_WIDTH, _WIDTH)
        self.matrix(f"{block}.ffn_up", _FFN_WIDTH, _WIDTH)
        self.matrix(f"{block}.ffn_down", _WIDTH, _FFN_WIDTH)


def _llama(weights: _Weights, _: int) -> dict[str, Value]:
    weights.matrix("output", N_VOCAB, _WIDTH, gain=2.0)
    for layer in range(_N_LAYERS):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm", _WIDTH)
        weights.attention(block)
        weights.ones(f"{block}.ffn_norm", _WIDTH)
        weights.feed_forward(block)
    return {
        "feed_forward_length": _FFN_WIDTH,
        "attention.head_count": _N_HEADS,
        "attention.head_count_kv": _N_KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }


def _cohere2(weights: _Weights, window: int) -> dict[str, Value]:
    for layer in range(_N_LAYERS):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm", _WIDTH)
        weights.attention(block)
        weights.feed_forward(block)
    return {
        "feed_forward_length": _FFN_WIDTH,
        "attention.head_count": _N_HEADS,
        "attention.head_count_kv": _N_KV_HEADS,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": 2,  # every second layer looks all the way back
        "logit_scale": 2.0,
    }


def _mamba(weights: _Weights, _: int) -> dict[str, Value]:
    weights.matrix("output", N_VOCAB, _WIDTH, gain=2.0)
    # steps of 0.01 to 0.3, and decay rates of 1 to 16: memories of 1 to 100 tokens, as in the paper
    steps = np.geomspace(0.01, 0.3, _INNER)
    for layer in range(_N_LAYERS):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm", _WIDTH)
        weights.matrix(f"{block}.ssm_in", 2 * _INNER, _WIDTH, gain=2.0)
        weights.matrix(f"{block}.ssm_conv1d", _INNER, _KERNEL)
        weights.add(f"{block}.ssm_conv1d.bias", np.zeros(_INNER))
        weights.matrix(f"{block}.ssm_x", _RANK + 2 * _STATE, _INNER, gain=2.0)
        weights.matrix(f"{block}.ssm_dt", _INNER, _RANK)
        weights.add(f"{block}.ssm_dt.bias", np.log(np.expm1(steps)))  # softplus makes steps of it
        weights.add(f"{block}.ssm_a", -np.tile(np.arange(1.0, _STATE + 1), (_INNER, 1)))
        weights.add(f"{block}.ssm_d", np.ones(_INNER))
        weights.matrix(f"{block}.ssm_out", _WIDTH, _INNER)
    return {
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": _KERNEL,
        "ssm.inner_size": _INNER,
        "ssm.state_size": _STATE,
        "ssm.time_step_rank": _RANK,
    }


def _lfm2(weights: _Weights, _: int) -> dict[str, Value]:
    weights.matrix("output", N_VOCAB, _WIDTH, gain=2.0)
    kv_heads = [0 if layer % 2 == 0 else _N_KV_HEADS for layer in range(_N_LAYERS)]  # 0: a convolution
    for layer, heads in enumerate(kv_heads):
        block = f"blk.{layer}"
        weights.ones(f"{block}.attn_norm", _WIDTH)
        if heads:
            weights.ones(f"{block}.attn_q_norm", _WIDTH // _N_HEADS)
            weights.ones(f"{block}.attn_k_norm", _WIDTH // _N_HEADS)
            weights.attention(block)
        else:
            weights.matrix(f"{block}.shortconv.conv", _WIDTH, _SHORT_KERNEL)
            weights.matrix(f"{block}.shortconv.in_proj", 3 * _WIDTH, _WIDTH)
            weights.matrix(f"{block}.shortconv.out_proj", _WIDTH, _WIDTH)
        weights.ones(f"{block}.ffn_norm", _WIDTH)
        weights.feed_forward(block)
    return {
        "feed_forward_length": _FFN_WIDTH,
        "attention.head_count": _N_HEADS,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "shortconv.l_cache": _SHORT_KERNEL,
    }


ARCHITECTURES: Mapping[str, Callable[[_Weights, int], dict[str, Value]]] = {
    "llama": _llama,
    "cohere2": _cohere2,
    "mamba": _mamba,
    "lfm2": _lfm2,
}
"""By name, what adds an architecture's tensors and returns its entries of the header."""


# ---------------------------------------------------------------------------------------- vocabulary

_CONTROL, _USER_DEFINED, _NORMAL = 3, 4, 1  # enum llama_token_type
_SPECIAL = {
    "<|endoftext|>": _CONTROL,
    "<|im_start|>": _CONTROL,
    "<|im_end|>": _CONTROL,
    "<tool_call>": _USER_DEFINED,
    "</tool_call>": _USER_DEFINED,
}

_TEXT = """\
You are a helpful assistant. You can call one or more functions to help with the query of the user.
What is the weather in the city today, and when does the next train leave? It is warm, and it leaves at ten.
<tools>
{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.",
"parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city", "days"]}}}
</tools>
{"name": "get_weather", "arguments": {"city": "Paris", "days": 2, "unit": "celsius"}}
{"name": "find_train", "arguments": {"from": "Paris", "to": "Rome", "direct": true, "class": null}}
system user assistant tool_response
"""

# about how the "qwen2" pre-tokenizer splits: a merge that it never needs does no harm
_WORD = re.compile(r"[^\r\n\w]?[^\W\d_]+|\d| ?[^\s\w]+[\r\n]*|\s+|_")

_CHAT_TEMPLATE = """\
{%- set system = messages[0].content + '\\n\\n' if messages and messages[0].role == 'system' else '' %}
{%- if tools %}
{{- '<|im_start|>system\\n' + system + 'You can call functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in (messages[1:] if tools and system else messages) %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '' if loop.first and not message.content else '\\n' }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def _vocabulary() -> dict[str, Value]:
    """The entries of the header that make a byte-level BPE vocabulary of `N_VOCAB` tokens."""
    letters = _byte_letters()
    merges = _learn_merges(_TEXT, letters, N_VOCAB - len(letters) - len(_SPECIAL))
    ordinary = [*letters, *map("".join, merges)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*ordinary, *_SPECIAL],
        "tokenizer.ggml.token_type": [*[_NORMAL] * len(ordinary), *_SPECIAL.values()],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": len(ordinary),
        "tokenizer.ggml.eos_token_id": len(ordinary) + list(_SPECIAL).index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": _CHAT_TEMPLATE,
    }


def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: its own where it can be seen, else one from U+0100 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unseen = iter(range(0x100, 0x200))
    return [chr(byte if byte in seen else next(unseen)) for byte in range(256)]


def _learn_merges(text: str, letters: Sequence[str], count: int) -> list[tuple[str, str]]:
    """The first `count` merges of byte-pair encoding: each joins the commonest pair, the least on a tie."""
    words = [[letters[byte] for byte in word.encode()] for word in _WORD.findall(text)]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [_join(word, best) for word in words]
    return merges


def _join(word: Sequence[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    for letter in word:
        if joined and (joined[-1], letter) == pair:
            joined[-1] += letter
        else:
            joined.append(letter)
    return joined


# ---------------------------------------------------------------------------------------------- file

_ALIGNMENT = 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # enum gguf_type
_SCALARS = {bool: (_BOOL, "<?"), int: (_U32, "<I"), float: (_F32, "<f")}
_F32_TENSOR = 0  # enum ggml_type


def gguf_bytes(metadata: Mapping[str, Value], tensors: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
    """A GGUF file, version 3. The shape of a tensor is NumPy's, so its last axis is llama.cpp's first."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), _entry(value)]
    offset = 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        layout = f"<I{len(shape)}QIQ"
        parts += [_string(name), struct.pack(layout, len(shape), *shape, _F32_TENSOR, offset)]
        offset += _padded(tensor.nbytes)
    header = b"".join(parts)
    data = [
        tensor.astype("<f4").tobytes().ljust(_padded(tensor.nbytes), b"\0") for tensor in tensors.values()
    ]
    return b"".join([header.ljust(_padded(len(header)), b"\0"), *data])


def _entry(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, bool | int | float):
        kind, layout = _SCALARS[type(value)]
        return struct.pack("<I", kind) + struct.pack(layout, value)
    strings = [item for item in value if isinstance(item, str)]
    kind = _STRING if strings else _I32
    items = map(_string, strings) if strings else (struct.pack("<i", item) for item in value)
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(items)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes one file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_gguf", description="Make a tiny GGUF.")
    parser.add_argument("--arch", choices=list(ARCHITECTURES), default="llama")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--window", type=int, default=WINDOW, help="tokens that a sliding window holds")
    chosen = parser.parse_args(arguments)
    chosen.output.write_bytes(tiny_gguf(chosen.arch, seed=chosen.seed, window=chosen.window))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
