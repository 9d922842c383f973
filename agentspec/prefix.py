"""Prefixes that token sequences and slots have in common, and how a session comes to hold one.

It must not know who asks: target and draft sessions are treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentspec.errors import CacheError, DecodeError
from agentspec.types import Session, State

__all__ = ["StateStore", "common_prefix", "keep_prefix", "take_prefix"]


_WORTH_READING = 64
"""Tokens that a snapshot has to save for its file to be read."""


class StateStore(Protocol):
    """Where the states of prefixes are kept: `agentspec.snapshots.Snapshots`."""

    def longest(self, tokens: Sequence[int]) -> int: ...
    def load(self, tokens: Sequence[int]) -> State | None: ...
    def has(self, tokens: Sequence[int]) -> bool: ...
    def save(self, tokens: Sequence[int], state: State) -> None: ...


def take_prefix(
    session: Session, slot: int, tokens: Sequence[int], snapshots: StateStore | None = None
) -> int:
    """Makes a slot hold the longest prefix of `tokens` that any slot has, or that is stored; returns its
    length.

    The last token is left out, since its logits are wanted.
    Memory that cannot be cut keeps nothing.
    """
    most = len(tokens) - 1
    own = min(common_prefix(session.tokens(slot), tokens), most)
    shared = [min(common_prefix(session.tokens(other), tokens), most) for other in range(session.n_slots)]
    donor = max(range(session.n_slots), key=shared.__getitem__)
    if snapshots is not None and session.can_snapshot:
        stored = snapshots.longest(tokens[:most])
        if stored >= shared[donor] + _WORTH_READING:
            if _restore(session, slot, tokens[:stored], snapshots):
                return stored
            return take_prefix(session, slot, tokens)  # the slot may be empty now
    try:
        if shared[donor] > own:
            session.truncate(slot, 0)
            session.copy_prefix(donor, slot, shared[donor])
        elif own < len(session.tokens(slot)):
            session.truncate(slot, own)
    except CacheError:  # recurrent memory: all of a sequence or nothing
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
