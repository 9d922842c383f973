"""What the replies of one configuration come to: every figure of `agentspec bench drafts`, defined once.

round:            all turns once, by one agent. Counts (tokens, passes, proposals) are those of the counted
                  round: the one whose target passes are the median of all rounds' (the lower of two).
decode seconds:   wall time of a reply without waiting and without prefill
seconds of a
configuration:    summed over the turns of the counted round; each turn's tokens times the median, over the
                  rounds, of its seconds per token: where every round writes the same tokens, as at
                  temperature 0, this is the sum of the median times
overhead share:   the part of the decode seconds that was not spent inside llama.cpp; median of the rounds

This module must not know prompts, tools or how a reply is made.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentspec.errors import EngineError
from agentspec.types import Json

__all__ = ["Reply", "Series"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply, as far as the figures need it. Seconds are those of decoding, prefill left out.

    sources:       (proposed, accepted) tokens, by source
    draft_seconds: what part of `decode_seconds` went into drafts
    llama_seconds: what part of them was spent inside llama.cpp, target and draft together; None where the
                   statistics do not say
    """

    text: str
    tokens: int
    target_passes: int
    sources: Mapping[str, tuple[int, int]]
    decode_seconds: float
    draft_seconds: float = 0.0
    llama_seconds: float | None = None

    @classmethod
    def of(cls, text: str, stats: Mapping[str, Json], wall: float) -> Reply:
        """From `Trace.as_json()`.

        wall: seconds of the call as its caller saw them, for statistics that do not have the engine's own
        Raises EngineError where a draft has failed: the figures would be about something else.
        """
        failures = _mapping(stats["draft_failures"])
        if failures:
            raise EngineError(f"a draft has failed while it was measured: {', '.join(sorted(failures))}")
        seconds = {phase: _number(value) for phase, value in _mapping(stats["seconds"]).items()}
        llama = seconds.get("target_decode")
        return cls(
            text=text,
            tokens=_count(stats["tokens"]),
            target_passes=_count(stats["target_passes"]),
            sources={
                name: (_count(_mapping(count)["proposed"]), _count(_mapping(count)["accepted"]))
                for name, count in _mapping(stats["sources"]).items()
            },
            decode_seconds=seconds.get("wall", wall)
            - seconds.get("queue", 0.0)
            - seconds.get("prefill", 0.0),
            draft_seconds=seconds.get("draft", 0.0),
            llama_seconds=None if llama is None else llama + seconds.get("draft_decode", 0.0),
        )


class Series:
    """What one configuration did.

    rounds: shape (rounds, turns), the turns in the same order in each round; at least one of both
    """

    def __init__(self, rounds: Sequence[Sequence[Reply]]) -> None:
        self.rounds = rounds
        by_passes = sorted(rounds, key=lambda replies: sum(reply.target_passes for reply in replies))
        self.counted = by_passes[(len(rounds) - 1) // 2]

    @property
    def tokens(self) -> int:
        return sum(reply.tokens for reply in self.counted)

    @property
    def target_passes(self) -> int:
        return sum(reply.target_passes for reply in self.counted)

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.target_passes

    @property
    def acceptance(self) -> dict[str, float]:
        """accepted / proposed of each source that proposed anything."""
        proposed: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for reply in self.counted:
            for name, counts in reply.sources.items():
                proposed[name] += counts[0]
                accepted[name] += counts[1]
        return {name: accepted[name] / count for name, count in sorted(proposed.items()) if count}

    @property
    def decode_seconds(self) -> float:
        return self._seconds(lambda reply: reply.decode_seconds)

    @property
    def draft_seconds(self) -> float:
        return self._seconds(lambda reply: reply.draft_seconds)

    @property
    def decode_tps(self) -> float:
        """Tokens per second of decoding."""
        return self.tokens / self.decode_seconds

    @property
    def overhead_share(self) -> float | None:
        """See above; None where the statistics do not say what llama.cpp took."""
        shares = []
        for replies in self.rounds:
            llama = [reply.llama_seconds for reply in replies if reply.llama_seconds is not None]
            if len(llama) < len(replies):
                return None
            shares.append(1.0 - sum(llama) / sum(reply.decode_seconds for reply in replies))
        return statistics.median(shares)

    def ratio_to(self, other: Series) -> float:
        """How many times as fast as the other configuration this one decodes."""
        return self.decode_tps / other.decode_tps

    def differing(self, other: Series) -> int:
        """How many turns the two answered with other texts, in their counted rounds."""
        return sum(a.text != b.text for a, b in zip(self.counted, other.counted, strict=True))

    def as_json(self, none: Series) -> dict[str, Json]:
        """none: plain decoding, in the same run."""
        return {
            "target_passes": self.target_passes,
            "tokens": self.tokens,
            "tokens_per_pass": round(self.tokens_per_pass, 4),
            "acceptance": {name: round(share, 4) for name, share in self.acceptance.items()},
            "draft_seconds": round(self.draft_seconds, 4),
            "decode_seconds": round(self.decode_seconds, 4),
            "decode_tps": round(self.decode_tps, 2),
            "ratio_to_none": round(self.ratio_to(none), 4),
        }

    def _seconds(self, part: Callable[[Reply], float]) -> float:
        return sum(
            reply.tokens
            * statistics.median(part(replies[turn]) / replies[turn].tokens for replies in self.rounds)
            for turn, reply in enumerate(self.counted)
        )


def _mapping(value: Json) -> Mapping[str, Json]:
    assert isinstance(value, Mapping)
    return value


def _number(value: Json) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _count(value: Json) -> int:
    assert isinstance(value, int)
    return value
