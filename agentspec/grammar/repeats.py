"""Replies of several calls: one that repeats an earlier call word for word is the last.

Small models that are held to calls go round in circles: the same two calls until the tokens run out, which
an agent would then make. Whether a reply ends here depends on its text alone, so its law is the target's
under this rule as under any mask.

It must not know schemas, nor how a grammar is written.
"""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from agentspec.grammar.matcher import CompiledGrammar, GrammarMatcher
from agentspec.grammar.tokenizer import GrammarTokenizer

__all__ = ["CallsGrammar", "CallsMatcher"]


class CallsGrammar(CompiledGrammar):
    """A grammar of calls whose replies may end behind each of them.

    lark:    the grammar
    between: the text between two calls
    """

    def __init__(self, tokenizer: GrammarTokenizer, lark: str, between: str) -> None:
        super().__init__(tokenizer, lark)
        self._between = between.encode()

    def start(self) -> CallsMatcher:
        return CallsMatcher(self._tokenizer, self._initial.deep_copy(), self._between)


class CallsMatcher(GrammarMatcher):
    """A matcher that is done once a call is the repetition of an earlier one."""

    def __init__(self, tokenizer: GrammarTokenizer, native: llguidance.LLMatcher, between: bytes) -> None:
        super().__init__(tokenizer, native)
        self._between = between
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
        self._call += b"".join(map(self._tokenizer.vocab.token_bytes, tokens))
        if not self.accepting():
            return
        call = self._call.removeprefix(self._between).strip()
        if not call:  # the reply may end behind the space, too
            return
        self._repeated = self._repeated or call in self._calls
        self._calls |= {call}
        self._call = b""
