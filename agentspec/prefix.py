"""Prefixes that token sequences and slots have in common, and how a session comes to hold one.

It must not know who asks: target and draft sessions are treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.errors import CacheError
from agentspec.types import Session

__all__ = ["common_prefix", "take_prefix"]


def take_prefix(session: Session, slot: int, tokens: Sequence[int]) -> int:
    """Makes a slot hold the longest prefix of `tokens` that any slot has; returns its length.

    The last token is left out, since its logits are wanted.
    Memory that cannot be cut keeps nothing.
    """
    most = len(tokens) - 1
    own = min(common_prefix(session.tokens(slot), tokens), most)
    shared = [min(common_prefix(session.tokens(other), tokens), most) for other in range(session.n_slots)]
    donor = max(range(session.n_slots), key=shared.__getitem__)
    try:
        if shared[donor] > own:
            session.truncate(slot, 0)
            session.copy_prefix(donor, slot, shared[donor])
        elif own < len(session.tokens(slot)):
            session.truncate(slot, own)
    except CacheError:  # recurrent memory: all of a sequence or nothing
        session.truncate(slot, 0)
    return len(session.tokens(slot))


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
