"""Ends for values that would have none: text that goes round in circles, and digits without end.

Left to a mask, small models write `0.3333...` or the same line of a string until the tokens run out, and the
call is lost. Two rules end such a value while it is still whole:

    circles  once the last LOOP bytes repeat a piece of at most PIECE bytes, what closes a string, a list or
             an object must follow where it can
    digits   after DIGITS of them in a row, a number must not have another one where anything else can follow

A string in tags, which nothing quotes, has no such end but its schema's length and the reply's.

Both look at the text so far alone, so the law is the target's under these rules as under any mask. They are
far from what a value is likely to mean; a call that they end has to fit its schema like any other.

It must not know schemas, nor where in a reply a value is.
"""

from __future__ import annotations

import numpy as np

from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.types import IdArray

__all__ = ["DIGITS", "LOOP", "PIECE", "bounded", "seen"]

LOOP = 1024
PIECE = 64
DIGITS = 128

_DIGITS = tuple(b"%d" % digit for digit in range(10))


def seen(tail: bytes, text: bytes) -> bytes:
    """What the rules need of a reply: its end. tail: what they had of it before `text`"""
    return (tail + text)[-LOOP:]


def bounded(legal: IdArray, tail: bytes, tokenizer: GrammarTokenizer) -> IdArray:
    """The legal tokens that the rules leave: never none."""

    digits, piece = len(tail) >= DIGITS and tail[-DIGITS:].isdigit(), _piece(tail)
    if not digits and not piece:
        return legal

    def among(*beginnings: bytes) -> IdArray:
        return np.intersect1d(legal, tokenizer.beginning(beginnings))

    if len(among(b"\n")):  # no JSON string holds one: this is free text, or text in tags
        return legal
    within_string = bool(len(among(b'"', b"\\")))
    if digits and not within_string:
        return _or_all(np.setdiff1d(legal, tokenizer.beginning(_DIGITS)), legal)
    if not piece or (len(tail) - len(tail.rstrip(b"\\"))) % 2:  # behind which a quote is part of the string
        return legal
    closing = among(b'"') if within_string else among(b"]", b"}")
    following = (piece * (1 + 64 // len(piece)))[:64]
    goes_on = [token for token in closing.tolist() if _goes_on(tokenizer.vocab.token_bytes(token), following)]
    return _or_all(np.setdiff1d(closing, np.array(goes_on, dtype=np.int64)), legal)


def _goes_on(text: bytes, following: bytes) -> bool:
    """Whether a token closes something and opens it again; one that only closes leaves the choice open."""
    return len(text) > 1 and following.startswith(text)


def _piece(tail: bytes) -> bytes:
    """What the text repeats, turned so that it comes next; b"" where it does not go round."""
    if len(tail) < LOOP:
        return b""
    period = next((size for size in range(1, PIECE + 1) if tail[size:] == tail[:-size]), 0)
    return tail[-period:] if period else b""


def _or_all(some: IdArray, legal: IdArray) -> IdArray:
    return some if len(some) else legal
