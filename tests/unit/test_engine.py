"""The engine's machinery on toy models: limits, streams, cancelling, sharing, failing."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentspec.chance import SeededRandomness
from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest, Offer
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.engine import Engine
from agentspec.engine.request import Request
from agentspec.engine.rules import SampledRule
from agentspec.engine.stream import Channel, Stream
from agentspec.errors import (
    CacheError,
    ConfigError,
    ContextLengthError,
    DeadlineExceededError,
    DecodeError,
    EngineClosedError,
    EngineError,
    GrammarError,
    QueueFullError,
)
from agentspec.law import point_mass, probabilities, probability_of
from agentspec.snapshots import Snapshots
from agentspec.testing import TableModel, TableVocab, TrieMatcher, random_rows
from agentspec.types import LogitsArray, Proposal, Span, State
from agentspec.verify import Laws, Verdict
from tests.unit.sources import Source, sure

N_VOCAB = 6
PIECES = ["a", "b", "c", "d", "e", "<end>"]


def model(**settings: int) -> TableModel:
    return TableModel(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, **settings)  # type: ignore[arg-type]


def vocab(*, end: bool = False) -> TableVocab:
    return TableVocab(PIECES, end_ids=[5] if end else [])


def request(
    prompt: Sequence[int] = (0, 1, 2),
    *,
    max_tokens: int = 8,
    stop: tuple[str, ...] = (),
) -> Request:
    return Request(
        prompt=tuple(prompt),
        sampling=SamplingOptions(temperature=0.0),
        generation=GenerationOptions(max_tokens=max_tokens, stop=stop, seed=7),
    )


def perfect_draft() -> ModelDraft:
    """The target as its own draft."""
    return ModelDraft(model(), n_vocab=N_VOCAB)


def drafted(target: TableModel, *drafts: Draft) -> Core:
    """A core whose drafts propose whatever has a chance."""
    return Core(target, vocab(), drafts, costs=Costs.free())


def run(core: Core, *requests: Request) -> list[Stream]:
    channels = [Channel() for _ in requests]
    for one, channel in zip(requests, channels, strict=True):
        core.add(one, channel)
    while core.busy():
        core.step()
    return [Stream(channel) for channel in channels]


def tokens(stream: Stream) -> list[int]:
    return [token for step in stream for token in step.tokens]


def greedy(table: TableModel, prompt: Sequence[int], count: int) -> list[int]:
    reply: list[int] = []
    for _ in range(count):
        reply.append(int(table.logits([*prompt, *reply]).argmax()))
    return reply


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(Core(model(n_ctx=4096), vocab())) as made:
        yield made


# ---------------------------------------------------------------------------------------- snapshots


def test_a_new_engine_finds_what_an_earlier_one_kept(tmp_path: Path) -> None:
    """Of the target and of its draft: only the rest of the prompt is computed."""
    head = tuple(index % 5 for index in range(70))
    draft_prefilled = []
    for process in range(2):
        target, draft = model(n_ctx=512), model(n_ctx=512)
        stores = [Snapshots(tmp_path, name) for name in ("target", "draft")]
        core = Core(
            target,
            vocab(),
            [ModelDraft(draft, n_vocab=N_VOCAB, snapshots=stores[1])],
            costs=Costs.free(),
            snapshots=stores[0],
        )
        prompt = (*head, process, 1, 2)
        (stream,) = run(core, replace(request(prompt), n_stable=len(head)))
        assert tokens(stream) == greedy(model(), prompt, 8)
        trace = stream.result.trace
        assert (trace.prefill_reused, trace.prefill_computed) == ((0, 73), (70, 3))[process]
        draft_prefilled.append(draft.passes)
        for store in stores:
            store.close()
    assert len(list(tmp_path.glob("*.kv"))) == 2
    assert draft_prefilled[1] < draft_prefilled[0]  # 70 tokens are three passes


def test_a_prompt_that_failed_is_not_kept(tmp_path: Path) -> None:
    class Broken(TableModel):
        def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
            raise DecodeError(f"broken at {len(spans)} spans")

    store = Snapshots(tmp_path, "target")
    core = Core(Broken(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, n_ctx=512), vocab(), snapshots=store)
    (stream,) = run(core, replace(request([1] * 80), n_stable=70))
    with pytest.raises(DecodeError):
        tokens(stream)
    store.close()
    assert not list(tmp_path.iterdir())


def test_a_snapshot_that_cannot_be_taken_fails_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stateless(TableModel):
        def state(self, slot: int, length: int) -> State:
            raise CacheError(f"no state of {length} tokens of slot {slot}")

    store = Snapshots(tmp_path, "target")
    core = Core(Stateless(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, n_ctx=512), vocab(), snapshots=store)
    (stream,) = run(core, replace(request([1] * 80), n_stable=70))
    assert len(tokens(stream)) == 8
    assert "no snapshot of a prompt was stored: no state of 70 tokens" in caplog.text


# ------------------------------------------------------------------------------------------ replies


def test_a_greedy_reply_is_the_argmax_chain_with_and_without_drafts() -> None:
    expected = greedy(model(), (0, 1, 2), 8)
    for drafts in ([], [GrammarDraft(), perfect_draft()]):
        (stream,) = run(drafted(model(), *drafts), request())
        assert tokens(stream) == expected
        assert stream.result.finish_reason == "length"
        assert not stream.result.complete


def test_a_perfect_draft_saves_passes() -> None:
    peaked = random_rows(N_VOCAB, seed=1, scale=30.0)  # the draft is sure of all it says
    target = TableModel(peaked, n_vocab=N_VOCAB)
    draft = ModelDraft(TableModel(peaked, n_vocab=N_VOCAB), n_vocab=N_VOCAB)
    (stream,) = run(drafted(target, draft), request())
    trace = stream.result.trace
    assert trace.target_passes == target.passes == 1
    assert trace.sources["model"].accepted == trace.sources["model"].proposed == 7
    assert trace.accepted_lengths == {8: 1}


def test_an_end_token_ends_the_reply_and_spells_nothing() -> None:
    table = TableModel(lambda prefix: [0, 0, 0, 0, 0, 9.0 if len(prefix) == 5 else -9], n_vocab=N_VOCAB)
    (stream,) = run(Core(table, vocab(end=True)), request())
    steps = list(stream)
    assert b"".join(step.data for step in steps) == b"aa"
    assert steps[-1].tokens == (5,)
    assert stream.result.finish_reason == "stop"
    assert stream.result.complete


def test_control_tokens_are_spelled_where_they_are_asked_for() -> None:
    class Hiding(TableVocab):
        def token_bytes(self, token: int) -> bytes:
            return b"" if token in (0, 1) else super().token_bytes(token)

    rows = TableModel(
        lambda prefix: [9.0 if token == len(prefix) % 3 else 0 for token in range(N_VOCAB)], n_vocab=N_VOCAB
    )
    asked = request(max_tokens=6)
    for shown, text in ((frozenset[int](), b"cc"), (frozenset({1}), b"bcbc")):
        (stream,) = run(Core(rows, Hiding(PIECES, end_ids=[])), replace(asked, shown=shown))
        assert b"".join(step.data for step in stream) == text


def test_a_stop_string_is_cut_off() -> None:
    text = "".join(PIECES[token] for token in greedy(model(), (0, 1, 2), 8))
    (stream,) = run(Core(model(), vocab()), request(stop=(text[3:5],)))
    assert b"".join(step.data for step in stream).decode() == text[: text.index(text[3:5])]
    assert stream.result.finish_reason == "stop"


def test_a_forced_reply_needs_no_pass_at_all() -> None:
    target = model()
    one = Request(prompt=(0,), matcher=TrieMatcher([(1, 2, 3)]), law="enforce/canonical")
    (stream,) = run(drafted(target, GrammarDraft()), one)
    assert tokens(stream) == [1, 2, 3]
    assert stream.result.complete
    assert stream.result.trace.target_passes == target.passes == 0


def test_without_drafts_every_token_costs_a_pass() -> None:
    """The baseline is plain decoding: it skips no forced token."""
    target = model()
    one = Request(prompt=(0,), matcher=TrieMatcher([(1, 2, 3)]), draft=DraftOptions(sources=()))
    (stream,) = run(drafted(target, GrammarDraft()), one)
    assert tokens(stream) == [1, 2, 3]
    assert target.passes == stream.result.trace.target_passes == 3
    assert stream.result.trace.sources == {}


# ----------------------------------------------------------------------------------- context and KV


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    core = Core(model(n_ctx=16), vocab())
    with pytest.raises(ContextLengthError, match="16") as caught:
        core.check(request([0] * 16))
    assert (caught.value.prompt_tokens, caught.value.n_ctx) == (16, 16)
    with pytest.raises(ValueError, match="empty"):
        core.check(request(()))


def test_a_reply_ends_where_the_context_does() -> None:
    (stream,) = run(Core(model(n_ctx=16), vocab()), request([0] * 10, max_tokens=50))
    assert len(tokens(stream)) == 6
    assert stream.result.finish_reason == "length"


def test_the_second_turn_reuses_the_first() -> None:
    core = Core(model(), vocab())
    (first,) = run(core, request())
    reply = tokens(first)
    (second,) = run(core, request([0, 1, 2, *reply, 3]))
    trace = second.result.trace
    assert trace.prefill_reused == 3 + len(reply) - 1  # the last token's KV was never needed
    assert trace.prefill_computed == 2
    assert tokens(second) == greedy(model(), [0, 1, 2, *reply, 3], 8)


def test_a_long_prompt_is_loaded_in_chunks() -> None:
    prompt = [token % 5 for token in range(50)]
    target = model(n_ctx=128, n_batch=8)
    (stream,) = run(Core(target, vocab()), request(prompt, max_tokens=2))
    assert tokens(stream) == greedy(model(), prompt, 2)
    assert stream.result.trace.prefill_computed == 50


def test_memory_that_cannot_go_back_starts_afresh() -> None:
    table = TableModel(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, n_slots=1, can_rewind=False)
    core = Core(table, vocab())
    run(core, request([0, 1, 2, 3]))
    (second,) = run(core, request([0, 1, 4]))
    assert tokens(second) == greedy(model(), [0, 1, 4], 8)
    assert second.result.trace.prefill_reused == 0


def test_more_requests_than_slots_all_get_their_own_reply() -> None:
    prompts = [(start, (start + 1) % 5) for start in range(5)]
    core = drafted(model(n_slots=2), perfect_draft())
    streams = run(core, *(request(prompt) for prompt in prompts))
    for prompt, stream in zip(prompts, streams, strict=True):
        assert tokens(stream) == greedy(model(), prompt, 8)


def test_idle_slots_make_room_for_a_request_that_needs_it() -> None:
    core = Core(model(n_ctx=32, n_slots=2), vocab())
    run(core, request([0] * 12), request([1] * 12, max_tokens=3))
    (stream,) = run(core, request([2] * 20, max_tokens=12))
    assert tokens(stream) == greedy(model(), [2] * 20, 12)


@pytest.mark.parametrize("n_batch", [8, 16])
def test_small_batches_serve_everybody(n_batch: int) -> None:
    prompts = [[start] * 9 for start in range(4)]
    core = Core(model(n_ctx=256, n_batch=n_batch, n_slots=4), vocab())
    for prompt, stream in zip(prompts, run(core, *map(request, prompts)), strict=True):
        assert tokens(stream) == greedy(model(), prompt, 8)


def test_a_loading_prompt_is_not_starved_by_a_running_reply() -> None:
    core = Core(model(n_ctx=400, n_batch=8), vocab())
    running, loading = Channel(), Channel()
    core.add(request(max_tokens=300), running)
    core.step()
    core.add(request([1] * 40, max_tokens=2), loading)
    while loading.result is None:
        core.step()
    assert running.result is None
    assert tokens(Stream(loading)) == greedy(model(), [1] * 40, 2)


def test_more_sequences_than_rows_take_turns() -> None:
    """Blocks use up the rows of a pass: who is left over has nothing to decode, and comes first the next."""
    target = model(n_ctx=512, n_batch=64, n_outputs=16, n_slots=8)
    prompts = [(start % 5, start // 5) for start in range(8)]
    draft = ModelDraft(model(n_slots=8), n_vocab=N_VOCAB)
    streams = run(drafted(target, draft), *(request(prompt) for prompt in prompts))
    for prompt, stream in zip(prompts, streams, strict=True):
        assert tokens(stream) == greedy(model(), prompt, 8)


@pytest.mark.parametrize("drafts", [[], [GrammarDraft()]])
def test_without_drafts_every_sequence_has_its_token_in_every_pass(drafts: list[Draft]) -> None:
    """Also where drafts are there and the requests do not want them: no room is kept for blocks."""
    target = model(n_ctx=512, n_batch=16, n_outputs=16, n_slots=8)
    requests = [replace(request((start % 5,)), draft=DraftOptions(sources=())) for start in range(8)]
    run(drafted(target, *drafts), *requests)
    assert target.passes == 8


@pytest.mark.parametrize(
    ("seconds", "chunk"),
    [
        (lambda _: 1.0, 500),  # a pass takes the same time at every size: all of it at once
        (lambda n: 1.0 + n / 100, 256),
        (float, 32),  # the least, or a prompt would never be loaded
    ],
)
def test_a_long_prompt_does_not_hold_up_a_running_reply(seconds: Callable[[int], float], chunk: int) -> None:
    """A pass with a part of it takes at most five times as long as one without."""
    target = model(n_ctx=1000, n_batch=512)
    core = Core(target, vocab(), costs=Costs.given(seconds))
    core.add(request(max_tokens=50), Channel())
    core.step()
    core.add(request([1] * 500, max_tokens=2), Channel())
    core.step()
    assert [len(target.tokens(slot)) for slot in range(2)] == [4, chunk]


def test_several_long_prompts_do_not_hold_it_up_either() -> None:
    """Who was left out of a pass comes first in the next, and gets no more than its turn then."""
    target = model(n_ctx=4000, n_batch=512, n_slots=4)
    core = Core(target, vocab(), costs=Costs.given(float))
    running = Channel()
    core.add(request(max_tokens=200), running)
    core.step()
    for start in range(3):
        core.add(request([start, *[1] * 300], max_tokens=2), Channel())
    held = sum(len(target.tokens(slot)) for slot in range(4))
    while core.busy() and running.result is None:
        core.step()
        now = sum(len(target.tokens(slot)) for slot in range(4))
        assert now - held <= 32 + 3 * 16  # the last few tokens of a prompt come with its block
        held = now
    assert [len(target.tokens(slot)) for slot in range(1, 4)] == [302] * 3


def test_every_reply_has_a_block_in_every_pass() -> None:
    """The rows of a pass are shared out: eight replies of eight tokens take as many passes as one."""
    peaked = random_rows(N_VOCAB, seed=1, scale=30.0)
    target = TableModel(peaked, n_vocab=N_VOCAB, n_ctx=512, n_batch=128, n_outputs=64, n_slots=8)
    draft = TableModel(peaked, n_vocab=N_VOCAB, n_ctx=512, n_batch=128, n_slots=8)
    core = drafted(target, ModelDraft(draft, n_vocab=N_VOCAB))
    streams = run(core, *(request((start % 5, start // 5)) for start in range(8)))
    assert {stream.result.trace.target_passes for stream in streams} == {1}
    assert target.passes == 1


def test_probes_are_paid_for_by_replies_that_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of what they would take undrafted; prompts and other replies earn nothing."""
    core = Core(
        model(n_ctx=4000, n_batch=512), vocab(), [Source("a", None)], costs=Costs.given(lambda n: 1.0 + n)
    )
    earned: list[float] = []
    monkeypatch.setattr(core._planner, "passed", earned.append)
    run(core, replace(request([1] * 400, max_tokens=5), draft=DraftOptions(sources=())))
    assert not earned
    run(core, replace(request([2] * 400, max_tokens=5), draft=DraftOptions(sources=("a",))))
    assert earned == [2.0] * 4  # the last token needs no block


# --------------------------------------------------------------------------------- prompts that are shared


def test_prompts_that_come_at_once_are_computed_once() -> None:
    """The first request loads what they share, the others wait for that part and no longer."""
    head = [token % 5 for token in range(200)]
    prompts = [[*head, last, 1, last] for last in range(4)]
    target = model(n_ctx=1024, n_batch=64, n_slots=4)
    streams = run(Core(target, vocab()), *map(request, prompts))
    for prompt, stream in zip(prompts, streams, strict=True):
        assert tokens(stream) == greedy(model(), prompt, 8)
    computed = sorted(stream.result.trace.prefill_computed for stream in streams)
    assert computed[-1] == 203
    assert computed[:-1] == [3, 3, 3]


def test_who_waits_to_share_lets_others_pass() -> None:
    head = [token % 5 for token in range(200)]
    target = model(n_ctx=1024, n_batch=64, n_slots=3)
    core = Core(target, vocab())
    first, waits, passes = Channel(), Channel(), Channel()
    core.add(request([*head, 1]), first)
    core.step()
    core.add(request([*head, 2]), waits)
    core.add(request([4, 3, 2], max_tokens=2), passes)
    core.step()
    assert core.n_waiting == 1
    while core.busy():
        core.step()
    assert tokens(Stream(waits)) == greedy(model(), [*head, 2], 8)
    assert tokens(Stream(passes)) == greedy(model(), [4, 3, 2], 2)


def test_what_prompts_share_takes_room_once() -> None:
    """Four agents with the same 60 tokens of tools, in a context of 100: all at once."""
    head = [token % 5 for token in range(60)]
    prompts = [[*head, last] for last in range(4)]
    target = model(n_ctx=100, n_slots=4)
    core = Core(target, vocab())
    run(core, request(head, max_tokens=1))
    passes = target.passes
    streams = run(core, *map(request, prompts))
    for prompt, stream in zip(prompts, streams, strict=True):
        assert tokens(stream) == greedy(model(), prompt, 8)
    assert target.passes == passes + 8


@pytest.mark.parametrize("seed", range(20))
def test_whatever_shares_a_small_context_no_pass_lacks_room(seed: int) -> None:
    """Conversations that branch off each other, go on and come back, in a context that holds few of them."""
    chance = random.Random(seed)
    heads = [[chance.randrange(5) for _ in range(30)] for _ in range(3)]
    target = model(n_ctx=64 + chance.randrange(40), n_slots=4)
    draft = ModelDraft(model(n_ctx=64, n_slots=4), n_vocab=N_VOCAB)
    core = drafted(target, draft)
    talks = [list(chance.choice(heads)[: chance.randrange(1, 31)]) for _ in range(8)]
    for _ in range(4):
        chosen = chance.sample(talks, 6)
        requests = [request(talk, max_tokens=chance.randrange(1, 12)) for talk in chosen]
        for talk, one, stream in zip(chosen, requests, run(core, *requests), strict=True):
            reply = tokens(stream)
            assert reply == greedy(model(), talk, one.generation.max_tokens)
            talk += [*reply, chance.randrange(5)]
        talks = [talk if len(talk) < 50 else talk[: chance.randrange(1, 40)] for talk in talks]
    assert target.n_cells((slot, len(target.tokens(slot))) for slot in range(4)) <= target.n_ctx


def test_short_prompts_do_not_wait_for_one_another() -> None:
    target = model(n_ctx=512, n_batch=16, n_slots=2)
    core = Core(target, vocab())
    for last in range(2):
        core.add(request([*[1] * 40, last]), Channel())
    core.step()
    assert core.n_waiting == 0


def test_where_the_first_one_fails_the_next_one_loads() -> None:
    head = [token % 5 for token in range(200)]

    class FailsOnce(TableModel):
        failed = False

        def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
            if self.passes == 1 and not self.failed:
                self.failed = True
                raise DecodeError(f"failed at {len(spans)} spans")
            return super().decode(spans)

    target = FailsOnce(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, n_ctx=1024, n_batch=64)
    first, second = run(Core(target, vocab()), request([*head, 1]), request([*head, 2]))
    with pytest.raises(DecodeError):
        tokens(first)
    assert tokens(second) == greedy(model(), [*head, 2], 8)


# -------------------------------------------------------------------------------------- bounds and deadlines


def test_more_requests_than_may_wait_are_refused() -> None:
    entered, release = threading.Event(), threading.Event()

    class Held(TableModel):
        def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
            entered.set()
            assert release.wait(timeout=60)
            return super().decode(spans)

    target = Held(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, n_ctx=512)
    with Engine(Core(target, vocab()), max_waiting=3) as made:
        try:
            taken = [made.submit(request())]
            assert entered.wait(timeout=60)
            taken += [made.submit(request()) for _ in range(3)]
            with pytest.raises(QueueFullError, match=r"3 requests are waiting already\n.*max_waiting"):
                made.submit(request())
        finally:
            release.set()
        for stream in taken:
            assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
        assert tokens(made.submit(request())) == greedy(model(), (0, 1, 2), 8)  # there is room again


def timed(seconds: float) -> Request:
    made = request()
    return replace(made, generation=made.generation.model_copy(update={"timeout": seconds}))


def test_a_reply_that_takes_too_long_fails_and_gives_its_slot_back() -> None:
    core = Core(model(n_slots=1), vocab())
    late, next_ = Channel(), Channel()
    core.add(timed(3600.0), late)
    core.step()
    late.created -= 3601.0
    core.add(request(), next_)
    while core.busy():
        core.step()
    assert tokens(Stream(next_)) == greedy(model(), (0, 1, 2), 8)
    stream = Stream(late)
    assert len(next(stream).tokens) == 1  # what came in time is there
    with pytest.raises(DeadlineExceededError, match="timeout=3600 seconds: stopped after 1 tokens"):
        next(stream)


def test_a_request_that_waits_too_long_fails_without_a_pass() -> None:
    target = model(n_slots=1)
    core = Core(target, vocab())
    waiting = Channel()
    core.add(request(), Channel())
    core.add(timed(3600.0), waiting)
    core.step()
    waiting.created -= 3601.0
    core.step()
    with pytest.raises(DeadlineExceededError, match="while the request was waiting"):
        next(Stream(waiting))
    while core.busy():
        core.step()
    assert target.passes == 8


def test_within_its_timeout_a_reply_is_whole() -> None:
    (stream,) = run(Core(model(), vocab()), timed(3600.0))
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)


# ---------------------------------------------------------------------------------- seeds and counts


def drawn(*, seed: int | None, drafts: Sequence[Draft] = ()) -> Stream:
    warm = Request(
        prompt=(0, 1),
        sampling=SamplingOptions(temperature=1.5),
        generation=GenerationOptions(max_tokens=12, seed=seed),
    )
    (stream,) = run(Core(model(), vocab(), drafts), warm)
    return stream


def test_the_seed_decides_the_reply() -> None:
    """Twelve tokens of a warm law: two seeds give one reply by chance once in 10^6 or less."""
    assert tokens(drawn(seed=1)) == tokens(drawn(seed=1))
    assert tokens(drawn(seed=1)) != tokens(drawn(seed=2))
    first, second = drawn(seed=None), drawn(seed=None)
    assert first.result.trace.seed != second.result.trace.seed
    assert tokens(drawn(seed=first.result.trace.seed)) == tokens(first)


def test_each_request_of_a_set_has_its_own_seed() -> None:
    core = Core(model(n_slots=2), vocab())
    options = [GenerationOptions(max_tokens=12, seed=seed) for seed in (1, 2)]
    warm = SamplingOptions(temperature=1.5)
    both = run(core, *(Request((0, 1), sampling=warm, generation=one) for one in options))
    assert [tokens(stream) for stream in both] == [tokens(drawn(seed=1)), tokens(drawn(seed=2))]


def test_a_seed_gives_the_same_reply_whatever_else_runs() -> None:
    """Others share its passes, which leaves its blocks less room."""

    def seeded(seed: int) -> Request:
        return Request(
            (0, seed % 5, 1),
            sampling=SamplingOptions(temperature=1.5),
            generation=GenerationOptions(max_tokens=12, seed=seed),
            draft=DraftOptions(verifier="seed_invariant"),
        )

    def core(n_slots: int) -> Core:
        draft = TableModel(random_rows(N_VOCAB, seed=2), n_vocab=N_VOCAB, n_ctx=512, n_slots=n_slots)
        return drafted(model(n_ctx=512, n_slots=n_slots), ModelDraft(draft, n_vocab=N_VOCAB))

    alone = [tokens(run(core(1), seeded(seed))[0]) for seed in range(6)]
    for n_slots in (2, 6):
        assert [tokens(stream) for stream in run(core(n_slots), *map(seeded, range(6)))] == alone


def test_the_model_draft_is_rationed() -> None:
    options = DraftOptions(max_block=8, max_model_tokens=2)
    one = Request((0, 1, 2), draft=options, generation=GenerationOptions(max_tokens=7))
    (stream,) = run(drafted(model(), perfect_draft()), one)
    assert stream.result.trace.accepted_lengths == {3: 2, 1: 1}


def test_what_a_stop_string_cuts_off_is_not_counted() -> None:
    text = "".join(PIECES[token] for token in greedy(model(), (0, 1, 2), 8))
    counts = []
    for drafts in ([], [perfect_draft()]):
        (stream,) = run(drafted(model(), *drafts), request(stop=(text[2:4],)))
        counts.append((stream.result.trace.tokens, len(tokens(stream))))
    assert counts[0] == counts[1]


def test_prompt_tokens_are_counted_once_however_they_are_loaded() -> None:
    for n_batch in (8, 16, 64):
        (stream,) = run(drafted(model(n_ctx=128, n_batch=n_batch), perfect_draft()), request([1] * 30))
        assert stream.result.trace.prefill_computed == 30


# ------------------------------------------------------------------------------------------ failing


class BrokenSession(TableModel):
    """Fails on the decodes whose numbers are listed."""

    def __init__(self, *, failing: set[int]) -> None:
        super().__init__(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB)
        self._failing = failing
        self._count = 0

    def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
        self._count += 1
        if self._count in self._failing:
            raise DecodeError("llama.cpp refused the batch")
        return super().decode(spans)


def test_a_failing_target_fails_the_reply_and_not_the_next() -> None:
    core = Core(BrokenSession(failing={3}), vocab())
    (first,) = run(core, request())
    with pytest.raises(DecodeError):
        tokens(first)
    (second,) = run(core, request())
    assert tokens(second) == greedy(model(), (0, 1, 2), 8)


def test_a_failing_draft_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    broken = ModelDraft(BrokenSession(failing={1, 2, 3}), n_vocab=N_VOCAB)
    (stream,) = run(drafted(model(), broken), request())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'model' failed" in caplog.text
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    assert stream.result.trace.draft_failures == {"model": 3}


def test_a_block_that_cannot_be_verified_fails_the_reply_not_the_engine() -> None:
    class Impossible(SampledRule):
        def verify(self, block: Sequence[Proposal], target_probs: Laws, position: int) -> Verdict:
            raise ValueError(f"{len(block)} tokens at {position}, {len(target_probs)} laws")

    core = Core(model(), vocab(), rules=lambda _, seed: Impossible(SeededRandomness(seed)))
    (stream,) = run(core, request())
    with pytest.raises(EngineError, match="0 tokens at 0, 1 laws"):
        tokens(stream)
    assert not core.busy()


def test_what_a_draft_proposes_too_much_is_left_out() -> None:
    (stream,) = run(drafted(model(), Source("model", sure(0.99, *[1] * 60))), request())
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    assert 0 < stream.result.trace.sources["model"].proposed <= 7 * 8


def test_a_draft_may_fail_in_any_way(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ModelDraft):
        def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
            raise KeyError(len(requests))

    (stream,) = run(drafted(model(), Broken(model(), n_vocab=N_VOCAB)), request())
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    assert "KeyError(1)" in caplog.text


def test_a_source_that_is_not_there_cannot_be_chosen() -> None:
    """Those of the package may be missing: there is none of the draft model without one."""
    core = drafted(model(), Source("mine", None))
    core.check(replace(request(), draft=DraftOptions(sources=("mine", "model", "history"))))
    with pytest.raises(ConfigError, match="named 'magic'") as caught:
        core.check(replace(request(), draft=DraftOptions(sources=("mine", "magic"))))
    assert "mine" in str(caught.value)


def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="one name: mine, mine"):
        drafted(model(), Source("mine", None), Source("mine", None))


def test_a_bias_that_leaves_no_token_says_so() -> None:
    nothing = SamplingOptions(logit_bias=dict.fromkeys(range(N_VOCAB), -math.inf))
    (stream,) = run(Core(model(), vocab()), Request((0,), sampling=nothing))
    with pytest.raises(EngineError, match="hint: logit_bias"):
        tokens(stream)


def test_what_a_failing_draft_has_drawn_stays() -> None:
    """To drop it would be to choose by what was drawn, where that is what made the draft fail."""

    class Fails(ModelDraft):
        def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
            if len(requests[0].prefix) > requests[0].n_settled:
                raise DecodeError("too late")
            law = point_mass(int(model().logits(requests[0].prefix).argmax()))
            return [Offer(draft_probs=law)]

    (stream,) = run(drafted(model(), Fails(model(), n_vocab=N_VOCAB)), request())
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    trace = stream.result.trace
    assert (trace.target_passes, trace.sources["model"].accepted) == (4, 4)
    assert trace.draft_failures["model"] == 3  # the last pass has room for one token only


# ----------------------------------------------------------------------------------- log-probabilities


def warm(*, logprobs: bool, sources: tuple[str, ...] = ("grammar", "model"), seed: int = 7) -> Request:
    return Request(
        (0, 1, 2),
        sampling=SamplingOptions(temperature=0.9, top_k=4),
        generation=GenerationOptions(max_tokens=8, seed=seed, logprobs=logprobs),
        draft=DraftOptions.parse({"sources": sources}),
    )


def test_logprobs_are_those_of_the_targets_law_whoever_proposed_the_token() -> None:
    draft = ModelDraft(TableModel(random_rows(N_VOCAB, seed=2), n_vocab=N_VOCAB), n_vocab=N_VOCAB)
    accepted = rejected = 0
    for seed in range(8):
        one = warm(logprobs=True, seed=seed)
        (stream,) = run(drafted(model(), draft), one)
        steps = list(stream)
        reply = [token for step in steps for token in step.tokens]
        logprobs = [value for step in steps for value in step.logprobs]
        prefix = list(one.prompt)
        for token, value in zip(reply, logprobs, strict=True):
            law = probabilities(model().logits(prefix), None, one.sampling, prefix)
            assert value == pytest.approx(math.log(probability_of(law, token)))
            prefix.append(token)
        count = stream.result.trace.sources["model"]
        accepted, rejected = accepted + count.accepted, rejected + count.proposed - count.accepted
    assert accepted > 5
    assert rejected > 5


def test_forced_tokens_have_logprob_zero() -> None:
    one = Request(
        (0,), matcher=TrieMatcher([(1, 2, 3)]), generation=GenerationOptions(max_tokens=8, logprobs=True)
    )
    (stream,) = run(drafted(model(), GrammarDraft()), one)
    assert [value for step in stream for value in step.logprobs] == [0.0, 0.0, 0.0]


def test_logprobs_change_nothing_else_and_are_not_made_unasked() -> None:
    asked, unasked = (run(Core(model(), vocab()), warm(logprobs=wanted))[0] for wanted in (True, False))
    left, right = list(asked), list(unasked)
    assert [step.tokens for step in left] == [step.tokens for step in right]
    assert all(len(step.logprobs) == len(step.tokens) for step in left)
    assert not any(step.logprobs for step in right)


def test_a_draft_whose_logits_are_not_numbers_is_left_out() -> None:
    broken = TableModel(lambda _: [float("nan")] * N_VOCAB, n_vocab=N_VOCAB)
    draft = ModelDraft(broken, n_vocab=N_VOCAB)
    (stream,) = run(drafted(model(), draft), request())
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    assert stream.result.trace.draft_failures["model"] > 0


def test_a_target_whose_logits_are_not_numbers_is_an_error() -> None:
    core = Core(TableModel(lambda _: [float("nan")] * N_VOCAB, n_vocab=N_VOCAB), vocab())
    (stream,) = run(core, request())
    with pytest.raises(EngineError, match="not finite"):
        tokens(stream)


def test_what_a_failed_reply_left_is_not_built_on() -> None:
    target = BrokenSession(failing={3})
    core = Core(target, vocab())
    run(core, request())
    assert [len(target.tokens(slot)) for slot in range(2)] == [0, 0]


def test_memory_that_cannot_go_back_is_not_drafted_on(caplog: pytest.LogCaptureFixture) -> None:
    table = TableModel(random_rows(N_VOCAB, seed=1), n_vocab=N_VOCAB, can_rewind=False)
    other = TableModel(random_rows(N_VOCAB, seed=2), n_vocab=N_VOCAB)
    core = drafted(table, ModelDraft(other, n_vocab=N_VOCAB))
    (stream,) = run(core, request())
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    assert "drafting is off" in caplog.text


def test_a_draft_whose_memory_cannot_go_back_starts_afresh() -> None:
    other = TableModel(random_rows(N_VOCAB, seed=2), n_vocab=N_VOCAB, can_rewind=False)
    core = drafted(model(), ModelDraft(other, n_vocab=N_VOCAB))
    (stream,) = run(core, request())
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    assert not stream.result.trace.draft_failures


def test_a_prompt_of_unknown_ids_is_refused() -> None:
    for wrong in ([0, N_VOCAB], [-1]):
        with pytest.raises(ValueError, match="vocabulary"):
            Core(model(), vocab()).check(request(wrong))


def test_a_bias_of_an_unknown_id_is_refused() -> None:
    one = Request((0,), sampling=SamplingOptions(logit_bias={1: 2.0, N_VOCAB: -1.0}))
    with pytest.raises(ConfigError, match="token 6"):
        Core(model(), vocab()).check(one)


@pytest.mark.parametrize("stop", ["", "\ud800"])
def test_stop_strings_that_cannot_occur_are_refused(stop: str) -> None:
    with pytest.raises(ConfigError, match="stop"):
        GenerationOptions.parse({"stop": [stop]})


def test_a_grammar_of_the_empty_reply_needs_no_pass() -> None:
    target = model()
    (stream,) = run(Core(target, vocab()), Request(prompt=(0,), matcher=TrieMatcher([()])))
    assert tokens(stream) == []
    assert stream.result.complete
    assert target.passes == 0


def test_a_request_that_is_cancelled_while_it_waits_never_runs() -> None:
    core = Core(model(n_slots=1), vocab())
    running, waiting = Channel(), Channel()
    core.add(request(), running)
    core.add(request(), waiting)
    core.step()
    waiting.close()
    core.step()
    assert waiting.result is not None
    assert waiting.result.finish_reason == "cancelled"
    assert waiting.result.trace.tokens == 0


# ---------------------------------------------------------------------------- threads and coroutines


def test_replies_over_the_worker_thread(engine: Engine) -> None:
    stream = engine.submit(request())
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)
    assert list(stream) == []


def test_many_threads_at_once(engine: Engine) -> None:
    replies: dict[int, list[int]] = {}

    def ask(start: int) -> None:
        replies[start] = tokens(engine.submit(request((start, 1))))

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == {start: greedy(model(), (start, 1), 8) for start in range(5)}


async def test_many_coroutines_at_once(engine: Engine) -> None:
    async def ask(start: int) -> list[int]:
        return [token async for step in engine.submit(request((start, 1))) for token in step.tokens]

    replies = await asyncio.gather(*(ask(start) for start in range(5)))
    assert replies == [greedy(model(), (start, 1), 8) for start in range(5)]


async def test_a_cancelled_task_cancels_its_request(engine: Engine) -> None:
    stream = engine.submit(request(max_tokens=4000))
    first = asyncio.Event()

    async def consume() -> None:
        try:
            async for _ in stream:
                first.set()
        finally:
            stream.close()

    task = asyncio.create_task(consume())
    await first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tokens(engine.submit(request())) == greedy(model(), (0, 1, 2), 8)


@pytest.mark.parametrize("leave", [Stream.close, Stream.__del__], ids=["closed", "dropped"])
def test_a_stream_left_early_frees_its_slot(leave: Callable[[Stream], None]) -> None:
    """One slot and a reply of thousands of tokens: the next request gets its turn only if it is cancelled."""
    with Engine(Core(model(n_ctx=100_000, n_slots=1), vocab())) as engine:
        stream = engine.submit(request(max_tokens=90_000))
        next(stream)
        leave(stream)
        assert tokens(engine.submit(request())) == greedy(model(), (0, 1, 2), 8)


class BadMatcher(TrieMatcher):
    """A grammar that cannot even be started."""

    def fork(self) -> TrieMatcher:
        raise GrammarError("no memory")


def test_a_request_that_cannot_start_fails_alone(engine: Engine) -> None:
    stream = engine.submit(Request(prompt=(0,), matcher=BadMatcher([(1,)])))
    with pytest.raises(GrammarError):
        list(stream)
    assert tokens(engine.submit(request())) == greedy(model(), (0, 1, 2), 8)


class CrashingCore(Core):
    def step(self) -> None:
        raise KeyError("a bug")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_crash_of_the_thread_reaches_the_consumer_and_closes_the_engine() -> None:
    engine = Engine(CrashingCore(model(), vocab()))
    with pytest.raises(EngineError, match="a bug") as caught:
        list(engine.submit(request()))
    assert isinstance(caught.value.__cause__, KeyError)
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.submit(request())


def test_a_forked_process_is_told_that_it_has_no_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens(engine.submit(request()))
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(EngineError, match="fork"):
        engine.submit(request())


def test_a_stream_keeps_its_engine() -> None:
    stream = Engine(Core(model(), vocab())).submit(request())
    gc.collect()
    assert tokens(stream) == greedy(model(), (0, 1, 2), 8)


def test_one_engine_serves_several_event_loops(engine: Engine) -> None:
    async def ask() -> list[int]:
        return [token async for step in engine.submit(request()) for token in step.tokens]

    assert asyncio.run(ask()) == asyncio.run(ask())


async def test_a_loop_that_is_closed_does_not_disturb_the_engine(engine: Engine) -> None:
    def abandon() -> None:
        loop = asyncio.new_event_loop()
        stream = engine.submit(request(max_tokens=4000))
        task = loop.create_task(stream.__anext__())
        loop.run_until_complete(asyncio.sleep(0))
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()
        stream.close()

    await asyncio.to_thread(abandon)
    assert [token async for step in engine.submit(request()) for token in step.tokens]


def test_an_engine_that_is_closed_fails_what_it_was_doing() -> None:
    closed: list[bool] = []
    engine = Engine(Core(model(n_ctx=100_000), vocab()), on_close=lambda: closed.append(True))
    stream = engine.submit(request(max_tokens=90_000))
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(EngineClosedError):
        list(stream)
    with pytest.raises(EngineClosedError):
        engine.submit(request())
    assert closed == [True]


def test_an_engine_nobody_uses_frees_itself() -> None:
    closed: list[bool] = []
    engine = Engine(Core(model(), vocab()), on_close=lambda: closed.append(True))
    tokens(engine.submit(request()))
    del engine
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "agentspec-engine":
            thread.join()
    assert closed == [True]


def test_a_result_before_the_end_is_an_error() -> None:
    channel = Channel()
    with pytest.raises(RuntimeError, match="no result"):
        _ = Stream(channel).result
