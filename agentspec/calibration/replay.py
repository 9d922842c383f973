"""Recorded replies written again in thought, by other drafts and other rules: passes, lengths, speed.

What becomes of each proposal is a coin whose chance is known (`agentspec.calibration.steps`), so a replay
has the law of a real run with token-wise verification and the same text, and takes microseconds. Positions at
which only one token was legal, or of which the source's law was not recorded, are left out. Drafted tokens
behind a rejected one are counted as if the text had gone on as it did.

It must not know engines or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from agentspec.calibration.lengths import LengthRule, Price
from agentspec.calibration.steps import Step, accept_prob
from agentspec.types import Distribution

__all__ = ["Change", "Replayed", "replay"]

Change: TypeAlias = Callable[[Step, Distribution], Distribution]
"""What a source's law at a step is made into before a token is drawn from it."""


@dataclass(slots=True)
class Replayed:
    """Counts of a replay.

    tokens:   that were not left out
    passes:   of the target
    asked:    laws that the draft computed
    drafted:  tokens proposed
    accepted: tokens of these
    """

    tokens: int = 0
    passes: int = 0
    asked: int = 0
    drafted: int = 0
    accepted: int = 0

    def __iadd__(self, other: Replayed) -> Replayed:
        self.tokens += other.tokens
        self.passes += other.passes
        self.asked += other.asked
        self.drafted += other.drafted
        self.accepted += other.accepted
        return self

    @property
    def accepted_length(self) -> float:
        """Tokens per target pass, the verifier's own included."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    def speed_to_plain(self, price: Price) -> float:
        """Decode speed over that of one token a pass."""
        seconds = self.passes + self.asked * price.draft + self.drafted * price.check
        return self.tokens / seconds if seconds else 1.0


def replay(
    replies: Sequence[Sequence[Step]],
    source: str,
    change: Change,
    rule: LengthRule,
    *,
    seed: int = 0,
    times: int = 1,
    after: Callable[[Sequence[Step]], None] = lambda _: None,
) -> Replayed:
    """Writes the replies again, in order, drafted by one source.

    times: how often; the counts are sums
    after: told the steps of each block that was verified, up to and including the first rejected one: what an
           online calibration learns from
    """
    rng = np.random.default_rng(seed)
    total = Replayed()
    for _ in range(times):
        for reply in replies:
            kept = [step for step in reply if step.knows(source)]
            at = 0
            while at < len(kept):
                at += _block(kept[at:], source, change, rule, rng, total, after)
    return total


def _block(
    rest: Sequence[Step],
    source: str,
    change: Change,
    rule: LengthRule,
    rng: np.random.Generator,
    total: Replayed,
    after: Callable[[Sequence[Step]], None],
) -> int:
    """One pass; returns how many tokens it wrote."""
    chances: list[float] = []
    rule.begin()
    for step in rest:
        if not rule.asks(step.where, len(chances)):
            break
        total.asked += 1
        law = change(step, step.offers[source])
        if not rule.goes_on(law, step.where, len(chances)):
            break
        chances.append(accept_prob(step, law))
    accepted = 0
    while accepted < len(chances) and rng.random() < chances[accepted]:
        accepted += 1
    rule.learn(accepted, len(chances))
    after(rest[: min(accepted + 1, len(chances))])
    written = min(accepted + 1, len(rest))
    total.tokens += written
    total.passes += 1
    total.drafted += len(chances)
    total.accepted += accepted
    return written
