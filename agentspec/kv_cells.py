"""Which cells of a KV cache the slots of a session hold, with those that they share counted once.

One cell keeps the keys and values of one token, for every sequence that has this token at this place and got
it by a copy. It must not know tokens, llama.cpp or who asks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

__all__ = ["KvCells"]


class KvCells:
    """The cells of `n_slots` sequences, named by numbers that are never used twice."""

    def __init__(self, n_slots: int) -> None:
        self._held: list[list[int]] = [[] for _ in range(n_slots)]
        self._holders: Counter[int] = Counter()  # of each cell: how many slots
        self._names = itertools.count()

    @property
    def n_used(self) -> int:
        """Cells that any slot holds."""
        return len(self._holders)

    def count(self, prefixes: Iterable[tuple[int, int]]) -> int:
        """Cells that prefixes take together, each given by a slot and a length."""
        return len(set().union(*(self._held[slot][:length] for slot, length in prefixes)))

    def append(self, slot: int, n: int) -> None:
        """Gives a slot `n` cells of its own."""
        self._add(slot, list(itertools.islice(self._names, n)))

    def cut(self, slot: int, length: int) -> None:
        """Keeps a slot's first `length` cells."""
        held, holders = self._held[slot], self._holders
        for cell in held[length:]:
            if holders[cell] == 1:
                del holders[cell]
            else:
                holders[cell] -= 1
        del held[length:]

    def share(self, source: int, target: int, length: int) -> None:
        """Makes `target` hold the first `length` cells of `source`, in place of what it held."""
        cells = self._held[source][:length]
        self.cut(target, 0)  # which may be the source itself
        self._add(target, cells)

    def _add(self, slot: int, cells: list[int]) -> None:
        self._held[slot] += cells
        self._holders.update(cells)
