"""The one record of a generation: what was proposed, by whom, and what happened.

Counting happens in one place (`Trace.record`), so that every figure the project prints means the same.
This module must not know models, grammars or the engine.

target pass:      one decode of the target that held this reply's tokens
accepted length:  tokens emitted per target pass, the verifier's own token included
acceptance rate:  accepted / proposed, per source
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentspec.types import Json

__all__ = ["SourceCount", "Trace"]


@dataclass(slots=True)
class SourceCount:
    """Tokens that one source proposed, and how many of them were accepted."""

    proposed: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Trace:
    """Counts of one reply; the engine adds to it, everything else reads it.

    seed:              the reply's seed: the one asked for, or the one that was drawn
    tokens:            tokens emitted, an end-of-generation token included
    target_passes:     see above; the pass that ends the prompt is one of them
    prefill_computed:  prompt tokens decoded for this reply
    prefill_reused:    prompt tokens whose KV was there already
    seconds:           wall time by phase: "queue", "prefill", "draft", "target", "verify"; of passes shared
                       with other replies, the whole pass. "prefill_decode", "target_decode", "draft_decode"
                       are the parts of these spent in the models' runtime
    draft_failures:    draft sources that failed and were left out, by source
    """

    law: str
    seed: int | None = None
    tokens: int = 0
    target_passes: int = 0
    prefill_computed: int = 0
    prefill_reused: int = 0
    sources: dict[str, SourceCount] = field(default_factory=dict)
    accepted_lengths: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    draft_failures: Counter[str] = field(default_factory=Counter)

    def record(self, sources: Sequence[str], accepted: int, emitted: int, *, passes: int) -> None:
        """Adds one verified block.

        sources:  who proposed each of the block's tokens, shape (n,)
        accepted: how many of them were accepted
        emitted:  tokens settled by the block, the verifier's own included
        passes:   1, or 0 where the block needed no target pass
        """
        self.tokens += emitted
        self.target_passes += passes
        if passes:
            self.accepted_lengths[emitted] += 1
        for index, source in enumerate(sources):
            count = self.sources.setdefault(source, SourceCount())
            count.proposed += 1
            count.accepted += index < accepted

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def as_json(self) -> Mapping[str, Json]:
        """The statistics of `response_metadata["agentspec"]`, all numbers plain JSON."""
        return {
            "law": self.law,
            "seed": self.seed,
            "tokens": self.tokens,
            "target_passes": self.target_passes,
            "tokens_per_pass": self.tokens / self.target_passes if self.target_passes else None,
            "prefill": {"computed": self.prefill_computed, "reused": self.prefill_reused},
            "sources": {
                name: {"proposed": count.proposed, "accepted": count.accepted}
                for name, count in sorted(self.sources.items())
            },
            "draft_failures": dict(self.draft_failures),
            "seconds": {phase: round(value, 6) for phase, value in sorted(self.seconds.items())},
        }
