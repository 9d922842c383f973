"""Cells that slots share are counted once, whatever was copied and cut before."""

from __future__ import annotations

import random

import pytest

from agentspec.kv_cells import KvCells


def test_a_shared_prefix_counts_once_until_nobody_holds_it() -> None:
    cells = KvCells(3)
    cells.append(0, 10)
    cells.share(0, 1, 6)
    cells.append(1, 2)
    assert cells.n_used == 12
    assert cells.count([(0, 10), (1, 8)]) == 12
    assert cells.count([(0, 3), (1, 5), (2, 9)]) == 5
    cells.cut(0, 0)
    assert cells.n_used == 8
    cells.share(1, 1, 6)
    assert cells.n_used == 6
    cells.append(0, 6)  # the same tokens, perhaps, but computed again
    assert cells.count([(0, 6), (1, 6)]) == cells.n_used == 12


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_sets(seed: int) -> None:
    chance = random.Random(seed)
    cells, names = KvCells(4), iter(range(10_000))
    held: list[list[int]] = [[] for _ in range(4)]
    for _ in range(300):
        slot, other, n = chance.randrange(4), chance.randrange(4), chance.randrange(9)
        match chance.choice(["append", "append", "cut", "share"]):
            case "append":
                cells.append(slot, n)
                held[slot] += [next(names) for _ in range(n)]
            case "cut":
                cells.cut(slot, n)
                del held[slot][n:]
            case "share":
                cells.share(slot, other, n)
                held[other] = held[slot][:n]
        assert cells.n_used == len(set().union(*held))
        lengths = [chance.randrange(9) for _ in range(4)]
        shown = set().union(*(one[:length] for one, length in zip(held, lengths, strict=True)))
        assert cells.count(enumerate(lengths)) == len(shown)
