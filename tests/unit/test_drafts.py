"""Draft sources alone: what they propose, and that a model draft's cache is what it should be."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from agentspec.config import SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.law import probabilities, probability_of
from agentspec.testing import ScriptedChance, TableModel, TrieMatcher, proposals, random_rows
from agentspec.types import Distribution, Matcher, Proposal, Randomness, Span

N_VOCAB = 6
WARM = SamplingOptions(temperature=0.9)


def model(**settings: int) -> TableModel:
    return TableModel(random_rows(N_VOCAB, seed=4), n_vocab=N_VOCAB, **settings)  # type: ignore[arg-type]


def draft(session: TableModel, *, n_vocab: int = N_VOCAB) -> ModelDraft:
    return ModelDraft(session, n_vocab=n_vocab)


def asked(
    source: Draft,
    prefix: list[int],
    *,
    matcher: Matcher | None = None,
    limit: int = 3,
    last: bool = True,
    end_ids: tuple[int, ...] = (),
    chance: Randomness | None = None,
) -> list[Proposal]:
    (made,) = proposals(
        source,
        [prefix],
        n_vocab=N_VOCAB,
        matcher=matcher,
        limit=limit,
        last=last,
        end_ids=end_ids,
        sampling=WARM,
        chance=chance,
    )
    return made


def tokens_of(made: list[Proposal]) -> list[int]:
    return [proposal.token for proposal in made]


def assert_drawn_at(made: list[Proposal], prefix: list[int]) -> None:
    """The proposal's laws are the model's own after the prefix, every token legal."""
    assert len(made) == 3
    for index, (token, dist, _) in enumerate(made):
        before = [*prefix, *tokens_of(made[:index])]
        expected = probabilities(model().logits(before), None, WARM, before)
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
        assert_drawn_at(asked(source, prefix), prefix)
        cut = rng.choice([0, 0, 1, 2])
        prefix = prefix[: max(1, len(prefix) - cut)]
        prefix = prefix + [rng.randrange(N_VOCAB) for _ in range(rng.choice([0, 1, 1, 12]))]


def test_many_sequences_share_a_batch_and_stay_apart() -> None:
    session = model(n_slots=3)
    source = draft(session)
    prefixes = [[0, 1], [2, 3, 4], [5]]
    together = proposals(source, prefixes, n_vocab=N_VOCAB, limit=3, sampling=WARM)
    assert session.passes == 3  # one a step, not one a sequence
    alone = [asked(draft(model()), prefix) for prefix in prefixes]
    assert [tokens_of(one) for one in together] == [tokens_of(one) for one in alone]


def test_idle_sequences_make_room() -> None:
    session = model(n_ctx=16, n_slots=2)
    session.decode([Span(1, [0] * 12, ())])
    assert_drawn_at(asked(draft(session), [1] * 10), [1] * 10)


def test_it_draws_under_the_mask_and_stops_where_the_grammar_forces() -> None:
    session = model()
    grammar = TrieMatcher([(1, 2), (3, 2), (3, 4)])
    made = tokens_of(asked(draft(session), [0], matcher=grammar))
    assert made in [[1], [3, 2], [3, 4]]
    assert session.passes == len(made)
    grammar.advance(1)
    assert not asked(draft(session), [0, 1], matcher=grammar)


def test_nothing_is_drawn_after_an_end_token() -> None:
    session = TableModel(lambda _: [0, 0, 0, 0, 0, 50.0], n_vocab=N_VOCAB)
    assert tokens_of(asked(draft(session), [0], end_ids=(5,))) == [5]
    assert session.passes == 1


def test_ids_beyond_either_vocabulary_are_not_proposed() -> None:
    (made,) = asked(draft(model(), n_vocab=4), [0], limit=1, chance=ScriptedChance([3]))
    assert made.draft_probs is not None
    assert made.draft_probs.ids.tolist() == [0, 1, 2, 3]
    beyond = TrieMatcher([(7,), (8,)])
    assert not asked(draft(model(), n_vocab=20), [0], matcher=beyond)


def test_a_full_context_ends_the_proposal() -> None:
    assert len(asked(draft(model(n_ctx=16)), [0] * 15)) == 1


def test_it_may_draw_with_settings_of_its_own() -> None:
    cold = SamplingOptions(temperature=0.3, top_k=2)
    (made,) = asked(ModelDraft(model(), n_vocab=N_VOCAB, sampling=cold), [0, 1], limit=1)
    expected = probabilities(model().logits([0, 1]), None, cold, [0, 1])
    assert made.draft_probs is not None
    assert made.draft_probs.ids.tolist() == expected.ids.tolist()
    assert made.draft_probs.probs.tolist() == pytest.approx(expected.probs.tolist())


def test_penalties_see_what_it_has_drawn() -> None:
    """The second law is that of the prefix with the first token, which its penalty rules out."""
    once = SamplingOptions(temperature=1.0, presence_penalty=100.0)
    first, second = asked(ModelDraft(model(), n_vocab=N_VOCAB, sampling=once), [0], limit=2)
    assert second.draft_probs is not None
    assert probability_of(second.draft_probs, first.token) < 1e-30


def test_the_grammar_draft_proposes_forced_runs_and_guesses_only_last() -> None:
    words = TrieMatcher([(1, 2, 3, 4), (1, 2, 3, 5)])
    assert tokens_of(asked(GrammarDraft(), [0], matcher=words, limit=4, last=False)) == [1, 2, 3]
    guessing = asked(GrammarDraft(), [0], matcher=words, limit=4)
    assert tokens_of(guessing) == [1, 2, 3, 4]
    assert [proposal.draft_probs for proposal in guessing] == [None] * 4
    assert tokens_of(asked(GrammarDraft(), [0], matcher=words, limit=2)) == [1, 2]
    assert not asked(GrammarDraft(), [0])


def test_a_source_cannot_draw_what_it_has_no_room_for() -> None:
    """A drawn token is in the block, so what cannot be in the block cannot be drawn."""

    class Eager(GrammarDraft):
        def propose(self, requests: Sequence[DraftRequest]) -> None:
            law = probabilities(model().logits([0]), None, WARM, [0])
            for request in requests:
                for _ in range(3):
                    request.draw(law)

    assert len(asked(Eager(), [0], limit=3)) == 3
    with pytest.raises(ValueError, match="no room"):
        asked(Eager(), [0], limit=2)


class Given(GrammarDraft):
    """Draws once from the distribution it is given."""

    def __init__(self, ids: Sequence[int], probs: Sequence[float]) -> None:
        self._law = Distribution(np.array(ids, dtype=np.int64), np.array(probs, dtype=np.float64))

    def propose(self, requests: Sequence[DraftRequest]) -> None:
        for request in requests:
            request.draw(self._law)
            self._law.probs[:] = 7.0  # its arrays are its own, and reused


@pytest.mark.parametrize(
    ("ids", "probs", "message"),
    [
        ([1, 2], [2.0, 2.0], "sum to 4.0"),
        ([1, 2], [0.3, 0.3], "sum to 0.6"),
        ([1, 2], [1.5, -0.5], "below 0"),
        ([1, 2], [float("nan"), 1.0], "sum to nan"),
        ([2, 1], [0.5, 0.5], "ascend"),
        ([1, 1], [0.5, 0.5], "ascend"),
        ([-1, 1], [0.5, 0.5], "ascend"),
        ([1, N_VOCAB], [0.5, 0.5], "vocabulary"),
        ([1, 2], [1.0], "shapes"),
        ([], [], "shapes"),
    ],
)
def test_what_is_no_distribution_is_not_drawn_from(ids: list[int], probs: list[float], message: str) -> None:
    """It would be drawn from one law and accepted by another."""
    with pytest.raises(ValueError, match=message):
        asked(Given(ids, probs), [0])


def test_what_was_drawn_from_stays_on_record() -> None:
    (made,) = asked(Given([1, 3], [0.25, 0.75]), [0], limit=1)
    assert made.draft_probs is not None
    assert made.draft_probs.probs.tolist() == [0.25, 0.75]


def test_ids_that_are_none_are_not_proposed() -> None:
    class Wild(GrammarDraft):
        def propose(self, requests: Sequence[DraftRequest]) -> None:
            requests[0].propose([1, N_VOCAB])

    with pytest.raises(ValueError, match=f"token {N_VOCAB} is not in the vocabulary"):
        asked(Wild(), [0])


def test_a_prefix_it_cannot_read_gets_no_proposal_and_others_theirs() -> None:
    small = TableModel(random_rows(4, seed=4), n_vocab=4)
    unread, read = proposals(ModelDraft(small, n_vocab=N_VOCAB), [[0, 5], [0, 1]], n_vocab=N_VOCAB)
    assert not unread
    assert read
