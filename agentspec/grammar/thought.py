"""Reasoning in front of a reply, for grammars: as rules of one, and as what a call is not looked for in.

Within the block everything is allowed but to end the reply.

It must not know tools, schemas or templates.
"""

from __future__ import annotations

import copy
import json
import re

from agentspec.chat.reasoning import Marks, Reasoning, ThoughtSplitter
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.types import Vocabulary

__all__ = ["THOUGHT", "Gate", "thought_rules"]

THOUGHT = "thought"
"""The name of the rule: the block, if there is one, and the white space behind it."""


def thought_rules(vocab: Vocabulary, reasoning: Reasoning) -> list[str]:
    """The rules of the block, in Lark; none where the reply has none."""
    marks = reasoning.marks
    if marks is None or reasoning.opening == "over":
        return []
    block = f"{_text_of(vocab, marks.begin)} thinking THOUGHT_SPACE?"
    return [
        f"{THOUGHT}: ({block})?"
        if reasoning.opening == "possible"
        else f"{THOUGHT}: thinking THOUGHT_SPACE?",
        *_thinking(vocab, marks),
        r"THOUGHT_SPACE: /[ \t\r\n]{1,8}/",
    ]


def _thinking(vocab: Vocabulary, marks: Marks) -> list[str]:
    """Text, and markers that stand for text too: in a grammar, text alone does not cover those."""
    end = vocab.special_id(marks.end)
    hidden = {end, *vocab.end_ids}
    markers = _ranges([token for token in _specials(vocab) if token not in hidden])
    spelled = re.escape(marks.end).replace("/", r"\/")
    text = rf"THINKING: /(?s:.)+/ & ~/(?s:.*){spelled}(?s:.*)/"
    if end is not None:
        return [f"thinking: ({' | '.join(filter(None, ['THINKING', markers]))})* <[{end}]>", text]
    last = f"thinking_end[suffix={json.dumps(marks.end)}]: /(?s:.)*/"
    if not markers:
        return ["thinking: thinking_end", last]
    return [f"thinking: (THINKING? {markers})* thinking_end", text, last]


def _specials(vocab: Vocabulary) -> list[int]:
    return [token for token in range(vocab.n_tokens) if vocab.is_special(token) and vocab.token_bytes(token)]


def _ranges(tokens: list[int]) -> str:
    """Any of the tokens, as one Lark term: an alternative each would cost a parser's row each."""
    ranges: list[list[int]] = []
    for token in tokens:
        if ranges and ranges[-1][1] == token - 1:
            ranges[-1][1] = token
        else:
            ranges.append([token, token])
    return f"<[{','.join(f'{low}-{high}' for low, high in ranges)}]>" if ranges else ""


def _text_of(vocab: Vocabulary, text: str) -> str:
    token = vocab.special_id(text)
    return json.dumps(text) if token is None else f"<[{token}]>"


class Gate:
    """Says whether a reply is still in its reasoning, or may yet begin it."""

    def __init__(self, tokenizer: GrammarTokenizer, reasoning: Reasoning) -> None:
        self._vocab = tokenizer.vocab
        self._splitter = ThoughtSplitter(reasoning)
        self._held: tuple[int, ...] = ()  # what may begin the block

    def passed_by(self, token: int) -> tuple[int, ...]:
        """Moves over a token. The tokens that turn out to be part of the reply proper: this one, and those
        before it that might have begun the block."""
        if not self._splitter.undecided:
            return (token,)
        inside = self._splitter.inside
        said = self._splitter.feed(self._vocab.pieces()[token].decode(errors="replace"))[1]
        if inside:
            return (token,) if said else ()
        held = (*self._held, token)
        self._held = () if said or self._splitter.inside else held
        return held if said else ()

    def fork(self) -> Gate:
        """An independent copy."""
        twin = copy.copy(self)
        twin._splitter = copy.copy(self._splitter)
        return twin
