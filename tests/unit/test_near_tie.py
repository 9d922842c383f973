"""What counts as a near-tie, on a session whose logits move with the size of a pass as llama.cpp's do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from agentspec.proof.near_tie import (
    MOST_MOVED,
    PROMPT_COMPANIES,
    PROMPT_SHAPES,
    SHAPES,
    Difference,
    first_difference,
    measure,
)
from agentspec.testing import TableModel
from agentspec.types import LogitsArray, Span

PROMPT = [0, 1, 2, 1, 0]
REPLY = [2, 2, 1]
LEFT, RIGHT = 1, 3


class Shaky(TableModel):
    """Tokens LEFT and RIGHT are `gap` apart; a pass of n tokens brings them nearer by `moves[n]`."""

    def __init__(self, gap: float, moves: dict[int, float], *, n_batch: int = 256) -> None:
        super().__init__(lambda _: [0.0, gap, -5.0, 0.0], n_vocab=4, n_ctx=512, n_batch=n_batch, n_slots=2)
        self._moves = moves
        self.sizes: list[int] = []

    def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
        size = sum(len(span.tokens) for span in spans)
        self.sizes.append(size)
        rows = super().decode(spans)
        for row in rows:
            row[LEFT] -= self._moves.get(size, 0.0)
        return rows


def difference(session: Shaky, *, offset: float = 0.0) -> Difference:
    return measure(session, PROMPT, REPLY, LEFT, RIGHT, offset=offset)


def test_tokens_that_the_passes_swap_are_a_near_tie() -> None:
    found = difference(Shaky(0.1, {4: 0.3}))
    assert (found.at, found.left, found.right) == (3, LEFT, RIGHT)
    assert found.gap == pytest.approx(0.1)
    assert found.moved == pytest.approx(0.3)
    assert found.near_tie


def test_tokens_that_are_further_apart_than_the_passes_move_them_are_none() -> None:
    found = difference(Shaky(0.5, {4: 0.2}))
    assert found.gap == pytest.approx(0.3)
    assert found.moved == pytest.approx(0.2)
    assert not found.near_tie


def test_the_order_of_the_two_tokens_does_not_matter() -> None:
    session = Shaky(0.1, {4: 0.3})
    one, other = (measure(session, PROMPT, REPLY, *pair) for pair in ((LEFT, RIGHT), (RIGHT, LEFT)))
    assert (one.gap, one.moved) == (other.gap, other.moved)


def test_passes_that_move_a_logit_too_far_explain_nothing() -> None:
    """Else a broken cache, of which the rows are anything, would excuse every difference."""
    assert not difference(Shaky(0.5, {4: MOST_MOVED + 0.01})).near_tie


@pytest.mark.parametrize("size", [1, 2, 4])
def test_any_size_of_pass_may_be_the_one(size: int) -> None:
    assert difference(Shaky(0.1, {size: 0.3})).near_tie


def test_noise_is_part_of_the_score() -> None:
    """At a temperature the tokens with the largest logit / T + noise are compared, not the likeliest."""
    far = Shaky(3.0, {4: 0.3})
    assert not difference(far).near_tie
    assert difference(far, offset=-2.9).near_tie
    assert not difference(Shaky(0.1, {4: 0.3}), offset=2.9).near_tie


def test_the_prompts_kv_is_reused_and_then_made_anew() -> None:
    session = Shaky(0.1, {})
    session.decode([Span(1, PROMPT, ())])  # in another slot
    session.sizes.clear()
    assert not difference(session).near_tie
    ones, twos, fours = [1, 1, 1, 1], [2, 2], [4]  # the prompt's last token and the reply
    threes, six = [3, 3], [6]
    whole = [8]  # prompt and reply: the larger shapes hold more than there is
    anew = [5, 1, 1, 1, 3]  # the prompt, then the reply one by one and at once
    reply = ones + twos + fours + 3 * whole + threes + six + 4 * whole
    assert session.sizes[: len(reply)] == reply
    company = [2, 2, 2, 2, 8, 8]  # one other sequence, which the session has a slot for
    beside: list[int] = []  # the prompt but for its last token, in passes with tokens of another sequence
    for size in PROMPT_COMPANIES:
        if size < session.n_batch:
            beside += [size + 4, *ones, 4]
    assert session.sizes[len(reply) :] == company + beside + len(PROMPT_SHAPES) * anew


def test_a_long_reply_comes_in_passes_of_each_size() -> None:
    session = Shaky(0.1, {})
    prompt, reply = [0, 1] * 100, [2, 1, 0] * 50
    measure(session, prompt, reply, LEFT, RIGHT)
    expected = [199]  # the prompt but for its last token, once
    for shape in SHAPES:
        expected += [shape] * math.ceil(151 / shape)  # the prompt's last token and the reply, at least
    assert all(2 * 350 + size > session.n_ctx for size in PROMPT_COMPANIES)  # no room for company
    for shape in PROMPT_SHAPES:
        whole, rest = divmod(200, shape)
        expected += [shape] * whole + [rest] * (rest > 0) + [1] * 150 + [8] * 18 + [6]
    assert session.sizes == expected


def test_the_prompts_passes_may_make_the_difference() -> None:
    session = Shaky(0.1, {18: 0.3})  # what is left of the prompt after passes of 32
    assert measure(session, [0, 1] * 105, [], LEFT, RIGHT).near_tie


def test_company_may_make_the_difference() -> None:
    """Two sequences of 13 tokens a pass: no other way of computing the row has such a pass."""
    session = Shaky(0.1, {26: 0.3})
    session.decode([Span(1, [2] * 9, ())])  # what other slots hold makes room
    assert measure(session, [0, 1] * 50, [2] * 12, LEFT, RIGHT).near_tie


def test_a_session_without_room_for_company_has_none() -> None:
    session = Shaky(0.1, {})
    prompt = [0, 1] * 150
    assert not measure(session, prompt, REPLY, LEFT, RIGHT).near_tie
    assert session.sizes.count(2) == 2  # the pairs of SHAPES, and no two sequences of one token


def test_no_more_rows_are_computed_than_a_proof_needs() -> None:
    session = Shaky(0.1, {2: 0.3})
    assert difference(session).near_tie
    assert session.sizes == [4, 1, 1, 1, 1, 2, 2]


def test_a_long_prompt_is_decoded_in_the_passes_that_fit() -> None:
    session = Shaky(0.1, {}, n_batch=32)
    measure(session, [0] * 100, [1], LEFT, RIGHT)
    assert max(session.sizes) == 32
    assert list(session.tokens(0)) == [0] * 100 + [1]


def test_the_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], [1]) == 0
