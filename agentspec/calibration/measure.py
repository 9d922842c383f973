"""How well a source's confidence matches the target: by source and context class.

    acceptance     share of proposals that were accepted
    alpha          mean expected acceptance; acceptance without its chance
    reliability    in bins of confidence: mean confidence against the target's mean probability of the
                   proposed token. Equal for a calibrated source
    ece            expected calibration error: the mean over proposals of the bins' distances (Naeini et al.
                   2015, "Obtaining well calibrated probabilities using Bayesian binning")
    over_confident share of the loss (one minus alpha) that over-confidence makes: what bins promise beyond
                   what they keep. The rest is lost to tokens that are wrong, however humble

Forced tokens are left out: nobody could get them wrong. It must not know where observations come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from agentspec.calibration.observe import Observation
from agentspec.types import Json

__all__ = ["BINS", "Bin", "Measure", "measure"]

BINS: Final = 10
"""Bins of confidence, of equal width."""


@dataclass(slots=True)
class Bin:
    """Sums over the proposals of one bin."""

    count: int = 0
    confidence: float = 0.0
    target_prob: float = 0.0

    @property
    def gap(self) -> float:
        """Mean confidence less the target's mean probability; above 0 where the source is over-confident."""
        return (self.confidence - self.target_prob) / self.count if self.count else 0.0


@dataclass(slots=True)
class Measure:
    """Sums over proposals; each figure is made of them when asked for."""

    count: int = 0
    accepted: int = 0
    alpha_sum: float = 0.0
    bins: list[Bin] = field(default_factory=lambda: [Bin() for _ in range(BINS)])

    def add(self, one: Observation) -> None:
        self.count += 1
        self.accepted += one.accepted
        self.alpha_sum += one.alpha
        bin_ = self.bins[min(int(one.confidence * BINS), BINS - 1)]
        bin_.count += 1
        bin_.confidence += one.confidence
        bin_.target_prob += one.target_prob

    @property
    def acceptance(self) -> float:
        return self.accepted / self.count if self.count else 0.0

    @property
    def alpha(self) -> float:
        return self.alpha_sum / self.count if self.count else 0.0

    @property
    def ece(self) -> float:
        return sum(bin_.count * abs(bin_.gap) for bin_ in self.bins) / self.count if self.count else 0.0

    @property
    def over_confident(self) -> float:
        """In [0, 1]; 0 where nothing is lost."""
        loss = self.count - self.alpha_sum
        excess = sum(bin_.count * max(0.0, bin_.gap) for bin_ in self.bins)
        return min(1.0, excess / loss) if loss > 1e-12 else 0.0

    def as_json(self) -> dict[str, Json]:
        return {
            "proposed": self.count,
            "acceptance": round(self.acceptance, 6),
            "alpha": round(self.alpha, 6),
            "ece": round(self.ece, 6),
            "over_confident": round(self.over_confident, 6),
            "reliability": [
                {
                    "proposed": bin_.count,
                    "confidence": round(bin_.confidence / bin_.count, 6),
                    "target_prob": round(bin_.target_prob / bin_.count, 6),
                }
                for bin_ in self.bins
                if bin_.count
            ],
        }


def measure(observations: Iterable[Observation]) -> Mapping[tuple[str, str], Measure]:
    """Measures by (source, place), and of each source in all places by (source, "")."""
    found: dict[tuple[str, str], Measure] = {}
    for one in observations:
        if not one.forced:
            for key in ((one.source, one.place), (one.source, "")):
                found.setdefault(key, Measure()).add(one)
    return found
