"""Draft sources alone: what they propose, and that a model draft's cache is what it should be."""

from __future__ import annotations

import random

import pytest

from agentspec.config import SamplingOptions
from agentspec.drafts.base import DraftRequest
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.law import probabilities
from agentspec.testing import ScriptedChance, TableModel, TrieMatcher, random_rows
from agentspec.types import Matcher
from agentspec.verify import SeededRandomness

N_VOCAB = 6
WARM = SamplingOptions(temperature=0.9)


def model(**settings: int) -> TableModel:
    return TableModel(random_rows(N_VOCAB, seed=4), n_vocab=N_VOCAB, **settings)  # type: ignore[arg-type]


def draft(
    session: TableModel, *, end_ids: frozenset[int] = frozenset(), n_vocab: int = N_VOCAB
) -> ModelDraft:
    return ModelDraft(session, n_vocab=n_vocab, end_ids=end_ids)


def ask(
    prefix: list[int], *, matcher: Matcher | None = None, limit: int = 3, slot: int = 0, last: bool = True
) -> DraftRequest:
    chance = SeededRandomness(len(prefix))
    return DraftRequest(slot, prefix, matcher, WARM, limit, last, chance)


def assert_drawn_at(prefix: list[int], request: DraftRequest, source: ModelDraft) -> None:
    """The proposal's laws are the model's own after the prefix, every token legal."""
    (proposal,) = source.propose([request])
    assert len(proposal.tokens) == request.limit
    for index, (token, dist) in enumerate(zip(proposal.tokens, proposal.dists, strict=True)):
        row = model().logits([*prefix, *proposal.tokens[:index]])
        expected = probabilities(row, None, WARM)
        assert dist is not None
        assert dist.ids.tolist() == expected.ids.tolist()
        assert dist.probs.tolist() == pytest.approx(expected.probs.tolist())
        assert token in dist.ids


@pytest.mark.parametrize("seed", range(10))
def test_its_laws_follow_the_prefix_through_rejections_and_forced_spans(seed: int) -> None:
    """The cache catches up with any prefix: cut back, replaced, extended by others, unchanged."""
    rng = random.Random(seed)
    source = draft(model(n_ctx=256, n_batch=8))
    prefix = [0, 1]
    for _ in range(12):
        assert_drawn_at(prefix, ask(prefix), source)
        cut = rng.choice([0, 0, 1, 2])
        prefix = prefix[: max(1, len(prefix) - cut)]
        prefix = prefix + [rng.randrange(N_VOCAB) for _ in range(rng.choice([0, 1, 1, 12]))]


def test_many_sequences_share_a_batch_and_stay_apart() -> None:
    session = model(n_slots=3)
    source = draft(session)
    prefixes = [[0, 1], [2, 3, 4], [5]]
    together = source.propose([ask(prefix, slot=slot) for slot, prefix in enumerate(prefixes)])
    assert session.passes == 3  # one a step, not one a sequence
    alone = [draft(model()).propose([ask(prefix)])[0] for prefix in prefixes]
    assert [one.tokens for one in together] == [one.tokens for one in alone]


def test_idle_sequences_make_room() -> None:
    source = draft(model(n_ctx=16, n_slots=2))
    source.propose([ask([0] * 12, slot=0)])
    assert_drawn_at([1] * 10, ask([1] * 10, slot=1), source)


def test_it_draws_under_the_mask_and_stops_where_the_grammar_forces() -> None:
    session = model()
    grammar = TrieMatcher([(1, 2), (3, 2), (3, 4)])
    (proposal,) = draft(session).propose([ask([0], matcher=grammar.fork())])
    assert proposal.tokens in {(1,), (3, 2), (3, 4)}
    assert session.passes == len(proposal.tokens)
    grammar.advance(1)
    assert draft(session).propose([ask([0, 1], matcher=grammar)])[0].tokens == ()


def test_nothing_is_drawn_after_an_end_token() -> None:
    session = TableModel(lambda _: [0, 0, 0, 0, 0, 50.0], n_vocab=N_VOCAB)
    (proposal,) = draft(session, end_ids=frozenset({5})).propose([ask([0])])
    assert proposal.tokens == (5,)
    assert session.passes == 1


def test_ids_beyond_either_vocabulary_are_not_proposed() -> None:
    chance = ScriptedChance([3])
    request = DraftRequest(0, [0], None, WARM, 1, True, chance)
    (proposal,) = draft(model(), n_vocab=4).propose([request])
    assert proposal.dists[0] is not None
    assert proposal.dists[0].ids.tolist() == [0, 1, 2, 3]
    beyond = TrieMatcher([(7,), (8,)])
    assert draft(model(), n_vocab=20).propose([ask([0], matcher=beyond)])[0].tokens == ()


def test_a_full_context_ends_the_proposal() -> None:
    (proposal,) = draft(model(n_ctx=16)).propose([ask([0] * 15)])
    assert len(proposal.tokens) == 1


def test_the_grammar_draft_proposes_forced_runs_and_guesses_only_last() -> None:
    words = [(1, 2, 3, 4), (1, 2, 3, 5)]
    assert GrammarDraft().propose([ask([0], matcher=TrieMatcher(words), last=False)])[0].tokens == (1, 2, 3)
    (guessing,) = GrammarDraft().propose([ask([0], matcher=TrieMatcher(words), limit=4)])
    assert guessing.tokens == (1, 2, 3, 4)
    assert guessing.dists == (None,) * 4
    assert GrammarDraft().propose([ask([0], matcher=TrieMatcher(words), limit=2)])[0].tokens == (1, 2)
    assert GrammarDraft().propose([ask([0])])[0].tokens == ()
