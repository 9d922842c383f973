"""What calibration is worth: on a toy, on a pair of models, online, offline, and against other rules.

Question:  does a draft's confidence decide speed, and what does calibrating it bring?
Method:    turns of the fixed workload, answered once each with the draft asked at every position, and
           recorded (`agentspec.bench.record`). What other temperatures, an online calibration, an offline one
           and other rules of draft length would have made of them is replayed
           (`agentspec.calibration.replay`), where the only chance is in coins of a known law. Two things are
           timed in real runs, taking turns (A B A B): the mechanism, drafting forced, against plain decoding,
           and calibration where it is of no use against none.
Figures:   accepted length  tokens per target pass, those that the grammar forces left out
           speed to plain   decode speed over that of one token a pass

This module must not know commands or terminals.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from agentspec.bench.mechanism import Measured
from agentspec.calibration.calibrator import Calibrator
from agentspec.calibration.fit import Gain, split
from agentspec.calibration.lengths import AdaEdl, Fixed, LengthRule, PMin, Price, Survived, Svip
from agentspec.calibration.observe import overlap
from agentspec.calibration.replay import Change, Replayed, replay
from agentspec.calibration.steps import Step, steps
from agentspec.calibration.temper import TEMPERATURES, tempered
from agentspec.calibration.traces import ReplyTrace
from agentspec.types import Json

__all__ = ["CalibrationFindings", "Curve", "LengthResult", "Online", "by_class", "curve", "lengths", "online"]

_SOURCE: Final = "model"
_MOST: Final = 8
"""Drafted tokens of a block in replays."""
_BAD_START: Final = 0.3
"""Factor of the temperature that makes a draft wrongly sure, for an online calibration to mend."""
_SETTLED: Final = 20
"""Replies after which an online calibration is held to the best temperature."""
_ENOUGH: Final = 25
"""Positions of a class from which on it is judged by itself."""

Curve: TypeAlias = Mapping[float, float]
"""Accepted length by draft temperature, as a factor of the target's, or, at temperature 0, of 1."""


@dataclass(frozen=True, slots=True)
class Online:
    """How near an online calibration comes to the best fixed temperature, from a bad start.

    fractions: expected acceptance over the best fixed temperature's, by class, in the replies after the first
               ones; of classes with enough positions
    positions: of each class there
    """

    fractions: Mapping[str, float]
    positions: Mapping[str, int]
    at_start: float

    @property
    def fraction_of_best(self) -> float | None:
        """The least of them; None where there were too few replies to tell."""
        return min(self.fractions.values(), default=None)


@dataclass(frozen=True, slots=True)
class LengthResult:
    """A rule of draft length on replies that its threshold was not chosen on."""

    rule: str
    setting: float | None
    accepted_length: float
    speed_to_plain: float

    def as_json(self) -> dict[str, Json]:
        return {
            "rule": self.rule,
            "setting": self.setting,
            "accepted_length": round(self.accepted_length, 4),
            "speed_to_plain": round(self.speed_to_plain, 4),
        }


@dataclass(slots=True)
class CalibrationFindings:
    """What was measured; None for a part that was left out."""

    toy: Mapping[str, Measured] | None = None
    mechanism: Mapping[str, Measured] | None = None
    curves: dict[float, Curve] = field(default_factory=dict)
    classes: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    online: Online | None = None
    cost_when_useless: float | None = None
    good_draft: Gain | None = None
    bad_draft: Gain | None = None
    price: Price | None = None
    lengths: list[LengthResult] = field(default_factory=list)

    def as_json(self) -> dict[str, Json]:
        one = self.online
        return {
            "toy_mechanism": _measured(self.toy),
            "mechanism": _measured(self.mechanism),
            "curves": {
                f"{target:g}": {f"{draft:g}": round(length, 4) for draft, length in found.items()}
                for target, found in self.curves.items()
            },
            "classes": {
                name: {"positions": count, "alpha": round(alpha, 4), "accepted_length": round(length, 4)}
                for name, (count, alpha, length) in self.classes.items()
            },
            "online_fraction_of_best": None if one is None else _rounded(one.fraction_of_best),
            "online_by_class": None
            if one is None
            else {name: round(share, 4) for name, share in one.fractions.items()},
            "online_at_start": None if one is None else round(one.at_start, 4),
            "online_cost_when_useless": _rounded(self.cost_when_useless),
            "offline_gain": {
                "good_draft": None if self.good_draft is None else self.good_draft.as_json(),
                "bad_draft": None if self.bad_draft is None else self.bad_draft.as_json(),
            },
            "price": None
            if self.price is None
            else {"draft": round(self.price.draft, 4), "check": round(self.price.check, 4)},
            "lengths": [one.as_json() for one in self.lengths],
        }


# ------------------------------------------------------------------------------------------------ replays


def curve(traces: Sequence[ReplyTrace], length: int = 4) -> Curve:
    """Accepted length of blocks of a fixed length, by the draft's temperature."""
    replies = [steps(trace) for trace in traces]
    return {
        temperature: replay(replies, _SOURCE, _at(temperature), Fixed(length), times=20).accepted_length
        for temperature in TEMPERATURES
    }


def by_class(traces: Sequence[ReplyTrace]) -> dict[str, tuple[int, float, float]]:
    """Positions, mean expected acceptance, and the accepted length that it comes to in blocks of 8 tokens of
    that class: (1 - alpha^9) / (1 - alpha), Leviathan et al. 2023, arXiv:2211.17192, equation 1."""
    found: dict[str, list[float]] = {}
    for step in _known(traces):
        assert step.target_probs is not None
        found.setdefault(step.where.place, []).append(overlap(step.target_probs, step.offers[_SOURCE]))
    means = {place: statistics.fmean(alphas) for place, alphas in found.items()}
    return {
        place: (len(found[place]), alpha, sum(alpha**power for power in range(_MOST + 1)))
        for place, alpha in sorted(means.items(), key=lambda one: -one[1])
    }


def online(traces: Sequence[ReplyTrace], start: float = _BAD_START) -> Online:
    """An online calibration from laws that are wrongly sure, reply by reply.

    start: factor that their temperature is off by
    """
    calibrator = Calibrator()
    first: list[float] = []
    reached: dict[str, list[float]] = {}
    fixed: dict[str, list[list[float]]] = {}
    for number, trace in enumerate(traces):
        reply = [_badly(step, start) for step in steps(trace)]
        for step in reply:
            if not step.knows(_SOURCE):
                continue
            assert step.target_probs is not None
            law = step.offers[_SOURCE]
            now = overlap(step.target_probs, calibrator.calibrated({_SOURCE: law}, step.where))
            if number < 3:
                first.append(overlap(step.target_probs, law))
            if number >= _SETTLED:
                reached.setdefault(step.where.place, []).append(now)
                every = [overlap(step.target_probs, tempered(law, one)) for one in TEMPERATURES]
                fixed.setdefault(step.where.place, []).append(every)
        replay(
            [reply],
            _SOURCE,
            lambda step, law: calibrator.calibrated({_SOURCE: law}, step.where),
            Fixed(_MOST),
            seed=number,
            after=lambda seen: _teach(calibrator, seen),
        )
    best = {place: max(map(statistics.fmean, zip(*every, strict=True))) for place, every in fixed.items()}
    counted = {place: len(found) for place, found in reached.items()}
    return Online(
        {
            place: statistics.fmean(found) / best[place]
            for place, found in reached.items()
            if counted[place] >= _ENOUGH
        },
        counted,
        statistics.fmean(first) if first else 0.0,
    )


def lengths(traces: Sequence[ReplyTrace], price: Price) -> list[LengthResult]:
    """Rules of draft length: each with the threshold that was fastest on some replies, on the others."""
    fitted, held_out = ([steps(trace) for trace in part] for part in split(traces))
    results = []
    for name, (settings, make) in _rules(price).items():
        speeds = [_replayed(fitted, make(one), times=10).speed_to_plain(price) for one in settings]
        best = settings[speeds.index(max(speeds))]
        rule = make(best)
        _replayed(fitted, rule, times=3)  # what a rule learns, as others have their threshold, from these
        found = Replayed()
        for seed in range(20):  # each time as it was after those
            found += replay(held_out, _SOURCE, _at(1.0), copy.deepcopy(rule), seed=seed)
        results.append(
            LengthResult(
                name,
                best if len(settings) > 1 else None,
                found.accepted_length,
                found.speed_to_plain(price),
            )
        )
    return sorted(results, key=lambda one: -one.speed_to_plain)


def _rules(price: Price) -> Mapping[str, tuple[Sequence[float], Callable[[float], LengthRule]]]:
    def fixed(most: float) -> LengthRule:
        return Fixed(int(most))

    return {
        "none": ([0], fixed),
        "fixed": ([1, 2, 3, 4, 6, 8], fixed),
        "p_min": ([0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95], lambda least: PMin(_MOST, least)),
        "svip": ([0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0], lambda most: Svip(_MOST, most)),
        "ada_edl": ([0.5, 0.6, 0.7, 0.8, 0.9, 0.95], lambda rate: AdaEdl(_MOST, rate)),
        "survival": ([0.0], lambda _: Survived(price, _MOST)),
    }


def _replayed(replies: Sequence[Sequence[Step]], rule: LengthRule, *, times: int) -> Replayed:
    return replay(replies, _SOURCE, _at(1.0), rule, times=times)


def _at(temperature: float) -> Change:
    return lambda _, law: tempered(law, temperature)


def _badly(step: Step, factor: float) -> Step:
    return step._replace(offers={name: tempered(law, factor) for name, law in step.offers.items()})


def _teach(calibrator: Calibrator, seen: Sequence[Step]) -> None:
    for step in seen:
        if step.target_probs is not None:
            calibrator.learn(step.offers, step.where, step.target_probs)


def _known(traces: Sequence[ReplyTrace]) -> Iterator[Step]:
    return (step for trace in traces for step in steps(trace) if step.knows(_SOURCE))


def _measured(found: Mapping[str, Measured] | None) -> Json:
    return None if found is None else {name: one.as_json() for name, one in found.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
