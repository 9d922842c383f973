"""Follows JSON in whatever style the model writes it, and proposes it in that style.

Beside the grammar with fixed separators runs the same grammar without any white space. It is fed the reply
without the white space that means nothing, so it fits every style, and what it fixes runs on through gaps:
habits say what is in those. As long as the reply fits the fixed separators, and no habit to write others is
known, the grammar with them has the word.

It must not know schemas, how a grammar is written, nor how habits are learned.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import llguidance

from agentspec.errors import GrammarError
from agentspec.grammar.habits import Habits, Style
from agentspec.grammar.layout import SPACE, Layout
from agentspec.grammar.matcher import CompiledGrammar, GrammarMatcher
from agentspec.grammar.order import Orders
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.prefix import common_prefix

__all__ = ["LooseGrammar", "LooseMatcher"]

_SPECIAL = re.compile(rb"(\xff\[\d+\])")  # how llguidance writes a special token in forced bytes
_ORDERS_KEPT = 8
_FEW = 64  # tokens that are looked through


class LooseGrammar(CompiledGrammar):
    """Makes matchers that follow one grammar in every style.

    tight, compact: write the grammar with its fixed separators, and without any white space, for keys in an
                    order; asked again when the habits have another one

    Raises GrammarError when either does not compile.
    """

    def __init__(
        self,
        tokenizer: GrammarTokenizer,
        tight: Callable[[Orders], str],
        compact: Callable[[Orders], str],
        habits: Habits,
    ) -> None:
        self._orders = habits.orders
        self._write = (tight, compact)
        self._tight = CompiledGrammar(tokenizer, tight(self._orders))
        super().__init__(tokenizer, compact(self._orders))
        self._habits = habits
        self._compile = functools.lru_cache(2 * _ORDERS_KEPT)(functools.partial(CompiledGrammar, tokenizer))
        self._spellings = functools.cache(functools.partial(_spelling, tokenizer))

    def start(self) -> LooseMatcher:
        if self._habits.orders is not self._orders:
            self._reorder(self._habits.orders)
        return LooseMatcher(
            self._tokenizer, self._initial.deep_copy(), self._tight.start(), self._habits, self._spellings
        )

    def _reorder(self, orders: Orders) -> None:
        """Compiles the grammar for another order of keys, where there is one. Some milliseconds, but rare."""
        tight, compact = (write(orders) for write in self._write)
        if compact != self.lark:
            self._tight = self._compile(tight)
            self.lark, self._initial = compact, self._compile(compact)._initial
        self._orders = orders


class LooseMatcher(GrammarMatcher):
    """The state of the grammar without white space, and beside it that of the one with fixed separators.

    habits:    read only
    spellings: the tokens of a few bytes; None where there are none
    """

    def __init__(
        self,
        tokenizer: GrammarTokenizer,
        native: llguidance.LLMatcher,
        tight: GrammarMatcher | None,
        habits: Habits,
        spellings: Callable[[bytes], list[int] | None],
    ) -> None:
        super().__init__(tokenizer, native)
        self._tight = tight  # None once the reply does not fit it
        self._habits = habits
        self._spellings = spellings
        self._layout = Layout()
        self._last: int | None = None

    def forced(self) -> tuple[int, ...]:
        """What the fixed separators and the schema force; () where the reply is likely to have others."""
        if self._tight is None or not self._habits.styles(self._layout.seen)[0].tight:
            return ()
        return self._tight.forced()

    def guess(self) -> tuple[int, ...]:
        """The text that is fixed but for its white space, with the white space that the model is used to."""
        styles = self._habits.styles(self._layout.seen)
        if self._tight is not None and styles[0].tight:
            return self._tight.guess()
        fixed = self._native.deep_copy().compute_ff_bytes()
        if not fixed and not self._layout.space:
            return ()
        return next((tokens for style in styles if (tokens := self._styled(style, fixed))), ())

    def advance(self, token: int) -> None:
        """Moves over one token. Raises GrammarError, and is of no more use, where its text cannot follow."""
        if not self.try_advance([token]):
            raise GrammarError(f"token {token} does not fit in any style")

    def try_advance(self, tokens: Sequence[int]) -> bool:
        self._moved(tokens)
        if self._tight is not None and not self._tight.try_advance(tokens):
            self._tight = None
        for token in tokens:
            piece = self._tokenizer.vocab.token_bytes(token)
            kept = self._layout.advance(piece)
            if kept == piece:
                fits = self._native.try_consume_tokens([token]) == 1
            else:
                fits = self._consume(self._native, kept)
            if not fits:
                return False
            self._last = token
        return True

    def fork(self) -> LooseMatcher:
        tight = None if self._tight is None else self._tight.fork()
        copy = LooseMatcher(self._tokenizer, self._native.deep_copy(), tight, self._habits, self._spellings)
        copy._layout, copy._last = self._layout.fork(), self._last
        return copy

    # ---------------------------------------------------------------------------------- in the model's style

    def _styled(self, style: Style, fixed: bytes) -> tuple[int, ...]:
        fixed = fixed or self._foreseen(style)
        layout = self._layout.fork()
        text, whole = self._spaced(fixed, layout, style)
        if not text:
            return ()
        tokens = self._continued(text)
        if not whole or (layout.in_word and self._may_be_longer(tokens)):
            return tuple(tokens[:-1])
        state = self._native.deep_copy()
        state.try_consume_tokens(self._spell(fixed))
        for end, space in self._gap_ends(state, layout, style):
            tokens = tokens[: common_prefix(tokens, self._continued(text + space + end))]
        return tuple(tokens)

    def _may_be_longer(self, tokens: Sequence[int]) -> bool:
        """Whether the last of these tokens, which ends within a word, is the beginning of others that fit."""
        state = self.fork()
        if not tokens or not state.try_advance(tokens[:-1]) or not state._layout.in_string:
            return True
        legal = state._unpack()
        piece = self._tokenizer.vocab.token_bytes(tokens[-1])
        longer = (self._tokenizer.vocab.token_bytes(token) for token in legal[:_FEW].tolist())
        return len(legal) > _FEW or any(
            len(other) > len(piece) and other.startswith(piece) for other in longer
        )

    def _foreseen(self, style: Style) -> bytes:
        """What is fixed if the gap that has begun ends as usual: after a value, a line break may say that no
        comma comes."""
        fitting = [byte for byte, _ in self._gap_ends(self._native, self._layout, style)]
        if len(fitting) != 1 or fitting[0].isalnum():  # a number or word may as well begin otherwise
            return b""
        state = self._native.deep_copy()
        self._consume(state, fitting[0])
        return fitting[0] + state.compute_ff_bytes()

    @staticmethod
    def _spaced(fixed: bytes, layout: Layout, style: Style) -> tuple[bytes, bool]:
        """The fixed bytes with white space, as far as it is known; whether that is all of them.

        layout: moves over them
        """
        text = bytearray()
        for part in _SPECIAL.split(fixed):
            if _SPECIAL.match(part):
                text += part
                continue
            for byte in part:
                gap = layout.gap(byte)
                if gap is not None:
                    space = style.space(gap, layout.space)
                    if space is None:
                        return bytes(text), False
                    text += space[len(layout.space) :]
                layout.advance(bytes((byte,)))
                text.append(byte)
        return bytes(text), True

    def _gap_ends(
        self, state: llguidance.LLMatcher, layout: Layout, style: Style
    ) -> list[tuple[bytes, bytes]]:
        """The bytes that may end the gap, one for each kind of value, with the usual white space before."""
        found = []
        for byte, gap in layout.ends():
            space = style.space(gap, layout.space)
            if space is not None and self._consume(state.deep_copy(), end := bytes((byte,))):
                found.append((end, space))
        return found

    def _consume(self, state: llguidance.LLMatcher, text: bytes) -> bool:
        tokens = self._spellings(text)
        return tokens is not None and bool(state.try_consume_tokens(tokens) == len(tokens))

    def _continued(self, text: bytes) -> list[int]:
        """The tokens of a text that follows the last one. They merge across gaps, as the model's do.

        There are none if the last token would have merged with the white space that the text begins with:
        since it did not, something else comes.
        """
        vocab = self._tokenizer.vocab
        if self._last is not None and not vocab.is_special(self._last):
            before = vocab.token_bytes(self._last)
            tokens = self._spell(before + text)
            if tokens[:1] == [self._last]:
                return tokens[1:]
            if text[:1] in SPACE:
                return []
        return self._spell(text)


def _spelling(tokenizer: GrammarTokenizer, text: bytes) -> list[int] | None:
    try:
        return tokenizer.tokenize(text) if text else []
    except ValueError:  # a byte that the vocabulary cannot spell
        return None
