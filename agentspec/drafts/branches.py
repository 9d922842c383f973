"""Where a grammar leaves few ways to go on: which of them the conversation speaks of.

A branch is a legal token and what is fixed behind it: the rest of a tool's name, an enum's value, a key. Its
words are looked for in the last messages. It must not know what the grammar is of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from agentspec.drafts.base import Offer
from agentspec.types import Matcher

__all__ = ["likeliest_branch"]

_MOST = 16
"""Branches that are looked into; each costs a fork of the grammar's state."""

_WORD = re.compile(r"[^\W_]+")
_STEM = 5
"""Letters of a word that are compared: "flights" is spoken of where "flight" is."""


def likeliest_branch(
    matcher: Matcher, texts: Sequence[str], token_bytes: Callable[[int], bytes]
) -> Offer | None:
    """The branch that the texts speak of most, else the first; None where there are too many to tell.

    matcher: the state at the fork
    """
    legal = matcher.legal()
    if legal is None or len(legal) > _MOST:
        return None
    spoken = {word[:_STEM] for text in texts for word in _words(text)}
    scores = []
    for token in legal.tolist():
        state = matcher.fork()
        state.advance(token)
        run = [token] if state.done() else [token, *state.forced()]
        words = _words(b"".join(map(token_bytes, run)).decode(errors="replace"))
        known = sum(word[:_STEM] in spoken for word in words)
        scores.append((known / len(words) if words else 0.0, run))
    best = max(scores, key=lambda scored: scored[0])
    rest = sorted((score for score, _ in scores), reverse=True)[1:2]
    lead = best[0] - (rest[0] if rest else 0.0)
    # without a word to go by, one of the branches; the more the conversation prefers one, the surer
    first = 1.0 / len(scores) + (0.9 - 1.0 / len(scores)) * lead
    return Offer(best[1], [first, *[0.99] * (len(best[1]) - 1)])


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
