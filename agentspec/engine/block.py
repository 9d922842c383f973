"""One block in the making: what the sources propose for one sequence, and what is legal at each position.

It walks a fork of the sequence's matcher over the block. A drawn token enters it in the call that draws it,
and nothing takes it out again: only tokens that were proposed with certainty, and follow the last drawn one,
can be cut off, which depends on the past alone. It must not know the target's rows, nor which source is asked
when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agentspec.errors import AgentSpecError
from agentspec.places import TEXT, Place, PlaceScanner
from agentspec.types import Distribution, Legal, Matcher, Proposal

__all__ = ["Block", "checked"]

Draw = Callable[[Distribution, int], int]
"""A reply's chance: (distribution, position in the block) to a token."""


class Block:
    """Proposals for the positions after a prefix.

    settled:     the prefix: prompt and reply
    n_vocab:     size of the vocabulary
    limit:       most tokens it may hold
    draw:        the reply's chance
    scanner:     where the reply stands in its JSON after the prefix; it is read, never moved
    token_bytes: what a token spells, for the scanner
    proposals:   its tokens with what each was drawn from and by whom, shape (n,)
    legal:       legal[i] are the tokens allowed at position i; shape (n + 1,), or (n,) where the last token
                 ends the reply or is illegal, so that nothing can follow it
    error:       what the grammar failed with, if it did; the block is then of no use
    """

    def __init__(
        self,
        settled: Sequence[int],
        matcher: Matcher | None,
        end_ids: frozenset[int],
        *,
        n_vocab: int,
        limit: int,
        draw: Draw,
        scanner: PlaceScanner | None = None,
        token_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        self.n_settled = len(settled)
        self._prefix = list(settled)
        self._matcher = None if matcher is None else matcher.fork()
        self._end_ids = end_ids
        self.n_vocab = n_vocab
        self._limit = limit
        self._draw = draw
        self._scanner = None if scanner is None else scanner.fork()
        self._token_bytes = token_bytes
        self._n_drawn = 0  # positions up to and including the last drawn token
        self._open = True
        self.proposals: list[Proposal] = []
        self.legal: list[Legal] = []
        self.error: AgentSpecError | None = None
        try:
            self._extend_legal()
        except AgentSpecError as error:
            self._fail(error)

    def __len__(self) -> int:
        return len(self.proposals)

    @property
    def tokens(self) -> list[int]:
        return [proposal.token for proposal in self.proposals]

    @property
    def prefix(self) -> Sequence[int]:
        """The tokens before the block's next position. A live view: it grows with the block."""
        return self._prefix

    @property
    def n_drawn(self) -> int:
        """The length below which it cannot be cut: up to and including the last drawn token."""
        return self._n_drawn

    @property
    def room(self) -> int:
        """How many more tokens it takes."""
        return self._limit - len(self.proposals) if self._open else 0

    @property
    def place(self) -> Place:
        """Where in its JSON the reply stands at the block's next position."""
        return TEXT if self._scanner is None else self._scanner.place

    def fork(self) -> Matcher | None:
        """The matcher's state at the block's next position, as a copy."""
        return None if self._matcher is None else self._matcher.fork()

    def allows(self, token: int) -> bool:
        """Whether a token may be proposed next."""
        return self.room > 0 and _contains(self.legal[-1], token)

    def draw(self, draft_probs: Distribution, source: str) -> int:
        """Draws a token from `draft_probs` and adds it, legal or not: one call, so that no drawn token can
        be left out, which would bias the law. An illegal one has target probability 0 and will be rejected.

        Raises ValueError where there is no room, and for what is not a distribution over the vocabulary.
        """
        if not self.room:
            raise ValueError("a token was drawn for a block that takes no more")
        recorded = checked(draft_probs, self.n_vocab)
        token = self._draw(recorded, len(self.proposals))
        self._add(Proposal(token, recorded, source))
        self._n_drawn = len(self.proposals)
        return token

    def propose(self, token: int, source: str) -> bool:
        """Adds a token that is proposed with certainty; False where it is illegal, or there is no room.

        To leave out an illegal one biases nothing: it depends on the prefix only, and the residual of a point
        mass at an illegal token is the law itself. Raises ValueError for an id that the vocabulary has not.
        """
        if not 0 <= token < self.n_vocab:
            raise ValueError(f"token {token} is not in the vocabulary of {self.n_vocab}")
        if not self.allows(token):
            return False
        self._add(Proposal(token, None, source))
        return True

    def cut(self, length: int) -> None:
        """Keeps the first `length` tokens and closes the block. Raises ValueError rather than lose a drawn
        token: whether it stays must not depend on which one it is."""
        if not self._n_drawn <= length <= len(self.proposals):
            raise ValueError(
                f"a block of {len(self.proposals)} tokens, {self._n_drawn} of them up to the last drawn one, "
                f"cut to {length}"
            )
        self._open = False
        if length < len(self.proposals):
            del self.proposals[length:], self.legal[length + 1 :]
            del self._prefix[self.n_settled + length :]

    def rows(self, *, skip_forced: bool) -> list[int]:
        """The positions whose logits the pass is to return.

        Where one token is legal the law needs none. Not asking for them is what saves the pass of a forced
        token, so without the grammar draft they are asked for all the same: one pass, one token.
        """
        return [
            index
            for index, legal in enumerate(self.legal)
            if not skip_forced or legal is None or len(legal) > 1
        ]

    def _add(self, proposal: Proposal) -> None:
        """Adds one token; one that nothing can follow closes the block."""
        legal = _contains(self.legal[-1], proposal.token)
        self.proposals.append(proposal)
        self._prefix.append(proposal.token)
        if proposal.token in self._end_ids or not legal:
            self._open = False
            return
        if self._scanner is not None and self._token_bytes is not None:
            self._scanner.advance(self._token_bytes(proposal.token))
        try:
            if self._matcher is not None:
                self._matcher.advance(proposal.token)
            self._extend_legal()
        except AgentSpecError as error:
            self._fail(error)

    def _extend_legal(self) -> None:
        if self._matcher is None:
            self.legal.append(None)
        elif self._matcher.done():
            self._open = False
        else:
            self.legal.append(self._matcher.legal())

    def _fail(self, error: AgentSpecError) -> None:
        self.error = error
        self._open = False


def checked(law: Distribution, n_vocab: int) -> Distribution:
    """A copy of a source's law: what is recorded must be what was drawn from, also when a source reuses its
    arrays. Raises ValueError for what is not a distribution over the vocabulary."""
    ids = np.array(law.ids, dtype=np.int64)
    probs = np.array(law.probs, dtype=np.float64)
    if ids.ndim != 1 or ids.shape != probs.shape or not ids.size:
        raise ValueError(f"a distribution of shapes {ids.shape} and {probs.shape}")
    if not (ids[0] >= 0 and ids[-1] < n_vocab and np.all(ids[1:] > ids[:-1])):
        raise ValueError(f"a distribution whose ids do not ascend within a vocabulary of {n_vocab}")
    if not (probs.min() >= 0.0 and abs(float(probs.sum()) - 1.0) <= 1e-6):
        raise ValueError(f"a distribution whose probabilities sum to {probs.sum()}, or have one below 0")
    return Distribution(ids, probs)


def _contains(legal: Legal, token: int) -> bool:
    if legal is None:
        return True
    index = int(np.searchsorted(legal, token))
    return index < len(legal) and int(legal[index]) == token
