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
from agentspec.drafts.base import Draft
from agentspec.engine.block import Block
from agentspec.errors import AgentSpecError
from agentspec.trace import Trace
from agentspec.types import Distribution, Matcher

__all__ = ["BlockPlan", "BlockRequest", "Planner"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """One sequence's block, and what its sources need to know."""

    slot: int
    block: Block
    sampling: SamplingOptions
    draft: DraftOptions
    trace: Trace


class Planner:
    """Composes blocks from draft sources, in the order in which they are asked."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self._drafts = tuple(drafts)
        self._failed: set[str] = set()

    def compose(self, plans: Sequence[BlockPlan]) -> None:
        """Fills the blocks. A source that fails adds no more to these blocks, with one warning."""
        sources = list(self._drafts)
        grown = True
        while grown:
            grown = False
            for draft in self._drafts:
                if draft in sources:
                    grown |= self._ask(draft, plans, sources)

    def drafts_for(self, options: DraftOptions) -> bool:
        """Whether any source may propose anything under these options."""
        return any(draft.name in options.sources for draft in self._drafts)

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
        before = _size(asked)
        try:
            draft.propose([_request(draft, plan, sources) for plan in asked])
        except Exception as error:  # noqa: BLE001 - a source may be anybody's; it is reported, and left out
            sources.remove(draft)
            self._note_failure(draft, asked, error)
        return _size(asked) > before

    def _note_failure(self, draft: Draft, plans: Sequence[BlockPlan], error: Exception) -> None:
        for plan in plans:
            plan.trace.draft_failures[draft.name] += 1
        if draft.name not in self._failed:
            self._failed.add(draft.name)
            said = str(error) if isinstance(error, (AgentSpecError, ValueError)) else repr(error)
            _log.warning("the draft source %r failed and is left out where it does: %s", draft.name, said)


class BlockRequest:
    """What one source sees of one sequence: agentspec.drafts.base.DraftRequest.

    limit: most tokens it may propose
    """

    def __init__(
        self, block: Block, source: str, *, slot: int, sampling: SamplingOptions, limit: int, last: bool
    ) -> None:
        self.slot = slot
        self.sampling = sampling
        self.last = last
        self._block = block
        self._source = source
        self._end = len(block.proposals) + limit

    @property
    def prefix(self) -> Sequence[int]:
        return self._block.prefix

    @property
    def matcher(self) -> Matcher | None:
        return self._block.fork()

    @property
    def room(self) -> int:
        return min(self._block.room, self._end - len(self._block.proposals))

    def draw(self, distribution: Distribution) -> int:
        if not self.room:
            raise ValueError(f"the source {self._source!r} drew a token that it has no room for")
        return self._block.draw(distribution, self._source)

    def propose(self, tokens: Sequence[int]) -> None:
        self._block.propose(tokens[: self.room], self._source)


def _request(draft: Draft, plan: BlockPlan, sources: Sequence[Draft]) -> BlockRequest:
    models = [other for other in sources if other is not draft and not other.cheap]
    return BlockRequest(
        plan.block,
        draft.name,
        slot=plan.slot,
        sampling=plan.sampling,
        limit=_limit(draft, plan),
        last=not any(_limit(other, plan) > 0 for other in models),
    )


def _limit(draft: Draft, plan: BlockPlan) -> int:
    """How many tokens a source may still add to a block."""
    if draft.name not in plan.draft.sources:
        return 0
    if draft.cheap:
        return plan.block.room
    proposed = sum(proposal.source == draft.name for proposal in plan.block.proposals)
    return min(plan.block.room, plan.draft.max_model_tokens - proposed)


def _size(plans: Sequence[BlockPlan]) -> int:
    return sum(len(plan.block.proposals) for plan in plans)
