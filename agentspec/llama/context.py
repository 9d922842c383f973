"""A model's context: tokens and KV cache of several sequences, kept together.

Implements `agentspec.types.Session`. Everything is validated before llama.cpp sees it, because llama.cpp
asserts, and an assertion ends the process. After any error, a KeyboardInterrupt included, each slot's
tokens are again those whose KV it holds.

Nothing here locks: one thread owns a context and makes all its calls. It must not know the engine.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self

from agentspec.config import RuntimeOptions
from agentspec.errors import (
    CacheError,
    DecodeError,
    EngineClosedError,
    ModelError,
    UnsupportedModelError,
)
from agentspec.kv_cells import KvCells
from agentspec.llama import capi, library
from agentspec.llama.capi import ContextHandle, MemoryHandle
from agentspec.llama.model import Model
from agentspec.llama.settings import context_settings, is_pinned
from agentspec.types import LogitsArray, Span, State

__all__ = ["Context"]

_DECODE_CODES = {
    1: "no room for the batch in the KV cache",
    2: "the pass was aborted",
    -1: "the batch is not valid",
    -2: "memory could not be had",
}


class Context:
    """Tokens and KV of up to `n_slots` sequences in one cache of `n_ctx` tokens."""

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        n_slots: int = 1,
        options: RuntimeOptions | None = None,
        *,
        n_outputs: int = 64,
    ) -> None:
        """Makes an empty context and decodes two tokens in it, to see whether it can be rewound.

        n_ctx:     tokens that all slots together can hold; llama.cpp rounds it up to a multiple of 256,
                   and more than the model was trained for is cut, with a warning
        n_outputs: most rows that one decode can return. It bounds the memory for logits
                   (4 bytes * n_outputs * n_vocab, twice): llama.cpp would reserve n_batch of them.

        Raises ConfigError on values that cannot be used, UnsupportedModelError where the model keeps no
        cache, ModelError where llama.cpp cannot make the context (memory, as a rule).
        """
        options = options or RuntimeOptions()
        settings = context_settings(model, n_ctx, n_slots, options, n_outputs)
        library.forget_errors()
        handle = capi.new_context(model.handle, settings)
        if handle is None:
            raise ModelError(
                f"llama.cpp cannot make a context of {settings.n_ctx} tokens for {model.name}: "
                f"{library.recent_errors() or 'it gave no reason'}",
                hint="lower n_ctx or n_batch, or use a smaller KV type",
            )
        memory = capi.context_memory(handle)
        if memory is None:
            capi.free_context(handle)
            raise UnsupportedModelError(
                f"{model.name} ({model.architecture}) keeps no cache", hint="use a causal language model"
            )
        self._handle: ContextHandle | None = handle
        self._fingerprint = " ".join(
            (
                model.arithmetic,
                f"keys {settings.type_k} values {settings.type_v} flash {settings.flash_attn}",
                f"chunk {settings.n_ubatch}",
            )
        )
        self._memory: MemoryHandle = memory
        self._free = weakref.finalize(self, capi.free_context, handle)
        self._free.atexit = False  # a thread may still be decoding then
        self._model = model  # the model must outlive its contexts
        self._n_vocab = model.vocab.n_tokens
        self._n_ctx = capi.context_n_ctx(handle)
        self._n_batch = min(settings.n_batch, capi.context_n_batch(handle))
        self._n_outputs = n_outputs
        self._tokens: list[list[int]] = [[] for _ in range(n_slots)]
        self._cells = KvCells(n_slots)  # as llama.cpp uses them
        self._pinned = is_pinned(model)
        self._batch = capi.Batch(self._n_batch, n_slots, twins=self._pinned)
        self._decode_seconds = 0.0
        if model.adapters:
            capi.set_adapters(handle, model.adapters)
        model.adopt(self)
        self._can_rewind = self._probe_rewind()

    # ------------------------------------------------------------------------------------ properties

    @property
    def model(self) -> Model:
        return self._model

    @property
    def fingerprint(self) -> str:
        """Whatever the state of a prefix depends on besides its tokens."""
        return self._fingerprint

    @property
    def n_vocab(self) -> int:
        """Size of a row of logits."""
        return self._n_vocab

    @property
    def n_ctx(self) -> int:
        """Tokens that all slots together can hold. Prefixes that slots share count once."""
        return self._n_ctx

    @property
    def n_batch(self) -> int:
        """Tokens that one decode can take."""
        return self._n_batch

    @property
    def n_outputs(self) -> int:
        """Rows that one decode can return."""
        return self._n_outputs

    @property
    def n_slots(self) -> int:
        """How many sequences can be held at once."""
        return len(self._tokens)

    @property
    def can_rewind(self) -> bool:
        """Whether `truncate` can keep a part of a slot; False for recurrent and hybrid models."""
        return self._can_rewind

    @property
    def decode_seconds(self) -> float:
        """Seconds spent in llama.cpp's decode calls so far."""
        return self._decode_seconds

    @property
    def n_free(self) -> int:
        """Tokens that there is still room for."""
        return self._n_ctx - self._cells.n_used

    def n_cells(self, prefixes: Iterable[tuple[int, int]]) -> int:
        """How much of n_ctx prefixes take together, each given by its slot and its length."""
        return self._cells.count(prefixes)

    def tokens(self, slot: int) -> Sequence[int]:
        """The tokens whose KV the slot holds. A live view: it changes with the slot; do not change it."""
        return self._tokens[self._checked_slot(slot)]

    def cached_length(self, slot: int) -> int:
        """How many tokens llama.cpp says the slot holds; equal to len(tokens(slot)), as tests check."""
        self._open()
        return capi.memory_last_position(self._memory, self._checked_slot(slot)) + 1

    # ---------------------------------------------------------------------------------------- decode

    def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
        """Appends the spans in one pass and returns the rows asked for, in order, as copies.

        Raises DecodeError, leaving the context as it was, where the cache is full or llama.cpp refuses (in
        the latter case a slot that cannot be rewound may be empty); ValueError on more than n_batch tokens,
        more than n_outputs rows, an unknown slot or token, and rows that are not ascending offsets into their
        span.
        """
        handle = self._open()
        before = {slot: len(self._tokens[self._checked_slot(slot)]) for slot, _, _ in spans}
        wanted = self._fill(spans, before)
        count = sum(len(span.tokens) for span in spans)
        if not count:
            return []
        done = False
        started = time.perf_counter()
        try:
            library.forget_errors()
            code = self._batch.decode(handle, count)
            self._decode_seconds += time.perf_counter() - started
            if code:
                reason = _DECODE_CODES.get(code, f"code {code}")
                raise DecodeError(
                    f"llama.cpp cannot decode {count} tokens: {reason} {library.recent_errors()}"
                )
            rows = [self._row(handle, index) for index in wanted]
            for slot, tokens, _ in spans:
                self._tokens[slot].extend(tokens)
                self._cells.append(slot, len(tokens))
            done = True
        finally:
            if not done:
                self._restore(before)
        return rows

    def _fill(self, spans: Sequence[Span], before: dict[int, int]) -> list[int]:
        """Checks the spans and lays them out in the batch; the batch indices whose rows are wanted."""
        count = sum(len(span.tokens) for span in spans)
        if count > self._n_batch:
            raise ValueError(f"{count} tokens in one decode, at most {self._n_batch} fit")
        n_rows = sum(len(span.rows) for span in spans)
        if n_rows > self._n_outputs:
            raise ValueError(f"{n_rows} rows asked of one decode, at most {self._n_outputs} fit")
        batch, position = self._batch, dict(before)
        batch.wanted[:count] = 0
        wanted: list[int] = []
        start = 0
        for slot, tokens, rows in spans:
            bad = next((token for token in tokens if not 0 <= token < self._n_vocab), None)
            if bad is not None:
                raise ValueError(f"token {bad} is outside the vocabulary of {self._n_vocab}")
            ascending = all(one < two for one, two in pairwise(rows))
            if rows and not (ascending and rows[0] >= 0 and rows[-1] < len(tokens)):
                raise ValueError(f"rows {list(rows)} are not ascending offsets into {len(tokens)} tokens")
            stop = start + len(tokens)
            batch.token[start:stop] = tokens
            batch.position[start:stop] = range(position[slot], position[slot] + len(tokens))
            batch.assign(start, stop, slot)
            wanted += [start + row for row in rows]
            position[slot] += len(tokens)
            start = stop
        if count > self.n_free:
            raise DecodeError(
                f"the context is full: {self._n_ctx - self.n_free} of {self._n_ctx} tokens are taken, "
                f"{count} more do not fit",
                hint="truncate a slot, or make a context with a larger n_ctx",
            )
        batch.wanted[wanted] = 1
        return wanted

    def _row(self, handle: ContextHandle, index: int) -> LogitsArray:
        row = capi.logits_row(handle, index, self._n_vocab)
        if row is None:
            raise DecodeError(f"llama.cpp has no logits for token {index} of the batch")
        return row

    def _restore(self, before: dict[int, int]) -> None:
        """Takes back whatever a failed decode left, in the cache and in the token lists."""
        for slot, length in before.items():
            if not self._remove(slot, length):
                # the cache removes whole sequences only: an empty slot is at least a true one
                self._remove(slot, 0)
                length = 0
            self._forget(slot, length)

    # ----------------------------------------------------------------------------------------- cache

    def truncate(self, slot: int, length: int) -> None:
        """Keeps the first `length` tokens of a slot.

        Raises CacheError, leaving the slot as it was, if the cache cannot remove a part of a sequence;
        ValueError if the slot does not hold that many.
        """
        self._open()
        tokens = self._tokens[self._checked_slot(slot)]
        if not 0 <= length <= len(tokens):
            raise ValueError(f"cannot keep {length} tokens of slot {slot}, which holds {len(tokens)}")
        if length == len(tokens):
            return
        if not self._remove(slot, length):
            raise CacheError(
                f"the cache of {self._model.name} ({self._model.architecture}) cannot remove the last "
                f"{len(tokens) - length} of {len(tokens)} tokens",
                hint="clear the slot and decode again, or switch drafting off for this model",
            )
        self._forget(slot, length)

    def clear(self, slot: int) -> None:
        """Empties a slot; every cache can do that."""
        self.truncate(slot, 0)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Makes `target` hold the first `length` tokens of `source`, in place of what it held.

        Costs no computing, and no memory: the two share the cells. Raises CacheError if the cache cannot
        share a part of a sequence; ValueError if `source` does not hold that many tokens.
        """
        self._open()
        tokens = self._tokens[self._checked_slot(source)]
        held = self._tokens[self._checked_slot(target)]
        if not 0 <= length <= len(tokens):
            raise ValueError(f"cannot copy {length} tokens of slot {source}, which holds {len(tokens)}")
        if source == target:
            self.truncate(source, length)
            return
        if not self._can_rewind and length < len(tokens):
            raise CacheError(f"the cache of {self._model.name} cannot share a part of a sequence")
        self.clear(target)
        if length:
            for one, other in zip(self._sequences(source), self._sequences(target), strict=True):
                capi.memory_copy(self._memory, one, other, length)
            held.extend(tokens[:length])
            self._cells.share(source, target, length)

    # --------------------------------------------------------------------------------------- snapshots

    @property
    def can_snapshot(self) -> bool:
        """False for memory that cannot be cut, and for windows, whose slots are two sequences each."""
        return self._can_rewind and not self._pinned

    def state(self, slot: int, length: int) -> State:
        """The KV of a slot's first `length` tokens, for `restore` of a context made alike.

        About 28 KB a token for the default target. Raises CacheError where it cannot be had; ValueError if
        the slot does not hold that many.
        """
        handle = self._open()
        held = self._tokens[self._checked_slot(slot)]
        if not 0 < length <= len(held):
            raise ValueError(f"no state of {length} tokens of slot {slot}, which holds {len(held)}")
        if not self.can_snapshot:
            raise CacheError(f"the cache of {self._model.name} gives no state of a part of a sequence")
        spare = self.n_slots  # a sequence that is no slot's: llama.cpp writes out whole ones
        capi.memory_copy(self._memory, slot, spare, length)
        try:
            state = capi.sequence_state(handle, spare)
        finally:
            capi.memory_remove(self._memory, spare, 0)
        if not state:
            raise CacheError(f"llama.cpp gives no state of slot {slot} {library.recent_errors()}")
        return state

    def restore(self, slot: int, tokens: Sequence[int], state: State) -> None:
        """Makes a slot hold `tokens`, whose state this is, in place of what it held.

        llama.cpp believes what it is given: a state of other tokens makes wrong logits, and a damaged one may
        end the process. Raises CacheError, leaving the slot empty, where it is not taken; DecodeError where
        n_ctx does not leave room.
        """
        handle = self._open()
        self.clear(slot)
        if not self.can_snapshot:
            raise CacheError(f"the cache of {self._model.name} takes no state")
        if len(tokens) > self.n_free:
            raise DecodeError(f"the context is full: {len(tokens)} more tokens do not fit")
        library.forget_errors()
        taken = capi.restore_sequence(handle, slot, state)
        if not taken or capi.memory_last_position(self._memory, slot) + 1 != len(tokens):
            self._remove(slot, 0)
            raise CacheError(f"llama.cpp does not take the state {library.recent_errors()}")
        self._tokens[slot].extend(tokens)
        self._cells.append(slot, len(tokens))

    def _forget(self, slot: int, length: int) -> None:
        """Takes note that a slot holds its first `length` tokens only."""
        del self._tokens[slot][length:]
        self._cells.cut(slot, length)

    def _remove(self, slot: int, start: int) -> bool:
        """Removes positions from `start` on. False, and nothing removed, where the cache cannot do it."""
        return all(capi.memory_remove(self._memory, sequence, start) for sequence in self._sequences(slot))

    def _sequences(self, slot: int) -> Sequence[int]:
        """llama.cpp's sequences that hold the slot's tokens: see `is_pinned`."""
        return (slot, slot + self.n_slots) if self._pinned else (slot,)

    def _probe_rewind(self) -> bool:
        """Decodes two tokens and removes one; warms the weights up, too."""
        token = self._model.vocab.bos_id or 0
        self.decode([Span(0, [token, token], [])])
        try:
            self.truncate(0, 1)
        except CacheError:
            return False
        finally:
            self.clear(0)
        return True

    # ----------------------------------------------------------------------------------------- close

    def close(self) -> None:
        """Frees the cache. A second call does nothing; every other call then raises EngineClosedError."""
        self._handle = None
        self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> ContextHandle:
        if self._handle is None:
            raise EngineClosedError(f"the context of {self._model.name} was closed")
        return self._handle

    def _checked_slot(self, slot: int) -> int:
        if not 0 <= slot < len(self._tokens):
            raise ValueError(f"slot {slot} does not exist; there are {len(self._tokens)}, from 0 on")
        return slot
