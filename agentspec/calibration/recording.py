"""What happened to the blocks of one reply, for a trace.

Verification has computed everything that is written down here; recording decides nothing. It must not know
sequences, sessions or files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from agentspec.calibration.calibrator import Where
from agentspec.calibration.observe import Observation, observe
from agentspec.law import probability_of
from agentspec.types import Distribution, Proposal

__all__ = ["Note", "RecordedBlock", "RecordedRow", "Recording"]


class Note(NamedTuple):
    """What was known of a proposal when it was made.

    place:      its context class (`agentspec.places`)
    confidence: the source's, of a token that was proposed with certainty
    forced:     whether no other token was legal
    laws:       what sources offered for it, by source, before calibration; none where it was no law
    where:      what the calibration of these is kept by
    """

    place: str
    confidence: float
    forced: bool
    laws: Mapping[str, Distribution]
    where: Where


class RecordedBlock(NamedTuple):
    """One block that was verified.

    at:           position in the reply of its first token, 0 for the reply's first
    proposed:     how many tokens it had
    decoded:      whether it took a target pass: where every token is forced, none is needed
    observations: of its tokens up to and including the first that was rejected
    """

    at: int
    proposed: int
    decoded: bool
    observations: Sequence[Observation]


class RecordedRow(NamedTuple):
    """The laws at one position, cut to the most likely tokens of each.

    at:           position in the reply
    ids:          shape (k,), the target's most likely first
    target_probs: shape (k,)
    draft_probs:  what the token was drawn from, shape (k,); None where it was proposed with certainty, or
                  none was proposed
    offers:       what sources offered, by source, before calibration; shape (k,) each
    """

    at: int
    ids: Sequence[int]
    target_probs: Sequence[float]
    draft_probs: Sequence[float] | None
    offers: Mapping[str, Sequence[float]]


class _Laws(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Distribution: ...


@dataclass
class Recording:
    """Collects the blocks of a reply.

    top_k:  how many tokens of each law are kept at every position; 0 keeps no laws
    tokens: the reply, the end token included
    """

    top_k: int = 0
    tokens: list[int] = field(default_factory=list)
    blocks: list[RecordedBlock] = field(default_factory=list)
    rows: list[RecordedRow] = field(default_factory=list)

    def add(
        self,
        at: int,
        proposals: Sequence[Proposal],
        notes: Sequence[Note],
        laws: _Laws,
        accepted: int,
        *,
        decoded: bool,
    ) -> None:
        """Adds a block of which so many tokens were accepted.

        laws:    the target's, as the rule saw them
        decoded: whether it took a target pass
        """
        seen = [
            observe(
                proposals[index],
                notes[index].place,
                notes[index].confidence,
                laws[index],
                accepted=index < accepted,
                forced=notes[index].forced,
            )
            for index in range(min(accepted + 1, len(proposals)))
        ]
        self.blocks.append(RecordedBlock(at, len(proposals), decoded, seen))
        if self.top_k:
            for index in range(min(accepted + 1, len(laws))):
                proposed = index < len(proposals)
                draft_probs = proposals[index].draft_probs if proposed else None
                offers = notes[index].laws if proposed else {}
                self.rows.append(_row(at + index, laws[index], draft_probs, offers, self.top_k))


def _row(
    at: int, law: Distribution, draft: Distribution | None, offers: Mapping[str, Distribution], top_k: int
) -> RecordedRow:
    others = [*offers.values()] if draft is None else [draft, *offers.values()]
    ids = list(dict.fromkeys(token for one in (law, *others) for token in _top(one, top_k)))

    def at_ids(one: Distribution) -> list[float]:
        return [probability_of(one, token) for token in ids]

    drafted = None if draft is None else at_ids(draft)
    return RecordedRow(at, ids, at_ids(law), drafted, {name: at_ids(one) for name, one in offers.items()})


def _top(law: Distribution, count: int) -> list[int]:
    order = np.argsort(-law.probs, kind="stable")[:count]
    return [int(token) for token in law.ids[order]]
