"""Builds blocks: from all sources in turn, for as long as it pays.

A block is composed: a forced run, a copied span, a token of the model, a forced run, and so on. What each
token is expected to bring is learned from the past (`calibration.survival`), what it costs is measured
(`engine.cost`), and a block ends where one more token would lower the expected tokens per second of its pass.
So drafting is no slower than not drafting, but for what it costs to find that out, and that has a budget.

What is proposed depends on the past, on costs, and on the sources' own distributions before anything is
drawn from them; a token that was drawn stays. This module must not know the target's rows of the blocks it
builds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from agentspec.calibration.calibrator import Calibrator
from agentspec.calibration.files import CalibrationStore
from agentspec.config import DraftOptions
from agentspec.drafts.base import Draft, EndedReply
from agentspec.engine.cost import Costs
from agentspec.engine.offers import BlockPlan, Weighed, join, weigh
from agentspec.engine.worth import Pass
from agentspec.errors import AgentSpecError
from agentspec.verify import Laws

__all__ = ["Planner"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_FLOOR = 0.03
"""Survival at which a block ends, whatever a token costs: composing has a cost of its own."""

_SURE = 0.97
"""Estimate from which on no other source is asked."""

_STEADY = 0.7
"""Estimate down to which a run is taken on without asking who else has an offer."""

_PROBES = 0.02
"""Share of the time that may go to proposals that do not pay by what is known, to know it better."""


class Planner:
    """Composes blocks from draft sources.

    drafts:     of offers that promise the same, that of the first is taken
    costs:      of passes: read here and, for the sources' own passes, refreshed
    calibrator: what is known of the sources' laws, and of how often they are accepted
    store:      keeps that across runs; None forgets it with the process
    """

    def __init__(
        self,
        drafts: Sequence[Draft],
        costs: Costs,
        calibrator: Calibrator | None = None,
        store: CalibrationStore | None = None,
    ) -> None:
        self._drafts = tuple(drafts)
        self._costs = costs
        self._floor = 0.0 if costs.nothing else _FLOOR
        self._calibrator = Calibrator() if calibrator is None else calibrator
        self._survival = self._calibrator.survival
        self._store = store
        self._followed: dict[str, float] = {}  # what cheap sources add after a token of a model, by model
        self._forgone: dict[tuple[str, int], float] = {}  # seconds, by model and slot
        self._spare = 0.0  # seconds that probes may take
        self._warned: set[tuple[str, type[Exception]]] = set()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(draft.name for draft in self._drafts)

    def drafts_for(self, options: DraftOptions) -> bool:
        """Whether any source may propose anything under these options."""
        return not self.names.isdisjoint(options.sources)

    def measure(self) -> None:
        """Lets the sources that run a model time a few passes, before there is any reply."""
        for draft in self._drafts:
            for n, seconds in self._guarded(draft, (), draft.measure) or ():
                self._costs.record(n, seconds, draft.name)

    def model_seconds(self) -> float:
        """Seconds that the sources' models have taken so far."""
        total = 0.0
        for draft in self._drafts:

            def read(draft: Draft = draft) -> float:
                return draft.model_seconds

            total += self._guarded(draft, (), read) or 0.0
        return total

    def compose(self, plans: Sequence[BlockPlan], n_base: int, others: int = 0) -> None:
        """Fills the blocks. A source that fails adds no more to these blocks, with one warning.

        n_base: how many tokens the pass has without any block
        others: how many replies it goes on with without drafts
        """
        sources = list(self._drafts)
        pass_ = Pass(plans, n_base, self._costs, others)
        self._extend(plans, sources, pass_, models_first=True)
        for model in [source for source in sources if not source.cheap]:
            self._extend_by_model(plans, model, sources, pass_)
        self._extend([plan for plan in plans if plan.rival], sources, pass_)
        self._cut(plans, pass_)

    def learn(self, plan: BlockPlan, accepted: int, laws: Laws | None = None) -> None:
        """Notes how many tokens of a block were accepted. Nothing is known of those after the first that was
        not.

        laws: the target's, as the rule saw them; without them, drafts' laws are not learned from
        """
        for index, cells in enumerate(plan.cells[: accepted + 1]):
            for cell in cells:
                self._survival.learn(cell, accepted=index < accepted)
            note = plan.notes[index]
            if laws is not None and note.laws and not note.forced:
                self._calibrator.learn(note.laws, note.where, laws[index])

    def passed(self, seconds: float) -> None:
        """Replies that draft would have taken so long for a token each; a share of it may go to probes."""
        most = 4.0 * self._costs.target.seconds(8)
        self._spare = max(self._spare, min(self._spare + _PROBES * seconds, most))

    def ended(self, reply: EndedReply, options: DraftOptions) -> None:
        """Tells the sources that took part in a reply that it is over."""
        if self._store is not None:
            self._store.replied(self._calibrator)
        for draft in self._drafts:
            self._forgone.pop((draft.name, reply.slot), None)
            if draft.name in options.sources:
                self._guarded(draft, (), lambda draft=draft: draft.ended(reply))  # type: ignore[misc]

    def close(self) -> None:
        """Saves what was learned, and lets every source save what it keeps."""
        if self._store is not None:
            self._store.save(self._calibrator)
        for draft in self._drafts:
            self._guarded(draft, (), draft.close)

    # ------------------------------------------------------------------------------------ cheap sources

    def _extend(
        self, plans: Sequence[BlockPlan], sources: list[Draft], pass_: Pass, *, models_first: bool = False
    ) -> None:
        """Grows the blocks by what cheap sources offer, until none of it has a chance.

        models_first: whether an offer waits where a model is expected to do better
        """
        growing = [plan for plan in plans if plan.room]
        while growing:
            best: dict[int, Weighed] = {}
            for source in [source for source in sources if source.cheap]:
                asked = [plan for plan in growing if plan.uses(source) and not _sure(best.get(plan.slot))]
                for plan, offer in self._ask(source, asked, sources):
                    rival = best.get(plan.slot)
                    if rival is None or offer.estimate > rival.estimate:
                        best[plan.slot] = offer
            if models_first:
                for plan in growing:
                    self._hold_back(plan, best, sources)
            growing = [
                plan
                for plan in growing
                if plan.slot in best and self._take(plan, best[plan.slot], sources, pass_) and plan.room
            ]

    def _hold_back(self, plan: BlockPlan, best: dict[int, Weighed], sources: Sequence[Draft]) -> None:
        """Takes the best offer away where a model that may be asked is expected to do better."""
        plan.rival = None
        offer = best.get(plan.slot)
        if offer is not None and any(
            plan.may_ask(source) and offer.estimate < self._survival.estimate(plan.cell(source.name, None))
            for source in sources
        ):
            plan.rival = offer
            del best[plan.slot]

    def _ask(
        self, source: Draft, plans: Sequence[BlockPlan], sources: list[Draft]
    ) -> list[tuple[BlockPlan, Weighed]]:
        """What a source offers; nothing, and it is left out of this pass, where it fails.

        sources: those that have not failed
        """
        if not plans or source not in sources:
            return []

        def ask() -> list[tuple[BlockPlan, Weighed]]:
            found = []
            for plan, offer in zip(plans, source.offer(plans), strict=True):
                weighed = offer and weigh(offer, source.name, plan, self._calibrator)
                if weighed:
                    found.append((plan, weighed))
            return found

        return self._guarded(source, plans, ask, sources) or []

    def _take(
        self, plan: BlockPlan, offer: Weighed, sources: list[Draft], pass_: Pass, *, paid: bool = False
    ) -> bool:
        """Puts an offer into the block as far as it promises anything; True where the block grew, or the
        source failed, so that another may have its turn.

        paid: whether a probe has paid for a token of it, which is then taken whatever it promises
        """
        before = len(plan.block)
        source = next((source for source in sources if source.name == offer.source), None)
        if source is None:
            return True  # it has failed over another block of this pass

        def take() -> None:
            # what has failed for long is still put forward, to be cut off or probed
            if offer.draft_probs is not None:
                promising = plan.reach * max(offer.estimate, 2 * _FLOOR) > self._floor
                if paid or (promising and self._worth(pass_, plan.reach * offer.estimate)):
                    plan.draw(offer)
                return
            for index, (token, confidence) in enumerate(zip(offer.tokens, offer.confidence, strict=True)):
                estimate = (
                    1.0 if plan.forced() else self._survival.estimate(plan.cell(offer.source, confidence))
                )
                if plan.reach * max(estimate, 2 * _FLOOR) < self._floor or (index and estimate < _STEADY):
                    break
                laws = {} if index else offer.laws
                if not plan.propose(token, offer.source, confidence, self._survival, laws):
                    break
                if paid and not index:
                    plan.n_paid = len(plan.block)

        self._guarded(source, [plan], take, sources)
        return len(plan.block) > before or source not in sources

    # ------------------------------------------------------------------------- sources that run a model

    def _extend_by_model(
        self, plans: Sequence[BlockPlan], model: Draft, sources: list[Draft], pass_: Pass
    ) -> None:
        """Lets a model add a token to the blocks where it pays, cheap sources go on from there, and so on."""
        open_plans = [plan for plan in plans if plan.uses(model)]
        while model in sources:
            asked, paid = self._worth_asking(model, open_plans, sources, pass_)
            if not asked:
                break
            started = time.perf_counter()
            offers = self._ask(model, list(asked), sources)
            seconds = time.perf_counter() - started
            pass_.spent += self._costs.record(sum(asked.values()), seconds, model.name)
            grown = []
            for plan, offer in offers:
                plan.asked[model.name] = plan.asked.get(model.name, 0) + 1
                if self._take(plan, self._joined(plan, offer), sources, pass_, paid=paid):
                    grown.append((plan, plan.reach, sum(plan.survival)))
            self._extend([plan for plan, _, _ in grown], sources, pass_, models_first=True)
            for plan, reach, total in grown:
                added = (sum(plan.survival) - total) / max(reach, _FLOOR)
                self._followed[model.name] = 0.9 * self._follow(model) + 0.1 * added
            open_plans = [plan for plan, _, _ in grown]

    def _worth_asking(
        self, model: Draft, plans: Sequence[BlockPlan], sources: list[Draft], pass_: Pass
    ) -> tuple[dict[BlockPlan, int], bool]:
        """The sequences for which a model pass is worth its time: together, since they share it. With how
        many tokens it has for each, and whether it is a probe: of one sequence, where it does not pay by what
        is known.
        """
        follow, table = self._follow(model), self._costs.source(model.name)
        able: list[tuple[int, float, BlockPlan]] = []  # tokens it misses, tokens it brings
        for plan in plans:
            if not plan.room or not plan.may_ask(model):
                continue
            missing = self._guarded(model, [plan], lambda plan=plan: model.missing(plan), sources)  # type: ignore[misc]
            if model not in sources:
                return {}, False
            if missing:  # else it cannot read this
                better = self._survival.estimate(plan.cell(model.name, None))
                better -= 0.0 if plan.rival is None else plan.rival.estimate
                able.append((missing, plan.reach * max(better, 0.0) * (1.0 + follow), plan))
        able.sort(key=lambda one: (one[0], -one[1]))  # whoever has to catch up comes last

        def seconds(missing: int) -> float:
            return table.seconds(missing) if table.known else 0.0

        count, most, gain, total = 0, 0.0, 0.0, 0
        for n, (missing, brings, _) in enumerate(able, start=1):
            gain, total = gain + brings, total + missing
            saved = pass_.saved(gain, n * (1.0 + follow), seconds(total))
            if saved > most:
                count, most = n, saved
        chosen = {plan: missing for missing, _, plan in able[:count]}
        for missing, brings, plan in able[count:]:
            if not chosen and self._worth(pass_, brings, 1.0 + follow, seconds(missing)):
                return {plan: missing}, True
            if missing > 1 and self._invest(model, plan, brings, missing, pass_):
                return {**chosen, plan: missing}, False
        return chosen, False

    def _invest(self, model: Draft, plan: BlockPlan, brings: float, missing: int, pass_: Pass) -> bool:
        """Whether to let a model read what it has missed although this pass does not pay for that.

        It is done once the time that the model would have saved, had it read everything, has reached what
        the reading costs: whatever comes next, no more is lost than twice the best that could be done
        (the ski-rental rule of Karlin et al., "Competitive snoopy caching", 1988).
        """
        table = self._costs.source(model.name)
        saved = pass_.saved(brings, 1.0 + self._follow(model), table.seconds(1))
        key = (model.name, plan.slot)
        self._forgone[key] = self._forgone.get(key, 0.0) + max(0.0, saved)
        if self._forgone[key] < table.seconds(missing) - table.seconds(1):
            return False
        self._forgone[key] = 0.0
        return True

    def _joined(self, plan: BlockPlan, offer: Weighed) -> Weighed:
        return join(offer, plan.rival, plan, self._calibrator)

    def _follow(self, model: Draft) -> float:
        return self._followed.get(model.name, 1.0)

    # ----------------------------------------------------------------------------------- what it is worth

    def _worth(self, pass_: Pass, gain: float, tokens: float = 1.0, seconds: float = 0.0) -> bool:
        """Whether a gain pays for its cost, or there is time to spare for a probe."""
        if pass_.saved(gain, tokens, seconds) > 0.0:
            return True
        cost = pass_.cost(tokens) + seconds
        if gain <= 0.0 or cost > self._spare:
            return False
        self._spare -= cost
        return True

    def _cut(self, plans: Sequence[BlockPlan], pass_: Pass) -> None:
        """Cuts the certain tails of the blocks to what makes the most of the pass.

        Tokens are added in the order of their survival, which is that of the blocks, and the best of all
        these cuts is kept. Where there is time to spare, one token more shows what it is worth.
        """
        for plan, length in zip(plans, pass_.best_lengths(), strict=True):
            if length < len(plan.block) and self._spare >= (cost := pass_.cost(1.0)):
                self._spare -= cost
                length += 1
            plan.block.cut(length)
            del plan.survival[length:], plan.cells[length:], plan.notes[length:]

    # ------------------------------------------------------------------------------------------- failures

    def _guarded(
        self,
        source: Draft,
        plans: Sequence[BlockPlan],
        do: Callable[[], T],
        sources: list[Draft] | None = None,
    ) -> T | None:
        """Does something with a source that may be anybody's: where it fails, that is reported and the
        source is left out of `sources`."""
        try:
            return do()
        except Exception as error:  # noqa: BLE001 - a source may be anybody's; it is reported, and left out
            if sources is not None:
                sources.remove(source)
            for plan in plans:
                plan.trace.draft_failures[source.name] += 1
            kind = (source.name, type(error))
            if kind not in self._warned:
                self._warned.add(kind)
                said = str(error) if isinstance(error, (AgentSpecError, ValueError)) else repr(error)
                _log.warning(
                    "the draft source %r failed and is left out where it does: %s", source.name, said
                )
            return None


def _sure(offer: Weighed | None) -> bool:
    return offer is not None and offer.estimate >= _SURE
