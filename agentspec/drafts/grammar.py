"""The grammar draft: tokens that the schema fixes.

Forced tokens are proposed with certainty, and where each is the only legal one the target's law agrees with
certainty. Past them it may add a guess: the canonical spelling of text that is fixed although its tokens
are not. It must not know how a grammar is written, and it has no model.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.drafts.base import DraftRequest

__all__ = ["GrammarDraft"]


class GrammarDraft:
    """Proposes forced runs and, where nothing better can follow, canonical guesses."""

    @property
    def name(self) -> str:
        return "grammar"

    @property
    def cheap(self) -> bool:
        return True

    def propose(self, requests: Sequence[DraftRequest]) -> None:
        for request in requests:
            self._propose(request)

    def release(self, slot: int) -> None:
        """Keeps nothing per sequence."""

    def _propose(self, request: DraftRequest) -> None:
        matcher = request.matcher
        if matcher is None:
            return
        request.propose(matcher.forced())
        matcher = request.matcher
        if request.room and matcher is not None:
            guess = matcher.guess()
            # where another source may follow, it knows better what the text runs into
            request.propose(guess if request.last else guess[:-1])
