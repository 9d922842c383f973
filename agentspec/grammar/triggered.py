"""Free text until a call begins, and the grammar of the call from there on: tool_choice "auto".

A call begins with the family's marker, or, in families that also write bare objects, with the head of an
object that names a bound tool. Until then every token is legal and the reply may end anywhere.

Triggers say where a call begins. One that masks waits until it is sure; `BracketTrigger` does not, and is for
grammars that only propose (`agentspec.grammar.following`).

It must not know schemas, nor how a grammar is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from agentspec.grammar.matcher import CompiledGrammar, GrammarMatcher
from agentspec.grammar.place import call_place
from agentspec.grammar.thought import Gate
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.types import Legal

__all__ = [
    "BracketTrigger",
    "HeadTrigger",
    "MarkerTrigger",
    "Trigger",
    "TriggeredGrammar",
    "TriggeredMatcher",
    "enter",
    "last_bytes",
]

_BRACKET = re.compile(rb"(?:\A|\n)[ \t\r]*([{\[])")
_INDENT = 32  # bytes before a token in which to look for the start of its line


class Trigger(Protocol):
    """Sees in a stream of tokens that a call has begun."""

    def entered_by(self, token: int, before: Sequence[int]) -> GrammarMatcher | None:
        """The call's matcher, advanced over its beginning, once `token` follows `before`; else None."""
        ...


class MarkerTrigger:
    """The family's marker: one special token, or text that any tokens may spell.

    grammar: begins with the marker
    """

    def __init__(self, tokenizer: GrammarTokenizer, marker: str, grammar: CompiledGrammar) -> None:
        self._tokenizer = tokenizer
        self._text = marker.encode()
        self._special = tokenizer.vocab.special_id(marker)
        self._grammar = grammar

    def entered_by(self, token: int, before: Sequence[int]) -> GrammarMatcher | None:
        if self._special is not None:
            return _advanced(self._grammar, [token]) if token == self._special else None
        tail = last_bytes(self._tokenizer, before, len(self._text))
        text = tail + self._tokenizer.vocab.token_bytes(token)
        start = text.rfind(self._text)
        if start < 0 or start + len(self._text) <= len(tail):
            return None
        return enter(self._grammar, self._tokenizer, text[start:])


class HeadTrigger:
    """The head of a bare object, such as `{"name": "get_weather"`, where the parser would see a call begin.

    heads:  the heads of all tools
    bare:   the grammar of such a reply from the head on
    fenced: the same within a fence, which it closes
    """

    def __init__(
        self,
        tokenizer: GrammarTokenizer,
        heads: Sequence[str],
        *,
        bare: CompiledGrammar,
        fenced: CompiledGrammar,
    ) -> None:
        self._tokenizer = tokenizer
        self._heads = re.compile(b"|".join(re.escape(head.encode()) for head in heads))
        self._reach = max(len(head.encode()) for head in heads)
        self._bare = _BareGrammars(tokenizer, bare, fenced)

    def entered_by(self, token: int, before: Sequence[int]) -> GrammarMatcher | None:
        piece = self._tokenizer.vocab.token_bytes(token)
        if b'"' not in piece:  # every head ends with a quote
            return None
        tail = last_bytes(self._tokenizer, before, self._reach)
        text = tail + piece
        for head in self._heads.finditer(text):
            if head.end() > len(tail):
                return self._bare.entered_by(text[head.start() :], [*before, token])
        return None


class BracketTrigger:
    """The first bracket of a JSON value, where the parser would see a call begin if the value was one.

    bare:   the grammar of a reply from the bracket on
    fenced: the same within a fence, which it closes
    """

    def __init__(
        self, tokenizer: GrammarTokenizer, *, bare: CompiledGrammar, fenced: CompiledGrammar
    ) -> None:
        self._tokenizer = tokenizer
        self._bare = _BareGrammars(tokenizer, bare, fenced)

    def entered_by(self, token: int, before: Sequence[int]) -> GrammarMatcher | None:
        piece = self._tokenizer.vocab.token_bytes(token)
        if b"{" not in piece and b"[" not in piece:
            return None
        tail = last_bytes(self._tokenizer, before, _INDENT)
        text = tail + piece
        for bracket in _BRACKET.finditer(text):
            if bracket.start(1) >= len(tail):
                return self._bare.entered_by(text[bracket.start(1) :], [*before, token])
        return None


class _BareGrammars:
    """The grammars of a reply from a bare value on.

    bare:   in open text
    fenced: within a fence, which it closes
    """

    def __init__(self, tokenizer: GrammarTokenizer, bare: CompiledGrammar, fenced: CompiledGrammar) -> None:
        self._tokenizer = tokenizer
        self._bare = bare
        self._fenced = fenced

    def entered_by(self, value: bytes, tokens: Sequence[int]) -> GrammarMatcher | None:
        """The matcher advanced over `value`, what the reply `tokens` ends with; None where that is text.

        Looks at the whole reply, so it is to be asked rarely.
        """
        reply = b"".join(map(self._tokenizer.vocab.token_bytes, tokens))
        place = call_place(reply[: len(reply) - len(value)].decode(errors="replace"))
        if place is None:
            return None
        return enter(self._fenced if place == "fenced" else self._bare, self._tokenizer, value)


class TriggeredGrammar:
    """Free text until one of the triggers sees a call begin, which none does in reasoning.

    gate: at the beginning of a reply; None where replies begin with no reasoning
    """

    def __init__(self, triggers: Sequence[Trigger], gate: Gate | None = None) -> None:
        self._triggers = tuple(triggers)
        self._gate = gate

    def start(self) -> TriggeredMatcher:
        return TriggeredMatcher(self._triggers, None if self._gate is None else self._gate.fork())


class TriggeredMatcher:
    """A Matcher that allows everything up to a call, and the call's grammar from there on."""

    def __init__(self, triggers: Sequence[Trigger], gate: Gate | None) -> None:
        self._triggers = triggers
        self._gate = gate
        self._free: list[int] = []  # behind reasoning, up to and including the token that began the call
        self._inside: GrammarMatcher | None = None

    def legal(self) -> Legal:
        return None if self._inside is None else self._inside.legal()

    def forced(self) -> tuple[int, ...]:
        return () if self._inside is None else self._inside.forced()

    def guess(self) -> tuple[int, ...]:
        return () if self._inside is None else self._inside.guess()

    def advance(self, token: int) -> None:
        if self._inside is not None:
            self._inside.advance(token)
            return
        if self._gate is not None:
            passed = self._gate.passed_by(token)
            if not passed:
                return
            self._free += passed[:-1]  # no call begins in what might have begun the block
            self._gate = None  # open for good
        entered = (trigger.entered_by(token, self._free) for trigger in self._triggers)
        self._inside = next((matcher for matcher in entered if matcher is not None), None)
        self._free.append(token)

    def fork(self) -> TriggeredMatcher:
        copy = TriggeredMatcher(self._triggers, None if self._gate is None else self._gate.fork())
        copy._free = list(self._free)
        copy._inside = None if self._inside is None else self._inside.fork()
        return copy

    def done(self) -> bool:
        return self._inside is not None and self._inside.done()

    def accepting(self) -> bool:
        return self._inside is None or self._inside.accepting()


def enter(grammar: CompiledGrammar, tokenizer: GrammarTokenizer, text: bytes) -> GrammarMatcher | None:
    """A matcher advanced over what the call has so far; None where that is not the beginning of a call
    after all, such as when the token that ends the marker goes on with other text: then it stays text."""
    try:
        tokens = tokenizer.tokenize(text)
    except ValueError:  # a part of a token that no other tokens spell
        return None
    return _advanced(grammar, tokens)


def _advanced(grammar: CompiledGrammar, tokens: Sequence[int]) -> GrammarMatcher | None:
    matcher = grammar.start()
    return matcher if matcher.try_advance(tokens) else None


def last_bytes(tokenizer: GrammarTokenizer, tokens: Sequence[int], count: int) -> bytes:
    """The end of what the tokens spell: at least `count` bytes, where there are as many."""
    tail = b""
    for token in reversed(tokens):
        tail = tokenizer.vocab.token_bytes(token) + tail
        if len(tail) >= count:
            break
    return tail
