"""Calibration from traces: the parameters that would have served recorded replies best, and what they gain.

What is fitted is what is learned online, by the same sums over all of the positions: a temperature for each
source and context class, mixtures, and how often proposals are accepted, which decides the length of blocks.
The gain is that on replies that were held out, every third.

It must not know engines or files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from agentspec.calibration.calibrator import Calibrator, Where
from agentspec.calibration.lengths import Fixed
from agentspec.calibration.observe import overlap
from agentspec.calibration.replay import replay
from agentspec.calibration.steps import Step, heat_of, steps
from agentspec.calibration.survival import Cell, Survival, agreement
from agentspec.calibration.traces import ReplyTrace
from agentspec.types import Distribution, Json

__all__ = ["Alpha", "Gain", "chosen_by", "fit", "gain", "split"]

_HELD_OUT: Final = 3
_LENGTH: Final = 8
"""Tokens of a block in which accepted lengths are compared."""
_TIMES: Final = 20


@dataclass(slots=True)
class Alpha:
    """Mean expected acceptance before and after, over some positions."""

    count: int = 0
    before: float = 0.0
    after: float = 0.0

    def add(self, before: float, after: float) -> None:
        self.count += 1
        self.before += (before - self.before) / self.count
        self.after += (after - self.after) / self.count

    def as_json(self) -> dict[str, Json]:
        return {"positions": self.count, "before": round(self.before, 4), "after": round(self.after, 4)}


@dataclass(slots=True)
class Gain:
    """What a calibration does to replies that it was not fitted to.

    before, after: tokens per target pass in blocks of up to 8 drafted tokens, all of one source; 0 where no
                   position has a law
    places:        expected acceptance by context class
    """

    before: float = 0.0
    after: float = 0.0
    places: dict[str, Alpha] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before else 1.0

    def as_json(self) -> dict[str, Json]:
        return {
            "accepted_length_before": round(self.before, 4),
            "accepted_length_after": round(self.after, 4),
            "ratio": round(self.ratio, 4),
            "alpha": {place: one.as_json() for place, one in sorted(self.places.items())},
        }


def split(traces: Iterable[ReplyTrace]) -> tuple[list[ReplyTrace], list[ReplyTrace]]:
    """The replies to fit to, and those to hold out; with fewer than three, all to fit to."""
    fitted: list[ReplyTrace] = []
    held_out: list[ReplyTrace] = []
    for number, trace in enumerate(traces):
        (held_out if number % _HELD_OUT == _HELD_OUT - 1 else fitted).append(trace)
    return fitted, held_out


def fit(traces: Iterable[ReplyTrace]) -> Calibrator:
    """The best calibration for replies that were recorded with `trace_top_k`."""
    made = Calibrator(memory=math.inf, survival=Survival(memory=math.inf))
    kept = list(traces)
    for trace in kept:
        for step in steps(trace):
            if step.target_probs is not None and step.offers and not step.forced:
                made.learn(step.offers, step.where, step.target_probs)
    for trace in kept:  # once temperatures are known: acceptance depends on them
        _learn_survival(made, trace)
    return made


def gain(calibrator: Calibrator, traces: Iterable[ReplyTrace], source: str = "model") -> Gain:
    """Compares replies with what they would have taken, with a source's laws as they are and calibrated."""
    found = Gain()
    replies = [steps(trace) for trace in traces]
    for step in (step for reply in replies for step in reply if step.knows(source)):
        assert step.target_probs is not None
        law = step.offers[source]
        after = calibrator.calibrated({source: law}, step.where)
        alpha = found.places.setdefault(step.where.place, Alpha())
        alpha.add(overlap(step.target_probs, law), overlap(step.target_probs, after))
    if found.places:
        plain = Calibrator(neutral=True)
        found.before = _accepted_length(replies, plain, source)
        found.after = _accepted_length(replies, calibrator, source)
    return found


def chosen_by(calibrator: Calibrator, source: str) -> Mapping[str, float]:
    """The temperatures that were chosen for a source in all tool sets together: by place and heat."""
    return {
        f"{key.place}, heat {key.heat}": calibrator.temperature(
            source, Where("", key.place, key.heat, group.made_at)
        )
        for group, key, _ in calibrator.items()
        if key.of == "temperatures" and key.source == source and not group.tool_set
    }


def _accepted_length(replies: Sequence[Sequence[Step]], calibrator: Calibrator, source: str) -> float:
    def change(step: Step, law: Distribution) -> Distribution:
        return calibrator.calibrated({source: law}, step.where)

    return replay(replies, source, change, Fixed(_LENGTH), times=_TIMES).accepted_length


def _learn_survival(made: Calibrator, trace: ReplyTrace) -> None:
    offered = {at for at, step in enumerate(steps(trace)) if _learn_offers(made, step)}
    warmth = heat_of(trace)
    for block in trace.blocks:
        for index, one in enumerate(block.observations()):
            if not one.forced and block.at + index not in offered:  # a token that was certain
                cell = Cell.of(one.source, one.place, one.confidence, warmth)
                for kept in (cell, cell._replace(level=None)):
                    made.survival.learn(kept, accepted=one.target_prob)


def _learn_offers(made: Calibrator, step: Step) -> bool:
    """Whether there were any."""
    if step.target_probs is None or step.forced:
        return False
    for source, law in step.offers.items():
        after = made.calibrated({source: law}, step.where)
        # how sure a certain token is: what a draft says of it, to a greedy target or a sampled one
        certain = len(after.ids) == 1 or not step.where.heat
        sure = float(law.probs.max()) if certain else agreement(after)
        cell = Cell.of(source, step.where.place, sure, step.where.heat)
        for kept in (cell, cell._replace(level=None)):
            made.survival.learn(
                kept, accepted=min(1.0, float(np.round(overlap(step.target_probs, after), 9)))
            )
    return bool(step.offers)
