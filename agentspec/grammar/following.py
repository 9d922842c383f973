"""A grammar that binds nobody: it follows the reply and says how it would go on.

Under `grammar="propose"` the law of a reply is the plain target's: every token is legal, and the reply ends
where the target ends it. While the text fits, the grammar's forced runs and guesses are there for the grammar
draft to propose. Text that does not fit leaves the grammar, which has nothing to say from then on, until
something begins that it knows: that token included, it starts anew.

Grammars may have habits of the model to follow (`agentspec.grammar.loose`). Those are learned from what is
settled, also from the rest of a value that turned out not to fit.

It must not know schemas, how a grammar is written, nor where a call may begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentspec.grammar.habits import Lesson
from agentspec.grammar.matcher import CompiledGrammar, GrammarMatcher
from agentspec.grammar.triggered import Trigger
from agentspec.types import Legal

__all__ = ["FollowingGrammar", "FollowingMatcher"]


class FollowingGrammar:
    """Makes matchers that follow.

    opening:  the grammar of a reply from its first token on; None where replies begin with free text
    triggers: where a reply that is outside the grammar comes (back) into one
    end:      the token that ends a turn: how a reply goes on when its grammar is done; None if not known
    lesson:   begins to learn habits from a reply, or from the middle of one; None where there are none
    """

    def __init__(
        self,
        opening: CompiledGrammar | None,
        triggers: Sequence[Trigger],
        *,
        end: int | None,
        lesson: Callable[[], Lesson] | None = None,
    ) -> None:
        self.opening = opening
        self.triggers = tuple(triggers)
        self.end = () if end is None else (end,)
        self.lesson = lesson

    def start(self) -> FollowingMatcher:
        """A matcher before the first token. It learns, and so does a fork that is made before it moves: one
        such state may be kept to begin many replies from. All other forks only look ahead."""
        inside = None if self.opening is None else self.opening.start()
        return FollowingMatcher(self, inside, self.lesson, first=True)


class FollowingMatcher:
    """A Matcher that allows every token, and an end anywhere.

    lesson: as for the grammar; None for one that only looks ahead
    first:  whether it was made by `FollowingGrammar.start`
    """

    def __init__(
        self,
        grammar: FollowingGrammar,
        inside: GrammarMatcher | None,
        lesson: Callable[[], Lesson] | None,
        *,
        first: bool = False,
    ) -> None:
        self._grammar = grammar
        self._inside = inside
        self._new_lesson = lesson
        self._lesson = None if inside is None or lesson is None else lesson()
        self._first = first
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
        return self._grammar.end if self._inside.done() else self._inside.forced()

    def guess(self) -> tuple[int, ...]:
        return () if self._inside is None or self._inside.done() else self._inside.guess()

    def advance(self, token: int) -> None:
        """Moves over any token, in or out of the grammar."""
        if self._inside is None or not self._inside.try_advance([token]):
            entered = (trigger.entered_by(token, self._taken) for trigger in self._grammar.triggers)
            self._inside = next((matcher for matcher in entered if matcher is not None), None)
            if self._inside is not None and self._new_lesson is not None:
                self._lesson = self._new_lesson()
        if self._lesson is not None:
            self._lesson.see(token, fits=self._inside is not None)
            if self._inside is None and not self._lesson.depth:
                self._lesson = None  # free text follows the value that did not fit
        self._taken.append(token)

    def fork(self) -> FollowingMatcher:
        inside = None if self._inside is None else self._inside.fork()
        lesson = self._new_lesson if self._first and not self._taken else None
        copy = FollowingMatcher(self._grammar, inside, lesson)
        copy._taken = list(self._taken)
        return copy

    def done(self) -> bool:
        return False

    def accepting(self) -> bool:
        return True
