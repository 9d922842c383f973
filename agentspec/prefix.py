"""Prefixes that token sequences and slots have in common, and how a session comes to hold one.

It must not know who asks: target and draft sessions are treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from agentspec.errors import CacheError, DecodeError
from agentspec.types import Session, State

__all__ = ["Found", "StateStore", "common_prefix", "find_prefix", "keep_prefix", "take_prefix"]


_WORTH_READING = 64
"""Tokens that a snapshot has to save for its file to be read."""


class StateStore(Protocol):
    """Where the states of prefixes are kept: `agentspec.snapshots.Snapshots`."""

    def longest(self, tokens: Sequence[int]) -> int: ...
    def load(self, tokens: Sequence[int]) -> State | None: ...
    def has(self, tokens: Sequence[int]) -> bool: ...
    def save(self, tokens: Sequence[int], state: State) -> None: ...


class Found(NamedTuple):
    """A prefix of some tokens that is there already.

    slot:   the slot that holds it; None where a snapshot does
    length: its tokens
    """

    slot: int | None
    length: int


def find_prefix(
    session: Session, slot: int, tokens: Sequence[int], snapshots: StateStore | None = None
) -> Found:
    """The longest prefix of `tokens` that a slot holds, `slot` before others, or that is stored.

    The last token is left out, since its logits are wanted. In memory that cannot be cut, only all that a
    slot holds is a prefix. A snapshot has to save some tokens more than a slot for its file to be read.
    """
    most = len(tokens) - 1
    best = Found(slot, 0)
    for other in (slot, *range(session.n_slots)):
        held = session.tokens(other)
        shared = min(common_prefix(held, tokens), most)
        if shared > best.length and (session.can_rewind or shared == len(held)):
            best = Found(other, shared)
    if snapshots is not None and session.can_snapshot:
        stored = snapshots.longest(tokens[:most])
        if stored >= best.length + _WORTH_READING:
            return Found(None, stored)
    return best


def take_prefix(
    session: Session,
    slot: int,
    tokens: Sequence[int],
    snapshots: StateStore | None = None,
    found: Found | None = None,
) -> int:
    """Makes a slot hold the longest prefix of `tokens` that is there already; returns its length.

    found: what `find_prefix` says, where it was asked
    """
    if found is None:
        found = find_prefix(session, slot, tokens, snapshots)
    if found.slot is None:
        if snapshots is not None and _restore(session, slot, tokens[: found.length], snapshots):
            return found.length
        found = find_prefix(session, slot, tokens)  # the slot may be empty now
    try:
        session.copy_prefix(slot if found.slot is None else found.slot, slot, found.length)
    except CacheError:  # memory that turns out not to be cut
        session.truncate(slot, 0)
    return len(session.tokens(slot))


def keep_prefix(session: Session, slot: int, length: int, snapshots: StateStore) -> None:
    """Stores the state of a slot's first `length` tokens, where it is worth a file and not stored yet.

    Raises CacheError where the session gives no state.
    """
    tokens = session.tokens(slot)[:length]
    if len(tokens) == length >= _WORTH_READING and session.can_snapshot and not snapshots.has(tokens):
        snapshots.save(tokens, session.state(slot, length))


def _restore(session: Session, slot: int, tokens: Sequence[int], snapshots: StateStore) -> bool:
    """Puts a stored state into a slot. False, and the slot may be empty, where that does not work."""
    state = snapshots.load(tokens)
    if state is None:
        return False
    try:
        session.restore(slot, tokens, state)
    except (CacheError, DecodeError):
        return False
    return True


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two token sequences."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    low, high = 0, length  # left[:low] == right[:low]; they differ before `high`
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
