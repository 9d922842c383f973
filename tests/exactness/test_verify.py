"""The rules of acceptance alone, by enumeration: blocks up to 4 tokens over 3 to 5 tokens.

The law of what comes out is computed as numbers over every random outcome, so no test here can pass by luck.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

from agentspec.law import point_mass, probability_of
from agentspec.testing import ScriptedChance, enumerate_law
from agentspec.types import Distribution, Randomness
from agentspec.verify import Verdict, block_wise, residual, seed_invariant, token_wise
from tests.exactness.laws import EnumeratedNoise, total_variation

Prefix = tuple[int, ...]

Verifier = Callable[
    [Sequence[int], Sequence[Distribution | None], Sequence[Distribution], Randomness], Verdict
]


def invariant(
    tokens: Sequence[int],
    draft_probs: Sequence[Distribution | None],  # noqa: ARG001 - it does not matter to this rule
    target_probs: Sequence[Distribution],
    chance: Randomness,
) -> Verdict:
    return seed_invariant(tokens, target_probs, EnumeratedNoise(chance), 0)


VERIFIERS: list[Verifier] = [token_wise, block_wise, invariant]

KINDS = ["soft", "point", "mixed", "over-confident", "truncated"]


@cache
def table(seed: int, prefix: Prefix, n_vocab: int, *, sharp: float = 1.0) -> Distribution:
    """A random distribution for a prefix; a few tokens get probability 0, as under a mask."""
    rng = np.random.default_rng([seed, len(prefix), *prefix])
    probs = rng.dirichlet(np.full(n_vocab, 0.7)) ** sharp
    kept = np.flatnonzero(probs > 0.02)
    return Distribution(kept, probs[kept] / probs[kept].sum())


@cache
def draft_law(kind: str, prefix: Prefix, n_vocab: int) -> Distribution | None:
    """None for a point mass; what kind of proposal a position gets depends on the prefix only."""
    if kind == "point" or (kind == "mixed" and sum(prefix) % 2):
        return None
    law = table(2, prefix, n_vocab, sharp=4.0 if kind == "over-confident" else 1.0)
    if kind == "truncated":
        best = np.sort(np.argsort(-law.probs)[:2])
        return Distribution(law.ids[best], law.probs[best] / law.probs[best].sum())
    return law


def ends_early(prefix: Prefix) -> bool:
    """A stopping rule: of the prefix, as all are."""
    return sum(prefix) % 3 == 1


def draw_block(
    kind: str, size: int, n_vocab: int, chance: Randomness, *, early: bool = False, end: int = -1
) -> tuple[list[int], list[Distribution | None], list[Distribution]]:
    """A block as a draft of this kind makes it: its tokens, what each was drawn from, the target's laws.

    early: end the block where `ends_early` says so; end: a token after which nothing can follow
    """
    tokens: list[int] = []
    dists: list[Distribution | None] = []
    laws = [table(1, (), n_vocab)]
    while len(tokens) < size and not (early and ends_early(tuple(tokens))):
        law = draft_law(kind, tuple(tokens), n_vocab)
        dists.append(law)
        tokens.append(len(tokens) % n_vocab if law is None else chance.draw(law))
        if tokens[-1] == end:
            break
        laws.append(table(1, tuple(tokens), n_vocab))
    return tokens, dists, laws


def reply_law(verify: Verifier, kind: str, size: int, n_vocab: int, **how: int) -> dict[Prefix, float]:
    """The law of the first size + 1 tokens of a reply, or of all of a shorter one, one block verified."""

    def run(chance: ScriptedChance) -> Prefix:
        tokens, dists, laws = draw_block(
            kind, size, n_vocab, chance, early=bool(how.get("early")), end=how.get("end", -1)
        )
        verdict = verify(tokens, dists, laws, chance)
        reply = tokens[: verdict.accepted]
        if verdict.token is not None:
            reply.append(verdict.token)
        while len(reply) <= size and reply[-1:] != [how.get("end", -1)]:  # go on from the target itself
            reply.append(chance.draw(table(1, tuple(reply), n_vocab)))
        return tuple(reply[: size + 1])

    return enumerate_law(run)


# blocks of 4 over 5 tokens have millions of outcomes: the longest blocks are tried over 3
SIZES = [(3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (5, 1), (5, 2), (4, 3)]


@pytest.mark.parametrize(("n_vocab", "size"), SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", VERIFIERS)
def test_the_law_is_kept(verify: Verifier, kind: str, size: int, n_vocab: int) -> None:
    law = reply_law(verify, kind, size, n_vocab)
    assert total_variation(law, chain(size + 1, n_vocab)) <= 1e-12


@pytest.mark.parametrize(("n_vocab", "size"), [(3, 2), (3, 4), (5, 2), (4, 3)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", VERIFIERS)
def test_the_law_is_kept_where_blocks_end_early(verify: Verifier, kind: str, size: int, n_vocab: int) -> None:
    law = reply_law(verify, kind, size, n_vocab, early=True)
    assert total_variation(law, chain(size + 1, n_vocab)) <= 1e-12


@pytest.mark.parametrize(("n_vocab", "size"), [(3, 2), (3, 4), (5, 2), (4, 3)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", VERIFIERS)
def test_the_law_is_kept_where_the_reply_ends_inside_a_block(
    verify: Verifier, kind: str, size: int, n_vocab: int
) -> None:
    """Token 1 ends a reply: draft tokens never follow it, and the target's own may be it."""
    law = reply_law(verify, kind, size, n_vocab, end=1)
    assert total_variation(law, chain(size + 1, n_vocab, end=1)) <= 1e-12


def test_to_drop_what_was_drawn_is_seen() -> None:
    """The stopping rule that no source of this project can write: draw, look, leave out."""

    def run(chance: ScriptedChance) -> Prefix:
        tokens, dists, laws = draw_block("soft", 2, 3, chance)
        for index, (token, dist) in enumerate(zip(tokens, dists, strict=True)):
            if dist is not None and probability_of(dist, token) < 0.4:
                tokens, dists, laws = tokens[:index], dists[:index], laws[: index + 1]
                break
        verdict = token_wise(tokens, dists, laws, chance)
        reply = [*tokens[: verdict.accepted], verdict.token or 0]
        while len(reply) <= 2:
            reply.append(chance.draw(table(1, tuple(reply), 3)))
        return tuple(reply)

    assert total_variation(enumerate_law(run), chain(3, 3)) > 1e-2


def chain(length: int, n_vocab: int, *, end: int = -1) -> dict[Prefix, float]:
    """The target's own law of replies of `length` tokens, shorter where `end` comes."""
    law: dict[Prefix, float] = {(): 1.0}
    for _ in range(length):
        longer: dict[Prefix, float] = {}
        for prefix, weight in law.items():
            if prefix[-1:] == (end,):
                longer[prefix] = weight
                continue
            for token, probability in pairs(table(1, prefix, n_vocab)):
                longer[(*prefix, token)] = weight * probability
        law = longer
    return law


def pairs(distribution: Distribution) -> Sequence[tuple[int, float]]:
    return list(zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_vocab", "size"), [(3, 1), (3, 2), (3, 3), (3, 4), (5, 2), (4, 3)])
def test_block_verification_accepts_no_less(kind: str, size: int, n_vocab: int) -> None:
    """Expected accepted lengths, exactly; run with -s to read them."""

    def expected(verify: Verifier) -> float:
        def run(chance: ScriptedChance) -> int:
            tokens, dists, laws = draw_block(kind, size, n_vocab, chance)
            return verify(tokens, dists, laws, chance).accepted

        return sum(accepted * weight for accepted, weight in enumerate_law(run).items())

    by_token, by_block = expected(token_wise), expected(block_wise)
    print(f"{kind}, {size} of {n_vocab}: token-wise {by_token:.4f}, block {by_block:.4f}")
    assert by_block >= by_token - 1e-12
    if kind == "point":
        assert by_block == pytest.approx(by_token)


def test_a_block_that_ends_the_reply_has_no_bonus_token() -> None:
    for verify in VERIFIERS:
        assert verify([4], [None], [point_mass(4)], ScriptedChance([])) == (1, None)


def test_a_token_its_own_law_excludes_is_refused() -> None:
    with pytest.raises(ValueError, match="probability 0"):
        token_wise([3], [point_mass(4)], [point_mass(3), point_mass(3)], ScriptedChance([]))


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="1 tokens"):
        token_wise([3], [None, None], [point_mass(3)], ScriptedChance([]))


def test_the_residual_of_equal_laws_is_the_law() -> None:
    law = table(1, (), 5)
    assert residual(law, law, int(law.ids[0])) is law


def test_the_residual_of_a_point_mass_excludes_its_token() -> None:
    law = Distribution(np.array([1, 4, 7]), np.array([0.5, 0.3, 0.2]))
    rest = residual(law, None, 4)
    assert rest.ids.tolist() == [1, 7]
    assert rest.probs.tolist() == pytest.approx([5 / 7, 2 / 7])
