"""What a draft source is.

A draft proposes tokens; the target verifies them. Whatever a draft does, the output keeps the target's law,
as long as it keeps one promise: whether, what and how much it proposes depends on the prefix and on its own
distributions *before* it draws from them, never on the value of a token it has drawn. In particular a drawn
token is never dropped for being unlikely: that would condition the proposal on a law that is not the
recorded one.

This module must not know the engine, nor any particular source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentspec.config import SamplingOptions
from agentspec.types import Matcher, Proposal, Randomness

__all__ = ["Draft", "DraftRequest"]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that may get proposals.

    slot:     the sequence's place, the same from its first block to its last
    prefix:   prompt, reply and the block so far
    matcher:  the grammar's state at the end of the prefix, a copy the draft may advance; None where every
              token is legal
    sampling: the settings of the target's law, for drafts that draw from a model of their own
    limit:    at most this many tokens, at least 1
    last:     no source that runs a model will extend this block: a guess costs little here
    chance:   the request's randomness; the only one a draft may use
    """

    slot: int
    prefix: Sequence[int]
    matcher: Matcher | None
    sampling: SamplingOptions
    limit: int
    last: bool
    chance: Randomness


class Draft(Protocol):
    """A source of proposals."""

    @property
    def name(self) -> str:
        """The source's name in options, statistics and traces."""
        ...

    @property
    def cheap(self) -> bool:
        """True if a proposal costs no model pass, so that its tokens need not be rationed."""
        ...

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """One proposal per request, in order, with at most `limit` tokens; an empty one for no idea.

        Takes many sequences at once, because a model batches them. May raise AgentSpecError or ValueError:
        the block then goes on without this source. Whether it does must not depend on a drawn token.
        """
        ...

    def release(self, slot: int) -> None:
        """The sequence in this slot has ended. What is kept for its prefix may be kept."""
        ...
