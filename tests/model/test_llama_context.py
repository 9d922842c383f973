"""Contexts on a real model: tokens and KV stay together, whatever goes wrong, and rows are the right ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from agentspec.config import RuntimeOptions
from agentspec.errors import ConfigError, DecodeError, EngineClosedError
from agentspec.llama import Context, Model, capi
from agentspec.llama.settings import context_settings
from agentspec.types import LogitsArray, Session, Span

pytestmark = pytest.mark.model

# Passes of different sizes round differently; rows of different positions differ by far more (asserted).
TOLERANCE = 0.25

# One thread: with as many as CPUs, another busy process makes each pass many times slower.
OPTIONS = RuntimeOptions(n_threads=1, n_batch=64)


@pytest.fixture(scope="module")
def model(small_model: Path) -> Iterator[Model]:
    with Model.load(small_model) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def shared(model: Model) -> Iterator[Context]:
    with Context(model, 512, 4, OPTIONS, n_outputs=16) as context:
        yield context


@pytest.fixture
def context(shared: Context) -> Iterator[Context]:
    """An empty context; each test must leave tokens and KV of the same length."""
    for slot in range(shared.n_slots):
        shared.clear(slot)
    yield shared
    consistent(shared)


def consistent(context: Context) -> None:
    for slot in range(context.n_slots):
        assert context.cached_length(slot) == len(context.tokens(slot))


@pytest.fixture(scope="module")
def text(model: Model) -> list[int]:
    prose = b"The ferry to the island leaves at nine. It takes forty minutes, and it does not run on Sundays."
    tokens = model.vocab.tokenize(prose, special=False)
    assert len(tokens) >= 20
    return tokens


def last_row(context: Context, slot: int, tokens: Sequence[int]) -> LogitsArray:
    (row,) = context.decode([Span(slot, tokens, [len(tokens) - 1])])
    return row


def close(one: LogitsArray, other: LogitsArray) -> bool:
    return bool(np.abs(one - other).max() < TOLERANCE)


def test_is_a_session(context: Context, model: Model) -> None:
    session: Session = context
    assert (session.n_ctx, session.n_batch, session.n_slots) == (512, 64, 4)
    assert session.n_vocab == model.vocab.n_tokens
    assert context.can_rewind


def test_new_context_is_empty(context: Context) -> None:
    assert [list(context.tokens(slot)) for slot in range(4)] == [[], [], [], []]
    assert context.n_free == context.n_ctx


def test_tokens_and_cache_grow_together(context: Context, text: list[int]) -> None:
    context.decode([Span(1, text[:7], [])])
    context.decode([Span(1, text[7:9], [1])])
    assert list(context.tokens(1)) == text[:9]
    assert context.cached_length(1) == 9
    assert context.n_free == context.n_ctx - 9


def test_rows_only_where_asked(context: Context, text: list[int]) -> None:
    rows = context.decode([Span(0, text[:8], [2, 5, 7])])
    assert [row.shape for row in rows] == [(context.n_vocab,)] * 3
    assert all(row.dtype == np.float32 for row in rows)
    for offset, row in zip((2, 5, 7), rows, strict=True):
        alone = last_row(context, 1, text[: offset + 1])
        assert close(row, alone)
        context.clear(1)
    assert not close(rows[0], rows[1])
    assert context.decode([Span(2, text[:3], [])]) == []


def test_rows_are_copies(context: Context, text: list[int]) -> None:
    row = last_row(context, 0, text[:4])
    kept = row.copy()
    last_row(context, 0, text[4:8])
    assert np.array_equal(row, kept)


def test_truncate_and_decode_again_equals_fresh(context: Context, text: list[int]) -> None:
    fresh = last_row(context, 0, text[:12])
    context.clear(0)
    context.decode([Span(0, [*text[:8], *reversed(text[8:14])], [])])
    context.truncate(0, 8)
    assert list(context.tokens(0)) == text[:8]
    assert close(last_row(context, 0, text[8:12]), fresh)


def test_slots_do_not_see_each_other(context: Context, text: list[int]) -> None:
    alone = [last_row(context, slot, text[slot : slot + 9]) for slot in range(3)]
    for slot in range(3):
        context.clear(slot)
    spans = [Span(slot, text[slot : slot + 8], []) for slot in range(3)]
    context.decode(spans)
    together = context.decode([Span(slot, [text[slot + 8]], [0]) for slot in (2, 0, 1)])
    for slot, row in zip((2, 0, 1), together, strict=True):
        assert close(row, alone[slot])
    assert not close(alone[0], alone[1])


def test_one_slot_twice_in_a_pass(context: Context, text: list[int]) -> None:
    fresh = last_row(context, 0, text[:10])
    rows = context.decode([Span(1, text[:6], []), Span(1, text[6:10], [3])])
    assert list(context.tokens(1)) == text[:10]
    assert close(rows[0], fresh)


def test_copy_prefix(context: Context, text: list[int]) -> None:
    fresh = last_row(context, 0, [*text[:10], *text[15:18]])
    context.clear(0)
    context.decode([Span(0, text[:14], []), Span(3, text[:2], [])])
    context.copy_prefix(0, 3, 10)
    assert list(context.tokens(3)) == text[:10]
    consistent(context)
    assert close(last_row(context, 3, text[15:18]), fresh)
    context.clear(0)  # the copy does not hang on the original
    context.truncate(3, 10)
    assert close(last_row(context, 3, text[15:18]), fresh)


def test_copy_prefix_onto_itself_truncates(context: Context, text: list[int]) -> None:
    context.decode([Span(2, text[:6], [])])
    context.copy_prefix(2, 2, 4)
    assert list(context.tokens(2)) == text[:4]


def test_nothing_to_decode(context: Context) -> None:
    assert context.decode([]) == []
    assert context.decode([Span(0, [], [])]) == []


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span(0, [1] * 65, [])], "65 tokens in one decode, at most 64"),
        ([Span(0, [1] * 40, []), Span(1, [1] * 40, [])], "80 tokens"),
        ([Span(0, [1, -1], [])], "token -1 is outside the vocabulary"),
        ([Span(0, [1], []), Span(1, [10**6], [])], "token 1000000 is outside"),
        ([Span(0, [2**40], [])], "outside the vocabulary"),
        ([Span(4, [1], [])], "slot 4 does not exist"),
        ([Span(-1, [1], [])], "slot -1 does not exist"),
        ([Span(0, [1, 2], [2])], "rows"),
        ([Span(0, [1, 2], [-1])], "rows"),
        ([Span(0, [1, 2, 3], [1, 1])], "rows"),
        ([Span(0, [1, 2, 3], [2, 0])], "rows"),
        ([Span(0, [], [0])], "rows"),
        ([Span(0, [1] * 17, list(range(17)))], "17 rows asked of one decode, at most 16"),
    ],
)
def test_bad_spans_leave_the_context_usable(
    context: Context, text: list[int], spans: list[Span], message: str
) -> None:
    context.decode([Span(0, text[:5], [])])
    with pytest.raises(ValueError, match=message):
        context.decode(spans)
    assert list(context.tokens(0)) == text[:5]
    consistent(context)
    assert len(context.decode([Span(0, text[5:7], [1])])) == 1


@pytest.mark.parametrize(("slot", "length"), [(0, 6), (0, -1), (9, 0)])
def test_bad_truncation(context: Context, text: list[int], slot: int, length: int) -> None:
    context.decode([Span(0, text[:5], [])])
    with pytest.raises(ValueError, match=r"cannot keep|does not exist"):
        context.truncate(slot, length)
    assert list(context.tokens(0)) == text[:5]


def test_full_context(context: Context, text: list[int]) -> None:
    for slot in range(4):
        context.decode([Span(slot, [text[0]] * 64, [])])
        context.decode([Span(slot, [text[1]] * 63, [])])
    assert context.n_free == 4
    with pytest.raises(DecodeError, match="the context is full: 508 of 512 tokens are taken, 5 more"):
        context.decode([Span(0, text[:3], []), Span(1, text[:2], [])])
    consistent(context)
    context.decode([Span(2, text[:4], [3])])  # to the last cell
    assert context.n_free == 0
    context.copy_prefix(2, 3, 131)
    assert context.n_free == 127
    context.decode([Span(3, [text[0]] * 64, [])])
    context.decode([Span(3, [text[0]] * 63, [62])])  # to the last cell again
    with pytest.raises(DecodeError, match="full"):
        context.decode([Span(3, text[:1], [])])
    consistent(context)
    context.clear(2)  # slot 3 holds its cells, too
    assert context.n_free == 0
    context.clear(3)
    assert len(context.decode([Span(0, text[:2], [1])])) == 1


@pytest.mark.parametrize("code", [1, 2, -2, -3])
def test_a_failing_pass_is_taken_back(
    context: Context, text: list[int], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The pass runs and fills the cache, then reports a failure: the worst llama.cpp may do."""
    fresh = last_row(context, 1, text[:8])
    context.clear(1)
    context.decode([Span(0, text[:5], [])])
    real = capi.Batch.decode

    def failing(batch: capi.Batch, handle: capi.ContextHandle, count: int) -> int:
        assert real(batch, handle, count) == 0
        return code

    with monkeypatch.context() as patch:
        patch.setattr(capi.Batch, "decode", failing)
        with pytest.raises(DecodeError, match=r"llama\.cpp cannot decode 5 tokens"):
            context.decode([Span(0, text[5:8], [2]), Span(3, text[:2], [])])
    assert list(context.tokens(0)) == text[:5]
    assert list(context.tokens(3)) == []
    consistent(context)
    assert close(last_row(context, 0, text[5:8]), fresh)


def test_an_interrupt_is_taken_back(
    context: Context, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    context.decode([Span(0, text[:5], [])])

    def interrupted(*_: object) -> LogitsArray:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(capi, "logits_row", interrupted)
        with pytest.raises(KeyboardInterrupt):
            context.decode([Span(0, text[5:8], [0])])
    assert list(context.tokens(0)) == text[:5]
    consistent(context)


class _Bomb(list[int]):
    """Tokens that cannot be gone through any more once their KV is there."""

    def __init__(self, tokens: Sequence[int], context: Context, slot: int) -> None:
        super().__init__(tokens)
        self.context, self.slot = context, slot

    def __iter__(self) -> Iterator[int]:
        if self.context.cached_length(self.slot):
            raise KeyboardInterrupt
        return super().__iter__()


def test_an_interrupt_between_two_slots_is_taken_back(context: Context, text: list[int]) -> None:
    context.decode([Span(0, text[:5], [])])
    with pytest.raises(KeyboardInterrupt):  # slot 0 has its tokens by then, slot 1 not yet
        context.decode([Span(0, text[5:8], []), Span(1, _Bomb(text[:3], context, 1), [])])
    assert list(context.tokens(0)) == text[:5]
    assert list(context.tokens(1)) == []
    consistent(context)


@pytest.mark.parametrize(
    ("n_ctx", "n_slots", "n_outputs"),
    [(0, 1, 1), (-5, 1, 1), (2**40, 1, 1), (256, 0, 1), (256, 10**6, 1), (256, 1, 0)],
)
def test_bad_sizes(model: Model, n_ctx: int, n_slots: int, n_outputs: int) -> None:
    with pytest.raises(ConfigError, match="is not between"):
        Context(model, n_ctx, n_slots, n_outputs=n_outputs)


def test_size_is_rounded_up(model: Model) -> None:
    with Context(model, 1, options=RuntimeOptions(n_threads=1), n_outputs=1) as context:
        assert context.n_ctx == 256
        assert context.n_batch == 256


def test_longer_than_trained_is_cut_with_a_warning(model: Model) -> None:
    with pytest.warns(RuntimeWarning, match="more than the 8192 tokens"):
        context = Context(model, 8193, options=OPTIONS)
    assert context.n_ctx == 8192
    context.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"flash_attn": False},
        {"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"},
        {"flash_attn": True, "type_k": "bf16", "type_v": "bf16"},
        {"flash_attn": False, "type_k": "q8_0", "type_v": "f32"},
        {"n_threads": 2},
    ],
)
def test_options_change_little(
    context: Context, model: Model, text: list[int], changes: dict[str, object]
) -> None:
    expected = last_row(context, 0, text[:10])
    with Context(model, 256, options=OPTIONS.model_copy(update=changes)) as other:
        row = last_row(other, 0, text[:10])
    assert int(row.argmax()) == int(expected.argmax())


@pytest.mark.parametrize(
    ("changes", "n_slots", "used"),
    [
        ({}, 1, False),
        ({}, 2, "auto"),  # the plain attention would compute what the other slot holds, too
        ({"flash_attn": True}, 1, True),
        ({"flash_attn": False}, 2, False),
        ({"type_v": "q8_0"}, 1, "auto"),  # nothing else reads quantized values
    ],
)
def test_flash_attention_that_auto_comes_to(
    model: Model, changes: dict[str, object], n_slots: int, used: bool | str
) -> None:
    options = OPTIONS.model_copy(update={"flash_attn": "auto", **changes})
    settings = context_settings(model, 256, n_slots, options, 4)
    assert settings.flash_attn == capi.FLASH_ATTN[used]


def test_closed_context(model: Model, text: list[int]) -> None:
    context = Context(model, 256, options=OPTIONS)
    context.close()
    context.close()
    for call in (
        lambda: context.decode([Span(0, text[:1], [])]),
        lambda: context.truncate(0, 0),
        lambda: context.copy_prefix(0, 0, 0),
    ):
        with pytest.raises(EngineClosedError, match="was closed"):
            call()


def test_closing_the_model_closes_its_contexts(small_model: Path, text: list[int]) -> None:
    model = Model.load(small_model)
    context = Context(model, 256, options=OPTIONS)
    model.close()
    model.close()
    with pytest.raises(EngineClosedError):
        context.decode([Span(0, text[:1], [])])
