"""Which slot a request gets, and how much of its prompt is there already.

An agent sends its whole conversation again each turn, so slots keep their KV after a reply. A request goes on
in the slot whose conversation it continues; else it takes an empty or the least recently used slot, and the
longest prefix that any slot holds is copied into it, or read from a snapshot, which costs no computing.

It must not know requests, drafts or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.prefix import StateStore, common_prefix, find_prefix, keep_prefix, take_prefix
from agentspec.types import Session

__all__ = ["SlotCache"]


class SlotCache:
    """The slots of a session, claimed and given back.

    snapshots: stored states of prefixes, of this session's fingerprint
    """

    def __init__(self, session: Session, snapshots: StateStore | None = None) -> None:
        self._session = session
        self._snapshots = snapshots
        self._claimed: set[int] = set()
        self._last_used = dict.fromkeys(range(session.n_slots), 0)
        self._clock = 0

    @property
    def full(self) -> bool:
        """True while every slot is claimed."""
        return len(self._claimed) == self._session.n_slots

    def claim(self, tokens: Sequence[int], reserved: int, growth: int) -> tuple[int, int] | None:
        """A free slot for a prompt, and how many of its tokens the slot now holds: all but one at most.

        None, and nothing has changed, where the KV that may be needed would not fit, even if slots not in use
        kept nothing. Else the least recently used of those are cleared until it does.

        reserved: cells that the prompt and its reply may come to need
        growth:   cells that the slots in use may come to need besides those that they have
        """
        session = self._session
        slot = self._best_slot(tokens)
        found = find_prefix(session, slot, tokens, self._snapshots)
        in_use = [(one, len(session.tokens(one))) for one in self._claimed]
        if found.slot is None:
            own = reserved  # shares no cell
        else:
            in_use.append((found.slot, found.length))
            own = reserved - found.length
        if session.n_cells(in_use) + growth + own > session.n_ctx:
            return None
        self._claimed.add(slot)
        if found.slot is None:
            session.truncate(slot, 0)
            self._evict(growth + own)
            return slot, take_prefix(session, slot, tokens, self._snapshots, found)
        held = take_prefix(session, slot, tokens, found=found)
        self._evict(growth + own)
        return slot, held

    def _best_slot(self, tokens: Sequence[int]) -> int:
        """The free slot to use: that whose conversation goes on, or an empty one, or the longest unused."""
        session = self._session
        free = [slot for slot in range(session.n_slots) if slot not in self._claimed]
        shared = {slot: common_prefix(session.tokens(slot), tokens) for slot in free}
        # a conversation goes on where it stands or a little before, and a prompt that is there whole is a
        # retry: the same KV in the same place also makes the same reply, to the last bit of a logit
        lost = {slot: len(session.tokens(slot)) - shared[slot] for slot in free}
        whole = len(tokens) - 1
        continued = [slot for slot in free if shared[slot] >= whole or 0 < shared[slot] >= 8 * lost[slot]]
        if continued:
            return max(continued, key=lambda one: (shared[one], -self._last_used[one]))
        return min(free, key=lambda one: (len(session.tokens(one)) > 0, self._last_used[one]))

    def keep(self, slot: int, length: int) -> None:
        """Stores a slot's first `length` tokens for other processes, unless they are stored already.

        Raises CacheError where the session gives no state.
        """
        if self._snapshots is not None:
            keep_prefix(self._session, slot, length, self._snapshots)

    def release(self, slot: int) -> None:
        """Gives a slot back with what it holds."""
        self._claimed.discard(slot)
        self._clock += 1
        self._last_used[slot] = self._clock

    def _evict(self, needed: int) -> None:
        """Clears slots that are not in use until so many cells are free."""
        for slot in sorted(self._last_used, key=self._last_used.__getitem__):
            if self._session.n_free >= needed:
                return
            if slot not in self._claimed:
                self._session.truncate(slot, 0)
