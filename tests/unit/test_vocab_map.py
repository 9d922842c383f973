"""Drafts of other vocabularies: what they read, what they propose, and that little is read twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from agentspec.config import SamplingOptions
from agentspec.drafts.base import Offer
from agentspec.drafts.model import ModelDraft
from agentspec.drafts.vocab_map import MappedVocab, SameVocab
from agentspec.errors import VocabMismatchError
from agentspec.law import probabilities
from agentspec.testing import Asked, TableModel, TableVocab, TrieMatcher, random_rows
from agentspec.types import Distribution, IdArray, LogitsArray

WARM = SamplingOptions(temperature=0.9)
GREEDY = SamplingOptions()

# ids:                  0    1    2     3        4         5         6     7
TARGET = TableVocab(
    ["a", "b", "ab", "<end>", "<call>", b"\xff", "<call>", "ba"], end_ids={3}, special_ids={4}
)
# ids:                  0     1    2        3     4    5         6
DRAFT = TableVocab(["ba", "b", "<stop>", "aa", "a", "<call>", "bb"], end_ids={2}, special_ids={5})
N_TARGET, N_DRAFT = TARGET.n_tokens, DRAFT.n_tokens


def by_spelling(*, opening: Sequence[int] = (), unread: Sequence[int] = ()) -> MappedVocab:
    return MappedVocab.by_spelling(TARGET, DRAFT, roles={3: 2}, opening=opening, unread=unread)


def ids(*values: int) -> IdArray:
    return np.array(values, dtype=np.int64)


def session(**settings: int) -> TableModel:
    return TableModel(random_rows(N_DRAFT, seed=4), n_vocab=N_DRAFT, **settings)  # type: ignore[arg-type]


def mapped_draft(table: TableModel, found: MappedVocab | None = None) -> ModelDraft:
    return ModelDraft(table, n_vocab=N_TARGET, vocab_map=found or by_spelling())


def asked(prefix: Sequence[int], *, slot: int = 0, sampling: SamplingOptions = WARM) -> Asked:
    return Asked(list(prefix), slot=slot, sampling=sampling)


def law_of(offer: Offer | None) -> Distribution:
    assert offer is not None
    assert offer.draft_probs is not None
    return offer.draft_probs


# ------------------------------------------------------------------------------------- same vocabulary


def test_the_same_vocabulary_costs_nothing() -> None:
    same = SameVocab(n_target=6, n_draft=6)
    row = np.zeros(6, dtype=np.float32)
    legal = ids(1, 5)
    assert same.row(row).base is row
    assert same.known(legal) is legal
    assert same.known(None) is None
    assert same.reader()([0, 5]) == [0, 5]


def test_padding_on_either_side_is_neither_read_nor_proposed() -> None:
    shorter = SameVocab(n_target=6, n_draft=4)
    assert shorter.reader()([0, 4]) == []
    assert shorter.reader()([0, 3]) == [0, 3]
    assert shorter.reaches(None)
    assert shorter.reaches(ids(3, 4))
    assert not shorter.reaches(ids(4, 5))
    known = shorter.known(ids(2, 3, 4))
    assert known is not None
    assert known.tolist() == [2, 3]
    longer = SameVocab(n_target=4, n_draft=6)
    assert len(longer.row(np.zeros(6, dtype=np.float32))) == 4


# --------------------------------------------------------------------------------------------- reading


def test_tokens_of_equal_bytes_are_twins_and_others_are_spelled() -> None:
    read = by_spelling().read_token
    assert [tuple(read(token)) for token in (0, 1, 7)] == [(4,), (1,), (0,)]
    assert tuple(read(2)) == (4, 1)  # "ab"
    assert tuple(read(3)) == (2,)  # the end, by its role
    assert tuple(read(5)) == ()  # a byte that the draft cannot spell


def test_a_special_token_is_no_twin_of_the_text_that_names_it() -> None:
    read = by_spelling().read_token
    assert tuple(read(4)) == (5,)
    assert tuple(read(6)) == ()  # the same text, which the draft's ordinary tokens cannot spell


def test_a_role_gives_way_to_a_twin() -> None:
    """A token that has a twin keeps it, and a twin that is taken stays with its own."""
    ends = TableVocab(["<end>", "<stop>", "a"], end_ids={0, 1})
    found = MappedVocab.by_spelling(TARGET, ends, roles={3: 1, 4: 2})
    assert tuple(found.read_token(3)) == (0,)
    assert tuple(found.read_token(0)) == (2,)
    assert found.n_twins == 2


def test_of_equal_tokens_the_ordinary_one_is_the_twin() -> None:
    """Fallbacks for single bytes come first in a vocabulary."""
    doubled = TableVocab(["a", "x", "a"], end_ids=())
    assert tuple(MappedVocab.by_spelling(TARGET, doubled, roles={}).read_token(0)) == (2,)


def test_a_draft_has_its_own_beginning_of_text() -> None:
    read = by_spelling(opening=[6], unread=[4]).reader()
    assert read([4, 0]) == [6, 4]
    assert read([4]) == [6]


def test_a_prefix_is_read_the_same_however_it_came_about() -> None:
    rng = random.Random(1)
    found = by_spelling(opening=[6])
    read = found.reader()
    prefix: list[int] = []
    for _ in range(300):
        prefix = prefix[: rng.randint(0, len(prefix))] if rng.random() < 0.3 else prefix
        prefix += rng.choices(range(N_TARGET), k=rng.randint(0, 4))
        assert read(prefix) == found.reader()(prefix)


def test_a_long_prefix_is_not_read_again() -> None:
    class Counting(MappedVocab):
        count = 0

        def read_token(self, token: int) -> Sequence[int]:
            self.count += 1
            return super().read_token(token)

    found = Counting.by_spelling(TARGET, DRAFT, roles={})
    assert isinstance(found, Counting)
    read = found.reader()
    read([0, 1] * 1000)
    assert found.count == 2000
    read([0, 1] * 1000 + [2])
    read([0, 1] * 999 + [1])
    assert found.count == 2002


# -------------------------------------------------------------------------------------------- proposing


def expected_law(row: LogitsArray, twins: dict[int, int], temperature: float) -> dict[int, float]:
    weights = {target: float(np.exp(row[draft] / temperature)) for target, draft in twins.items()}
    return {target: weight / sum(weights.values()) for target, weight in sorted(weights.items())}


TWINS = {0: 4, 1: 1, 3: 2, 4: 5, 7: 0}


@pytest.mark.parametrize("legal", [None, (0, 2, 7), (1,), (2, 3, 4, 5, 6)])
def test_the_law_is_the_drafts_own_over_the_legal_twins(legal: tuple[int, ...] | None) -> None:
    found = by_spelling()
    row = np.random.default_rng(2).normal(0.0, 2.0, N_DRAFT).astype(np.float32)
    law = probabilities(found.row(row), found.known(None if legal is None else ids(*legal)), WARM, [])
    twins = {target: draft for target, draft in TWINS.items() if legal is None or target in legal}
    assert dict(zip(law.ids.tolist(), law.probs.tolist(), strict=True)) == pytest.approx(
        expected_law(row, twins, WARM.temperature), rel=1e-6
    )
    assert np.all(np.diff(law.ids) > 0)
    assert law.probs.sum() == pytest.approx(1.0, abs=1e-12)


def test_the_one_twin_among_many_legal_tokens_is_seen() -> None:
    many = TableVocab([f"t{token}" for token in range(1000)], end_ids=())
    found = MappedVocab.by_spelling(many, TableVocab(["t900"], end_ids=()), roles={})
    assert found.reaches(np.arange(1000))
    assert not found.reaches(np.arange(900))
    assert found.reaches(None)
    known = found.known(np.arange(1000))
    assert known is not None
    assert known.tolist() == [900]


def test_a_draft_proposes_and_reads_in_target_ids() -> None:
    law = law_of(mapped_draft(session()).offer([asked([0, 2])])[0])
    row = session().logits([4, 4, 1])
    assert dict(zip(law.ids.tolist(), law.probs.tolist(), strict=True)) == pytest.approx(
        expected_law(row, TWINS, WARM.temperature), rel=1e-6
    )


def test_a_greedy_draft_takes_the_best_twin() -> None:
    table = TableModel(lambda _: [0.0, 1.0, 0.5, 9.0, 2.0, 0.0, 9.0], n_vocab=N_DRAFT)
    (offer,) = mapped_draft(table).offer([asked([0], sampling=GREEDY)])
    assert offer is not None
    assert list(offer.tokens) == [0]
    assert 0.5 < offer.confidence[0] < 0.9


@pytest.mark.parametrize("seed", range(5))
def test_its_cache_holds_what_it_has_read_through_rejections(seed: int) -> None:
    rng = random.Random(seed)
    table = session(n_ctx=512, n_batch=8, n_slots=2)
    found = by_spelling()
    source = mapped_draft(table, found)
    prefixes = [[0, 1], [2]]
    for _ in range(12):
        requests = [asked(prefix, slot=slot) for slot, prefix in enumerate(prefixes)]
        missing = [source.missing(request) for request in requests]
        offers = source.offer(requests)
        for slot, (prefix, offer) in enumerate(zip(prefixes, offers, strict=True)):
            read = found.reader()(prefix)
            assert list(table.tokens(slot)) == read
            assert 0 < missing[slot] <= len(read)
            expected = probabilities(found.row(session().logits(read)), found.known(None), WARM, prefix)
            assert law_of(offer).probs.tolist() == pytest.approx(expected.probs.tolist())
        prefixes = [
            [
                *prefix[: max(1, len(prefix) - rng.choice([0, 0, 1, 2]))],
                *rng.choices(range(5), k=rng.choice([1, 9])),
            ]
            for prefix in prefixes
        ]


def test_what_is_missing_is_counted_in_the_drafts_tokens() -> None:
    source = mapped_draft(session())
    assert source.missing(asked([2, 2, 0])) == 5
    source.offer([asked([2, 2])])
    assert source.missing(asked([2, 2, 2])) == 2
    assert source.missing(asked([2, 2, 5])) == 1  # its bytes are not read, so the last row is computed anew


def test_where_no_twin_is_legal_it_is_not_asked() -> None:
    source = mapped_draft(session())
    request = Asked([0], matcher=TrieMatcher([(2,), (5,)]), sampling=WARM)
    assert source.missing(request) == 0
    assert source.offer([request]) == [None]


def test_a_prefix_that_reads_as_nothing_gets_no_offer() -> None:
    source = mapped_draft(session())
    assert source.missing(asked([5])) == 0
    assert source.offer([asked([5])]) == [None]


def test_what_does_not_fit_together_is_answered_in_part() -> None:
    """Ten tokens of the target are twenty of the draft: two such sequences are more than it can hold."""
    table = session(n_ctx=32, n_batch=32)
    first, second = mapped_draft(table).offer([asked([2] * 10), asked([2] * 10, slot=1)])
    assert first is not None
    assert second is None
    assert mapped_draft(table).offer([asked([2] * 16)]) == [None]


# ---------------------------------------------------------------------------------------------- pruned


def test_a_pruned_draft_lists_its_twins_in_any_order() -> None:
    small = TableVocab(["<end>", "b", "a", "ab"], end_ids={0})
    found = MappedVocab.pruned(TARGET, small, ids(3, 1, 0, -1))
    assert found.n_twins == 3
    known = found.known(None)
    assert known is not None
    assert known.tolist() == [0, 1, 3]
    row = np.array([0.0, 1.0, 2.0, 9.0], dtype=np.float32)
    assert found.row(row)[[0, 1, 3]].tolist() == [2.0, 1.0, 0.0]
    assert found.reader()([3, 1, 2, 7]) == [0, 1, 3, 1, 2]  # "ab" by its own token, "ba" by two


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([0, 1], "2 target ids for 3 tokens"),
        ([0, 1, 1], "same target id"),
        ([0, 1, N_TARGET], f"outside a vocabulary of {N_TARGET}"),
        ([0, 1, -2], "outside a vocabulary"),
    ],
)
def test_a_list_that_is_not_of_this_pair_is_refused(listed: list[int], message: str) -> None:
    small = TableVocab(["a", "b", "ab"], end_ids=())
    with pytest.raises(VocabMismatchError, match=message):
        MappedVocab.pruned(TARGET, small, ids(*listed))
