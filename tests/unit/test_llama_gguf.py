"""The GGUF check: sound files are read, and no damage gets past it, hangs it or costs memory."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from agentspec.errors import ModelFormatError, ModelNotFoundError
from agentspec.llama.gguf import read_gguf

_STRING, _ARRAY, _U32, _BOOL = 8, 9, 4, 7
_F32, _Q4_0 = 0, 2


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return (
        _string(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


def _gguf(*, data: bytes = bytes(range(256)) * 2, kind: int = _F32, offset: int = 0) -> bytes:
    entries = [
        _entry("general.architecture", _STRING, _string("toy")),
        _entry("toy.context_length", _U32, struct.pack("<I", 128)),
        _entry("toy.attention.causal", _BOOL, b"\x00"),
        _entry("tokenizer.ggml.tokens", _ARRAY, struct.pack("<IQ", _STRING, 2) + _string("a") + _string("é")),
        _entry(
            "tokenizer.ggml.token_type", _ARRAY, struct.pack("<IQ", _U32, 3) + struct.pack("<3I", 1, 2, 3)
        ),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries)
    header += _tensor("blk.0.weight", (64, 2), kind, offset)
    return header + b"\0" * (-len(header) % 32) + data


def _write(folder: Path, content: bytes, name: str = "toy.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_reads_scalars_and_skips_arrays(tmp_path: Path) -> None:
    file = read_gguf(_write(tmp_path, _gguf()))
    assert file.metadata == {
        "general.architecture": "toy",
        "toy.context_length": 128,
        "toy.attention.causal": False,
    }
    assert file.architecture == "toy"
    assert file.arch_value("context_length") == 128
    assert file.n_tensors == 1
    assert file.size == len(_gguf())


def test_fingerprint_follows_the_content_not_the_name(tmp_path: Path) -> None:
    original = read_gguf(_write(tmp_path, _gguf()))
    renamed = read_gguf(_write(tmp_path, _gguf(), "other.gguf"))
    changed = read_gguf(_write(tmp_path, _gguf(data=bytes(512)), "changed.gguf"))
    assert original.fingerprint == renamed.fingerprint
    assert original.fingerprint != changed.fingerprint


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no model file at .*none\.gguf"):
        read_gguf(tmp_path / "none.gguf")


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        read_gguf(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes in the file system")
def test_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelNotFoundError, match="not a file"):
        read_gguf(tmp_path / "pipe.gguf")


def test_name_with_a_nul() -> None:
    with pytest.raises(ModelNotFoundError):
        read_gguf("a\0b.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file: it starts with b'PK"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62), "cut short inside its header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60), "a string of"),
        (_gguf(kind=5), "unknown type 5"),
        (_gguf(kind=9999), "unknown type 9999"),
        (_gguf(kind=12), "no multiple of 256"),
    ],
)
def test_bad_content(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_gguf(_write(tmp_path, content))


def test_says_how_much_is_missing(tmp_path: Path) -> None:
    whole = _gguf()
    with pytest.raises(ModelFormatError, match=f"100 of {len(whole)} bytes are missing"):
        read_gguf(_write(tmp_path, whole[:-100]))


def test_tensor_beyond_the_end(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="bytes are missing"):
        read_gguf(_write(tmp_path, _gguf(offset=2**63)))


def test_quantized_size_is_counted_in_blocks(tmp_path: Path) -> None:
    needed = 64 * 2 // 32 * 18
    assert read_gguf(_write(tmp_path, _gguf(kind=_Q4_0, data=bytes(needed)))).n_tensors == 1
    with pytest.raises(ModelFormatError, match="1 of"):
        read_gguf(_write(tmp_path, _gguf(kind=_Q4_0, data=bytes(needed - 1))))


def test_cut_at_every_byte(tmp_path: Path) -> None:
    whole = _gguf()
    for length in range(len(whole)):
        with pytest.raises(ModelFormatError):
            read_gguf(_write(tmp_path, whole[:length]))


def test_random_damage_is_read_or_refused(tmp_path: Path) -> None:
    whole = _gguf()
    chance = random.Random(20260914)
    for _ in range(600):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(whole))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        try:
            read_gguf(_write(tmp_path, bytes(damaged)))
        except ModelFormatError:
            continue
