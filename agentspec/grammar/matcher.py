"""Where a reply stands in its grammar: masks, forced tokens, advance, fork.

To look ahead is to advance a fork, which costs a microsecond. llguidance's own rollback is not used: in
1.9.1, after going back out of one branch and into another, its masks may still allow tokens of the first.
llguidance reports errors as a state that a matcher never leaves, so every call that may end there is
checked and raised here. To advance is not to ask whether a token is legal: llguidance consumes any spelling
of text that fits, also those to which its mask gives no probability. Callers advance over tokens that
`legal` allowed, as the engine's block does; asking again here would cost a mask a token.

Values that would not end are ended (`agentspec.grammar.bounds`), unless the grammar is the user's own.

It must not know schemas, nor how a grammar is written.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Protocol, Self

import llguidance
import numpy as np

from agentspec.errors import GrammarError
from agentspec.grammar.bounds import bounded, seen
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.types import IdArray, Matcher

__all__ = ["CompiledGrammar", "Grammar", "GrammarMatcher", "fault_of", "unpacked"]

_SPECIAL = re.compile(rb"\xff\[(\d+)\]")  # how llguidance writes a special token in forced bytes
_FEW_BYTES = 1000  # of a mask, 8 tokens each
_APPENDIX = re.compile(r"<(?:state|backtrace)>|\n *\d+ \| ")


class Grammar(Protocol):
    """A compiled grammar: makes matchers."""

    def start(self) -> Matcher:
        """A matcher before the reply's first token."""
        ...


class CompiledGrammar:
    """A Lark grammar, compiled once for a tokenizer.

    end_values: whether values that would not end are ended

    Raises GrammarError with llguidance's message when it does not compile.
    """

    def __init__(self, tokenizer: GrammarTokenizer, lark: str, *, end_values: bool = True) -> None:
        self.lark = lark
        self._tokenizer = tokenizer
        self._end_values = end_values
        self._initial = llguidance.LLMatcher(tokenizer.native, lark, log_level=0)
        _check(self._initial)

    def start(self) -> GrammarMatcher:
        return GrammarMatcher(self._tokenizer, self._initial.deep_copy(), end_values=self._end_values)


class GrammarMatcher:
    """A Matcher on llguidance. end_values: as for the grammar"""

    def __init__(
        self, tokenizer: GrammarTokenizer, native: llguidance.LLMatcher, *, end_values: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._native = native
        self._end_values = end_values
        self._forced: tuple[int, ...] | None = None  # of the present state, once asked for
        self._legal: IdArray | None = None
        self._tail = b""  # the end of the text so far

    def legal(self) -> IdArray:
        if self._legal is None:
            forced = self.forced()
            if forced:
                self._legal = np.array(forced[:1], dtype=np.int64)
            else:
                self._legal = self._unpack()
                if self._end_values:
                    self._legal = bounded(self._legal, self._tail, self._tokenizer)
        return self._legal

    def forced(self) -> tuple[int, ...]:
        if self._forced is None:
            self._forced = tuple(self._native.compute_ff_tokens())
        return self._forced

    def guess(self) -> tuple[int, ...]:
        # of a copy: the call changes the masks that its matcher gives later
        text = self._native.deep_copy().compute_ff_bytes()
        if not text:
            return ()
        state = self.fork()
        tokens: list[int] = []
        for token in self._spell(text):
            legal = state.legal()
            index = int(np.searchsorted(legal, token))
            if index == len(legal) or int(legal[index]) != token:
                break
            tokens.append(token)
            state.advance(token)
        return tuple(tokens)

    def advance(self, token: int) -> None:
        """Moves over one token that `legal` allows; another spelling of the same text may pass too.

        Raises GrammarError, and is of no more use, where the token's text cannot follow.
        """
        if not self._native.consume_token(token):
            raise GrammarError(f"the grammar refused token {token}: {_reason(self._native)}")
        self._moved([token])

    def try_advance(self, tokens: Sequence[int]) -> bool:
        """Moves over all the tokens, in any spelling; False, and of no more use, if it cannot."""
        self._moved(tokens)
        return int(self._native.try_consume_tokens(list(tokens))) == len(tokens)

    def fork(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)  # all but the native matcher is never changed in place
        twin._native = self._native.deep_copy()
        return twin

    def done(self) -> bool:
        return bool(self._native.is_stopped())

    def accepting(self) -> bool:
        return bool(self._native.is_accepting())

    def _moved(self, tokens: Sequence[int]) -> None:
        self._forced = None
        self._legal = None
        self._tail = seen(self._tail, b"".join(map(self._tokenizer.vocab.token_bytes, tokens)))

    def _unpack(self) -> IdArray:
        mask = self._native.compute_bitmask()
        _check(self._native)
        return unpacked(mask, self._tokenizer.n_tokens)

    def _spell(self, text: bytes) -> list[int]:
        """The canonical tokens of forced bytes, special tokens among them, as far as there are any.

        Bytes that begin a character stay out: its tokens depend on the rest of it.
        """
        tokens: list[int] = []
        for index, part in enumerate(_SPECIAL.split(text)):
            if index % 2:
                tokens.append(int(part))
                continue
            try:
                tokens += self._tokenizer.tokenize(_whole_characters(part))
            except ValueError:  # a byte that the vocabulary cannot spell
                break
        return tokens


@functools.lru_cache(maxsize=8)  # within a string most masks are the same, and ids take a megabyte
def unpacked(mask: bytes, n_tokens: int) -> IdArray:
    """The ids whose bits are set, the lowest of a byte first: where few are, little is worked on.

    Shared by all who ask for this mask: it cannot be written to.
    """
    packed = np.frombuffer(mask, dtype=np.uint8)
    within = np.flatnonzero(packed)
    if len(within) > _FEW_BYTES:
        # as bools: numpy looks for those three times as fast
        ids = np.flatnonzero(np.unpackbits(packed, count=n_tokens, bitorder="little").view(np.bool_))
    else:
        rows, bits = np.nonzero(np.unpackbits(packed[within, None], axis=1, bitorder="little"))
        ids = 8 * within[rows] + bits
        ids = ids[ids < n_tokens]
    ids.flags.writeable = False
    return ids


def fault_of(native: llguidance.LLMatcher) -> str | None:
    """Why a matcher cannot be used; None if it can."""
    return _reason(native) if native.is_error() else None


def _check(native: llguidance.LLMatcher) -> None:
    if (fault := fault_of(native)) is not None:
        raise GrammarError(fault)


def _reason(native: llguidance.LLMatcher) -> str:
    """llguidance's error without what it appends: a state or a stack, and the grammar or a line of it."""
    reason = _APPENDIX.split(native.get_error(), maxsplit=1)[0].strip()
    return f"no text can follow ({reason})" if reason.startswith("NoExtension") else reason


def _whole_characters(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start]
    return text
