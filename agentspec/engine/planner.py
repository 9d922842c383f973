"""Builds blocks: asks the sources in turn until nobody has anything to add.

A block is composed: forced run, model tokens, forced run, and so on. Who is asked, and when a block ends,
depends on the prefix and on counts alone, never on the value of a drawn token beyond the prefix it makes.
It must not know the target's rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.config import DraftOptions, SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest
from agentspec.engine.block import Block
from agentspec.errors import AgentSpecError
from agentspec.trace import Trace
from agentspec.types import Proposal, Randomness

__all__ = ["BlockPlan", "Planner"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class BlockPlan:
    """One sequence's block and what it may hold.

    limit: most tokens of the block (0 for none)
    """

    slot: int
    block: Block
    limit: int
    sampling: SamplingOptions
    draft: DraftOptions
    chance: Randomness
    trace: Trace

    @property
    def room(self) -> int:
        return self.limit - len(self.block.tokens) if self.block.open else 0


class Planner:
    """Composes blocks from draft sources, in the order in which they are asked."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self._drafts = tuple(drafts)
        self._failed: set[str] = set()

    def compose(self, plans: Sequence[BlockPlan]) -> None:
        """Fills the blocks. Sources that fail are left out of these blocks, with one warning."""
        sources = list(self._drafts)
        grown = True
        while grown:
            grown = False
            for draft in self._drafts:
                if draft in sources:
                    grown |= self._ask(draft, plans, sources)

    def release(self, slot: int) -> None:
        for draft in self._drafts:
            draft.release(slot)

    def _ask(self, draft: Draft, plans: Sequence[BlockPlan], sources: list[Draft]) -> bool:
        """Asks one source for every sequence that has room for it; True if a block grew.

        sources: those that have not failed; a failing one is taken out
        """
        asked = [plan for plan in plans if _limit(draft, plan) > 0]
        if not asked:
            return False
        requests = [_request(draft, plan, sources) for plan in asked]
        try:
            proposals = draft.propose(requests)
            _check(proposals, requests)
        except (AgentSpecError, ValueError) as error:
            sources.remove(draft)
            self._note_failure(draft, asked, error)
            return False
        before = sum(len(plan.block.tokens) for plan in asked)
        for plan, proposal in zip(asked, proposals, strict=True):
            plan.block.append(proposal)
        return sum(len(plan.block.tokens) for plan in asked) > before

    def _note_failure(self, draft: Draft, plans: Sequence[BlockPlan], error: Exception) -> None:
        for plan in plans:
            plan.trace.draft_failures[draft.name] += 1
        if draft.name not in self._failed:
            self._failed.add(draft.name)
            _log.warning("the draft source %r failed and is left out where it does: %s", draft.name, error)


def _limit(draft: Draft, plan: BlockPlan) -> int:
    """How many tokens a source may still add to a block."""
    if draft.name not in plan.draft.sources:
        return 0
    if draft.cheap:
        return plan.room
    drawn = sum(len(part.tokens) for part in plan.block.proposals if part.source == draft.name)
    return min(plan.room, plan.draft.max_model_tokens - drawn)


def _request(draft: Draft, plan: BlockPlan, sources: Sequence[Draft]) -> DraftRequest:
    models = [other for other in sources if other is not draft and not other.cheap]
    return DraftRequest(
        slot=plan.slot,
        prefix=plan.block.prefix(),
        matcher=plan.block.fork(),
        sampling=plan.sampling,
        limit=_limit(draft, plan),
        last=not any(_limit(other, plan) > 0 for other in models),
        chance=plan.chance,
    )


def _check(proposals: Sequence[Proposal], requests: Sequence[DraftRequest]) -> None:
    """Holds a source to its contract. Raises ValueError."""
    if len(proposals) != len(requests):
        raise ValueError(f"{len(proposals)} proposals for {len(requests)} sequences")
    for proposal, request in zip(proposals, requests, strict=True):
        if len(proposal.tokens) > request.limit:
            raise ValueError(f"{len(proposal.tokens)} tokens proposed where {request.limit} were allowed")
