"""Fakes: a model, a vocabulary, a grammar and a request for proposals that are plain values.

They must not know the engine.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agentspec.config import SamplingOptions
from agentspec.errors import CacheError, DecodeError, GrammarError
from agentspec.kv_cells import KvCells
from agentspec.places import TEXT, Place
from agentspec.types import IdArray, LogitsArray, Matcher, Span, State

__all__ = ["Asked", "TableModel", "TableVocab", "TrieMatcher", "random_rows"]


def random_rows(n_vocab: int, *, seed: int, scale: float = 2.0) -> Callable[[Sequence[int]], Sequence[float]]:
    """Normal logits, fixed by the seed and the tokens before: a table too large to write down."""

    @functools.cache  # enumerations ask for the same few rows millions of times
    def known(prefix: tuple[int, ...]) -> Sequence[float]:
        key = zlib.crc32(repr((seed, prefix)).encode())
        return tuple(np.random.default_rng(key).normal(0.0, scale, n_vocab).tolist())

    return lambda prefix: known(tuple(prefix))


class TableModel:
    """A Session given by a table: rows(prefix) are the logits that follow the tokens `prefix`.

    n_vocab, n_ctx, n_batch, n_outputs, n_slots: as in `agentspec.types.Session`
    can_rewind: False behaves like recurrent memory: only a whole slot can be removed

    It checks what llama.cpp would abort on, and counts its decodes in `passes`.
    """

    def __init__(
        self,
        rows: Callable[[Sequence[int]], Sequence[float]] | Mapping[tuple[int, ...], Sequence[float]],
        *,
        n_vocab: int,
        n_ctx: int = 64,
        n_batch: int = 32,
        n_outputs: int = 32,
        n_slots: int = 2,
        can_rewind: bool = True,
    ) -> None:
        self._rows = rows
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_outputs = n_outputs
        self.n_slots = n_slots
        self.can_rewind = can_rewind
        self.can_snapshot = can_rewind
        self.passes = 0
        self.decode_seconds = 0.0
        self._slots: list[list[int]] = [[] for _ in range(n_slots)]
        self._cells = KvCells(n_slots)

    @property
    def n_free(self) -> int:
        return self.n_ctx - self._cells.n_used

    def n_cells(self, prefixes: Iterable[tuple[int, int]]) -> int:
        return self._cells.count(prefixes)

    def tokens(self, slot: int) -> Sequence[int]:
        return self._slots[slot]

    def truncate(self, slot: int, length: int) -> None:
        held = self._slots[slot]
        if length > len(held):
            raise ValueError(f"slot {slot} holds {len(held)} tokens, fewer than {length}")
        if not self.can_rewind and 0 < length < len(held):
            raise CacheError(f"slot {slot} cannot go back to {length} tokens")
        del held[length:]
        self._cells.cut(slot, length)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        if not self.can_rewind and length < len(self._slots[source]):
            raise CacheError(f"slot {source} cannot be shared in part")
        if length > len(self._slots[source]):
            raise ValueError(f"slot {source} holds {len(self._slots[source])} tokens, fewer than {length}")
        self._slots[target] = self._slots[source][:length]
        self._cells.share(source, target, length)

    def state(self, slot: int, length: int) -> State:
        if not self.can_snapshot:
            raise CacheError(f"the state of slot {slot} cannot be had")
        if length > len(self._slots[slot]):
            raise ValueError(f"slot {slot} holds {len(self._slots[slot])} tokens, fewer than {length}")
        return np.array(self._slots[slot][:length], dtype="<i4").tobytes()

    def restore(self, slot: int, tokens: Sequence[int], state: State) -> None:
        self._slots[slot] = []
        self._cells.cut(slot, 0)
        if len(tokens) > self.n_free:
            raise DecodeError(f"the context of {self.n_ctx} tokens is full")
        if state != np.array(tokens, dtype="<i4").tobytes():
            raise CacheError("the state is not that of the tokens")
        self._slots[slot] = list(tokens)
        self._cells.append(slot, len(tokens))

    def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
        if not all(span.tokens for span in spans):
            raise ValueError("a span without tokens")
        count = sum(len(span.tokens) for span in spans)
        if not 0 < count <= self.n_batch:
            raise ValueError(f"{count} tokens in a decode of 1 to {self.n_batch}")
        if sum(len(span.rows) for span in spans) > self.n_outputs:
            raise ValueError(f"more than {self.n_outputs} rows asked for")
        if count > self.n_free:
            raise DecodeError(f"the context of {self.n_ctx} tokens is full")
        self.passes += 1
        rows = []
        for span in spans:
            held = self._slots[span.slot]
            self._cells.append(span.slot, len(span.tokens))
            for offset, token in enumerate(span.tokens):
                if not 0 <= token < self.n_vocab:
                    raise ValueError(f"token {token} is not in a vocabulary of {self.n_vocab}")
                held.append(token)
                if offset in span.rows:
                    rows.append(self.logits(held))
        return rows

    def logits(self, prefix: Sequence[int]) -> LogitsArray:
        """The row that follows `prefix`, shape (n_vocab,)."""
        found = self._rows(prefix) if callable(self._rows) else self._rows[tuple(prefix)]
        return np.asarray(found, dtype=np.float32)


class TableVocab:
    """A Vocabulary whose token i spells pieces[i].

    end_ids:     end a reply and spell nothing in it
    special_ids: spell their piece, but ordinary text never becomes them (such as "<tool_call>")
    """

    def __init__(
        self, pieces: Sequence[str | bytes], *, end_ids: Iterable[int], special_ids: Iterable[int] = ()
    ) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.end_ids = frozenset(end_ids)
        self._special = self.end_ids | frozenset(special_ids)
        self._starting: dict[int, list[int]] = {}  # the tokens by their first byte, the longest first
        for token in sorted(range(self.n_tokens), key=lambda token: -len(self._pieces[token])):
            if piece := self._pieces[token]:
                self._starting.setdefault(piece[0], []).append(token)

    @property
    def n_tokens(self) -> int:
        return len(self._pieces)

    def token_bytes(self, token: int) -> bytes:
        return b"" if token in self.end_ids else self._pieces[token]

    def pieces(self) -> Sequence[bytes]:
        return self._pieces

    def is_special(self, token: int) -> bool:
        return token in self._special

    def special_id(self, spelling: str) -> int | None:
        return next((token for token in self._special if self._pieces[token] == spelling.encode()), None)

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        """Greedy longest match. Raises ValueError where nothing matches."""
        tokens: list[int] = []
        at = 0
        while at < len(text):
            fitting = (
                token
                for token in self._starting.get(text[at], ())
                if text.startswith(self._pieces[token], at) and (special or token not in self._special)
            )
            token = next(fitting, None)
            if token is None:
                raise ValueError(f"no token begins {text[at:]!r}")
            tokens.append(token)
            at += len(self._pieces[token])
        return tokens


class TrieMatcher:
    """A Matcher that allows exactly the given replies (token sequences without an end token).

    A reply that begins a longer one may end there with one of `end_ids`; one that begins no other is
    done at its last token.
    """

    def __init__(self, replies: Iterable[Sequence[int]], *, end_ids: Iterable[int] = ()) -> None:
        self._replies = tuple(tuple(reply) for reply in replies)
        self._end_ids = frozenset(end_ids)
        self._taken: list[int] = []

    def legal(self) -> IdArray:
        ends = self._end_ids if self.accepting() else frozenset[int]()
        return np.array(sorted(self._next(self._taken) | ends), dtype=np.int64)

    def forced(self) -> tuple[int, ...]:
        state = self.fork()
        while not state.done() and len(legal := state.legal()) == 1:
            state.advance(int(legal[0]))
        return tuple(state._taken[len(self._taken) :])

    def guess(self) -> tuple[int, ...]:
        """The lowest token that goes on: a guess like any other."""
        return tuple(sorted(self._next(self._taken))[:1])

    def advance(self, token: int) -> None:
        ends = token in self._end_ids and self.accepting()
        if not ends and token not in self._next(self._taken):
            raise GrammarError(f"token {token} cannot follow {self._taken}")
        self._taken.append(token)

    def fork(self) -> TrieMatcher:
        copy = TrieMatcher(self._replies, end_ids=self._end_ids)
        copy._taken = list(self._taken)
        return copy

    def done(self) -> bool:
        return not self._next(self._taken)

    def accepting(self) -> bool:
        ended = bool(self._taken) and self._taken[-1] in self._end_ids
        return tuple(self._taken[:-1] if ended else self._taken) in self._replies

    def _next(self, taken: Sequence[int]) -> set[int]:
        size = len(taken)
        return {reply[size] for reply in self._replies if len(reply) > size and reply[:size] == tuple(taken)}


@dataclass
class Asked:
    """A DraftRequest of plain values, for tests of draft sources.

    matcher: the grammar's state at the end of the prefix
    """

    prefix: Sequence[int]
    slot: int = 0
    n_prompt: int = 0
    n_settled: int = 0
    matcher: Matcher | None = None
    place: Place = TEXT
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    tool_set: str = ""
    texts: Sequence[str] = ()
    room: int = 8
