"""Replies that are a match of a regular expression, or a text of a Lark grammar, of the user's own.

They are taken as they are written: the rules that end JSON values (`agentspec.grammar.bounds`) are not
theirs. It must not know schemas or tools, nor how a mask is computed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import llguidance

from agentspec.errors import ConfigError, GrammarError
from agentspec.grammar.following import FollowingGrammar
from agentspec.grammar.matcher import CompiledGrammar, fault_of
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.grammar.write import options
from agentspec.types import Matcher

__all__ = ["Pattern", "check_pattern", "compile_pattern", "follow_pattern", "matches"]

_LONGEST = 100_000  # characters: compiling takes up to the square of the number of alternatives
_SHOWN = 500  # characters of a reason
_PLACE = re.compile(r"^at \d+\(\d+\): ")  # in the grammar, which for a regex is not the user's


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a whole reply has to match.

    text: a regular expression of Rust's regex crate without look-around and anchors within, or a grammar in
          llguidance's Lark dialect
    """

    kind: Literal["regex", "lark"]
    text: str


def check_pattern(pattern: Pattern) -> None:
    """Raises ConfigError for what can be seen to be wrong without a model, whose tokens Lark may name."""
    if len(pattern.text) > _LONGEST:
        raise ConfigError(
            f"{pattern.kind} has {len(pattern.text)} characters; at most {_LONGEST} are taken",
            hint="use repetition and classes in place of long lists",
        )
    if not _is_unicode(pattern.text):
        raise _refused(pattern, "it is not valid Unicode")
    if pattern.kind == "lark" and pattern.text.lstrip().startswith("{"):
        raise _refused(pattern, "it begins like JSON")
    if pattern.kind == "regex":
        fault = fault_of(llguidance.LLMatcher(_bytes(), _lark(pattern, "canonical"), log_level=0))
        if fault is not None:
            raise _refused(pattern, fault)


def compile_pattern(
    tokenizer: GrammarTokenizer, pattern: Pattern, *, spelling: str = "canonical"
) -> CompiledGrammar:
    """The grammar of a reply that matches. Raises ConfigError with the engine's reason, and its place."""
    check_pattern(pattern)
    try:
        compiled = CompiledGrammar(tokenizer, _lark(pattern, spelling), end_values=False)
        compiled.start().legal()  # that nothing fits it, or that it is too big, shows only now
    except GrammarError as error:
        raise _refused(pattern, error.message) from error
    return compiled


def follow_pattern(tokenizer: GrammarTokenizer, pattern: Pattern, *, end: int | None) -> FollowingGrammar:
    """The grammar that goes along with a reply that is to match, until it does not, and only proposes.

    end: the token that ends a turn, as for `FollowingGrammar`. Raises ConfigError as `compile_pattern`.
    """
    return FollowingGrammar(compile_pattern(tokenizer, pattern), [], end=end)


def matches(matcher: Matcher, tokens: Sequence[int]) -> bool:
    """Whether these tokens, without an end token, are a whole reply. matcher: before the first; not moved"""
    state = matcher.fork()
    try:
        for token in tokens:
            state.advance(token)
    except GrammarError:
        return False
    return state.accepting()


def _lark(pattern: Pattern, spelling: str) -> str:
    text = pattern.text
    if pattern.kind == "regex":
        text = f"start: /{llguidance.regex_to_lark(text)}/"
    return f"{text}\n{options(spelling)}"  # behind it, so that the lines of errors are the user's


def _refused(pattern: Pattern, reason: str) -> ConfigError:
    if reason.startswith("panic"):
        reason = "it is too big for the grammar engine"
    if pattern.kind == "regex":
        reason = _PLACE.sub("", reason)
    if len(reason) > _SHOWN:
        reason = reason[: _SHOWN - 1] + "…"
    return ConfigError(f"{pattern.kind} cannot be used: {reason}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@functools.cache
def _bytes() -> llguidance.LLTokenizer:
    """A vocabulary of single bytes: whether a regex is one does not depend on the vocabulary."""
    return llguidance.LLTokenizer("byte")
