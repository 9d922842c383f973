"""Is a difference between two replies one that the size of the passes makes?

llama.cpp computes one token with other kernels than several, and many with others again, so a logit depends a
little on the sizes of the passes that computed it and the KV before it, the prompt's included. Two tokens of
almost equal score can change places. That is a near-tie, and it can be proven without the engine: the row at
the first difference is computed in passes of several sizes, and the two tokens must be no further apart than
those sizes move them, which itself must be little.

This module must not know the engine: it works on a session, which must be idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentspec.prefix import take_prefix
from agentspec.types import LogitsArray, Session, Span

__all__ = [
    "COMPANIES",
    "COMPANY_SHAPES",
    "MOST_MOVED",
    "PROMPT_COMPANIES",
    "PROMPT_SHAPES",
    "SHAPES",
    "Difference",
    "first_difference",
    "measure",
]

SHAPES = (1, 2, 4, 8, 16, 128, 3, 6, 12, 24, 32, 64)
"""Tokens a pass of the reply, those that differ most first. The largest are for passes that many sequences
share: on a CPU, llama.cpp computes the attention of 64 tokens and more by another kernel."""

PROMPT_SHAPES = (32, 512, 16, 48, 64, 128, 256)
"""Tokens a pass of the prompt: on both sides of that border."""

COMPANIES = (3, 11)
COMPANY_SHAPES = (1, 6, 26)
"""How many other sequences share the passes, and how many tokens of each are in one: their tokens lie between
those of the reply in the KV cache, and the attention's sums come out in another order."""

PROMPT_COMPANIES = (64, 200, 130, 400, 16)
"""Tokens of another sequence in the passes that compute the prompt."""

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
    slot:   its contents are replaced, and later those of the others. The prompt's KV is first reused where
            any slot has it, so that most proofs cost little more than decoding the reply a few times.

    Rows are computed until they prove a near-tie, or there are no more sizes to try.
    Raises DecodeError where the session has no room.
    """
    gaps: list[float] = []
    found = Difference(len(reply), left, right, math.inf, 0.0)
    for row in _rows(session, slot, list(prompt), list(reply)):
        gaps.append(float(row[left]) - float(row[right]) + offset)
        found = Difference(len(reply), left, right, min(map(abs, gaps)), max(gaps) - min(gaps))
        if found.near_tie:
            break
    return found


def _rows(session: Session, slot: int, prompt: list[int], reply: list[int]) -> Iterator[LogitsArray]:
    """The row after prompt and reply, computed in different ways, the dearest last."""
    tokens = prompt + reply
    most = session.n_batch
    for shape in SHAPES:
        # the first of these passes reaches back into the prompt, so that it is as large as the others
        size = min(shape, most)
        start = max(0, len(tokens) - size * math.ceil((len(reply) + 1) / size))
        held = take_prefix(session, slot, tokens[: start + 1])
        yield _decode(session, slot, [*_chunks(tokens[held:start], most), *_chunks(tokens[start:], size)])
    yield from _rows_in_company(session, slot, prompt, reply)
    yield from _rows_of_a_prompt_in_company(session, slot, prompt, reply)
    for shape in PROMPT_SHAPES:
        session.truncate(slot, 0)
        row = _decode(session, slot, _chunks(prompt, min(shape, most)))
        if not reply:
            yield row
            continue
        for size in (1, 8):
            session.truncate(slot, len(prompt))
            yield _decode(session, slot, _chunks(reply, size))


def _rows_in_company(
    session: Session, slot: int, prompt: list[int], reply: list[int]
) -> Iterator[LogitsArray]:
    """The row, computed while others go on from the same prompt, as many as the session has room for."""
    free = min(session.n_slots, session.n_ctx // (len(prompt) + len(reply))) - 1
    others = [other for other in range(session.n_slots) if other != slot]
    for count in sorted({min(company, free) for company in COMPANIES if free > 0}):
        for shape in COMPANY_SHAPES:
            for other in others:
                session.truncate(other, 0)
            held = take_prefix(session, slot, prompt)
            for tokens in _chunks(prompt[held:-1], session.n_batch):
                session.decode([Span(slot, tokens, ())])
            for other in others[:count]:
                session.copy_prefix(slot, other, len(prompt) - 1)
            passes = _chunks([prompt[-1], *reply], min(shape, session.n_batch // (count + 1)))
            yield _decode(session, slot, passes, company=others[:count])


def _rows_of_a_prompt_in_company(
    session: Session, slot: int, prompt: list[int], reply: list[int]
) -> Iterator[LogitsArray]:
    """The row, where the prompt was computed in passes that it shared: of 64 tokens and more, though it has
    fewer."""
    if session.n_slots < 2:
        return
    other = (slot + 1) % session.n_slots
    for size in PROMPT_COMPANIES:
        if 2 * (len(prompt) + len(reply)) + size > session.n_ctx or size >= session.n_batch:
            continue
        for one in range(session.n_slots):
            session.truncate(one, 0)
        filler = (prompt * -(-size // len(prompt)))[:size]
        for tokens in _chunks(prompt[:-1], session.n_batch - size):
            session.truncate(other, 0)
            session.decode([Span(other, filler, ()), Span(slot, tokens, ())])
        for shape in (1, 8):
            session.truncate(slot, len(prompt) - 1)
            yield _decode(session, slot, _chunks([prompt[-1], *reply], shape))


def _chunks(tokens: list[int], size: int) -> list[list[int]]:
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]


def _decode(session: Session, slot: int, passes: list[list[int]], company: Sequence[int] = ()) -> LogitsArray:
    """Appends the tokens, one list a pass, to the slot and to its company; returns the slot's last row."""
    *rest, last = passes
    for tokens in rest:
        session.decode([Span(one, tokens, ()) for one in (*company, slot)])
    beside = [Span(other, last, ()) for other in company]
    (row,) = session.decode([*beside, Span(slot, last, (len(last) - 1,))])
    return row
