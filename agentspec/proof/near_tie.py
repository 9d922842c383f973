"""Is a difference between two replies one that the size of the passes makes?

llama.cpp computes one token alone with other kernels than several at once, so the same logit moves a little
with the size of a pass, and two tokens of almost equal score can change places. That is a near-tie, and it
can be proven without the engine: the row at the first difference is computed in passes of several sizes, and
the two tokens must be no further apart than those sizes move them, which itself must be little.

This module must not know the engine: it works on a session, which must be idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentspec.prefix import take_prefix
from agentspec.types import LogitsArray, Session, Span

__all__ = ["MOST_MOVED", "SHAPES", "Difference", "first_difference", "measure"]

SHAPES = (1, 2, 4, 8, 16, 128)
"""Tokens a pass. The last is for passes that many sequences share: llama.cpp has other kernels for those."""

MOST_MOVED = 1.0
"""Most that the size of the passes may move the gap between two logits, else something is wrong with them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two replies part, and how near the two tokens are to each other there.

    at:          position in the reply
    left, right: the tokens
    gap:         the least distance between their scores in passes of any of the sizes, in units of a logit
    moved:       how far the sizes move that distance
    """

    at: int
    left: int
    right: int
    gap: float
    moved: float

    @property
    def near_tie(self) -> bool:
        return self.gap <= self.moved <= MOST_MOVED

    def __str__(self) -> str:
        return (
            f"token {self.at} ({self.left} or {self.right}): the scores are {self.gap:.4f} apart, "
            f"and the size of the passes moves that by {self.moved:.4f}"
        )


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The position of the first token that differs, or that only one reply has; None for equal replies."""
    for at, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return at
    return None if len(left) == len(right) else min(len(left), len(right))


def measure(
    session: Session,
    prompt: Sequence[int],
    reply: Sequence[int],
    left: int,
    right: int,
    *,
    offset: float = 0.0,
    slot: int = 0,
) -> Difference:
    """How near two tokens are to each other after prompt and reply.

    reply:  the tokens before the difference, shape (n,)
    offset: what is added to the left token's logit less the right token's before they are compared. 0 for
            greedy replies; for draws by the Gumbel-max trick at a temperature T, T times the difference of
            their noise (the left token's less the right token's), since the token with the largest
            logit / T + noise is drawn. Likewise logit biases and penalties.
    slot:   its contents are replaced. The prompt's KV is reused where any slot has it, so the cost is little
            more than that of decoding the reply once for each of SHAPES.

    Raises DecodeError where the session has no room.
    """
    rows = [_row(session, slot, prompt, reply, shape) for shape in SHAPES]
    gaps = [float(row[left]) - float(row[right]) + offset for row in rows]
    return Difference(len(reply), left, right, min(map(abs, gaps)), max(gaps) - min(gaps))


def _row(session: Session, slot: int, prompt: Sequence[int], reply: Sequence[int], shape: int) -> LogitsArray:
    """The row after prompt and reply, of which the reply comes in passes of `shape` tokens each: the first of
    them reaches back into the prompt, so that it is as large as the others."""
    tokens = [*prompt, *reply]
    shape = min(shape, session.n_batch)
    start = max(0, len(tokens) - shape * math.ceil((len(reply) + 1) / shape))
    held = take_prefix(session, slot, tokens[: start + 1])
    passes = [tokens[at : min(at + session.n_batch, start)] for at in range(held, start, session.n_batch)]
    passes += [tokens[at : at + shape] for at in range(start, len(tokens), shape)]
    for part in passes[:-1]:
        session.decode([Span(slot, part, ())])
    (row,) = session.decode([Span(slot, passes[-1], (len(passes[-1]) - 1,))])
    return row
