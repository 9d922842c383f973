"""Reads the header of a GGUF file and checks that the file is whole, before llama.cpp sees it.

llama.cpp reports a bad file in its log, and asserts on some; a check of our own gives an error that says
what is wrong. The parser trusts nothing: every length is held against the bytes that are left, so garbage
costs neither memory nor time. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

It must not know what a model is; tensor data is only measured and sampled, never interpreted.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from agentspec.errors import ModelFormatError, ModelNotFoundError
from agentspec.llama import library

__all__ = ["GgufFile", "GgufTensor", "Integers", "Scalar", "read_gguf"]

Scalar: TypeAlias = bool | int | float | str
Integers: TypeAlias = npt.NDArray[np.int64]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# value type -> layout of `struct`
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_INTEGERS = frozenset("bhiqBHIQ")
_OURS = "agentspec."
_STRING, _ARRAY = 8, 9
# far above anything in use (the largest vocabularies have 0.3 M tokens and as many merges), low enough to
# refuse garbage before it costs seconds
_MAX_STRING = 16 * 2**20
_MAX_ELEMENTS = 8 * 2**20
_SAMPLES, _SAMPLE_BYTES = 16, 4096
_CHUNK = 2**20


class GgufTensor(NamedTuple):
    """Where a tensor's data lies: `size` bytes from `start` in the file, in blocks of `block_size` bytes that
    each stand for themselves."""

    name: str
    n_dims: int
    start: int
    size: int
    block_size: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file whose header is sound and whose tensor data is all there.

    metadata:    the scalar entries
    tensors:     none in a file that holds only a vocabulary
    fingerprint: hex digest of size, header and a few samples of the tensor data: tells models apart
                 without hashing gigabytes
    arrays:      agentspec's own arrays of integers; others (vocabulary, merges) are left to llama.cpp
    """

    path: Path
    size: int
    metadata: Mapping[str, Scalar]
    tensors: Sequence[GgufTensor]
    fingerprint: str
    arrays: Mapping[str, Integers] = field(default_factory=dict)

    @property
    def n_tensors(self) -> int:
        return len(self.tensors)

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))

    def arch_value(self, key: str) -> Scalar | None:
        """The entry `key` of this file's architecture, such as "attention.head_count"."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_gguf(path: str | Path) -> GgufFile:
    """Reads and checks the header of the GGUF at `path`; takes about 0.1 s for a large vocabulary.

    Raises ModelNotFoundError where there is no such file, ModelFormatError where it is not a whole GGUF.
    """
    path = Path(path).expanduser()
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ModelNotFoundError(
            f"no model file at {path}", hint="give a path to a .gguf file, or a name from the catalogue"
        ) from error
    if not stat.S_ISREG(mode):  # a pipe would hang, a folder is a likely slip
        what = "a folder" if stat.S_ISDIR(mode) else "not a file"
        raise ModelNotFoundError(f"{path} is {what}", hint="give the path of a .gguf file")
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ModelNotFoundError(f"cannot open {path}: {error.strerror}") from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        return _Header(stream, path, size).read()


class _Header:
    """One pass over the header; `position` never passes the end of the file."""

    def __init__(self, stream: BinaryIO, path: Path, size: int) -> None:
        self._stream = stream
        self._path = path
        self._size = size
        self._position = 0
        self._arrays: dict[str, Integers] = {}

    def read(self) -> GgufFile:
        if self._size == 0:
            raise self._bad("the file is empty", hint="download it again")
        magic = self._take(min(4, self._size))
        if magic != _MAGIC:
            raise self._bad(
                f"not a GGUF file: it starts with {magic!r}",
                hint="agentspec runs GGUF files; convert the model first",
            )
        version = self._u32()
        if version not in _VERSIONS:
            raise self._bad(f"GGUF version {version} is not supported", hint="use a version 2 or 3 file")
        n_tensors, n_entries = self._u64(), self._u64()
        metadata: dict[str, Scalar] = {}
        for _ in range(n_entries):
            key = self._string()
            value = self._value(self._u32(), key)
            if value is not None:
                metadata[key] = value
        tensors = [self._tensor() for _ in range(n_tensors)]
        data_bytes = max((tensor.start + tensor.size for tensor in tensors), default=0)
        start = self._data_start(metadata)
        if n_tensors and (missing := start + data_bytes - self._size) > 0:
            raise self._bad(
                f"the file is cut short: {missing} of {start + data_bytes} bytes are missing",
                hint="download it again",
            )
        fingerprint = self._fingerprint(start, data_bytes)
        placed = tuple(tensor._replace(start=start + tensor.start) for tensor in tensors)
        return GgufFile(self._path, self._size, metadata, placed, fingerprint, self._arrays)

    def _value(self, kind: int, key: str) -> Scalar | None:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalar("<" + _SCALARS[kind])
        if kind != _ARRAY:
            raise self._damaged(f"entry {key!r} has the unknown type {kind}")
        element, count = self._u32(), self._u64()
        layout = _SCALARS.get(element, "")
        if key.startswith(_OURS) and layout in _INTEGERS and count <= _MAX_ELEMENTS:
            items = self._take(count * struct.calcsize("<" + layout))
            self._arrays[key] = np.frombuffer(items, "<" + layout).astype(np.int64)
        elif layout:
            self._skip(count * struct.calcsize("<" + layout))
        elif element == _STRING and count <= _MAX_ELEMENTS:
            for _ in range(count):
                self._skip(self._u64())
        else:
            raise self._damaged(f"entry {key!r} has {count} elements of type {element}")
        return None

    def _tensor(self) -> GgufTensor:
        """Reads one tensor's description; its start is counted from that of all data."""
        name = self._string()
        n_dims = self._u32()
        if n_dims > 8:
            raise self._damaged(f"tensor {name!r} has {n_dims} dimensions")
        dims = [self._u64() for _ in range(n_dims)]
        kind, offset = self._u32(), self._u64()
        shape = library.block_shape(kind)
        if shape is None:
            raise self._bad(
                f"tensor {name!r} has the unknown type {kind}",
                hint="the file is damaged, or newer than the installed llama-cpp-python",
            )
        block, block_bytes = shape
        if (dims[0] if dims else 1) % block:
            raise self._damaged(f"tensor {name!r} has a row that is no multiple of {block}")
        return GgufTensor(name, n_dims, offset, math.prod(dims) // block * block_bytes, block_bytes)

    def _data_start(self, metadata: Mapping[str, Scalar]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, not a power of two")
        return -(-self._position // alignment) * alignment

    def _fingerprint(self, start: int, data_bytes: int) -> str:
        digest = hashlib.sha256(str(self._size).encode())
        self._stream.seek(0)
        for left in range(self._position, 0, -_CHUNK):
            digest.update(self._stream.read(min(left, _CHUNK)))
        for index in range(_SAMPLES if data_bytes else 0):
            self._stream.seek(start + (data_bytes - min(data_bytes, _SAMPLE_BYTES)) * index // (_SAMPLES - 1))
            digest.update(self._stream.read(_SAMPLE_BYTES))
        return digest.hexdigest()

    def _take(self, count: int) -> bytes:
        if count > self._size - self._position:
            raise self._cut_in_header()
        data = self._stream.read(count)
        self._position += len(data)
        if len(data) != count:  # it shrank while it was read
            raise self._cut_in_header()
        return data

    def _skip(self, count: int) -> None:
        """Moves over `count` bytes in pieces, so that a wrong length costs no memory."""
        if count > self._size - self._position:
            raise self._cut_in_header()
        while count:
            count -= len(self._take(min(count, _CHUNK)))

    def _scalar(self, layout: str) -> bool | int | float:
        (value,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        assert isinstance(value, bool | int | float)
        return value

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _string(self) -> str:
        length = self._u64()
        if length > _MAX_STRING:
            raise self._damaged(f"a string of {length} bytes in its header")
        return self._take(length).decode("utf-8", errors="replace")

    def _cut_in_header(self) -> ModelFormatError:
        return self._bad("the file is cut short inside its header", hint="download it again")

    def _damaged(self, what: str) -> ModelFormatError:
        return self._bad(f"the file is damaged: {what}", hint="download it again")

    def _bad(self, what: str, *, hint: str) -> ModelFormatError:
        return ModelFormatError(f"{self._path}: {what}", hint=hint)
