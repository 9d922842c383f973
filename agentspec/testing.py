"""Public fakes: what the project tests itself with, for tests of code built on it.

TableModel:    a Session whose logits are a function of the tokens before
TableVocab:    a Vocabulary of a few short tokens
TrieMatcher:   a Matcher that allows a finite set of replies
proposals:     what a draft source proposes for one prefix, with what each token was drawn from
ScriptedChance, enumerate_law: chance replaced by enumeration, so that the law of anything that uses
               `Randomness` is computed exactly instead of sampled

None of it needs a model or llama.cpp.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from agentspec.chance import SeededRandomness
from agentspec.config import SamplingOptions
from agentspec.drafts.base import Draft
from agentspec.engine.block import Block
from agentspec.engine.planner import BlockRequest
from agentspec.errors import CacheError, DecodeError, GrammarError
from agentspec.types import Distribution, IdArray, LogitsArray, Matcher, Proposal, Randomness, Span

__all__ = [
    "ScriptedChance",
    "TableModel",
    "TableVocab",
    "TrieMatcher",
    "enumerate_law",
    "proposals",
    "random_rows",
]

Outcome = TypeVar("Outcome")


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
        self.passes = 0
        self._slots: list[list[int]] = [[] for _ in range(n_slots)]

    def tokens(self, slot: int) -> Sequence[int]:
        return self._slots[slot]

    def truncate(self, slot: int, length: int) -> None:
        held = self._slots[slot]
        if length > len(held):
            raise ValueError(f"slot {slot} holds {len(held)} tokens, fewer than {length}")
        if not self.can_rewind and 0 < length < len(held):
            raise CacheError(f"slot {slot} cannot go back to {length} tokens")
        del held[length:]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        if not self.can_rewind and length < len(self._slots[source]):
            raise CacheError(f"slot {source} cannot be shared in part")
        self._slots[target] = self._slots[source][:length]

    def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
        if not all(span.tokens for span in spans):
            raise ValueError("a span without tokens")
        count = sum(len(span.tokens) for span in spans)
        if not 0 < count <= self.n_batch:
            raise ValueError(f"{count} tokens in a decode of 1 to {self.n_batch}")
        if sum(len(span.rows) for span in spans) > self.n_outputs:
            raise ValueError(f"more than {self.n_outputs} rows asked for")
        if sum(map(len, self._slots)) + count > self.n_ctx:
            raise DecodeError(f"the context of {self.n_ctx} tokens is full")
        self.passes += 1
        rows = []
        for span in spans:
            held = self._slots[span.slot]
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
        tokens = []
        while text:
            fitting = [
                token
                for token, piece in enumerate(self._pieces)
                if piece and text.startswith(piece) and (special or token not in self._special)
            ]
            if not fitting:
                raise ValueError(f"no token begins {text!r}")
            tokens.append(max(fitting, key=lambda token: len(self._pieces[token])))
            text = text[len(self._pieces[tokens[-1]]) :]
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
        if token not in self._next(self._taken):
            raise GrammarError(f"token {token} cannot follow {self._taken}")
        self._taken.append(token)

    def fork(self) -> TrieMatcher:
        copy = TrieMatcher(self._replies, end_ids=self._end_ids)
        copy._taken = list(self._taken)
        return copy

    def done(self) -> bool:
        return not self._next(self._taken)

    def accepting(self) -> bool:
        return tuple(self._taken) in self._replies

    def _next(self, taken: Sequence[int]) -> set[int]:
        size = len(taken)
        return {reply[size] for reply in self._replies if len(reply) > size and reply[:size] == tuple(taken)}


def proposals(
    draft: Draft,
    prefixes: Sequence[Sequence[int]],
    *,
    n_vocab: int,
    matcher: Matcher | None = None,
    limit: int = 8,
    end_ids: Iterable[int] = (),
    sampling: SamplingOptions | None = None,
    last: bool = True,
    chance: Randomness | None = None,
) -> list[list[Proposal]]:
    """What a source proposes in one call for several sequences, in slots 0, 1, ...

    n_vocab: size of the target's vocabulary
    matcher: the grammar's state after each prefix
    limit:   most tokens it may propose to each
    chance:  what it draws with; by default a seed of its own for each length of prefix
    """
    blocks, requests = [], []
    for slot, prefix in enumerate(prefixes):
        source = chance or SeededRandomness(len(prefix))

        def draw(distribution: Distribution, _: int, source: Randomness = source) -> int:
            return source.draw(distribution)

        block = Block(list(prefix), matcher, frozenset(end_ids), n_vocab=n_vocab, limit=limit, draw=draw)
        settings = sampling or SamplingOptions()
        blocks.append(block)
        requests.append(BlockRequest(block, draft.name, slot=slot, sampling=settings, limit=limit, last=last))
    draft.propose(requests)
    return [block.proposals for block in blocks]


class ScriptedChance:
    """Randomness that follows a script of choices, and takes the first possible choice after its end.

    choices: what was chosen at each decision, with the probability of that choice and how many
             possible choices there were
    """

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.choices: list[tuple[int, float, int]] = []

    def accept(self, probability: float) -> bool:
        outcomes = [(True, probability), (False, 1.0 - probability)]
        possible = [outcome for outcome in outcomes if outcome[1] > 0.0]
        return possible[self._choose([weight for _, weight in possible])][0]

    def draw(self, distribution: Distribution) -> int:
        pairs = zip(distribution.ids, distribution.probs, strict=True)
        possible = [(int(token), float(weight)) for token, weight in pairs if weight > 0.0]
        return possible[self._choose([weight for _, weight in possible])][0]

    @property
    def probability(self) -> float:
        """The probability of all the choices made."""
        return float(np.prod([weight for _, weight, _ in self.choices])) if self.choices else 1.0

    def _choose(self, weights: Sequence[float]) -> int:
        at = len(self.choices)
        choice = self._script[at] if at < len(self._script) else 0
        self.choices.append((choice, weights[choice], len(weights)))
        return choice


def enumerate_law(run: Callable[[ScriptedChance], Outcome]) -> dict[Outcome, float]:
    """The exact law of `run`'s outcome: runs it once for every sequence of random decisions.

    `run` must depend on nothing but the chance it is given, and its outcomes must be hashable.
    """
    law: dict[Outcome, float] = {}
    script: list[int] | None = []
    while script is not None:
        chance = ScriptedChance(script)
        outcome = run(chance)
        law[outcome] = law.get(outcome, 0.0) + chance.probability
        script = _next_script(chance.choices)
    return law


def _next_script(choices: Sequence[tuple[int, float, int]]) -> list[int] | None:
    """The script after this one in depth-first order; None after the last."""
    for at in range(len(choices) - 1, -1, -1):
        choice, _, count = choices[at]
        if choice + 1 < count:
            return [taken for taken, _, _ in choices[:at]] + [choice + 1]
    return None
