"""A grammar that binds nobody: it follows the reply and says how it would go on.

Under `grammar="propose"` the law of a reply is the plain target's: every token is legal, and the reply ends
where the target ends it. While the text fits, the grammar's forced runs and guesses are there for the grammar
draft to propose. Text that does not fit leaves the grammar, which has nothing to say from then on, until
something begins that it knows: that token included, it starts anew.

It must not know schemas, how a grammar is written, nor where a call may begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.grammar.matcher import CompiledGrammar, GrammarMatcher
from agentspec.grammar.triggered import Trigger
from agentspec.types import Legal

__all__ = ["FollowingGrammar", "FollowingMatcher"]


class FollowingGrammar:
    """Makes matchers that follow.

    opening:  the grammar of a reply from its first token on; None where replies begin with free text
    triggers: where a reply that is outside the grammar comes (back) into one
    end:      the token that ends a turn: how a reply goes on when its grammar is done; None if not known
    """

    def __init__(
        self, opening: CompiledGrammar | None, triggers: Sequence[Trigger], *, end: int | None
    ) -> None:
        self._opening = opening
        self._triggers = tuple(triggers)
        self._end = () if end is None else (end,)

    def start(self) -> FollowingMatcher:
        inside = None if self._opening is None else self._opening.start()
        return FollowingMatcher(inside, self._triggers, self._end)


class FollowingMatcher:
    """A Matcher that allows every token, and an end anywhere."""

    def __init__(
        self, inside: GrammarMatcher | None, triggers: Sequence[Trigger], end: tuple[int, ...]
    ) -> None:
        self._inside = inside
        self._triggers = triggers
        self._end = end
        self._taken: list[int] = []

    @property
    def following(self) -> bool:
        """Whether the text fits a grammar at present."""
        return self._inside is not None

    def legal(self) -> Legal:
        return None

    def forced(self) -> tuple[int, ...]:
        """How the grammar goes on with certainty, and then the end of the turn; () outside it.

        Forced by the grammar, not by the law: the target may write anything else.
        """
        if self._inside is None:
            return ()
        return self._end if self._inside.done() else self._inside.forced()

    def guess(self) -> tuple[int, ...]:
        return () if self._inside is None or self._inside.done() else self._inside.guess()

    def advance(self, token: int) -> None:
        """Moves over any token, in or out of the grammar."""
        if self._inside is None or not self._inside.try_advance([token]):
            entered = (trigger.entered_by(token, self._taken) for trigger in self._triggers)
            self._inside = next((matcher for matcher in entered if matcher is not None), None)
        self._taken.append(token)

    def fork(self) -> FollowingMatcher:
        inside = None if self._inside is None else self._inside.fork()
        copy = FollowingMatcher(inside, self._triggers, self._end)
        copy._taken = list(self._taken)
        return copy

    def done(self) -> bool:
        return False

    def accepting(self) -> bool:
        return True
