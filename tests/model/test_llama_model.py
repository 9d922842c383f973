"""Loading models and reading vocabularies: what is refused, and that bytes go round."""

from __future__ import annotations

import gc
import logging
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentspec.config import RuntimeOptions
from agentspec.errors import (
    BackendError,
    ConfigError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
    VocabMismatchError,
)
from agentspec.llama import Context, Model, Vocab, check_draft_vocab, supports_gpu
from agentspec.llama.gguf import read_gguf
from agentspec.llama.probe import child_environment
from agentspec.types import Vocabulary

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def small(small_model: Path) -> Iterator[Model]:
    with Model.load(small_model, vocab_only=True) as model:
        yield model


@pytest.fixture(scope="module")
def target(target_model: Path) -> Iterator[Model]:
    with Model.load(target_model, vocab_only=True) as model:
        yield model


@pytest.fixture(scope="module")
def draft(draft_model: Path) -> Iterator[Model]:
    with Model.load(draft_model, vocab_only=True) as model:
        yield model


# ------------------------------------------------------------------------------------------- loading


def test_what_a_model_says(small: Model, target: Model, draft: Model, small_model: Path) -> None:
    assert small.architecture == "llama"
    assert small.name == small_model.stem
    assert small.n_ctx_train == 8192
    assert small.head_size == 64
    assert small.size == small_model.stat().st_size
    assert "<|im_start|>" in (small.chat_template or "")
    assert "<tool_call>" in (target.chat_template or "")
    assert len({small.fingerprint, target.fingerprint, draft.fingerprint}) == 3


def test_missing_and_not_a_gguf(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        Model.load(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("a poem")
    with pytest.raises(ModelFormatError, match="not a GGUF file"):
        Model.load(tmp_path / "text.gguf")


def test_truncated(tmp_path: Path, small_model: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(small_model.read_bytes()[:-5000])
    with pytest.raises(ModelFormatError, match=r"5000 of \d+ bytes are missing"):
        Model.load(cut)


def test_unknown_architecture(tmp_path: Path, small_model: Path) -> None:
    """llama.cpp's own words are part of the error."""
    data = small_model.read_bytes()
    start = data.index(b"general.architecture")
    (tmp_path / "odd.gguf").write_bytes(data[:start] + data[start:].replace(b"llama", b"lamma", 1))
    with pytest.raises(UnsupportedModelError, match="unknown model architecture: 'lamma'"):
        Model.load(tmp_path / "odd.gguf", vocab_only=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"llama.block_count", b"llama.block_c0unt"), (b"blk.0.attn_q.weight", b"blk.0.attn_x.weight")],
)
def test_damaged_header(tmp_path: Path, small_model: Path, old: bytes, new: bytes) -> None:
    (tmp_path / "odd.gguf").write_bytes(small_model.read_bytes().replace(old, new, 1))
    with pytest.raises(ModelError, match=r"llama\.cpp cannot load"):
        Model.load(tmp_path / "odd.gguf")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("llama.pooling_type", 1, "it makes embeddings"),
        ("llama.attention.causal", False, "its attention looks ahead"),
    ],
)
def test_not_a_generator(small_model: Path, key: str, value: int, reason: str) -> None:
    file = read_gguf(small_model)
    metadata = {**file.metadata, key: value}
    changed = replace(file, metadata=metadata)
    with pytest.raises(UnsupportedModelError, match=reason):
        Model.load_unprobed(changed, RuntimeOptions(), extra_bufts=False)


def test_vocab_only_makes_no_context(small: Model) -> None:
    with pytest.raises(ConfigError, match="vocab_only"):
        Context(small, 256)


@pytest.mark.skipif(supports_gpu(), reason="this build has a GPU")
@pytest.mark.parametrize(
    "options",
    [RuntimeOptions(n_gpu_layers=10), RuntimeOptions(n_gpu_layers=-1), RuntimeOptions(main_gpu=1)],
)
def test_gpu_without_gpu(small_model: Path, options: RuntimeOptions) -> None:
    with pytest.raises(BackendError, match="needs a GPU") as caught:
        Model.load(small_model, options)
    assert "AGENTSPEC_BACKEND=cuda make" in caught.value.hint
    assert "CMAKE_ARGS" in caught.value.hint


def test_nothing_is_printed(
    small_model: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="agentspec.llama"), Model.load(small_model) as model:
        Context(model, 256, options=RuntimeOptions(n_threads=1)).close()
    assert capfd.readouterr() == ("", "")
    assert any("llama_context" in record.getMessage() for record in caplog.records)


def test_dropped_models_are_freed(small_model: Path) -> None:
    model = Model.load(small_model)
    context = Context(model, 256, options=RuntimeOptions(n_threads=1))
    model_gone, context_gone = weakref.ref(model), weakref.ref(context)
    del model, context
    gc.collect()
    assert model_gone() is None
    assert context_gone() is None


_PEAK = """
import re, sys
from pathlib import Path
from agentspec.config import RuntimeOptions
from agentspec.llama.gguf import read_gguf
from agentspec.llama.model import Model

def peak():  # ru_maxrss would start at the parent's
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024

file = read_gguf(sys.argv[1])
before = peak()
Model.load_unprobed(file, RuntimeOptions(), extra_bufts=True)
print((peak() - before) / file.size)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_repacked_weights_are_not_resident_twice(small_model: Path) -> None:
    """1.5 times the file with its vocabulary; 2.2 times where the file stays mapped beside the copies."""
    command = [sys.executable, "-c", _PEAK, str(small_model)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.9


# ---------------------------------------------------------------------------------------- vocabulary


TEXTS = [
    "",
    "plain text, with punctuation; and (brackets).",
    "  leading,   inner\n\n\tand trailing  ",
    "naïve café — “quotes” … ½",
    "漢字とかな, 한국어, العربية, עברית",
    "👩‍👩‍👧‍👦 and 🇧🇷",
    "\x00\x01\x7f",
    '{"name": "get_weather", "arguments": {"city": "São Paulo"}}',
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_goes_round(small: Model, target: Model, text: str) -> None:
    for model in (small, target):
        tokens = model.vocab.tokenize(text.encode(), special=False)
        assert model.vocab.detokenize(tokens) == text.encode()


def test_bytes_that_are_no_text_go_round(target: Model, small: Model) -> None:
    chance = random.Random(7)
    samples = [bytes(chance.randrange(256) for _ in range(200)) for _ in range(20)]
    # beyond Unicode, a surrogate, an overlong form, a cut character: llama.cpp dies of the first
    samples += [b"a\xf7\xbf\xbf\xbfb", b"\xed\xa0\x80", b"\xc0\xaf", "é".encode()[:1], b"\xff\xfe"]
    for sample in samples:
        assert target.vocab.detokenize(target.vocab.tokenize(sample, special=False)) == sample
    known = set(b"".join(piece for piece in small.vocab.pieces() if len(piece) == 1))
    sample = bytes(byte for byte in samples[0] if byte in known)
    assert small.vocab.detokenize(small.vocab.tokenize(sample, special=False)) == sample


def test_a_byte_without_a_token(small: Model) -> None:
    unknown = set(range(128, 256)) - {piece[0] for piece in small.vocab.pieces() if len(piece) == 1}
    if not unknown:
        pytest.skip("this vocabulary spells every byte")
    with pytest.raises(ValueError, match="cannot spell the byte"):
        small.vocab.tokenize(bytes([min(unknown)]), special=False)


@pytest.mark.parametrize("unit", [b"a", b" ", b"!", b"1", "漢".encode()])
def test_long_runs(target: Model, unit: bytes) -> None:
    """Runs long enough to overflow the stack of a splitter that recurses."""
    text = unit * 100_000
    assert target.vocab.detokenize(target.vocab.tokenize(text, special=False)) == text
    assert threading.stack_size() == 0  # as it was


def test_absurd_run_is_refused(target: Model) -> None:
    with pytest.raises(ValueError, match="run of 600000 bytes"):
        target.vocab.tokenize(b"a" * 600_000, special=False)


def test_special_tokens(target: Model) -> None:
    vocab = target.vocab
    marker = vocab.special_id("<tool_call>")
    end = vocab.special_id("<|im_end|>")
    assert marker is not None
    assert end is not None
    assert vocab.special_id("hello") is None
    assert vocab.tokenize(b"<tool_call>", special=True) == [marker]
    assert vocab.tokenize(b"<|im_end|>", special=True) == [end]
    assert len(vocab.tokenize(b"<|im_end|>", special=False)) > 1
    assert vocab.token_bytes(marker) == b"<tool_call>"
    assert vocab.token_bytes(end) == b""
    assert vocab.token_text(end) == b"<|im_end|>"
    assert vocab.is_special(marker)
    assert vocab.is_special(end)
    assert vocab.is_control(end)
    assert not vocab.is_control(marker)
    assert end in vocab.end_ids
    assert end == vocab.eos_id
    assert marker not in vocab.end_ids
    assert not any(vocab.is_special(token) for token in vocab.tokenize(b"a few words", special=True))


def test_nothing_is_added_in_front(target: Model, small: Model) -> None:
    for vocab in (target.vocab, small.vocab):
        assert vocab.add_bos is False
        assert vocab.bos_id not in vocab.tokenize(b"words", special=True)


def test_is_a_vocabulary(target: Model) -> None:
    vocabulary: Vocabulary = target.vocab
    assert vocabulary.n_tokens == 151936
    assert len(target.vocab.pieces()) == 151936


@pytest.mark.parametrize("token", [-1, 151936, 2**40])
def test_tokens_outside_the_vocabulary(target: Model, token: int) -> None:
    calls: list[Callable[[int], object]] = [
        target.vocab.token_bytes,
        target.vocab.token_text,
        target.vocab.is_special,
        target.vocab.is_control,
        target.vocab.is_byte,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="outside the vocabulary"):
            call(token)


def test_closed_vocabulary(small_model: Path) -> None:
    model = Model.load(small_model, vocab_only=True)
    model.close()
    with pytest.raises(ValueError, match="was closed"):
        model.vocab.tokenize(b"a", special=False)
    with pytest.raises(ModelError, match="was closed"):
        _ = model.handle


def test_a_vocabulary_that_outlives_its_model(small_model: Path) -> None:
    vocab = Model.load(small_model, vocab_only=True).vocab
    gc.collect()
    with pytest.raises(ValueError, match="was closed"):
        vocab.tokenize(b"hello", special=False)


# --------------------------------------------------------------------------------------------- draft


def test_the_default_pair_fits(target: Model, draft: Model) -> None:
    check_draft_vocab(target.vocab, draft.vocab)


def test_another_family_does_not(target: Model, small: Model) -> None:
    with pytest.raises(
        VocabMismatchError, match=r"SmolLM2.* does not fit .*qwen.*49152 tokens against 151936"
    ):
        check_draft_vocab(target.vocab, small.vocab)


class _Changed(Vocab):
    """A vocabulary with one thing changed."""

    def __init__(self, other: Vocab, **changes: object) -> None:
        self.__dict__.update(other.__dict__ | changes)


def test_one_token_apart(target: Model) -> None:
    pieces = list(target.vocab.pieces())
    pieces[3] = b"ids below 5 may differ"
    check_draft_vocab(target.vocab, _Changed(target.vocab, _pieces=pieces))
    pieces[777] = b"other"
    with pytest.raises(VocabMismatchError, match=r"token 777 is b'other' in the draft, b'.*' in the target"):
        check_draft_vocab(target.vocab, _Changed(target.vocab, _pieces=pieces))


def test_ends_apart(target: Model) -> None:
    (eos,) = {target.vocab.eos_id} - {None}
    assert eos is not None
    other = _Changed(target.vocab, _end_ids=target.vocab.end_ids - {eos})
    with pytest.raises(VocabMismatchError, match=rf"token {eos} .*end of generation in the target only"):
        check_draft_vocab(target.vocab, other)
    with pytest.raises(VocabMismatchError, match="in the draft only"):
        check_draft_vocab(other, target.vocab)


def test_padding_may_differ(target: Model) -> None:
    check_draft_vocab(target.vocab, _Changed(target.vocab, _n_tokens=target.vocab.n_tokens - 128))
    with pytest.raises(VocabMismatchError):
        check_draft_vocab(target.vocab, _Changed(target.vocab, _n_tokens=target.vocab.n_tokens - 129))
