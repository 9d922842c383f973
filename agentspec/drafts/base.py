"""What a draft source is, and what it is given.

A draft proposes tokens; the target verifies them. Whatever a draft does, the output keeps the target's law
if one promise is kept: whether, what and how much is proposed depends on the prefix and on the draft's own
distributions *before* it draws, never on the value of a token it has drawn. To draw a token, find it
unlikely and leave it out, say, would condition the proposal on a law that is not the recorded one.

The promise is kept by construction: a draft has no chance of its own. It draws through its request, which
proposes what was drawn in the same call, and nothing takes a proposed token back.

This module must not know the engine, nor any particular source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentspec.config import SamplingOptions
from agentspec.types import Distribution, Matcher

__all__ = ["Draft", "DraftRequest"]


class DraftRequest(Protocol):
    """One sequence that may get proposals. Made by the engine, or `agentspec.testing.proposals`."""

    @property
    def slot(self) -> int:
        """The sequence's place, the same from its first block to its last."""
        ...

    @property
    def prefix(self) -> Sequence[int]:
        """Prompt, reply and the block so far, with what was proposed through this request."""
        ...

    @property
    def matcher(self) -> Matcher | None:
        """The grammar's state at the end of the prefix, as a copy; None where there is no grammar."""
        ...

    @property
    def sampling(self) -> SamplingOptions:
        """The settings of the target's law, for drafts that draw from a model of their own."""
        ...

    @property
    def last(self) -> bool:
        """True where no source that runs a model will extend this block: a guess costs little here."""
        ...

    @property
    def room(self) -> int:
        """How many more tokens may be proposed: 0 also after one that nothing can follow."""
        ...

    def draw(self, distribution: Distribution) -> int:
        """Draws a token, proposes it and returns it. The only way to draw.

        Raises ValueError where there is no room, and for what is not a distribution.
        """
        ...

    def propose(self, tokens: Sequence[int]) -> None:
        """Proposes tokens with certainty (point masses), as many as there is room for.

        They must not have come from any chance. An illegal one is left out, with all after it.
        """
        ...


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

    def propose(self, requests: Sequence[DraftRequest]) -> None:
        """Proposes what it can to each request; nothing where it has no idea.

        Takes many sequences at once, because a model batches them. Where it raises, the blocks go on without
        this source, with what it has proposed so far.
        """
        ...

    def release(self, slot: int) -> None:
        """The sequence in this slot has ended. What is kept for its prefix may be kept."""
        ...
