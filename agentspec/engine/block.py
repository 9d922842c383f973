"""One block in the making: what the sources propose for one sequence, and what is legal at each position.

It walks a fork of the sequence's matcher over the block. It must not know the target's rows,
nor which source is asked when.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentspec.errors import AgentSpecError
from agentspec.types import Distribution, Legal, Matcher, Proposal

__all__ = ["Block"]


class Block:
    """Proposals for the positions after `prefix`.

    tokens, dists: the block's tokens and what each was drawn from, shape (n,)
    legal:         legal[i] are the tokens allowed at position i; shape (n + 1,), or (n,) where the last token
                   ends the reply or is illegal, so that nothing can follow it
    error:         what the grammar failed with, if it did; the block is then of no use
    """

    def __init__(self, prefix: Sequence[int], matcher: Matcher | None, end_ids: frozenset[int]) -> None:
        self._prefix = prefix
        self._matcher = None if matcher is None else matcher.fork()
        self._end_ids = end_ids
        self.proposals: list[Proposal] = []
        self.tokens: list[int] = []
        self.dists: list[Distribution | None] = []
        self.legal: list[Legal] = []
        self.open = True
        self.error: AgentSpecError | None = None
        try:
            self._extend_legal()
        except AgentSpecError as error:
            self._fail(error)

    def prefix(self) -> list[int]:
        """The tokens before the block's next position."""
        return [*self._prefix, *self.tokens]

    def fork(self) -> Matcher | None:
        """The matcher's state at the block's next position, as a copy."""
        return None if self._matcher is None else self._matcher.fork()

    def append(self, proposal: Proposal) -> None:
        """Adds a proposal; a token after which nothing can follow closes the block.

        An illegal token has target probability 0, so it will be rejected. Drawn from a distribution it stays
        in the block, since dropping it would bias the law; proposed with certainty it can be left out, since
        the residual of a point mass at an illegal token is the law itself.
        """
        taken = 0
        for token, dist in zip(proposal.tokens, proposal.dists, strict=True):
            if not self.open:
                break
            legal = _contains(self.legal[-1], token)
            if not legal and dist is None:
                self.open = False
                break
            self.tokens.append(token)
            self.dists.append(dist)
            taken += 1
            if not legal or token in self._end_ids:
                self.open = False
            else:
                self._walk(token)
        if taken:
            part = Proposal(proposal.tokens[:taken], proposal.dists[:taken], proposal.source)
            self.proposals.append(part)

    @property
    def soft(self) -> bool:
        """Whether a token was drawn from more than one.

        Up to the first such position all tokens are certain, so whether there is one depends on the prefix
        alone, and the verifier may be chosen by it.
        """
        return any(dist is not None and len(dist.ids) > 1 for dist in self.dists)

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

    def _walk(self, token: int) -> None:
        if self._matcher is not None:
            try:
                self._matcher.advance(token)
                self._extend_legal()
            except AgentSpecError as error:
                self._fail(error)
        else:
            self._extend_legal()

    def _extend_legal(self) -> None:
        if self._matcher is None:
            self.legal.append(None)
        elif self._matcher.done():
            self.open = False
        else:
            self.legal.append(self._matcher.legal())

    def _fail(self, error: AgentSpecError) -> None:
        self.error = error
        self.open = False


def _contains(legal: Legal, token: int) -> bool:
    if legal is None:
        return True
    index = int(np.searchsorted(legal, token))
    return index < len(legal) and int(legal[index]) == token
