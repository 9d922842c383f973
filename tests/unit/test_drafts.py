"""Draft sources alone: what they offer, and that a model draft's cache is what it should be."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from agentspec.chance import SeededRandomness
from agentspec.config import SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest, EndedReply, Offer
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.block import Block
from agentspec.law import probabilities, probability_of
from agentspec.testing import Asked, TableModel, TableVocab, TrieMatcher, random_rows
from agentspec.types import Distribution, Matcher, Proposal, Span

N_VOCAB = 6
WARM = SamplingOptions(temperature=0.9)
GREEDY = SamplingOptions(temperature=0.0)


def model(**settings: int) -> TableModel:
    return TableModel(random_rows(N_VOCAB, seed=4), n_vocab=N_VOCAB, **settings)  # type: ignore[arg-type]


def draft(session: TableModel, *, n_vocab: int = N_VOCAB) -> ModelDraft:
    return ModelDraft(session, n_vocab=n_vocab)


def one(source: Draft, request: DraftRequest) -> Offer | None:
    (offer,) = source.offer([request])
    return offer


def law_of(source: Draft, request: DraftRequest) -> Distribution:
    """The law that a source offers."""
    offer = one(source, request)
    assert offer is not None
    assert offer.draft_probs is not None
    return offer.draft_probs


def grow(
    source: Draft,
    prefixes: Sequence[Sequence[int]],
    *,
    matcher: Matcher | None = None,
    limit: int = 3,
    end_ids: tuple[int, ...] = (),
) -> list[list[Proposal]]:
    """Blocks that take whatever one source offers, for as long as it offers anything."""
    chances = [SeededRandomness(seed) for seed in range(len(prefixes))]
    blocks = [
        Block(
            prefix,
            matcher,
            frozenset(end_ids),
            n_vocab=N_VOCAB,
            limit=limit,
            draw=lambda law, _, chance=chance: chance.draw(law),  # type: ignore[misc]
        )
        for prefix, chance in zip(prefixes, chances, strict=True)
    ]
    growing = dict(enumerate(blocks))
    while growing:
        asked = [
            Asked(block.prefix, slot, matcher=block.fork(), sampling=WARM, room=block.room)
            for slot, block in growing.items()
        ]
        offers = source.offer(asked)
        for (slot, block), offer in zip(list(growing.items()), offers, strict=True):
            if offer is not None and offer.draft_probs is not None:
                block.draw(offer.draft_probs, source.name)
            if offer is None or not block.room:
                del growing[slot]
    return [block.proposals for block in blocks]


def drawn(source: Draft, prefix: Sequence[int]) -> list[Proposal]:
    """A block of three tokens that a source draws."""
    (made,) = grow(source, [prefix])
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


# ------------------------------------------------------------------------------------ the model draft


@pytest.mark.parametrize("seed", range(10))
def test_its_laws_follow_the_prefix_through_rejections_and_forced_spans(seed: int) -> None:
    """The cache catches up with any prefix: cut back, replaced, extended by others, unchanged."""
    rng = random.Random(seed)
    source = draft(model(n_ctx=256, n_batch=8))
    prefix = [0, 1]
    for _ in range(12):
        assert_drawn_at(drawn(source, prefix), prefix)
        cut = rng.choice([0, 0, 1, 2])
        prefix = prefix[: max(1, len(prefix) - cut)]
        prefix = prefix + [rng.randrange(N_VOCAB) for _ in range(rng.choice([0, 1, 1, 12]))]


def test_many_sequences_share_a_batch_and_stay_apart() -> None:
    session = model(n_slots=3)
    source = draft(session)
    prefixes = [[0, 1], [2, 3, 4], [5]]
    for made, prefix in zip(grow(source, prefixes), prefixes, strict=True):
        assert_drawn_at(made, prefix)
    assert session.passes == 3  # one a step, not one a sequence


def test_idle_sequences_make_room() -> None:
    session = model(n_ctx=16, n_slots=2)
    session.decode([Span(1, [0] * 12, ())])
    assert_drawn_at(drawn(draft(session), [1] * 10), [1] * 10)


def test_its_law_is_that_of_what_is_legal() -> None:
    grammar = TrieMatcher([(1, 2), (3, 2), (3, 4)])
    law = law_of(draft(model()), Asked([0], matcher=grammar, sampling=WARM))
    assert law.ids.tolist() == [1, 3]
    expected = probabilities(model().logits([0]), grammar.legal(), WARM, [0])
    assert law.probs.tolist() == pytest.approx(expected.probs.tolist())


def test_nothing_is_drawn_after_an_end_token() -> None:
    session = TableModel(lambda _: [0, 0, 0, 0, 0, 50.0], n_vocab=N_VOCAB)
    (made,) = grow(draft(session), [[0]], end_ids=(5,))
    assert tokens_of(made) == [5]
    assert session.passes == 1


def test_ids_beyond_either_vocabulary_are_not_offered() -> None:
    law = law_of(draft(model(), n_vocab=4), Asked([0], sampling=WARM))
    assert law.ids.tolist() == [0, 1, 2, 3]
    beyond = Asked([0], matcher=TrieMatcher([(7,), (8,)]), sampling=WARM)
    wide = draft(model(), n_vocab=20)
    assert one(wide, beyond) is None
    assert wide.missing(beyond) == 0


def test_a_full_context_has_no_answer() -> None:
    source = draft(model(n_ctx=16))
    assert one(source, Asked([0] * 15, sampling=WARM)) is not None
    assert one(source, Asked([0] * 16, sampling=WARM)) is None
    assert source.missing(Asked([0] * 16)) == 0


def test_prefixes_that_are_shared_leave_room_for_all() -> None:
    session = model(n_ctx=40, n_slots=4)
    source = draft(session)
    head = [token % 5 for token in range(34)]
    (first,) = source.offer([Asked(head, 0, sampling=WARM)])
    assert first is not None
    asked = [Asked([*head, slot], slot, sampling=WARM) for slot in range(4)]
    assert all(source.offer(asked))
    assert session.n_free == 2
    longer = [Asked([*head, slot, slot, slot], slot, sampling=WARM) for slot in range(4)]
    assert [offer is not None for offer in source.offer(longer)] == [True, True, False, False]


def test_it_may_draw_with_settings_of_its_own() -> None:
    cold = SamplingOptions(temperature=0.3, top_k=2)
    law = law_of(ModelDraft(model(), n_vocab=N_VOCAB, sampling=cold), Asked([0, 1], sampling=WARM))
    expected = probabilities(model().logits([0, 1]), None, cold, [0, 1])
    assert law.ids.tolist() == expected.ids.tolist()
    assert law.probs.tolist() == pytest.approx(expected.probs.tolist())


def test_penalties_see_what_is_already_in_the_block() -> None:
    """The law is that of the prefix with the block so far, whose token its penalty rules out."""
    once = SamplingOptions(temperature=1.0, presence_penalty=100.0)
    law = law_of(draft(model()), Asked([0, 3], n_settled=1, sampling=once))
    assert probability_of(law, 3) < 1e-30


def test_a_greedy_reply_is_offered_the_likeliest_token_and_how_likely_it_is() -> None:
    offer = one(draft(model()), Asked([0, 1], sampling=GREEDY))
    row = model().logits([0, 1])
    assert offer is not None
    assert (list(offer.tokens), offer.draft_probs) == ([int(row.argmax())], None)
    warm = probabilities(row, None, SamplingOptions(temperature=1.0), [0, 1])
    assert offer.confidence[0] == pytest.approx(float(warm.probs.max()))


def test_a_law_lists_few_tokens() -> None:
    wide = TableModel(lambda _: list(range(200)), n_vocab=200)
    assert len(law_of(ModelDraft(wide, n_vocab=200), Asked([0], sampling=WARM)).ids) == 64


def test_a_prefix_it_cannot_read_gets_no_offer_and_others_theirs() -> None:
    small = ModelDraft(TableModel(random_rows(4, seed=4), n_vocab=4), n_vocab=N_VOCAB)
    unread, read = small.offer([Asked([0, 5], 0), Asked([0, 1], 1)])
    assert unread is None
    assert read is not None
    assert [small.missing(Asked(prefix)) for prefix in ([0, 5], [0, 1])] == [0, 2]


def test_what_is_missing_is_the_size_of_its_pass() -> None:
    source = draft(model(n_ctx=256))
    assert source.missing(Asked([0, 1, 2])) == 3
    one(source, Asked([0, 1, 2], sampling=WARM))
    sizes = {(0, 1, 2): 1, (0, 1, 2, 3): 1, (0, 1, 2, 3, 4): 2, (0, 4): 1, (5, 4): 2}
    assert {prefix: source.missing(Asked(prefix)) for prefix in sizes} == sizes
    assert source.missing(Asked([0, 1, 2], slot=1)) == 3


def test_its_passes_can_be_timed_and_leave_nothing() -> None:
    session = model()
    timed = draft(session).measure()
    assert [n for n, _ in timed] == [1, 4, 16]
    assert min(seconds for _, seconds in timed) > 0.0
    assert not session.tokens(0)


# ---------------------------------------------------------------------------------- the grammar draft


def test_the_grammar_draft_offers_forced_runs_then_guesses() -> None:
    words = TrieMatcher([(1, 2, 3, 4), (1, 2, 3, 5)])
    forced = one(GrammarDraft(), Asked([0], matcher=words))
    assert forced is not None
    assert list(forced.tokens) == [1, 2, 3]
    for token in (1, 2, 3):
        words.advance(token)
    guess = one(GrammarDraft(), Asked([0, 1, 2, 3], matcher=words))
    assert guess is not None
    assert list(guess.tokens) == [4]
    assert guess.confidence[0] < min(forced.confidence)
    assert one(GrammarDraft(), Asked([0])) is None


class Undecided(TrieMatcher):
    """Guesses nothing."""

    def guess(self) -> tuple[int, ...]:
        return ()

    def fork(self) -> Undecided:
        copy = Undecided(self._replies)
        copy._taken = list(self._taken)
        return copy


def test_past_its_guesses_it_takes_the_branch_that_is_spoken_of() -> None:
    vocab = TableVocab(["", "Paris", "Rome", "}"], end_ids=())
    asked = Asked([0], matcher=Undecided([(1, 3), (2, 3)]), texts=["to Rome"])
    branch = one(GrammarDraft(vocab.token_bytes), asked)
    assert branch is not None
    assert list(branch.tokens) == [2, 3]
    assert one(GrammarDraft(), asked) is None  # it cannot read tokens


# ------------------------------------------------------------------------------------- what is offered


class Given(Draft):
    """Offers the distribution it is given."""

    name = "model"

    def __init__(self, ids: Sequence[int], probs: Sequence[float]) -> None:
        self._law = Distribution(np.array(ids, dtype=np.int64), np.array(probs, dtype=np.float64))

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        return [Offer(draft_probs=self._law)] * len(requests)


def test_a_source_needs_a_name_and_offers_only() -> None:
    source = Given([1], [1.0])
    assert source.cheap
    assert (source.missing(Asked([0])), list(source.measure()), source.model_seconds) == (0, [], 0.0)
    source.ended(EndedReply(0, (0, 1), 1, "", complete=True))
    source.close()


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
        grow(Given(ids, probs), [[0]])


def test_what_was_drawn_from_stays_on_record() -> None:
    """Also where a source reuses its arrays."""
    source = Given([1, 3], [0.25, 0.75])
    made = drawn(source, [0])
    law = law_of(source, Asked([0]))
    law.probs[:] = 7.0
    assert [part.draft_probs and part.draft_probs.probs.tolist() for part in made] == [[0.25, 0.75]] * 3
