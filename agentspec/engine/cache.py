"""Which slot a request gets, and how much of its prompt is there already.

An agent sends its whole conversation again each turn, so slots keep their KV after a reply. A request goes on
in the slot whose conversation it continues; else it takes an empty or the least recently used slot, and the
longest prefix that any slot holds is copied into it, or read from a snapshot, which costs no computing.

It must not know requests, drafts or grammars.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.prefix import StateStore, common_prefix, keep_prefix, take_prefix
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

    def claim(self, tokens: Sequence[int], room: int) -> tuple[int, int]:
        """A free slot for a prompt, and how many of its tokens the slot now holds: all but one at most.

        room: KV cells that the slots not in use may keep; the least recently used are cleared first
        """
        session = self._session
        free = [slot for slot in range(session.n_slots) if slot not in self._claimed]
        shared = {slot: common_prefix(session.tokens(slot), tokens) for slot in free}
        # a conversation goes on where it stands or a little before, and a prompt that is there whole is a
        # retry: the same KV in the same place also makes the same reply, to the last bit of a logit
        lost = {slot: len(session.tokens(slot)) - shared[slot] for slot in free}
        whole = len(tokens) - 1
        continued = [slot for slot in free if shared[slot] >= whole or 0 < shared[slot] >= 8 * lost[slot]]
        if continued:
            slot = max(continued, key=lambda one: (shared[one], -self._last_used[one]))
        else:
            slot = min(free, key=lambda one: (len(session.tokens(one)) > 0, self._last_used[one]))
        self._claimed.add(slot)
        self._evict([one for one in free if one != slot], room)
        return slot, take_prefix(session, slot, tokens, self._snapshots)

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

    def _evict(self, idle: list[int], room: int) -> None:
        held = sum(len(self._session.tokens(slot)) for slot in idle)
        for slot in sorted(idle, key=self._last_used.__getitem__):
            if held <= room:
                return
            held -= len(self._session.tokens(slot))
            self._session.truncate(slot, 0)
