"""The acceptance rule alone, by enumeration: blocks up to 4 tokens over 3 to 5 tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from agentspec.law import point_mass
from agentspec.testing import ScriptedChance, enumerate_law
from agentspec.types import Distribution, Randomness
from agentspec.verify import Verdict, block_wise, residual, token_wise
from tests.exactness.laws import total_variation

Prefix = tuple[int, ...]


Verifier = Callable[..., Verdict]

VERIFIERS = [token_wise, block_wise]


def table(seed: int, prefix: Prefix, n_vocab: int, *, sharp: float = 1.0) -> Distribution:
    """A random distribution for a prefix; a few tokens get probability 0."""
    rng = np.random.default_rng([seed, len(prefix), *prefix])
    probs = rng.dirichlet(np.full(n_vocab, 0.7)) ** sharp
    kept = np.flatnonzero(probs > 0.02)
    return Distribution(kept, probs[kept] / probs[kept].sum())


def draft_law(kind: str, prefix: Prefix, n_vocab: int) -> Distribution | None:
    """None for a point mass; what kind of proposal a position gets depends on the prefix only."""
    if kind == "point" or (kind == "mixed" and sum(prefix) % 2):
        return None
    return table(2, prefix, n_vocab, sharp=4.0 if kind == "over-confident" else 1.0)


def draw_block(
    kind: str, size: int, n_vocab: int, chance: Randomness
) -> tuple[list[int], list[Distribution | None], list[Distribution]]:
    """A block as a draft of this kind makes it: its tokens, what each was drawn from, the target's laws."""
    tokens: list[int] = []
    dists: list[Distribution | None] = []
    laws = [table(1, (), n_vocab)]
    for _ in range(size):
        law = draft_law(kind, tuple(tokens), n_vocab)
        dists.append(law)
        tokens.append(len(tokens) % n_vocab if law is None else chance.draw(law))
        laws.append(table(1, tuple(tokens), n_vocab))
    return tokens, dists, laws


# blocks of 4 over 5 tokens have millions of outcomes: the longest blocks are tried over 3
@pytest.mark.parametrize(
    ("n_vocab", "size"), [(3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (5, 1), (5, 2), (4, 3)]
)
@pytest.mark.parametrize("kind", ["soft", "point", "mixed", "over-confident"])
@pytest.mark.parametrize("verify", VERIFIERS)
def test_the_law_is_kept(verify: Verifier, kind: str, size: int, n_vocab: int) -> None:
    def run(chance: ScriptedChance) -> Prefix:
        tokens, dists, laws = draw_block(kind, size, n_vocab, chance)
        verdict = verify(tokens, dists, laws, chance)
        assert verdict.token is not None
        reply = [*tokens[: verdict.accepted], verdict.token]
        while len(reply) <= size:  # the law of the first size + 1 tokens: go on from the target itself
            reply.append(chance.draw(table(1, tuple(reply), n_vocab)))
        return tuple(reply)

    assert total_variation(enumerate_law(run), chain(size + 1, n_vocab)) <= 1e-12


def chain(length: int, n_vocab: int) -> dict[Prefix, float]:
    law: dict[Prefix, float] = {(): 1.0}
    for _ in range(length):
        law = {
            (*prefix, token): weight * probability
            for prefix, weight in law.items()
            for token, probability in pairs(table(1, prefix, n_vocab))
        }
    return law


def pairs(distribution: Distribution) -> Sequence[tuple[int, float]]:
    return list(zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["soft", "point", "mixed", "over-confident"])
@pytest.mark.parametrize(("n_vocab", "size"), [(3, 1), (3, 2), (3, 3), (4, 3)])
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
