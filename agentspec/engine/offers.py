"""One sequence's block as its sources see it, and what an offer for it is worth.

It must not know which source is asked when, nor what a pass costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agentspec.calibration.calibrator import Calibrator, Where
from agentspec.calibration.recording import Note
from agentspec.calibration.survival import Cell, Survival, agreement, context_class, heat
from agentspec.config import DraftOptions, SamplingOptions
from agentspec.drafts.base import Draft, Offer
from agentspec.engine.block import Block, checked
from agentspec.places import Place
from agentspec.trace import Trace
from agentspec.types import Distribution, Matcher

__all__ = ["BlockPlan", "Weighed", "join", "weigh"]


@dataclass(slots=True, eq=False)
class BlockPlan:
    """One sequence's block in the making: agentspec.drafts.base.DraftRequest, and what the planner notes.

    survival: estimated probability that a token and all before it are accepted, shape (n,)
    cells:    where it is learned what became of each token; () for one that is certain
    notes:    what is known of each token, for recordings
    asked:    how many tokens of the block each source that runs a model was asked for
    n_paid:   the length below which it is not cut, since a probe has paid for it
    rival:    what a cheap source offers for the next token, while it waits for a model
    """

    slot: int
    block: Block
    n_prompt: int
    law_sampling: SamplingOptions
    draft: DraftOptions
    trace: Trace
    tool_set: str = ""
    texts: Sequence[str] = ()
    survival: list[float] = field(default_factory=list)
    cells: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    n_paid: int = 0
    rival: Weighed | None = None

    # -------------------------------------------------------------------------- what sources may read

    @property
    def prefix(self) -> Sequence[int]:
        return self.block.prefix

    @property
    def n_settled(self) -> int:
        return self.block.n_settled

    @property
    def matcher(self) -> Matcher | None:
        return self.block.fork()

    @property
    def place(self) -> Place:
        return self.block.place

    @property
    def room(self) -> int:
        return self.block.room

    @property
    def sampling(self) -> SamplingOptions:
        if (temperature := self.draft.draft_temperature) is None:
            return self.law_sampling
        return self.law_sampling.model_copy(update={"temperature": temperature})

    # ---------------------------------------------------------------------------- what the planner notes

    @property
    def reach(self) -> float:
        """The estimated probability that the whole block is accepted."""
        return self.survival[-1] if self.survival else 1.0

    def uses(self, draft: Draft) -> bool:
        """Whether the request wants proposals of this source."""
        return draft.name in self.draft.sources

    def may_ask(self, model: Draft) -> bool:
        """Whether a source that runs a model may add to this block."""
        return (
            not model.cheap
            and self.uses(model)
            and self.asked.get(model.name, 0) < self.draft.max_model_tokens
        )

    def cell(self, source: str, confidence: float | None) -> Cell:
        """Where estimates for a source's next token are kept; with None, for the source as a whole."""
        place = context_class(self.block.place.kind, self.block.legal[-1])
        return Cell.of(source, place, confidence, heat(self.law_sampling))

    @property
    def where(self) -> Where:
        """What the calibration of a law for the next token is kept by."""
        place = context_class(self.block.place.kind, self.block.legal[-1])
        return Where(
            self.tool_set,
            place,
            heat(self.law_sampling),
            self.draft.draft_temperature,
            self.draft.verifier == "seed_invariant",
        )

    def forced(self) -> bool:
        """Whether only one token is legal next: whoever proposes it is right."""
        legal = self.block.legal[-1]
        return legal is not None and len(legal) == 1

    def propose(
        self,
        token: int,
        source: str,
        confidence: float,
        survival: Survival,
        laws: Mapping[str, Distribution] | None = None,
    ) -> bool:
        """Adds a token that is proposed with certainty; False where it is illegal or nothing more fits.

        laws: what it was chosen from, if it was, as those of `Weighed`

        Raises ValueError for an id that the vocabulary has not.
        """
        forced, cell, whole = self.forced(), self.cell(source, confidence), self.cell(source, None)
        where = self.where
        if not self.block.propose(token, source):
            return False
        self._note(() if forced else (cell, whole), 1.0 if forced else survival.estimate(cell))
        self.notes.append(Note(cell.place, 1.0 if forced else confidence, forced, laws or {}, where))
        return True

    def draw(self, offer: Weighed) -> None:
        """Draws a token from the offer's distribution into the block.

        Raises ValueError, before anything is drawn, for what is not a distribution over the vocabulary.
        """
        assert offer.draft_probs is not None
        whole, where, forced = self.cell(offer.source, None), self.where, self.forced()
        self.block.draw(offer.draft_probs, offer.source)
        self._note((offer.cell, whole), offer.estimate)
        self.notes.append(Note(whole.place, 1.0, forced, offer.laws, where))

    def _note(self, cells: tuple[Cell, ...], estimate: float) -> None:
        self.survival.append(self.reach * estimate)
        self.cells.append(cells)


class Weighed(NamedTuple):
    """An offer that may be taken.

    draft_probs: calibrated
    cell:        where estimates for its first token are kept
    estimate:    the probability that its first token is accepted if the block so far is
    laws:        what sources offered for its first token, by source, before calibration
    """

    source: str
    tokens: Sequence[int]
    confidence: Sequence[float]
    draft_probs: Distribution | None
    cell: Cell
    estimate: float
    laws: Mapping[str, Distribution]


def weigh(offer: Offer, source: str, plan: BlockPlan, calibrator: Calibrator) -> Weighed | None:
    """The offer with what its first token is worth here; None where it offers nothing that is legal.

    Raises ValueError where it is no offer: a run without a confidence for each token, or with ids that the
    vocabulary has not, or what is no distribution over it.
    """
    tokens, confidence, draft_probs = offer
    if len(tokens) != len(confidence):
        raise ValueError(f"{len(tokens)} tokens offered with {len(confidence)} confidences")
    if draft_probs is not None:
        return _of_laws(source, {source: checked(draft_probs, plan.block.n_vocab)}, plan, calibrator)
    if any(not 0 <= token < plan.block.n_vocab for token in tokens):
        raise ValueError(f"offered ids outside the vocabulary of {plan.block.n_vocab}")
    if not tokens or not plan.block.allows(tokens[0]):
        return None
    cell = plan.cell(source, confidence[0])
    estimate = 1.0 if plan.forced() else calibrator.survival.estimate(cell)
    return Weighed(source, tokens, confidence, None, cell, estimate, {})


def join(paid: Weighed, rival: Weighed | None, plan: BlockPlan, calibrator: Calibrator) -> Weighed:
    """The offer that has cost a pass, mixed with one for the same token that waited for it, where both are
    laws. Whatever share each has, the token counts as the first one's."""
    if rival is None or not paid.laws or not rival.laws:
        return paid
    return _of_laws(paid.source, {**paid.laws, **rival.laws}, plan, calibrator) or paid


def _of_laws(
    source: str, laws: Mapping[str, Distribution], plan: BlockPlan, calibrator: Calibrator
) -> Weighed | None:
    """The calibrated offer of a law, or of two. One that has become certain is a token like any other: None
    where that is illegal."""
    law = calibrator.calibrated(laws, plan.where)
    certain = len(law.ids) == 1 < len(laws[source].ids)
    confidence = float(laws[source].probs.max()) if certain else agreement(law)
    cell = plan.cell(source, confidence)
    estimate = calibrator.survival.estimate(cell)
    if not certain:
        return Weighed(source, (), (), law, cell, estimate, laws)
    token = int(law.ids[0])
    if not plan.block.allows(token):
        return None
    return Weighed(source, (token,), (confidence,), None, cell, estimate, laws)
