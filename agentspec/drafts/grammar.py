"""The grammar draft: tokens that the schema fixes.

Forced tokens are proposed with certainty, and where each is the only legal one the target's law agrees with
certainty. Past them it may add a guess: the canonical spelling of text that is fixed although its tokens
are not. It must not know how a grammar is written, and it has no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.drafts.base import DraftRequest
from agentspec.types import Proposal

__all__ = ["GrammarDraft"]


class GrammarDraft:
    """Proposes forced runs and, where nothing better can follow, canonical guesses."""

    @property
    def name(self) -> str:
        return "grammar"

    @property
    def cheap(self) -> bool:
        return True

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        return [self._propose(request) for request in requests]

    def release(self, slot: int) -> None:
        """Keeps nothing per sequence."""

    def _propose(self, request: DraftRequest) -> Proposal:
        matcher = request.matcher
        if matcher is None:
            return Proposal((), (), self.name)
        tokens = list(matcher.forced()[: request.limit])
        room = request.limit - len(tokens)
        if room:
            for token in tokens:
                matcher.advance(token)
            guess = matcher.guess()
            if not request.last:
                guess = guess[:-1]  # another source knows better what the text runs into
            tokens += guess[:room]
        return Proposal(tuple(tokens), (None,) * len(tokens), self.name)
