"""The engine's output law equals the target's, by enumeration of every random outcome.

No sampling, so no false pass: the two laws are computed as numbers and may differ by rounding only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from agentspec.calibration.calibrator import Calibrator
from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest, EndedReply, Offer
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.history import HistoryDraft
from agentspec.drafts.lookup import LookupDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.engine.rules import SampledRule
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
from agentspec.types import Matcher, Proposal, Randomness
from agentspec.verify import Laws, Verdict
from tests.exactness.laws import enumerated, generate, target_law, total_variation

BOUND = 1e-12
PROMPT = (0, 1)
WARM = SamplingOptions(temperature=0.8)


class PrefixDraft(Draft):
    """A source given by what it offers after a prefix, one call a sequence: the tests' policies."""

    name = "model"
    cheap = False

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        return [self.one(request) for request in requests]

    def missing(self, request: DraftRequest) -> int:  # noqa: ARG002 - it reads nothing
        return 1

    def one(self, request: DraftRequest) -> Offer | None:
        raise NotImplementedError


class WildDraft(PrefixDraft):
    """Draws without looking at the grammar: some of its tokens are illegal."""

    def __init__(self, n_vocab: int) -> None:
        self._model = TableModel(random_rows(n_vocab, seed=7), n_vocab=n_vocab)

    def one(self, request: DraftRequest) -> Offer:
        prefix = request.prefix
        return Offer(draft_probs=probabilities(self._model.logits(prefix), None, WARM, prefix))


class CertainDraft(PrefixDraft):
    """Proposes fixed tokens with certainty, legal or not: the most over-confident draft there is."""

    def one(self, request: DraftRequest) -> Offer:  # noqa: ARG002 - whatever it is asked
        return Offer((1, 0, 2), (1.0, 1.0, 1.0))


class MixedDraft(PrefixDraft):
    """Point mass or draw, by the parity of the prefix's length: sources mixed in one block."""

    def __init__(self, n_vocab: int) -> None:
        self._model = TableModel(random_rows(n_vocab, seed=11), n_vocab=n_vocab)

    def one(self, request: DraftRequest) -> Offer:
        prefix, matcher = request.prefix, request.matcher
        law = probabilities(
            self._model.logits(prefix), None if matcher is None else matcher.legal(), WARM, prefix
        )
        if len(prefix) % 2:
            return Offer((int(law.ids[0]),), (0.9,))
        return Offer(draft_probs=law)


class FickleDraft(PrefixDraft):
    """Ends a block wherever the prefix or its own law says so: all that a stopping rule may look at.

    It stops after a drawn token of its choice too, which is a rule on the prefix of the next one.
    """

    def __init__(self, n_vocab: int) -> None:
        self._model = TableModel(random_rows(n_vocab, seed=13), n_vocab=n_vocab)

    def one(self, request: DraftRequest) -> Offer | None:
        prefix = request.prefix
        law = probabilities(self._model.logits(prefix), None, WARM, prefix)
        if sum(prefix) % 3 == 2 or float(law.probs.max()) < 0.4:
            return None
        return Offer(draft_probs=law)


class TailDraft(PrefixDraft):
    """Adds a certain run behind whatever stands, for the planner to cut: a cheap source beside the others."""

    name = "lookup"
    cheap = True

    def one(self, request: DraftRequest) -> Offer | None:
        if len(request.prefix) == request.n_settled:
            return None  # the block begins with a drawn token
        return Offer((request.prefix[-1], 0, 1), (0.8, 0.5, 0.3))


def soft_draft(
    n_vocab: int, *, seed: int = 5, scale: float = 2.0, sampling: SamplingOptions | None = None
) -> ModelDraft:
    session = TableModel(random_rows(n_vocab, seed=seed, scale=scale), n_vocab=n_vocab)
    return ModelDraft(session, n_vocab=n_vocab, sampling=sampling)


def engine_law(
    target: Callable[[], TableModel],
    drafts: Callable[[], Sequence[Draft]],
    *,
    length: int,
    sampling: SamplingOptions,
    matcher: Matcher | None = None,
    end_ids: frozenset[int] = frozenset(),
    options: DraftOptions | None = None,
    costs: Callable[[], Costs] = Costs.free,
    calibrator: Callable[[], Calibrator] = Calibrator,
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
        core = Core(model, vocab, drafts(), rules=enumerated(chance), costs=costs(), calibrator=calibrator())
        return generate(core, request)[0]

    return enumerate_law(run)


def replies(n_vocab: int) -> TrieMatcher:
    """A grammar with forks, forced runs, dead ends of different length and an optional tail."""
    words = [(0, 1, 2), (0, 2, 2), (1, 0, 0), (1, 0, 0, 1), (2,)]
    return TrieMatcher(words, end_ids={n_vocab - 1})


def spelled(token: int) -> bytes:
    return b"%d" % token


def tokenized(text: bytes) -> list[int]:
    return [digit - ord("0") for digit in text]


def history_draft() -> HistoryDraft:
    """One that has seen a few replies: sure of some tokens, with several for others."""
    draft = HistoryDraft(spelled)
    for reply in [(0, 1, 2), (0, 1, 0), (0, 2, 2), (1, 0, 0), (1, 1, 2), (0, 1, 2)]:
        draft.ended(EndedReply(0, (*PROMPT, *reply), len(PROMPT), "", complete=True))
    return draft


DRAFTS = [
    "none",
    "soft",
    "over-confident",
    "truncated",
    "certain",
    "mixed",
    "fickle",
    "illegal",
    "grammar",
    "grammar+soft",
    "grammar+illegal",
    "tail+soft",
    "tail+fickle",
    "lookup",
    "history",
    "history+lookup+soft",
]

VERIFIERS = ["block", "token_wise", "seed_invariant"]


def make_drafts(name: str, n_vocab: int) -> Sequence[Draft]:
    """The policies under test; drafts keep state, so each run gets its own."""
    drafts: dict[str, Callable[[], Draft]] = {
        "soft": lambda: soft_draft(n_vocab),
        "over-confident": lambda: soft_draft(n_vocab, scale=9.0),
        "truncated": lambda: soft_draft(n_vocab, sampling=SamplingOptions(temperature=1.5, top_k=2)),
        "certain": CertainDraft,
        "mixed": lambda: MixedDraft(n_vocab),
        "fickle": lambda: FickleDraft(n_vocab),
        "illegal": lambda: WildDraft(n_vocab),
        "grammar": GrammarDraft,
        "tail": TailDraft,
        "lookup": lambda: LookupDraft(spelled, tokenized),
        "history": history_draft,
    }
    return [] if name == "none" else [drafts[part]() for part in name.split("+")]


def assert_the_law_is_kept(draft: str, case: str, options: DraftOptions, costs: Callable[[], Costs]) -> None:
    """In free text, with an end token, or under a grammar: replies of three tokens or fewer."""
    n_vocab = 4 if case == "grammar" else 3
    end_ids = frozenset() if case == "free" else frozenset({n_vocab - 1})
    matcher = replies(n_vocab) if case == "grammar" else None

    def target() -> TableModel:
        return TableModel(random_rows(n_vocab, seed=3), n_vocab=n_vocab)

    expected = target_law(target(), PROMPT, length=3, sampling=WARM, matcher=matcher, end_ids=end_ids)
    actual = engine_law(
        target,
        lambda: make_drafts(draft, n_vocab),
        length=3,
        sampling=WARM,
        matcher=matcher,
        end_ids=end_ids,
        options=options,
        costs=costs,
    )
    assert len(expected) > 3
    assert total_variation(expected, actual) <= BOUND


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("case", ["free", "free with an end", "grammar"])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_output_law_is_the_targets(draft: str, case: str, verifier: str) -> None:
    options = DraftOptions.parse({"max_block": 3, "max_model_tokens": 3, "verifier": verifier})
    assert_the_law_is_kept(draft, case, options, Costs.free)


def scarce() -> Costs:
    """Costs under which some proposals pay and some do not, so that the planner decides, and cuts."""
    return Costs.given(lambda n: 1.0 + 0.25 * n, {"model": lambda n: 0.2 * n})


@pytest.mark.parametrize("draft", [name for name in DRAFTS if name != "none"])
@pytest.mark.parametrize("case", ["free with an end", "grammar"])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_what_pays_is_decided_without_bias(draft: str, case: str, verifier: str) -> None:
    """The planner learns from each block what is accepted, and later ones depend on it."""
    options = DraftOptions.parse({"max_block": 2, "max_model_tokens": 2, "verifier": verifier})
    assert_the_law_is_kept(draft, case, options, scarce)


@pytest.mark.parametrize("max_block", [1, 2, 4])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingOptions(temperature=1.0, top_k=2),
        SamplingOptions(temperature=1.3, top_p=0.7),
        SamplingOptions(temperature=0.6, min_p=0.2),
        SamplingOptions(temperature=1.1, typical_p=0.6),
        SamplingOptions(temperature=0.9, logit_bias={0: 1.5, 2: -math.inf}),
        SamplingOptions(temperature=0.0),
    ],
)
def test_truncated_laws_and_block_lengths(max_block: int, sampling: SamplingOptions) -> None:
    def target() -> TableModel:
        return TableModel(random_rows(4, seed=8), n_vocab=4)

    expected = target_law(target(), PROMPT, length=3, sampling=sampling)
    actual = engine_law(
        target,
        lambda: [soft_draft(4, seed=9)],
        length=3,
        sampling=sampling,
        options=DraftOptions(max_block=max_block, max_model_tokens=max_block),
    )
    assert total_variation(expected, actual) <= BOUND


@pytest.mark.parametrize("repeat_last_n", [1, 2, -1])
@pytest.mark.parametrize("draft", ["soft", "certain", "mixed", "truncated"])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_penalties_depend_on_every_token_before(draft: str, repeat_last_n: int, verifier: str) -> None:
    """A position's law depends on the block's own earlier tokens, beyond what its logits say of them."""
    sampling = SamplingOptions(
        temperature=0.9,
        repeat_penalty=1.7,
        frequency_penalty=0.8,
        presence_penalty=0.5,
        repeat_last_n=repeat_last_n,
    )

    def target() -> TableModel:
        return TableModel(random_rows(3, seed=3), n_vocab=3)

    expected = target_law(target(), PROMPT, length=3, sampling=sampling)
    plain = target_law(target(), PROMPT, length=3, sampling=WARM)
    actual = engine_law(
        target,
        lambda: make_drafts(draft, 3),
        length=3,
        sampling=sampling,
        options=DraftOptions.parse({"max_block": 3, "max_model_tokens": 3, "verifier": verifier}),
    )
    assert total_variation(expected, plain) > 0.05  # they are felt
    assert total_variation(expected, actual) <= BOUND


def test_two_sequences_in_one_pass_are_independent() -> None:
    """Both laws hold jointly: the joint law is the product of the two."""
    n_vocab = 3
    prompts = ((0, 1), (2, 2))

    def run(chance: ScriptedChance) -> tuple[int, ...]:
        core = Core(
            TableModel(random_rows(n_vocab, seed=3), n_vocab=n_vocab),
            TableVocab(["a", "b", "c"], end_ids=()),
            [soft_draft(n_vocab)],
            rules=enumerated(chance),
            costs=Costs.free(),
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


def test_a_broken_rule_is_seen() -> None:
    """The proof can fail: here a rejected token is replaced by a draw from the whole law."""

    class NoResidual(SampledRule):
        def __init__(self, chance: Randomness) -> None:
            super().__init__(chance)
            self.chance = chance

        def verify(self, block: Sequence[Proposal], target_probs: Laws, position: int) -> Verdict:
            verdict = super().verify(block, target_probs, position)
            if verdict.accepted == len(block):
                return verdict
            return Verdict(verdict.accepted, self.chance.draw(target_probs[verdict.accepted]))

    def run(chance: ScriptedChance) -> tuple[int, ...]:
        model = TableModel(random_rows(3, seed=3), n_vocab=3)
        vocab = TableVocab(["a", "b", "c"], end_ids=())
        rules = lambda _, __: NoResidual(chance)  # noqa: E731
        core = Core(model, vocab, [soft_draft(3)], rules=rules, costs=Costs.free())
        options = GenerationOptions(max_tokens=2, seed=0)
        return generate(core, Request(PROMPT, sampling=WARM, generation=options))[0]

    model = TableModel(random_rows(3, seed=3), n_vocab=3)
    expected = target_law(model, PROMPT, length=2, sampling=WARM)
    assert total_variation(expected, enumerate_law(run)) > 1e-3


# ------------------------------------------------------------------------------------ seed-invariant


@pytest.mark.parametrize("draft", [name for name in DRAFTS if name != "none"])
@pytest.mark.parametrize("case", ["free with an end", "grammar"])
def test_a_seed_gives_one_text_with_any_draft(draft: str, case: str) -> None:
    """With the real noise, which the drafts draw with too: their draws and the target's are dependent."""
    n_vocab = 4
    vocab = TableVocab(["a", "b", "c", "<end>"], end_ids={n_vocab - 1})
    accepted = 0
    for seed in range(60):
        replies_of = []
        for drafts in ([], make_drafts(draft, n_vocab)):
            model = TableModel(random_rows(n_vocab, seed=3), n_vocab=n_vocab)
            core = Core(model, vocab, drafts, costs=Costs.free())
            request = Request(
                prompt=PROMPT,
                matcher=replies(n_vocab) if case == "grammar" else None,
                sampling=WARM,
                generation=GenerationOptions(max_tokens=6, seed=seed),
                draft=DraftOptions(max_block=3, max_model_tokens=3, verifier="seed_invariant"),
            )
            tokens, trace = generate(core, request)
            replies_of.append(tokens)
            accepted += sum(count.accepted for count in trace.sources.values())
        assert replies_of[0] == replies_of[1]
    idle = [("grammar", "free with an end"), ("lookup", "grammar")]  # no grammar; replies that repeat nothing
    assert (accepted > 0) == ((draft, case) not in idle)


def test_seeds_of_the_invariant_rule_follow_the_law() -> None:
    """Over 4000 seeds, each reply's count is within 5.5 standard deviations: 4e-8 a reply if all is right."""
    expected = target_law(TableModel(random_rows(3, seed=3), n_vocab=3), PROMPT, length=2, sampling=WARM)
    counts = dict.fromkeys(expected, 0)
    core = Core(
        TableModel(random_rows(3, seed=3), n_vocab=3),
        TableVocab(["a", "b", "c"], end_ids=()),
        [soft_draft(3)],
        costs=Costs.free(),
    )
    for seed in range(4000):
        request = Request(
            PROMPT,
            sampling=WARM,
            generation=GenerationOptions(max_tokens=2, seed=seed),
            draft=DraftOptions(verifier="seed_invariant"),
        )
        counts[generate(core, request)[0]] += 1
    for reply, weight in expected.items():
        assert abs(counts[reply] - 4000 * weight) <= 5.5 * math.sqrt(4000 * weight * (1 - weight))
