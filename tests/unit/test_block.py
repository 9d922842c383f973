"""A block in the making: what may enter it, what stays, what may be cut off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from agentspec.engine.block import Block
from agentspec.errors import GrammarError
from agentspec.law import point_mass
from agentspec.places import TEXT, PlaceScanner
from agentspec.testing import TrieMatcher
from agentspec.types import Distribution, IdArray, Matcher

N_VOCAB = 8
END = 7


def block(matcher: Matcher | None = None, *, limit: int = 6, settled: Sequence[int] = (0, 1)) -> Block:
    """An empty block, whose draws take a distribution's first token."""
    return Block(
        settled,
        matcher,
        frozenset({END}),
        n_vocab=N_VOCAB,
        limit=limit,
        draw=lambda law, _: int(law.ids[0]),
    )


def test_tokens_extend_the_prefix_and_the_sequence_is_left_alone() -> None:
    settled = [0, 1]
    made = block(settled=settled)
    assert made.propose(3, "grammar")
    assert made.draw(point_mass(4), "model") == 4
    assert list(made.prefix) == [0, 1, 3, 4]
    assert (settled, made.n_settled, made.tokens, len(made)) == ([0, 1], 2, [3, 4], 2)
    assert [(part.token, part.source) for part in made.proposals] == [(3, "grammar"), (4, "model")]


def test_a_full_block_takes_no_more() -> None:
    made = block(limit=1)
    assert made.room == 1
    made.propose(2, "grammar")
    assert (made.room, made.allows(2), made.propose(2, "grammar")) == (0, False, False)
    with pytest.raises(ValueError, match="takes no more"):
        made.draw(point_mass(1), "model")
    assert made.tokens == [2]


def test_it_walks_the_grammar_and_not_the_sequences_own() -> None:
    matcher = TrieMatcher([(1, 2, 3), (1, 4)])
    made = block(matcher)
    assert made.propose(1, "grammar")
    assert [legal.tolist() for legal in made.legal if legal is not None] == [[1], [2, 4]]
    assert matcher.legal().tolist() == [1]
    fork = made.fork()
    assert fork is not None
    fork.advance(4)
    assert made.propose(2, "grammar")


def test_an_illegal_certain_token_is_left_out_and_an_illegal_drawn_one_closes_the_block() -> None:
    made = block(TrieMatcher([(1, 2, 3)]))
    assert not made.propose(5, "lookup")
    assert made.tokens == []
    assert made.room
    assert made.draw(point_mass(5), "model") == 5
    assert (made.tokens, made.room, len(made.legal)) == ([5], 0, 1)


def test_nothing_follows_an_end_token_or_the_end_of_the_grammar() -> None:
    made = block()
    made.propose(END, "lookup")
    assert (made.room, len(made.legal)) == (0, 1)
    done = block(TrieMatcher([(1,)]))
    done.propose(1, "grammar")
    assert (done.room, len(done.legal)) == (0, 1)


def test_the_certain_tail_can_be_cut_off() -> None:
    made = block()
    made.draw(point_mass(1), "model")
    for token in (2, 3, 4):
        made.propose(token, "lookup")
    made.cut(2)
    assert made.tokens == [1, 2]
    assert list(made.prefix) == [0, 1, 1, 2]
    assert len(made.legal) == 3
    assert made.room == 0
    made.cut(1)
    assert made.tokens == [1]


@pytest.mark.parametrize("length", [-1, 0, 1, 2, 5])
def test_no_cut_loses_a_drawn_token_or_adds_one(length: int) -> None:
    """It would be chosen by its value whether it stays."""
    made = block()
    made.propose(1, "lookup")
    made.draw(point_mass(2), "model")
    made.draw(point_mass(2), "model")
    made.propose(3, "lookup")
    assert made.n_drawn == 3
    with pytest.raises(ValueError, match=f"a block of 4 tokens, 3 .* cut to {length}"):
        made.cut(length)
    assert made.tokens == [1, 2, 2, 3]


def test_a_block_that_ends_closed_can_be_cut_before_its_end() -> None:
    """The position before the end token has a law again."""
    made = block(TrieMatcher([(1, 2)], end_ids=[END]))
    made.propose(1, "grammar")
    made.propose(2, "grammar")
    assert len(made.legal) == 2
    made.cut(1)
    assert [legal.tolist() for legal in made.legal if legal is not None] == [[1], [2]]


@pytest.mark.parametrize("token", [-1, N_VOCAB, 10**12])
@pytest.mark.parametrize("grammar", [None, TrieMatcher([(1, 2)])])
def test_an_id_that_is_none_is_an_error(token: int, grammar: Matcher | None) -> None:
    with pytest.raises(ValueError, match=f"token {token} is not in the vocabulary of 8"):
        block(grammar).propose(token, "lookup")


def test_a_distribution_that_is_none_leaves_the_block_as_it_is() -> None:
    made = block()
    law = Distribution(np.array([1, 2]), np.array([2.0, 2.0]))
    with pytest.raises(ValueError, match=r"sum to 4\.0"):
        made.draw(law, "model")
    assert (made.tokens, made.n_drawn) == ([], 0)
    assert made.propose(3, "lookup")


def test_rows_are_asked_for_where_there_is_a_choice() -> None:
    made = block(TrieMatcher([(1, 2, 3), (1, 2, 4, 5)]))
    for token in (1, 2, 4):
        made.propose(token, "grammar")
    assert made.rows(skip_forced=True) == [2]
    assert made.rows(skip_forced=False) == [0, 1, 2, 3]


def test_it_knows_its_place() -> None:
    pieces = [b"{", b'"', b"a", b":", b"1", b"}", b" ", b""]
    scanner = PlaceScanner()
    scanner.advance(b'{"')
    made = Block(
        [0, 1],
        None,
        frozenset({END}),
        n_vocab=N_VOCAB,
        limit=9,
        draw=lambda law, _: int(law.ids[0]),
        scanner=scanner,
        token_bytes=pieces.__getitem__,
    )
    kinds = [made.place.kind]
    for token in (2, 1, 3, 4, 5):
        made.propose(token, "grammar")
        kinds.append(made.place.kind)
    assert kinds == ["key", "key", "structure", "structure", "number", "text"]
    assert scanner.place.kind == "key"  # the sequence's own has not moved
    assert block().place == TEXT


class Failing(TrieMatcher):
    """A grammar that fails where two tokens are taken."""

    def legal(self) -> IdArray:
        if len(self._taken) == 2:
            raise GrammarError("no memory")
        return super().legal()

    def fork(self) -> Failing:
        copy = Failing(self._replies)
        copy._taken = list(self._taken)
        return copy


def test_a_grammar_that_fails_closes_the_block_and_is_kept() -> None:
    made = block(Failing([(1, 2, 3, 4)]))
    made.propose(1, "grammar")
    assert made.room
    made.propose(2, "grammar")
    assert isinstance(made.error, GrammarError)
    assert made.room == 0
