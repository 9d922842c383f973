"""The engine's output law equals the target's, by enumeration of every random outcome.

No sampling, so no false pass: the two laws are computed as numbers and may differ by rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.law import probabilities
from agentspec.testing import (
    ScriptedChance,
    TableModel,
    TableVocab,
    TrieMatcher,
    enumerate_law,
    random_rows,
)
from agentspec.types import Distribution, Matcher, Proposal
from tests.exactness.laws import generate, target_law, total_variation

BOUND = 1e-12
PROMPT = (0, 1)
WARM = SamplingOptions(temperature=0.8)


class WildDraft:
    """Draws without looking at the grammar, one token a call: some of its tokens are illegal."""

    def __init__(self, rows: Callable[[Sequence[int]], Sequence[float]], n_vocab: int) -> None:
        self._model = TableModel(rows, n_vocab=n_vocab)

    name = "model"
    cheap = False

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._one(request) for request in requests]

    def release(self, slot: int) -> None: ...

    def _one(self, request: DraftRequest) -> Proposal:
        law = probabilities(self._model.logits(request.prefix), None, WARM)
        return Proposal((request.chance.draw(law),), (law,), self.name)


class CertainDraft:
    """Proposes fixed tokens with certainty, legal or not: the most over-confident draft there is."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)

    name = "model"
    cheap = False

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        sizes = [min(request.limit, len(self._tokens)) for request in requests]
        return [Proposal(self._tokens[:size], (None,) * size, self.name) for size in sizes]

    def release(self, slot: int) -> None: ...


class RoundRobinDraft:
    """Point mass or draw, by the parity of the prefix's length: sources mixed in one block."""

    def __init__(self, n_vocab: int) -> None:
        self._model = TableModel(random_rows(n_vocab, seed=11), n_vocab=n_vocab)

    name = "model"
    cheap = False

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._one(request) for request in requests]

    def release(self, slot: int) -> None: ...

    def _one(self, request: DraftRequest) -> Proposal:
        legal = None if request.matcher is None else request.matcher.legal()
        law = probabilities(self._model.logits(request.prefix), legal, WARM)
        if len(request.prefix) % 2:
            return Proposal((int(law.ids[0]),), (None,), self.name)
        return Proposal((request.chance.draw(law),), (law,), self.name)


def soft_draft(n_vocab: int, end_ids: frozenset[int], *, seed: int, scale: float = 2.0) -> ModelDraft:
    session = TableModel(random_rows(n_vocab, seed=seed, scale=scale), n_vocab=n_vocab)
    return ModelDraft(session, n_vocab=n_vocab, end_ids=end_ids)


def engine_law(
    target: Callable[[], TableModel],
    drafts: Callable[[], Sequence[Draft]],
    *,
    length: int,
    sampling: SamplingOptions,
    matcher: Matcher | None = None,
    end_ids: frozenset[int] = frozenset(),
    options: DraftOptions | None = None,
) -> dict[tuple[int, ...], float]:
    request = Request(
        prompt=PROMPT,
        matcher=matcher,
        sampling=sampling,
        generation=GenerationOptions(max_tokens=length, seed=0),
        draft=options or DraftOptions(max_block=3, max_model_tokens=3),
    )

    def run(chance: ScriptedChance) -> tuple[int, ...]:
        model = target()
        vocab = TableVocab([f"t{token}" for token in range(model.n_vocab)], end_ids=end_ids)
        core = Core(model, vocab, drafts(), randomness=lambda _: chance)
        return generate(core, request)[0]

    return enumerate_law(run)


def replies(n_vocab: int) -> TrieMatcher:
    """A grammar with forks, forced runs, dead ends of different length and an optional tail."""
    words = [(0, 1, 2), (0, 2, 2), (1, 0, 0), (1, 0, 0, 1), (2,)]
    return TrieMatcher(words, end_ids={n_vocab - 1})


DRAFTS = [
    "none",
    "soft",
    "over-confident",
    "certain",
    "mixed",
    "illegal",
    "grammar",
    "grammar+soft",
    "grammar+illegal",
]


def make_drafts(name: str, n_vocab: int, end_ids: frozenset[int]) -> Sequence[Draft]:
    """The policies under test; drafts keep state, so each run gets its own."""
    drafts: dict[str, Callable[[], Draft]] = {
        "soft": lambda: soft_draft(n_vocab, end_ids, seed=5),
        "over-confident": lambda: soft_draft(n_vocab, end_ids, seed=5, scale=9.0),
        "certain": lambda: CertainDraft((1, 0, 2)),
        "mixed": lambda: RoundRobinDraft(n_vocab),
        "illegal": lambda: WildDraft(random_rows(n_vocab, seed=7), n_vocab),
        "grammar": GrammarDraft,
    }
    return [] if name == "none" else [drafts[part]() for part in name.split("+")]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("case", ["free", "free with an end", "grammar"])
def test_the_output_law_is_the_targets(draft: str, case: str) -> None:
    n_vocab = 4 if case == "grammar" else 3
    end_ids = frozenset() if case == "free" else frozenset({n_vocab - 1})
    matcher = replies(n_vocab) if case == "grammar" else None

    def target() -> TableModel:
        return TableModel(random_rows(n_vocab, seed=3), n_vocab=n_vocab)

    expected = target_law(target(), PROMPT, length=3, sampling=WARM, matcher=matcher, end_ids=end_ids)
    actual = engine_law(
        target,
        lambda: make_drafts(draft, n_vocab, end_ids),
        length=3,
        sampling=WARM,
        matcher=matcher,
        end_ids=end_ids,
    )
    assert len(expected) > 3
    assert total_variation(expected, actual) <= BOUND


@pytest.mark.parametrize("max_block", [1, 2, 4])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingOptions(temperature=1.0, top_k=2),
        SamplingOptions(temperature=1.3, top_p=0.7),
        SamplingOptions(temperature=0.6, min_p=0.2),
        SamplingOptions(temperature=0.0),
    ],
)
def test_truncated_laws_and_block_lengths(max_block: int, sampling: SamplingOptions) -> None:
    def target() -> TableModel:
        return TableModel(random_rows(4, seed=8), n_vocab=4)

    expected = target_law(target(), PROMPT, length=3, sampling=sampling)
    actual = engine_law(
        target,
        lambda: [soft_draft(4, frozenset(), seed=9)],
        length=3,
        sampling=sampling,
        options=DraftOptions(max_block=max_block, max_model_tokens=max_block),
    )
    assert total_variation(expected, actual) <= BOUND


def test_two_sequences_in_one_pass_are_independent() -> None:
    """Both laws hold jointly: the joint law is the product of the two."""
    n_vocab = 3
    prompts = ((0, 1), (2, 2))

    def run(chance: ScriptedChance) -> tuple[int, ...]:
        core = Core(
            TableModel(random_rows(n_vocab, seed=3), n_vocab=n_vocab),
            TableVocab(["a", "b", "c"], end_ids=()),
            [soft_draft(n_vocab, frozenset(), seed=5)],
            randomness=lambda _: chance,
        )
        channels = []
        for prompt in prompts:
            channels.append(Channel())
            generation = GenerationOptions(max_tokens=2, seed=0)
            draft = DraftOptions(max_block=1, max_model_tokens=1)
            core.add(Request(prompt, sampling=WARM, generation=generation, draft=draft), channels[-1])
        while core.busy():
            core.step()
        return tuple(token for one in channels for step in Stream(one) for token in step.tokens)

    model = TableModel(random_rows(n_vocab, seed=3), n_vocab=n_vocab)
    laws = [target_law(model, prompt, length=2, sampling=WARM) for prompt in prompts]
    joint = {(*left, *right): p * q for left, p in laws[0].items() for right, q in laws[1].items()}
    assert total_variation(joint, enumerate_law(run)) <= BOUND


def test_the_recorded_law_is_the_one_drawn_from() -> None:
    """A draft that records another law than it drew from is not exact: the proof can fail."""

    class Liar(WildDraft):
        def _one(self, request: DraftRequest) -> Proposal:
            honest = super()._one(request)
            law = honest.dists[0]
            assert law is not None
            flat = Distribution(law.ids, law.probs * 0 + 1 / len(law.ids))
            return Proposal(honest.tokens, (flat,), self.name)

    def target() -> TableModel:
        return TableModel(random_rows(3, seed=3), n_vocab=3)

    expected = target_law(target(), PROMPT, length=2, sampling=WARM)
    actual = engine_law(target, lambda: [Liar(random_rows(3, seed=7), 3)], length=2, sampling=WARM)
    assert total_variation(expected, actual) > 1e-3
