"""A draft model with random weights, of the same cost and vocabulary as a real one.

Within every matrix of a GGUF the blocks of weights change places at random: each is as it was, so every value
is one that a quantized model may have, and what the model knew is gone. It must not know what models are for.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from agentspec.llama.gguf import read_gguf

__all__ = ["scrambled"]


def scrambled(model: Path, copy: Path, *, seed: int = 0) -> Path:
    """Writes a copy of a GGUF with its matrices scrambled, and returns its path.

    Vectors, the norms' scales and biases, stay. Raises ModelError where `model` is no whole GGUF, OSError
    where the copy cannot be written.
    """
    tensors = read_gguf(model).tensors
    shutil.copyfile(model, copy)
    chance = np.random.default_rng(seed)
    with copy.open("r+b") as file:
        for tensor in tensors:
            if tensor.n_dims < 2:
                continue
            file.seek(tensor.start)
            blocks = np.frombuffer(file.read(tensor.size), np.uint8).reshape(-1, tensor.block_size)
            file.seek(tensor.start)
            file.write(blocks[chance.permutation(len(blocks))].tobytes())
    return copy
