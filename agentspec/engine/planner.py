"""Builds blocks: asks the sources in turn until nobody has anything to add.

A block is composed: forced run, model tokens, forced run, and so on. Who is asked, and when a block ends,
depends on the prefix and on counts alone, never on the value of a drawn token beyond the prefix it makes.
It must not know the target's rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.config import DraftOptions, SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest
from agentspec.engine.block import Block
from agentspec.errors import AgentSpecError
from agentspec.trace import Trace
from agentspec.types import Randomness

__all__ = ["BlockPlan", "Planner"]

_MODEL = "model"


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
        out: set[str] = set()
        grown = True
        while grown:
            grown = False
            for draft in self._drafts:
                if draft.name not in out:
                    grown |= self._ask(draft, plans, out)

    def release(self, slot: int) -> None:
        for draft in self._drafts:
            draft.release(slot)

    def _ask(self, draft: Draft, plans: Sequence[BlockPlan], out: set[str]) -> bool:
        """Asks one source for every sequence that has room for it; True if a block grew."""
        asked = [plan for plan in plans if self._limit(draft, plan) > 0]
        if not asked:
            return False
        try:
            proposals = draft.propose([self._request(draft, plan) for plan in asked])
        except AgentSpecError as error:
            out.add(draft.name)
            self._note_failure(draft, asked, error)
            return False
        before = sum(len(plan.block.tokens) for plan in asked)
        for plan, proposal in zip(asked, proposals, strict=True):
            plan.block.append(proposal)
        return sum(len(plan.block.tokens) for plan in asked) > before

    def _limit(self, draft: Draft, plan: BlockPlan) -> int:
        if draft.name not in plan.draft.sources:
            return 0
        if draft.name != _MODEL:
            return plan.room
        drawn = sum(len(part.tokens) for part in plan.block.proposals if part.source == _MODEL)
        return min(plan.room, plan.draft.max_model_tokens - drawn)

    def _request(self, draft: Draft, plan: BlockPlan) -> DraftRequest:
        limit = self._limit(draft, plan)
        others = [other for other in self._drafts if other is not draft and other.name != "grammar"]
        return DraftRequest(
            slot=plan.slot,
            prefix=plan.block.prefix(),
            matcher=plan.block.fork(),
            sampling=plan.sampling,
            limit=limit,
            last=not any(self._limit(other, plan) > 0 for other in others),
            chance=plan.chance,
        )

    def _note_failure(self, draft: Draft, plans: Sequence[BlockPlan], error: AgentSpecError) -> None:
        for plan in plans:
            plan.trace.draft_failures[draft.name] += 1
        if draft.name not in self._failed:
            self._failed.add(draft.name)
            warnings.warn(
                f"the draft source {draft.name!r} failed and is left out where it does: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
