"""Which slot a prompt gets and what it finds there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentspec.engine.cache import SlotCache
from agentspec.prefix import common_prefix, keep_prefix, take_prefix
from agentspec.snapshots import Snapshots
from agentspec.testing import TableModel, random_rows
from agentspec.types import Span


def session(*held: Sequence[int], n_slots: int = 4, can_rewind: bool = True) -> TableModel:
    made = TableModel(
        random_rows(50, seed=1), n_vocab=50, n_ctx=1000, n_batch=500, n_slots=n_slots, can_rewind=can_rewind
    )
    for slot, tokens in enumerate(held):
        if tokens:
            made.decode([Span(slot, tokens, ())])
    return made


def used(cache: SlotCache, *slots: int) -> None:
    """Uses the slots once, in this order."""
    for slot in slots:
        cache.release(slot)


def claim(cache: SlotCache, tokens: Sequence[int]) -> tuple[int, int]:
    """A slot where there is room for everything."""
    claimed = cache.claim(tokens, len(tokens), 0)
    assert claimed is not None
    return claimed


def lengths(made: TableModel) -> list[int]:
    return [len(made.tokens(slot)) for slot in range(made.n_slots)]


def test_a_conversation_goes_on_in_its_own_slot() -> None:
    system = list(range(40))
    made = session([*system, 1, 2], [*system, 3, 4], [])
    cache = SlotCache(made)
    assert claim(cache, [*system, 3, 4, 5, 6]) == (1, 42)
    assert claim(cache, [*system, 1, 2, 7]) == (0, 42)


def test_another_conversation_leaves_it_alone_and_copies_what_they_share() -> None:
    """The usual case: many conversations behind one long tool prompt."""
    system = list(range(40))
    made = session([*system, *[1] * 20])
    slot, held = claim(SlotCache(made), [*system, *[2] * 20])
    assert slot != 0
    assert (held, list(made.tokens(slot))) == (40, system)
    assert len(made.tokens(0)) == 60


@pytest.mark.parametrize("reply", [0, 3, 100])
def test_a_retry_replaces_the_reply_in_its_own_slot(reply: int) -> None:
    made = session([*range(40), *[7] * reply])
    assert claim(SlotCache(made), list(range(40))) == (0, 39)


def test_a_short_prompt_does_not_take_over_a_conversation() -> None:
    made = session([*range(10), *[7] * 30])
    assert claim(SlotCache(made), [*range(10), 8, 9]) == (1, 10)


def test_the_longest_unused_slot_is_given_up_first() -> None:
    made = session([1] * 5, [2] * 5, [3] * 5, n_slots=3)
    cache = SlotCache(made)
    used(cache, 1, 0, 2)
    assert claim(cache, [9, 9])[0] == 1
    assert claim(cache, [9, 9])[0] == 0


def test_idle_slots_are_cleared_until_the_rest_fits() -> None:
    made = session([1] * 30, [2] * 30, [3] * 30, [])
    cache = SlotCache(made)
    used(cache, 1, 0, 2)
    assert cache.claim([9, 9], 2, 927) == (3, 0)
    assert lengths(made) == [30, 0, 30, 0]


def test_nothing_changes_where_it_would_not_fit() -> None:
    made = session([1] * 30, [2] * 30)
    cache = SlotCache(made)
    claim(cache, [*[1] * 30, 5])
    assert cache.claim([9] * 20, 500, 471) is None
    assert cache.claim([*[1] * 30, 6], 500, 501) is None
    assert lengths(made) == [30, 30, 0, 0]
    assert cache.claim([*[1] * 30, 6], 500, 500) == (2, 30)  # shares the thirty that are in use
    assert lengths(made) == [30, 0, 30, 0]


def test_a_prefix_is_kept_where_the_slot_it_came_from_is_cleared() -> None:
    made = session([*[1] * 30, *[2] * 470])
    assert SlotCache(made).claim([*[1] * 30, *[3] * 10], 700, 0) == (1, 30)
    assert lengths(made) == [0, 30, 0, 0]
    assert made.n_free == 970


def test_a_prefix_of_an_idle_slot_takes_room() -> None:
    made = session([1] * 30, [2] * 30)
    cache = SlotCache(made)
    claim(cache, [*[1] * 30, 5])
    assert cache.claim([*[2] * 30, 6], 500, 471) is None
    assert cache.claim([*[2] * 30, 6], 500, 470) == (1, 30)


def test_a_stored_prefix_needs_room_of_its_own(snapshots: Snapshots) -> None:
    stored(snapshots, LONG)
    made = session(LONG[:20], [7] * 400)
    cache = SlotCache(made, snapshots)
    claim(cache, [*LONG[:20], 1])  # in use from now on
    assert cache.claim([*LONG, 1], 500, 481) is None
    assert cache.claim([*LONG, 1], 500, 480) == (2, 100)
    assert lengths(made) == [20, 0, 100, 0]


def test_claimed_slots_are_not_given_again() -> None:
    cache = SlotCache(session([1, 2, 3], n_slots=2))
    assert claim(cache, [1, 2, 3, 4])[0] == 0
    assert claim(cache, [1, 2, 3, 4]) == (1, 3)  # copied from the slot in use
    assert cache.full
    cache.release(0)
    assert not cache.full


def test_memory_that_cannot_be_cut_starts_afresh() -> None:
    made = session([1, 2, 3, 4], n_slots=2, can_rewind=False)
    assert take_prefix(made, 1, [1, 2, 9, 9]) == 0
    assert take_prefix(made, 0, [1, 2, 9, 9]) == 0
    assert not made.tokens(0)


def test_the_last_token_is_never_taken_over() -> None:
    assert take_prefix(session([1, 2, 3]), 0, [1, 2, 3]) == 2


@pytest.mark.parametrize("length", range(20))
def test_common_prefix(length: int) -> None:
    same = list(range(length))
    assert common_prefix([*same, -1, 5, 6], [*same, -2, 5, 6]) == length
    assert common_prefix(same, [*same, 4]) == length
    assert common_prefix([*same, 4], same) == length


# --------------------------------------------------------------------------------------- snapshots


@pytest.fixture
def snapshots(tmp_path: Path) -> Iterator[Snapshots]:
    made = Snapshots(tmp_path, "toy")
    yield made
    made.close()


def stored(snapshots: Snapshots, tokens: Sequence[int]) -> None:
    """Stores a prefix as a process would that is gone by now."""
    keep_prefix(session(tokens), 0, len(tokens), snapshots)
    snapshots.close()


LONG = [index % 50 for index in range(100)]


def test_a_stored_prefix_is_taken_where_no_slot_has_as_much(snapshots: Snapshots) -> None:
    stored(snapshots, LONG)
    made = session([], LONG[:30])
    cache = SlotCache(made, snapshots)
    assert claim(cache, [*LONG, 1, 2]) == (1, 100)
    assert list(made.tokens(1)) == LONG
    assert claim(cache, [*LONG, 3]) == (0, 100)  # from that slot


@pytest.mark.parametrize("held", [100, 40])
def test_a_slot_that_has_nearly_as_much_is_quicker_than_a_file(held: int, snapshots: Snapshots) -> None:
    stored(snapshots, LONG)
    made = session(LONG[:held])
    assert take_prefix(made, 1, [*LONG, 1], snapshots) == held


def test_the_last_token_is_not_taken_from_a_file(snapshots: Snapshots) -> None:
    stored(snapshots, LONG)
    assert take_prefix(session(), 0, LONG, snapshots) == 0
    stored(snapshots, LONG[:99])
    assert take_prefix(session(), 0, LONG, snapshots) == 99


@pytest.mark.parametrize("held", [30, 10])  # more, and less, than another slot
def test_a_state_that_is_not_taken_costs_nothing_but_time(held: int, snapshots: Snapshots) -> None:
    """The slot is empty after the attempt: what it held itself is gone, too."""
    snapshots.save(LONG, b"of something else")
    snapshots.close()
    made = session(LONG[:held], LONG[:20])
    assert take_prefix(made, 0, [*LONG, 1], snapshots) == 20
    assert list(made.tokens(0)) == LONG[:20]


def test_a_context_without_room_is_no_error(snapshots: Snapshots) -> None:
    stored(snapshots, LONG)
    made = TableModel(random_rows(50, seed=1), n_vocab=50, n_ctx=60, n_batch=60)
    assert take_prefix(made, 0, [*LONG, 1], snapshots) == 0


def test_nothing_is_stored_twice_or_that_is_short_or_not_there(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    monkeypatch.setattr(snapshots, "save", lambda tokens, _: saved.append(len(tokens)))
    keep_prefix(session(LONG), 0, 63, snapshots)
    keep_prefix(session(LONG), 0, 101, snapshots)
    keep_prefix(session(LONG, can_rewind=False), 0, 100, snapshots)
    assert not saved
    keep_prefix(session(LONG), 0, 80, snapshots)
    assert saved == [80]
    monkeypatch.setattr(snapshots, "has", lambda _: True)
    keep_prefix(session(LONG), 0, 80, snapshots)
    assert saved == [80]
