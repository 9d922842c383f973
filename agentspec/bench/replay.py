"""One set of replies made under several draft configurations, and the figures that compare them.

Question:  how much faster does a configuration write the same replies than plain decoding?
Method:    every configuration answers the same requests in the same run, taking turns (A B C A B C), after a
           warm-up in which prompt and draft caches are filled, so that what is compared is decoding.
Figures:   tokens and target passes of one round; tokens per second from the median time of each reply;
           acceptance = accepted / proposed, per source. Ratios within one run are worth reading; absolute
           times are this machine's, at this hour.

This module must not know how a reply is made: it is given a function that makes one.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from agentspec.types import Json

__all__ = ["Figures", "Outcome", "Replay", "peak_rss_mb", "rss_mb"]

Turn = TypeVar("Turn")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One reply as the comparison needs it.

    text:  what was written; configurations are to agree on it at temperature 0
    stats: `Trace.as_json()`
    """

    text: str
    stats: Mapping[str, Json]


@dataclass(slots=True)
class Figures:
    """What one configuration did with the turns: counts of one round, seconds by turn and round."""

    tokens: int = 0
    target_passes: int = 0
    proposed: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)

    @property
    def median_seconds(self) -> float:
        """Sum over the turns of each one's median time."""
        return sum(statistics.median(times) for times in self.seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.median_seconds

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.target_passes

    @property
    def acceptance(self) -> dict[str, float]:
        """accepted / proposed of each source that proposed anything."""
        return {name: self.accepted[name] / count for name, count in self.proposed.items() if count}

    def count(self, outcome: Outcome) -> None:
        """Adds a reply of the counted round."""
        self.texts.append(outcome.text)
        self.tokens += _number(outcome.stats["tokens"])
        self.target_passes += _number(outcome.stats["target_passes"])
        sources = outcome.stats["sources"]
        assert isinstance(sources, Mapping)
        for name, counts in sources.items():
            assert isinstance(counts, Mapping)
            self.proposed[name] = self.proposed.get(name, 0) + _number(counts["proposed"])
            self.accepted[name] = self.accepted.get(name, 0) + _number(counts["accepted"])

    def as_json(self) -> dict[str, Json]:
        return {
            "tokens": self.tokens,
            "target_passes": self.target_passes,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "acceptance": {name: round(share, 4) for name, share in self.acceptance.items()},
        }


class Replay(Generic[Turn]):
    """Replays turns under configurations.

    answer(turn, sources, agent) makes one reply with those draft sources. Each configuration and round is an
    agent of its own, or a history draft would hold the very reply that is being drafted.
    """

    def __init__(
        self, answer: Callable[[Turn, tuple[str, ...], str], Outcome], configs: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._answer = answer
        self._configs = dict(configs)

    def run(
        self, turns: Sequence[Turn], *, rounds: int = 3, progress: Callable[[], None] = lambda: None
    ) -> dict[str, Figures]:
        """The figures of each configuration. `progress` is called after every reply, warm-up included."""
        figures = {name: Figures(seconds=[[] for _ in turns]) for name in self._configs}
        for index, turn in enumerate(turns):
            for name, sources in self._configs.items():  # fills the caches that a configuration uses
                self._answer(turn, sources, f"{name}, warm-up")
                progress()
            for number in range(rounds):
                for name, sources in self._configs.items():
                    started = time.perf_counter()
                    outcome = self._answer(turn, sources, f"{name}, round {number}")
                    figures[name].seconds[index].append(time.perf_counter() - started)
                    if number == 0:
                        figures[name].count(outcome)
                    progress()
        return figures

    def replies(self, turns: int, rounds: int) -> int:
        """How many replies `run` makes."""
        return turns * (rounds + 1) * len(self._configs)


def peak_rss_mb() -> float | None:
    """Most resident memory this process has had, in MB (10^6 bytes); None where that cannot be told."""
    # getrusage's peak is inherited from the parent process; the kernel's own is not
    if (found := _status("VmHWM")) is not None or platform.system() != "Darwin":
        return found
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def rss_mb() -> float | None:
    """Resident memory of this process now, in MB (10^6 bytes); None where that cannot be told."""
    return _status("VmRSS")


def _status(field: str) -> float | None:
    """A size in /proc/self/status; None where there is none, as on systems other than Linux."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024 / 1e6
    return None


def _number(value: Json) -> int:
    assert isinstance(value, int)
    return value
