"""The grammar draft: tokens that the schema fixes, and the likelier branch where it leaves a choice.

Forced tokens are certain, and where each is the only legal one the target's law agrees. Past them it
guesses the canonical spelling of text that is fixed although its tokens are not, and at forks of few branches
(a tool's name, an enum, a boolean, an optional key, the end of an array) the branch that the conversation
speaks of. It must not know how a grammar is written, and it has no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentspec.drafts.base import Draft, DraftRequest, Offer
from agentspec.drafts.branches import likeliest_branch

__all__ = ["GrammarDraft"]

_FORCED = 0.99
_GUESS = 0.93
_LAST_GUESS = 0.78  # the last token of a guess may yet turn out to be a longer one


class GrammarDraft(Draft):
    """Offers forced runs, canonical guesses and branches.

    token_bytes: what a token spells; without it there are no branches
    """

    name = "grammar"

    def __init__(self, token_bytes: Callable[[int], bytes] | None = None) -> None:
        self._token_bytes = token_bytes

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        return [self._offer(request) for request in requests]

    def _offer(self, request: DraftRequest) -> Offer | None:
        matcher = request.matcher
        if matcher is None:
            return None
        if forced := matcher.forced():
            return Offer(forced, [_FORCED] * len(forced))
        if guess := matcher.guess():
            return Offer(guess, [*[_GUESS] * (len(guess) - 1), _LAST_GUESS])
        if self._token_bytes is None:
            return None
        return likeliest_branch(matcher, request.texts, self._token_bytes)
