"""The positions of recorded replies: what was written there, and what target and drafts held likely.

A replay of these is exact where it asks what another proposal would have come to. Given the token x that a
reply has at a position, a draft that draws from draft_probs would have proposed it and had it accepted with
probability min(1, draft_probs[x] / target_probs[x]), independently at each position: that is the rule of
acceptance (Leviathan et al. 2023, arXiv:2211.17192) read backwards. So one recorded reply tells the accepted
lengths of every draft temperature, mixture and rule of length.

Positions at which the source was not asked are of no use: traces for replays are best made with long blocks
of one source. It must not know engines or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from agentspec.calibration.calibrator import Where
from agentspec.calibration.survival import heat
from agentspec.calibration.traces import ReplyTrace, TraceRow
from agentspec.config import SamplingOptions
from agentspec.errors import TraceError
from agentspec.law import probability_of
from agentspec.types import Distribution

__all__ = ["Step", "accept_prob", "heat_of", "steps"]


class Step(NamedTuple):
    """One position of a reply.

    token:        what the reply has there
    where:        what its calibration is kept by
    forced:       whether no other token was legal
    target_probs: the target's law, cut to the recorded tokens; None where it was not recorded
    offers:       laws by source, before calibration, likewise
    """

    token: int
    where: Where
    forced: bool
    target_probs: Distribution | None
    offers: Mapping[str, Distribution]

    def knows(self, source: str) -> bool:
        """Whether it shows something of a source: both laws are known, and there was a choice."""
        return not self.forced and self.target_probs is not None and source in self.offers


def steps(trace: ReplyTrace) -> list[Step]:
    """Every position of a reply that was recorded with `trace_top_k`."""
    warmth = heat_of(trace)
    rows = {row.at: row for row in trace.rows}
    seen = {
        block.at + index: (place, forced)
        for block in trace.blocks
        for index, (place, forced) in enumerate(zip(block.places, block.forced, strict=True))
    }
    found = []
    for at, token in enumerate(trace.reply):
        place, forced = seen.get(at, ("", False))
        target, offers = _laws(rows.get(at))
        where = Where(trace.tool_set, place, warmth, trace.draft_temperature)
        found.append(Step(token, where, forced, target, offers))
    return found


def heat_of(trace: ReplyTrace) -> int:
    """How much chance was in a reply's law."""
    temperature = trace.sampling.get("temperature", SamplingOptions().temperature)
    if not isinstance(temperature, int | float):
        raise TraceError(f"the temperature of a trace is {temperature!r}")
    return heat(SamplingOptions(temperature=temperature))


def accept_prob(step: Step, draft_probs: Distribution) -> float:
    """The probability that a token drawn from `draft_probs` would have been accepted, given the step's."""
    assert step.target_probs is not None
    own = probability_of(step.target_probs, step.token)
    drafted = probability_of(draft_probs, step.token)
    if drafted == 0.0:
        return 0.0
    return 1.0 if drafted >= own else drafted / own


def _laws(row: TraceRow | None) -> tuple[Distribution | None, Mapping[str, Distribution]]:
    if row is None:
        return None, {}
    order = np.argsort(row.ids)
    ids = np.array(row.ids, dtype=np.int64)[order]

    def law(probs: list[float]) -> Distribution:
        return Distribution(ids, np.array(probs)[order])

    return law(row.target_probs), {name: _whole(law(probs)) for name, probs in row.offers.items()}


def _whole(law: Distribution) -> Distribution:
    """A draft's law without the tokens it does not list, summing to 1 again."""
    kept = law.probs > 0.0
    return Distribution(law.ids[kept], law.probs[kept] / law.probs[kept].sum())
