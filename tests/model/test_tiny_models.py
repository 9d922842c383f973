"""The runtime on every kind of memory that llama.cpp has, on tiny models made here: no file is needed.

A wrong cache shows in the logits, so each is held against a fresh computation of the same tokens. In F32 and
without flash attention the two differ by rounding alone, whatever the passes were.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from agentspec.chat.formats import HERMES
from agentspec.chat.template import ChatTemplate
from agentspec.config import DraftOptions, GenerationOptions
from agentspec.drafts.base import Draft, DraftRequest, Offer
from agentspec.drafts.grammar import GrammarDraft
from agentspec.engine.core import Core
from agentspec.engine.request import Request, Result
from agentspec.engine.stream import Channel, Stream
from agentspec.errors import CacheError, ConfigError, DecodeError
from agentspec.grammar.reply import compile_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.llama import Context, Model, capi
from agentspec.llama.gguf import read_gguf
from agentspec.types import AssistantTurn, BoundTool, Json, LogitsArray, Span, ToolTurn, UserTurn
from tests.model.tiny import OPTIONS
from tools.tiny_gguf import ARCHITECTURES, N_VOCAB, WINDOW, main, tiny_gguf

TOLERANCE = 1e-3  # rounding moves a logit by 4e-5 at most; one token of the window by 0.04 at least

CUTTABLE = ("llama", "cohere2")
WHOLE_ONLY = ("mamba", "lfm2")

Models = Callable[[str], Model]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """The model of an architecture, loaded once. The probe is left out: its process takes a second."""
    folder = tmp_path_factory.mktemp("tiny")
    loaded: dict[str, Model] = {}

    def load(arch: str) -> Model:
        if arch not in loaded:
            path = folder / f"{arch}.gguf"
            path.write_bytes(tiny_gguf(arch))
            loaded[arch] = Model.load_unprobed(read_gguf(path), OPTIONS, extra_bufts=False)
        return loaded[arch]

    yield load
    for model in loaded.values():
        model.close()


def some_tokens(count: int, *, seed: int = 0) -> list[int]:
    """Ordinary tokens: what they spell does not matter."""
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, count)]


class Fresh:
    """What the logits should be: computed from the first token on, in a cache of their own."""

    def __init__(self, model: Model) -> None:
        self._context = Context(model, 512, options=OPTIONS, n_outputs=1)

    def row(self, tokens: Sequence[int]) -> LogitsArray:
        """The row after `tokens`."""
        self._context.clear(0)
        for start in range(0, len(tokens) - 1, 100):
            self._context.decode([Span(0, tokens[start : min(start + 100, len(tokens) - 1)], [])])
        (row,) = self._context.decode([Span(0, tokens[-1:], [0])])
        return row

    def greedy(self, prompt: Sequence[int], count: int, end_ids: frozenset[int]) -> list[int]:
        """The reply of plain greedy decoding, one token a pass from the prompt's first token on."""
        self._context.clear(0)
        for token in prompt[:-1]:
            self._context.decode([Span(0, [token], [])])
        last, reply = prompt[-1], list[int]()
        while len(reply) < count and last not in end_ids:
            (row,) = self._context.decode([Span(0, [last], [0])])
            last = int(row.argmax())
            reply.append(last)
        return reply

    def close(self) -> None:
        self._context.close()


@pytest.fixture
def fresh(models: Models, arch: str) -> Iterator[Fresh]:
    with closing(Fresh(models(arch))) as computed:
        yield computed


@pytest.fixture
def context(models: Models, arch: str) -> Iterator[Context]:
    with Context(models(arch), 256, 4, OPTIONS, n_outputs=16) as made:
        yield made


def assert_right(context: Context, fresh: Fresh, slot: int, more: Sequence[int]) -> None:
    """Decodes `more` into the slot and holds the last row against a fresh computation."""
    (row,) = context.decode([Span(slot, more, [len(more) - 1])])
    assert np.abs(row - fresh.row(context.tokens(slot))).max() < TOLERANCE


def assert_consistent(context: Context) -> None:
    for slot in range(context.n_slots):
        assert context.cached_length(slot) == len(context.tokens(slot))


# --------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_same_arguments_make_the_same_small_file(arch: str) -> None:
    made = tiny_gguf(arch)
    assert made == tiny_gguf(arch)
    assert made != tiny_gguf(arch, seed=1)
    assert len(made) < 2**20


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    assert main(["--arch", "cohere2", "--seed", "3", "--window", "8", "-o", str(path)]) == 0
    assert path.read_bytes() == tiny_gguf("cohere2", seed=3, window=8)
    assert read_gguf(path).arch_value("attention.sliding_window") == 8
    with pytest.raises(ValueError, match="unknown architecture 'gpt5'; known: llama"):
        tiny_gguf("gpt5")


def test_the_vocabulary_spells_every_byte_and_has_merges(models: Models) -> None:
    vocab = models("llama").vocab
    text = '{"name": "get_weather", "arguments": {"city": "Köln"}}'.encode()
    tokens = vocab.tokenize(text, special=False)
    assert vocab.detokenize(tokens) == text
    assert len(tokens) < len(text) / 2
    assert vocab.n_tokens == N_VOCAB == len(set(vocab.pieces()))
    assert {bytes([byte]) for byte in range(256)} <= set(vocab.pieces())


def test_the_special_tokens_are_special(models: Models) -> None:
    vocab = models("llama").vocab
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    found = [vocab.special_id(name) for name in names]
    assert found == list(range(N_VOCAB - len(names), N_VOCAB))
    assert vocab.end_ids == {found[0], found[2]}
    assert vocab.eos_id == found[2]
    assert vocab.tokenize(b"<tool_call>", special=False) == [found[3]]


def test_the_chat_template_is_of_the_hermes_format(models: Models) -> None:
    template = ChatTemplate(models("llama").chat_template or "")
    assert template.wire_format is HERMES
    assert template.shows_tools
    tool = BoundTool("now", "The time.", {"type": "object", "properties": {}})
    call = AssistantTurn("", (("call_1", "now", {"zone": "UTC"}),))
    text = template.render([UserTurn("When?"), call, ToolTurn("12:00", "call_1")], [tool])
    assert text == (
        "<|im_start|>system\nYou can call functions:\n<tools>\n"
        '{"type": "function", "function": {"name": "now", "description": "The time.", '
        '"parameters": {"type": "object", "properties": {}}}}\n</tools><|im_end|>\n'
        "<|im_start|>user\nWhen?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# ------------------------------------------------------------------------------------------- contexts


@pytest.mark.parametrize("arch", ["mamba"])
def test_recurrent_memory_passes_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf(arch))
    with Model.load(path, OPTIONS) as model:
        assert model.architecture == arch
    assert len(list((tmp_path / "probes").iterdir())) == 1  # the child ran to its end


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rows_depend_on_every_token_that_the_memory_reaches(fresh: Fresh) -> None:
    """Else the tests below would prove little."""
    tokens = some_tokens(WINDOW)
    row = fresh.row(tokens)
    assert 1.0 < row.std() < 4.0
    for index in range(len(tokens)):
        changed = [*tokens[:index], tokens[index] ^ 1, *tokens[index + 1 :]]
        assert np.abs(row - fresh.row(changed)).max() > 10 * TOLERANCE


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_can_rewind_says_whether_a_part_can_be_removed(context: Context, arch: str) -> None:
    assert context.can_rewind is (arch in CUTTABLE)
    assert arch in CUTTABLE or arch in WHOLE_ONLY
    assert_consistent(context)
    assert context.n_free == context.n_ctx


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_many_calls_leave_right_rows_and_right_lengths(context: Context, fresh: Fresh) -> None:
    """Random calls in a small cache, which is refilled several times over."""
    random = np.random.default_rng(7)
    n_rows = 0
    for _ in range(120):
        slot, other = random.choice(context.n_slots, 2, replace=False).tolist()
        held = len(context.tokens(slot))
        match random.choice(["decode", "decode", "decode", "truncate", "copy", "copy all", "clear"]):
            case "decode":
                slots = sorted({slot, other})
                counts = random.integers(1, 81, len(slots)).tolist()
                if sum(counts) > context.n_free:
                    context.clear(slot)
                    continue
                spans = [
                    Span(one, random.integers(0, 256, count).tolist(), [count - 1])
                    for one, count in zip(slots, counts, strict=True)
                ]
                for one, row in zip(slots, context.decode(spans), strict=True):
                    assert np.abs(row - fresh.row(context.tokens(one))).max() < TOLERANCE
                    n_rows += 1
            case "truncate" if context.can_rewind:
                context.truncate(slot, int(random.integers(0, held + 1)))
            case "copy" if context.can_rewind:
                context.copy_prefix(slot, other, int(random.integers(0, held + 1)))
            case "copy all":
                context.copy_prefix(slot, other, held)
            case "clear":
                context.clear(slot)
        assert_consistent(context)
    assert n_rows > 40


@pytest.mark.parametrize("arch", WHOLE_ONLY)
def test_what_cannot_be_cut_says_so_and_stays_as_it_was(context: Context, fresh: Fresh) -> None:
    tokens = some_tokens(40)
    context.decode([Span(0, tokens, []), Span(1, tokens[:5], [])])
    for length in (39, 20, 1):
        with pytest.raises(CacheError, match="cannot remove"):
            context.truncate(0, length)
        with pytest.raises(CacheError, match="cannot share a part"):
            context.copy_prefix(0, 1, length)
    assert list(context.tokens(0)) == tokens
    assert list(context.tokens(1)) == tokens[:5]
    assert_consistent(context)
    assert_right(context, fresh, 0, some_tokens(3, seed=1))
    assert_right(context, fresh, 1, some_tokens(3, seed=1))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_copies_of_a_whole_slot_go_their_own_ways(context: Context, fresh: Fresh) -> None:
    tokens = some_tokens(40)
    context.decode([Span(0, tokens, [])])
    for slot in (1, 2):
        context.copy_prefix(0, slot, len(tokens))
    spans = [Span(slot, some_tokens(4, seed=slot), [3]) for slot in (2, 0, 1)]
    rows = context.decode(spans)
    for span, row in zip(spans, rows, strict=True):
        assert np.abs(row - fresh.row([*tokens, *span.tokens])).max() < TOLERANCE
    context.clear(0)
    assert_right(context, fresh, 1, some_tokens(4, seed=9))
    assert_consistent(context)


@pytest.mark.parametrize("arch", ["cohere2"])
def test_a_sliding_window_forgets_nothing_that_a_cut_may_need(context: Context, fresh: Fresh) -> None:
    """llama.cpp takes cells that no window reaches, even of other slots and in a cache of full size."""
    tokens, others = some_tokens(200), some_tokens(56, seed=1)
    context.decode([Span(0, tokens[:100], [])])
    context.decode([Span(1, others[:50], [])])
    context.decode([Span(0, tokens[100:], [])])
    context.clear(1)
    context.decode([Span(1, others, [])])  # six more than its old cells: the next ones are slot 0's
    assert_consistent(context)
    for length in (190, 120, 105, 60):
        context.truncate(0, length)
        assert_right(context, fresh, 0, tokens[length : length + 1])
    context.copy_prefix(0, 2, 30)
    assert_right(context, fresh, 2, some_tokens(2, seed=2))
    assert_consistent(context)


@pytest.mark.parametrize("arch", CUTTABLE)
def test_a_slot_of_many_windows_can_be_cut_anywhere(models: Models, fresh: Fresh, arch: str) -> None:
    tokens = some_tokens(900)
    with Context(models(arch), 1024, 2, OPTIONS, n_outputs=1) as context:
        for start in range(0, len(tokens), 150):
            context.decode([Span(0, tokens[start : start + 150], [])])
        for length in (450, 20):
            context.truncate(0, length)
            assert_right(context, fresh, 0, some_tokens(2, seed=1))


@pytest.mark.parametrize("arch", ["cohere2"])
def test_a_sliding_window_takes_half_the_slots(models: Models, arch: str) -> None:
    most = capi.max_sequences() // 2
    with Context(models(arch), 256, most, OPTIONS, n_outputs=1) as context:
        context.decode([Span(most - 1, [1, 2, 3], [2])])
        assert_consistent(context)
    with pytest.raises(ConfigError, match=f"not between 1 and {most}"):
        Context(models(arch), 256, most + 1, OPTIONS)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_failed_pass_leaves_nothing_behind(
    context: Context, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass runs, then reports a failure. A slot that cannot go back is empty after it."""
    tokens = some_tokens(30)
    context.decode([Span(0, tokens, []), Span(1, tokens, [])])
    real = capi.Batch.decode

    def failing(batch: capi.Batch, handle: capi.ContextHandle, count: int) -> int:
        assert real(batch, handle, count) == 0
        return -3

    with monkeypatch.context() as patch:
        patch.setattr(capi.Batch, "decode", failing)
        with pytest.raises(DecodeError):
            context.decode([Span(0, some_tokens(3, seed=1), [])])
    assert list(context.tokens(0)) == (tokens if context.can_rewind else [])
    assert list(context.tokens(1)) == tokens
    assert_consistent(context)
    for slot in (0, 1):
        assert_right(context, fresh, slot, some_tokens(3, seed=2))


# --------------------------------------------------------------------------------------------- engine


def request(prompt: Sequence[int], *, sources: tuple[str, ...] = (), max_tokens: int = 24) -> Request:
    return Request(
        prompt=tuple(prompt),
        generation=GenerationOptions(max_tokens=max_tokens, seed=0),
        draft=DraftOptions.parse({"sources": sources}),
    )


def run(core: Core, *requests: Request) -> list[tuple[list[int], Result]]:
    """The replies' tokens and results; the requests run side by side."""
    channels = [Channel() for _ in requests]
    for one, channel in zip(requests, channels, strict=True):
        core.add(one, channel)
    while core.busy():
        core.step()
    replies = []
    for stream in map(Stream, channels):
        tokens = [token for step in stream for token in step.tokens]
        replies.append((tokens, stream.result))
    return replies


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_replies_are_those_of_decoding_by_hand(models: Models, context: Context, fresh: Fresh) -> None:
    """Prompts that share a beginning, in turn and side by side: each gets what it gets alone."""
    vocab = models(context.model.architecture).vocab
    start = some_tokens(30)
    prompts = [[*start, *some_tokens(4, seed=seed)] for seed in range(1, 5)]
    expected = [fresh.greedy(prompt, 24, vocab.end_ids) for prompt in prompts]
    core = Core(context, vocab, [])
    in_turn = [run(core, request(prompt))[0] for prompt in prompts]
    assert [tokens for tokens, _ in in_turn] == expected
    side_by_side = run(core, *map(request, prompts))
    assert [tokens for tokens, _ in side_by_side] == expected
    assert len({tuple(tokens) for tokens in expected}) == len(expected)
    reused = [result.trace.prefill_reused for _, result in in_turn[1:]]
    assert reused == [len(start)] * 3 if context.can_rewind else reused == [0] * 3
    assert_consistent(context)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_conversation_goes_on_in_its_slot(models: Models, context: Context, fresh: Fresh) -> None:
    """Nothing has to be cut for that, so recurrent memory keeps its state from turn to turn."""
    vocab = models(context.model.architecture).vocab
    core = Core(context, vocab, [])
    prompt = some_tokens(30)
    ((reply, _),) = run(core, request(prompt))
    turn = [*prompt, *reply, *some_tokens(5, seed=3)]
    ((again, result),) = run(core, request(turn))
    assert again == fresh.greedy(turn, 24, vocab.end_ids)
    assert result.trace.prefill_reused == len(prompt) + len(reply) - 1  # the last token was never decoded


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_enforced_call_is_complete_with_a_draft_and_without(models: Models, context: Context) -> None:
    """Forced tokens need no logits, so they cost no pass where drafting is off either."""
    vocab = models(context.model.architecture).vocab
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {"room": {"enum": ["hall", "kitchen"]}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
        "additionalProperties": False,
    }
    tool = BoundTool("set_light", "Sets a light.", schema)
    grammar = compile_reply(GrammarTokenizer(vocab), HERMES, [tool], "required", parallel=False)
    assert grammar is not None
    core = Core(context, vocab, [GrammarDraft()])
    texts = []
    for sources in ((), ("grammar",)):
        asked = dataclasses.replace(
            request(some_tokens(20), sources=sources, max_tokens=80), matcher=grammar.start()
        )
        ((tokens, result),) = run(core, asked)
        assert result.complete
        assert (result.trace.target_passes < 8) is bool(sources)
        texts.append(vocab.detokenize(tokens).decode())
    assert texts[0] == texts[1]
    call = json.loads(texts[0].removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert call["name"] == "set_light"
    assert call["arguments"]["room"] in ("hall", "kitchen")


class Certain(Draft):
    """Proposes the replies it was given, each with a wrong token in it, as if it were certain of them."""

    name = "grammar"

    def __init__(self, prompt: Sequence[int], reply: Sequence[int]) -> None:
        self._reply, self._n_prompt = [*reply], len(prompt)
        self._reply[len(reply) // 2] ^= 1
        self.asked = 0

    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        self.asked += len(requests)
        left = [self._reply[len(one.prefix) - self._n_prompt :] for one in requests]
        return [Offer(tokens, [1.0] * len(tokens)) if tokens else None for tokens in left]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_draft_changes_no_reply(
    models: Models, context: Context, fresh: Fresh, caplog: pytest.LogCaptureFixture
) -> None:
    """Rejected tokens are taken back where they can be; where not, none are proposed, with one warning."""
    vocab = models(context.model.architecture).vocab
    prompt = some_tokens(50)
    expected = fresh.greedy(prompt, 24, vocab.end_ids)
    draft = Certain(prompt, expected)
    core = Core(context, vocab, [draft])
    for _ in range(2):
        ((tokens, result),) = run(core, request(prompt, sources=("grammar",)))
        assert tokens == expected
        if context.can_rewind:
            count = result.trace.sources["grammar"]
            assert 0 < count.accepted < count.proposed
            assert result.trace.target_passes < len(expected)
        else:
            assert result.trace.sources == {}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    off = "the target's memory cannot go back (recurrent or hybrid): drafting is off"
    assert warnings == ([] if context.can_rewind else [off])
    assert (draft.asked > 0) is context.can_rewind
    assert_consistent(context)
