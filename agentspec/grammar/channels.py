"""Replies in channels, for grammars: rules around the arguments of calls, and where a call begins.

It must not know schemas, nor how arguments are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from agentspec.chat.formats.base import Channels
from agentspec.grammar.matcher import CompiledGrammar, GrammarMatcher
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.grammar.triggered import enter, last_bytes

__all__ = ["DOCUMENT", "RecipientTrigger", "answer_rules", "call_rules"]

DOCUMENT = "document"
"""The name of the rule of a reply that is no call."""

Terms = Callable[[str], str]
"""Text as Lark terms."""


def call_rules(
    channels: Channels, names: Sequence[str], terms: Terms, *, whole: bool, answers: bool = False
) -> list[str]:
    """The rules of a reply that is a call, without those of its arguments, `args_0` and so on.

    The header names the tool in front of the channel, as chat templates show earlier calls, or behind it, as
    OpenAI's documentation has it.

    whole:   from the reply's first token, thoughts included; else from behind the recipient
    answers: whether such a reply may be a DOCUMENT as well
    """
    to, said = terms(channels.recipient), f"{terms(channels.channel)} {terms(channels.calls)}"
    before = " | ".join(f"before_{index}" for index in range(len(names)))
    behind = " | ".join(f"behind_{index}" for index in range(len(names)))
    rules = [f"start: {before} | {behind}"]
    if whole:
        other = f" | {_answer(channels, terms)}" if answers else ""
        calls = f"{to} ({before}) | {said} {to} ({behind})"
        rules = [f"start: thoughts ({calls}{other})", *_thoughts(channels, terms)]
    rules.append(f"typed: {' | '.join(map(terms, channels.typed))}")
    message = terms(channels.message)
    for index, name in enumerate(names):
        rules.append(f"before_{index}: {terms(name)} {said} typed? {message} args_{index}")
        rules.append(f"behind_{index}: {terms(name)} typed? {message} args_{index}")
    return rules


def answer_rules(channels: Channels, terms: Terms) -> list[str]:
    """The rules of a reply that is a DOCUMENT, in the channel of answers."""
    return [f"start: thoughts {_answer(channels, terms)}", *_thoughts(channels, terms)]


def _answer(channels: Channels, terms: Terms) -> str:
    header = f"{terms(channels.channel)} {terms(channels.answers)} {terms(channels.message)}"
    return f"{header} {DOCUMENT}"


def _thoughts(channels: Channels, terms: Terms) -> list[str]:
    """Messages that are thought, each of which another one follows."""
    begin = f"{terms(channels.channel)} {terms(channels.thoughts)} {terms(channels.message)}"
    end, following = terms(channels.end), terms(channels.start)
    if end.startswith("<["):
        spelled = re.escape(channels.end).replace("/", r"\/")
        return [
            f"thoughts: ({begin} THINKING? {end} {following})*",
            f"THINKING: /(?s:.)+/ & ~/(?s:.*){spelled}(?s:.*)/",
        ]
    return [
        f"thoughts: ({begin} thinking {following})*",
        f"thinking[suffix={json.dumps(channels.end)}]: /(?s:.)*/",
    ]


class RecipientTrigger:
    """A tool's name is due: the header of a message has come to whom it is for.

    grammar: from the name on
    """

    def __init__(self, tokenizer: GrammarTokenizer, channels: Channels, grammar: CompiledGrammar) -> None:
        self._tokenizer = tokenizer
        self._text = channels.recipient.lstrip().encode()
        special = tokenizer.vocab.special_id
        self._message, self._end = special(channels.message), special(channels.end)
        self._grammar = grammar

    def entered_by(self, token: int, before: Sequence[int]) -> GrammarMatcher | None:
        piece = self._tokenizer.vocab.token_bytes(token)
        if self._text[-1:] not in piece:
            return None
        tail = last_bytes(self._tokenizer, before, len(self._text))
        text = tail + piece
        start = text.rfind(self._text)
        if start < 0 or start + len(self._text) <= len(tail) or not self._in_header(before):
            return None
        return enter(self._grammar, self._tokenizer, text[start + len(self._text) :])

    def _in_header(self, tokens: Sequence[int]) -> bool:
        """Whether the message under way has not come to its text."""
        marks = (token for token in reversed(tokens) if token in (self._message, self._end))
        return next(marks, self._end) == self._end
