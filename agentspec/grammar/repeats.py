"""Replies of several calls: one that repeats an earlier call word for word is the last.

Small models that are held to calls go round in circles: the same two calls until the tokens run out, which
an agent would then make. Whether a reply ends here depends on its text alone, so its law is the target's
under this rule as under any mask.

It must not know schemas, nor how a grammar is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import llguidance

from agentspec.grammar.matcher import CompiledGrammar, GrammarMatcher
from agentspec.grammar.tokenizer import GrammarTokenizer

__all__ = ["CallsGrammar", "CallsMatcher"]

_NUMBER = re.compile(rb"[-+.0-9eE]+")  # no call: an answer that the reply may be instead


class CallsGrammar(CompiledGrammar):
    """A grammar of calls whose replies may end behind each of them.

    lark:    the grammar
    between: the text between two calls
    thought: what ends the reasoning in front of the first call; "" where there is none
    """

    def __init__(self, tokenizer: GrammarTokenizer, lark: str, between: str, thought: str = "") -> None:
        super().__init__(tokenizer, lark)
        self._between = between.encode()
        self._thought = thought.encode()

    def start(self) -> CallsMatcher:
        native = self._initial.deep_copy()
        return CallsMatcher(self._tokenizer, native, self._between, self._thought)


class CallsMatcher(GrammarMatcher):
    """A matcher that is done once a call is the repetition of an earlier one."""

    def __init__(
        self, tokenizer: GrammarTokenizer, native: llguidance.LLMatcher, between: bytes, thought: bytes
    ) -> None:
        super().__init__(tokenizer, native)
        self._between = between
        self._thought = thought
        self._call = b""  # the text of the call under way
        self._calls: frozenset[bytes] = frozenset()
        self._repeated = False

    def advance(self, token: int) -> None:
        super().advance(token)
        self._see([token])

    def try_advance(self, tokens: Sequence[int]) -> bool:
        fits = super().try_advance(tokens)
        self._see(tokens)
        return fits

    def done(self) -> bool:
        return self._repeated or super().done()

    def _see(self, tokens: Sequence[int]) -> None:
        pieces = self._tokenizer.vocab.pieces()  # marks of reasoning may be control tokens
        self._call += b"".join(pieces[token] for token in tokens)
        if not self.accepting():
            return
        call = self._call.removeprefix(self._between)
        if self._thought and not self._calls:
            call = call.rpartition(self._thought)[2]
        call = call.strip()
        if not call or _NUMBER.fullmatch(call):  # the reply may end behind the space, too, or at each digit
            return
        self._repeated = self._repeated or call in self._calls
        self._calls |= {call}
        self._call = b""
