"""Drafts of other vocabularies, and LoRA adapters, in llama.cpp itself: on tiny models made here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from agentspec.config import DraftOptions, GenerationOptions, LoraOptions, RuntimeOptions, SamplingOptions
from agentspec.drafts.vocab_map import MappedVocab, SameVocab
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.draft_model import TARGET_FINGERPRINT, TARGET_IDS, map_vocab, open_model_draft
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.errors import (
    ConfigError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
    VocabMismatchError,
)
from agentspec.langchain.chat_model import ChatAgentSpec
from agentspec.llama import Context, Model, Vocab, capi, probe
from agentspec.llama.gguf import read_gguf
from agentspec.testing import Asked
from agentspec.types import LogitsArray, Span
from tests.model.tiny import OPTIONS
from tools.tiny_gguf import Tensors, Value, gguf_bytes, tiny_gguf

TOLERANCE = 1e-3
WARM = SamplingOptions(temperature=0.9)
WIDTH, FFN_WIDTH, N_LAYERS = 32, 64, 2
CONTROL, NORMAL = 3, 1  # enum llama_token_type
TEXT = b'{"name": "hello", "arguments": {}} hello'

WORDS = ("he", "ll", "hell", "hello", "na", "me", "name", "ar", "gu", "argu")
OTHER_WORDS = ("lo", "el", "ello", "hello", "am", "ame", "name", "me", "nt")


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe's process takes a second."""
    monkeypatch.setattr(probe, "choose_extra_bufts", lambda *_: False)


# ---------------------------------------------------------------------------------------------- models


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unseen = iter(range(0x100, 0x200))
    return [chr(byte if byte in seen else next(unseen)) for byte in range(256)]


def gguf(
    words: Sequence[str], *, end: str = "<|im_end|>", seed: int = 0, more: Mapping[str, Value] | None = None
) -> bytes:
    """A model of the llama architecture: a token a byte, one a word (joined from two earlier), and two that
    are special."""
    ordinary = [*byte_letters(), *words]
    known = set(byte_letters())
    merges = []
    for word in words:
        cut = next(at for at in range(1, len(word)) if {word[:at], word[at:]} <= known)
        merges.append(f"{word[:cut]} {word[cut:]}")
        known.add(word)
    tokens = [*ordinary, "<|begin|>", end]
    random = np.random.RandomState(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        values = gain / np.sqrt(columns) * random.standard_normal((rows, columns))
        return np.asarray(values, np.float32)

    tensors: Tensors = {
        "token_embd.weight": matrix(len(tokens), WIDTH, 4.0),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": matrix(len(tokens), WIDTH, 2.0),
    }
    for layer in range(N_LAYERS):
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", FFN_WIDTH, WIDTH),
            ("ffn_up", FFN_WIDTH, WIDTH),
            ("ffn_down", WIDTH, FFN_WIDTH),
        ):
            tensors[f"blk.{layer}.{name}.weight"] = matrix(rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(WIDTH, np.float32)
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.context_length": 1024,
        "llama.embedding_length": WIDTH,
        "llama.block_count": N_LAYERS,
        "llama.feed_forward_length": FFN_WIDTH,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*[NORMAL] * len(ordinary), CONTROL, CONTROL],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(ordinary),
        "tokenizer.ggml.eos_token_id": len(ordinary) + 1,
        "tokenizer.ggml.add_bos_token": False,
        **(more or {}),
    }
    return gguf_bytes(metadata, tensors)


Write = Callable[[str, bytes], Path]
"""A file's name and content to its path."""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, content: bytes) -> Path:
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        return path

    return written


def open_pair(write: Write, target: bytes, draft: bytes) -> tuple[Model, Path]:
    return Model.load(write("target", target), OPTIONS), write("draft", draft)


def pruned(target: Model, words: Sequence[str], *, more: Mapping[str, Value] | None = None) -> bytes:
    """A draft of a few of the target's words, that lists its target ids: a letter has its byte's id."""
    vocab = target.vocab
    ids = [*range(256), *(vocab.pieces().index(word.encode()) for word in words), -1, vocab.n_tokens - 1]
    return gguf(words, seed=5, more={TARGET_FINGERPRINT: vocab.fingerprint, TARGET_IDS: ids, **(more or {})})


def row_of(path: Path, tokens: Sequence[int], options: RuntimeOptions = OPTIONS) -> LogitsArray:
    """The row after `tokens`, computed alone."""
    with Model.load(path, options) as model, Context(model, 256, options=options, n_outputs=1) as context:
        (row,) = context.decode([Span(0, tokens, [len(tokens) - 1])])
        return row


def assert_offers_the_drafts_law(
    target: Model, draft: Path, prefix: Sequence[int], read: Sequence[int], twins: Mapping[int, int]
) -> None:
    """The offer after `prefix` is the draft's row after `read`, over `twins`: target id -> draft id."""
    with open_model_draft(target, draft, options=OPTIONS, n_ctx=256, n_slots=2) as source:
        assert source.missing(Asked(prefix, sampling=WARM)) == len(read)
        (offer,) = source.offer([Asked(prefix, sampling=WARM)])
    assert offer is not None
    assert offer.draft_probs is not None
    row = row_of(draft, read)
    best = sorted(twins, key=lambda token: -row[twins[token]])[:64]
    weights = np.exp(row[[twins[token] for token in sorted(best)]].astype(np.float64) / 0.9)
    assert offer.draft_probs.ids.tolist() == sorted(best)
    assert np.abs(offer.draft_probs.probs - weights / weights.sum()).max() < TOLERANCE


# ------------------------------------------------------------------------------------------ vocabularies


def test_a_draft_of_the_same_tokens_is_not_mapped(write: Write) -> None:
    target, path = open_pair(write, gguf(WORDS), gguf(WORDS, seed=1))
    with target, Model.load(path, OPTIONS) as draft:
        before = list(draft.vocab.pieces())
        assert isinstance(map_vocab(target, draft), SameVocab)
        assert draft.vocab.pieces() == before
        names = range(256, len(before))  # bytes objects of one byte are Python's own
        assert all(draft.vocab.pieces()[token] is target.vocab.pieces()[token] for token in names)


def test_a_pruned_draft_proposes_in_target_ids(write: Write) -> None:
    with Model.load(write("target", gguf(WORDS)), OPTIONS) as target:
        words = ("na", "me", "name", "he", "ll", "hell")
        path = write("draft", pruned(target, words))
        prefix = target.vocab.tokenize(b"name hello", special=False)
        pieces = [target.vocab.token_text(token) for token in prefix]
        assert pieces == [b"name", b" ", b"hello"]
        with Model.load(path, OPTIONS) as draft:
            read = draft.vocab.tokenize(b"name hello", special=False)
            assert [draft.vocab.token_text(token) for token in read] == [b"name", b" ", b"hell", b"o"]
            known = [target.vocab.pieces().index(piece) for piece in draft.vocab.pieces()[: 256 + len(words)]]
            end = (target.vocab.n_tokens - 1, draft.vocab.n_tokens - 1)
        twins = {token: twin for twin, token in enumerate(known)} | dict([end])
        assert_offers_the_drafts_law(target, path, prefix, read, twins)


def test_a_pruned_draft_of_another_target_is_refused(write: Write) -> None:
    with (
        Model.load(write("other", gguf(OTHER_WORDS)), OPTIONS) as other,
        Model.load(write("target", gguf(WORDS)), OPTIONS) as target,
    ):
        path = write("draft", pruned(other, ("me",)))
        with pytest.raises(
            VocabMismatchError, match=r"draft draft does not fit the target target.*\n.*prune it again"
        ):
            open_model_draft(target, path, options=OPTIONS, n_ctx=256, n_slots=1).__enter__()


@pytest.mark.parametrize(
    ("ids", "message"), [([0, 1], "2 target ids for 259 tokens"), ("text", f"has no {TARGET_IDS}")]
)
def test_a_pruned_draft_with_a_bad_list_is_refused(write: Write, ids: Value, message: str) -> None:
    with Model.load(write("target", gguf(WORDS)), OPTIONS) as target:
        path = write("draft", pruned(target, ("me",), more={TARGET_IDS: ids}))
        with Model.load(path, OPTIONS) as draft, pytest.raises(VocabMismatchError, match=message):
            map_vocab(target, draft)


def test_a_list_that_runs_past_the_end_of_the_file_is_not_read(write: Write) -> None:
    key = TARGET_IDS.encode()
    array, i32 = 9, 5  # enum gguf_type
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", array, i32, 2**22) + b"\0" * 64
    path = write("cut", b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    with pytest.raises(ModelFormatError, match="cut short inside its header"):
        read_gguf(path)


def equal_tokens(target: Vocab, draft: Vocab) -> dict[int, int]:
    """Target id -> draft id of tokens with equal bytes, the special ones last in both."""
    ids = {piece: token for token, piece in enumerate(draft.pieces())}
    twins = {token: ids[piece] for token, piece in enumerate(target.pieces()) if piece in ids}
    return {**twins, target.n_tokens - 1: draft.n_tokens - 1}


def test_a_draft_of_another_vocabulary_reads_and_proposes_by_spelling(write: Write) -> None:
    """Its end of a turn has another name, and is the target's all the same."""
    target, path = open_pair(write, gguf(WORDS), gguf(OTHER_WORDS, end="</s>", seed=3))
    with target:
        prefix = [*target.vocab.tokenize(b"hell argue", special=False), target.vocab.n_tokens - 1]
        assert len(prefix) == 5
        assert [target.vocab.token_text(token) for token in prefix[:3]] == [b"hell", b" ", b"argu"]
        with Model.load(path, OPTIONS) as draft:
            vocab = draft.vocab
            twins = equal_tokens(target.vocab, vocab)
            assert isinstance(map_vocab(target, draft), MappedVocab)
            hell = vocab.tokenize(b"hell", special=False)
            argue = vocab.tokenize(b"argu", special=False)
        assert len(hell) == 3
        read = [*hell, twins[prefix[1]], *argue, twins[prefix[3]], twins[prefix[4]]]
        assert_offers_the_drafts_law(target, path, prefix, read, twins)


def test_a_draft_that_wants_a_beginning_gets_its_own(write: Write) -> None:
    bos: dict[str, Value] = {"tokenizer.ggml.add_bos_token": True}
    target, path = open_pair(write, gguf(WORDS, more=bos), gguf(OTHER_WORDS, more=bos, seed=3))
    with target:
        assert target.vocab.bos_id is not None
        with Model.load(path, OPTIONS) as draft:
            read = [draft.vocab.bos_id or 0, *draft.vocab.tokenize(b"h", special=False)]
            twins = equal_tokens(target.vocab, draft.vocab)
        prefix = [target.vocab.bos_id, *target.vocab.tokenize(b"h", special=False)]
        assert_offers_the_drafts_law(target, path, prefix, read, twins)


def test_vocabularies_that_share_little_are_refused(write: Write) -> None:
    pairs = [left + right for left in "abcdefghijklmnopqrst" for right in "abcdefghijklmnopqrst"]
    target, path = open_pair(write, gguf([pair.upper() for pair in pairs]), gguf(pairs))
    message = r"the draft draft does not fit the target target: token 256 .* only 258 are spelled"
    with target, Model.load(path, OPTIONS) as draft, pytest.raises(VocabMismatchError, match=message):
        map_vocab(target, draft)


@pytest.mark.parametrize("kind", ["pruned", "mapped"])
@pytest.mark.parametrize("sampling", [SamplingOptions(), WARM])
def test_replies_are_the_targets_whatever_the_drafts_vocabulary(
    write: Write, kind: str, sampling: SamplingOptions
) -> None:
    """A seed gives one text with any draft, or none."""
    with (
        Model.load(write("target", gguf(WORDS, seed=3)), OPTIONS) as target,
        Context(target, 512, 1, OPTIONS) as context,
    ):
        draft = pruned(target, ("na", "me")) if kind == "pruned" else gguf(OTHER_WORDS, seed=3)
        prompt = tuple(target.vocab.tokenize(TEXT, special=False))
        with open_model_draft(target, write("draft", draft), options=OPTIONS, n_ctx=512, n_slots=1) as source:
            texts, drafted = [], 0
            for drafts in ([], [source]):
                core = Core(context, target.vocab, drafts, costs=Costs.free())
                channel = Channel()
                request = Request(
                    prompt,
                    sampling=sampling,
                    generation=GenerationOptions(max_tokens=40, seed=1),
                    draft=DraftOptions(max_block=4, max_model_tokens=4, verifier="seed_invariant"),
                )
                core.add(request, channel)
                while core.busy():
                    core.step()
                stream = Stream(channel)
                texts.append([token for step in stream for token in step.tokens])
                drafted += sum(count.proposed for count in stream.result.trace.sources.values())
    assert texts[0] == texts[1]
    assert drafted > 0


def test_a_prefix_that_is_not_copied_for_want_of_room_is_read(write: Write) -> None:
    """The prefix lies in a slot that is idle, and twice it does not fit."""
    target, path = open_pair(write, gguf(WORDS), gguf(WORDS, seed=1))
    with target, open_model_draft(target, path, options=OPTIONS, n_ctx=256, n_slots=2) as source:
        (first,) = source.offer([Asked([7] * 200, sampling=WARM)])
        (second,) = source.offer([Asked([7] * 200, slot=1, sampling=WARM)])
        assert first is not None
        assert second is not None


# ---------------------------------------------------------------------------------------------- adapters

TINY = tiny_gguf("llama")
TINY_WIDTH = 64
RANK = 4


def adapter(*, width: int = TINY_WIDTH, tensor: str = "blk.1.attn_q", **changed: Value) -> bytes:
    random = np.random.RandomState(2)
    metadata: dict[str, Value] = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
        **{key.replace("__", "."): value for key, value in changed.items()},
    }
    tensors: Tensors = {
        f"{tensor}.weight.lora_a": random.standard_normal((RANK, width)).astype(np.float32),
        f"{tensor}.weight.lora_b": random.standard_normal((width, RANK)).astype(np.float32),
    }
    return gguf_bytes(metadata, tensors)


def with_adapters(*adapters: tuple[Path, float]) -> RuntimeOptions:
    lora = tuple(LoraOptions(path=str(path), scale=scale) for path, scale in adapters)
    return OPTIONS.model_copy(update={"lora": lora})


def test_an_adapter_changes_the_logits_by_its_scale(write: Write) -> None:
    model, lora = write("model", TINY), write("adapter", adapter())
    tokens = [65, 66, 67, 68]
    plain = row_of(model, tokens)
    whole, half, twice_half, none = (
        row_of(model, tokens, with_adapters(*given))
        for given in ([(lora, 1.0)], [(lora, 0.5)], [(lora, 0.5), (lora, 0.5)], [(lora, 0.0)])
    )
    assert np.abs(whole - plain).max() > 0.1
    assert np.abs(whole - half).max() > 0.01
    assert np.abs(whole - twice_half).max() < TOLERANCE
    assert np.array_equal(none, plain)


def test_an_adapter_is_that_of_every_context_and_goes_with_its_model(write: Write) -> None:
    options = with_adapters((write("adapter", adapter()), 1.0))
    path = write("model", TINY)
    with Model.load(path, options) as model:
        contexts = [Context(model, 256, options=options, n_outputs=1) for _ in range(2)]
        rows = [context.decode([Span(0, [65, 66], [1])])[0] for context in contexts]
        assert np.array_equal(rows[0], rows[1])
    for context in contexts:
        context.close()  # after the model: it has done it
    with Model.load(path, options, vocab_only=True) as model:
        assert not model.adapters


def test_an_adapter_is_probed_with_its_model(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the probe is the real one here
    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path / "cache"))
    options = with_adapters((write("adapter", adapter()), 1.0))
    with Model.load(write("model", TINY), options) as model:
        assert len(model.adapters) == 1
    assert len(list((tmp_path / "cache" / "probes").iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"text", ModelFormatError, "bad.gguf: not a GGUF file"),
        (TINY, ModelError, "bad.gguf is not a LoRA adapter"),
        (adapter(adapter__type="control_vector"), ModelError, "bad.gguf is not a LoRA adapter"),
        (adapter(adapter__type=3), ModelError, "bad.gguf is not a LoRA adapter"),
        (adapter(general__architecture="qwen2"), ModelError, "bad.gguf is for 'qwen2', and model.gguf is"),
        (adapter(adapter__lora__alpha=8), ModelError, "bad.gguf is damaged"),
        (adapter(width=32), ModelError, "bad.gguf: .*incorrect shape"),
        (adapter(tensor="blk.9.attn_q"), ModelError, "bad.gguf: .*does not exist in base model"),
    ],
)
def test_a_file_that_is_no_adapter_of_the_model_is_refused(
    write: Write, content: bytes, error: type[ModelError], message: str
) -> None:
    options = with_adapters((write("bad", content), 1.0))
    with pytest.raises(error, match=message):
        Model.load(write("model", TINY), options)


def test_an_adapter_that_waits_for_its_tokens_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capi, "adapter_waits", lambda _: True)
    options = with_adapters((write("adapter", adapter()), 1.0))
    with pytest.raises(UnsupportedModelError, match=r"adapter\.gguf acts only after certain tokens"):
        Model.load(write("model", TINY), options)


def test_a_missing_adapter_is_named(write: Write) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no model file at /nowhere/a\.gguf"):
        Model.load(write("model", TINY), with_adapters((Path("/nowhere/a.gguf"), 1.0)))


def test_a_draft_has_adapters_of_its_own(write: Write) -> None:
    """Its law is that of the changed weights."""
    target, path = open_pair(write, TINY, tiny_gguf("llama", seed=1))
    lora = with_adapters((write("adapter", adapter()), 1.0))
    laws = []
    with target:
        for options in (OPTIONS, lora):
            with open_model_draft(target, path, options=options, n_ctx=256, n_slots=1) as source:
                (offer,) = source.offer([Asked([65, 66, 67], sampling=WARM)])
            assert offer is not None
            assert offer.draft_probs is not None
            laws.append(
                dict(zip(offer.draft_probs.ids.tolist(), offer.draft_probs.probs.tolist(), strict=True))
            )
    shared = laws[0].keys() & laws[1].keys()
    assert max(abs(laws[0][token] - laws[1][token]) for token in shared) > 0.01


def test_the_chat_models_adapters_are_the_targets_alone() -> None:
    given = {"lora": ["a.gguf", {"path": "b.gguf", "scale": 0.5}], "draft_options": {"lora": ["c.gguf"]}}
    spec = ChatAgentSpec(**given)._spec("target.gguf")
    assert [(one.path, one.scale) for one in spec.target.lora] == [("a.gguf", 1.0), ("b.gguf", 0.5)]
    assert [one.path for one in spec.draft_runtime.lora] == ["c.gguf"]
    assert ChatAgentSpec(lora=["a.gguf"])._spec("target.gguf").draft_runtime.lora == ()
    assert hash(spec) == hash(ChatAgentSpec(**given)._spec("target.gguf"))
    with pytest.raises(ConfigError, match=r"option 'lora\.0\.scale'"):
        ChatAgentSpec(lora=[{"path": "a.gguf", "scale": "much"}])
