"""Who takes part in the next pass, and with how much of it: admission, room for blocks, chunks of prompts.

Continuous batching (Yu et al., "Orca", OSDI 2022) with chunked prefill (Agrawal et al., "Sarathi-Serve", OSDI
2024): a request joins as soon as a slot and its KV are sure to be there, replies go on in every pass, and
long prompts are loaded beside them in chunks that do not hold them up for long.

It must not know drafts, grammars or rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from agentspec.engine.cache import SlotCache
from agentspec.engine.cost import CostTable
from agentspec.engine.sequence import RunningSequence
from agentspec.prefix import StateStore, common_prefix
from agentspec.types import Session

__all__ = ["Part", "Scheduler"]

_CHUNKS = (512, 256, 128, 64, 32)
"""How many prompt tokens may be loaded in a pass that also carries other replies."""

_HOLD_UP = 5.0
"""How many times longer such a pass may take than without the prompt; the smallest chunk always may."""

_REPLYING = 16
"""Most tokens that are missing where a reply is under way; what misses more is loading a prompt."""

_NEARLY_LOADED = 128
"""Most tokens that may be missing for rows to be kept for a block behind them."""

_LEAST_ROOM = 7
"""Tokens that a block may have however many share the rows: where they are more, they take turns."""

_WORTH_WAITING = 64
"""Tokens from which on a request waits to share them, where another one is loading them just now."""


class Part(NamedTuple):
    """A sequence's part of one pass: `missing` tokens that its KV lacks, then a block of up to `room` tokens,
    or, while a long prompt is loaded in chunks, a chunk and no block: `room` is None."""

    sequence: RunningSequence
    missing: list[int]
    room: int | None


class Scheduler:
    """The requests of one engine, waiting and running.

    target:    the session whose slots they get; the scheduler claims and releases them
    costs:     what a pass of the target takes; read only
    snapshots: stored states of prompt prefixes, of the target's fingerprint
    """

    def __init__(self, target: Session, costs: CostTable, snapshots: StateStore | None = None) -> None:
        self._target = target
        self._costs = costs
        self._slots = SlotCache(target, snapshots)
        self._waiting: deque[RunningSequence] = deque()
        self._active: list[RunningSequence] = []
        self._passed_over: set[int] = set()  # slots that had no part in the last pass

    @property
    def n_waiting(self) -> int:
        """Requests that have no slot yet. Any thread may read it."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        return bool(self._active or self._waiting)

    def __iter__(self) -> Iterator[RunningSequence]:
        """Every request as of now: the running ones first, then those that wait."""
        return iter([*self._active, *self._waiting])

    def add(self, sequence: RunningSequence) -> None:
        """Puts a request at the end of the queue."""
        self._waiting.append(sequence)

    def remove(self, sequence: RunningSequence) -> None:
        """Takes a request out, wherever it is; its slot keeps what it holds."""
        if sequence.slot < 0:
            self._waiting.remove(sequence)
            return
        self._active.remove(sequence)
        self._passed_over.discard(sequence.slot)
        self._slots.release(sequence.slot)

    def keep(self, sequence: RunningSequence) -> None:
        """Stores the part of the prompt that other conversations share, where its KV is all there.

        Raises CacheError where the session gives no state.
        """
        self._slots.keep(sequence.slot, sequence.request.n_stable)

    def admit(self) -> None:
        """Gives slots to waiting requests, in order, while their KV is sure to fit.

        One whose prompt begins like one that is being loaded waits for that part, and lets others pass.
        """
        waiting: list[RunningSequence] = []
        looked_at = 0
        while self._waiting and not self._slots.full and looked_at < 2 * self._target.n_slots:
            looked_at += 1
            sequence = self._waiting[0]
            if self._is_being_loaded(sequence.tokens):
                waiting.append(self._waiting.popleft())
                continue
            growth = sum(one.reserved - len(self._target.tokens(one.slot)) for one in self._active)
            claimed = self._slots.claim(sequence.tokens, sequence.reserved, growth)
            if claimed is None:
                break
            sequence.admitted(*claimed)
            self._active.append(self._waiting.popleft())
        self._waiting.extendleft(reversed(waiting))

    def _is_being_loaded(self, tokens: Sequence[int]) -> bool:
        """Whether another request is loading a prefix of `tokens` that can be shared once it is there."""
        if not self._target.can_rewind:
            return False  # such memory shares whole sequences only
        coming = {other.slot: common_prefix(other.tokens, tokens[:-1]) for other in self._active}
        slot = max(coming, key=coming.__getitem__, default=-1)
        if slot < 0 or coming[slot] <= len(self._target.tokens(slot)):
            return False  # nobody is, or it is there already
        others = (one for one in range(self._target.n_slots) if one != slot)
        there = max((common_prefix(self._target.tokens(one), tokens) for one in others), default=0)
        return coming[slot] - there >= _WORTH_WAITING

    def divide(self, wanted: Callable[[RunningSequence], int]) -> list[Part]:
        """Divides a pass: room for blocks to those whose KV is nearly complete, and chunks of long prompts.

        Who had no part in the last pass comes first, with a chunk if need be.

        wanted: most tokens that a sequence's block may have
        """
        budget, rows = self._target.n_batch, self._target.n_outputs
        self._active.sort(key=lambda sequence: sequence.slot not in self._passed_over)
        absent = [sequence.tokens[len(self._target.tokens(sequence.slot)) :] for sequence in self._active]
        replying = [len(missing) for missing in absent if len(missing) <= _REPLYING]
        nearly = sum(len(missing) <= _NEARLY_LOADED for missing in absent)
        share = max(_LEAST_ROOM, rows // max(1, nearly) - 1)  # a block has one row more than tokens
        least = min(share, min(budget, rows) // 4)  # with less room than this, and than it may use, it waits
        chunks = self._chunk(sum(replying)) if replying else budget  # tokens of prompts, in all
        parts: list[Part] = []
        loading: list[tuple[RunningSequence, list[int]]] = []

        def load(sequence: RunningSequence, missing: list[int]) -> bool:
            nonlocal budget, chunks
            chunk = missing[: min(budget, chunks, len(missing) - 1)]
            budget -= len(chunk)
            chunks -= len(chunk)
            if chunk:
                parts.append(Part(sequence, chunk, None))
            return bool(chunk)

        for sequence, missing in zip(self._active, absent, strict=True):
            most = wanted(sequence)
            room = min(most, share, budget - len(missing), rows - 1)
            n_loaded = len(missing) if replying and len(missing) > _REPLYING else 0
            if room >= min(most, least) and n_loaded <= chunks:
                parts.append(Part(sequence, missing, room))
                chunks -= n_loaded
                budget -= len(missing) + room
                rows -= room + 1
            elif sequence.slot not in self._passed_over or not load(sequence, missing):
                loading.append((sequence, missing))
        for sequence, missing in loading:
            load(sequence, missing)
        served = {part.sequence.slot for part in parts}
        self._passed_over = {sequence.slot for sequence in self._active} - served
        return parts

    def _chunk(self, n_base: int) -> int:
        """Most prompt tokens to load in a pass that has `n_base` tokens for replies, and their blocks."""
        costs = self._costs
        if not costs.known:
            return _CHUNKS[-1]
        most = _HOLD_UP * costs.seconds(n_base)
        return next((size for size in _CHUNKS if costs.seconds(n_base + size) <= most), _CHUNKS[-1])
