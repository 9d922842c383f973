"""What one pass is expected to bring and to cost, and whether more of it would pay.

The aim is the most expected tokens per second. A pass that is to bring E tokens in T seconds is made better
by whatever brings more than E / T tokens a second, so a token is worth T / E seconds here: the price of a
token is low where drafts do well, and high where they do not. Everything here is arithmetic on estimates of
the past; nothing here knows a token.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.engine.cost import Costs
from agentspec.engine.offers import BlockPlan

__all__ = ["Pass"]

_AHEAD = 4
"""Tokens over which the cost of one more is averaged: pass times are staircases."""


class Pass:
    """The blocks of one target pass.

    n_base: how many tokens it has without them
    others: how many replies it goes on with without a block
    spent:  seconds that model sources have taken for it so far
    """

    def __init__(self, plans: Sequence[BlockPlan], n_base: int, costs: Costs, others: int = 0) -> None:
        self.spent = 0.0
        self._others = others
        self._plans = plans
        self._n_base = n_base
        self._target = costs.target

    def cost(self, tokens: float) -> float:
        """Seconds that so many tokens more would take."""
        n, ahead = self._tokens(), max(_AHEAD, tokens)
        return (self._target.seconds(n + ahead) - self._target.seconds(n)) / ahead * tokens

    def saved(self, gain: float, tokens: float, seconds: float = 0.0) -> float:
        """Seconds that are won, or, below 0, lost, by an extension.

        gain:    how many accepted tokens it is expected to add
        tokens:  how many tokens it has
        seconds: what proposing them takes
        """
        expected = self._others + sum(1.0 + sum(plan.survival) for plan in self._plans)
        price = (self._target.seconds(self._tokens()) + self.spent) / expected
        return gain * price - self.cost(tokens) - seconds

    def best_lengths(self) -> list[int]:
        """How much of each block to keep for the most expected tokens per second, shape (n_plans,)."""
        lengths = [max(plan.block.n_drawn, plan.n_paid) for plan in self._plans]
        expected = self._others + sum(
            1.0 + sum(plan.survival[:length]) for plan, length in zip(self._plans, lengths, strict=True)
        )
        tails = [
            (-survival, position, index)
            for index, (plan, length) in enumerate(zip(self._plans, lengths, strict=True))
            for position, survival in enumerate(plan.survival)
            if position >= length
        ]
        tails.sort()  # a block's survival falls along it, so each of these sets is a cut of every block
        n = self._n_base + sum(lengths)
        best, best_rate = 0, expected / self._seconds(n)
        for count, (survival, _, _) in enumerate(tails, start=1):
            expected -= survival
            rate = expected / self._seconds(n + count)
            if rate >= best_rate:
                best, best_rate = count, rate
        for _, position, index in tails[:best]:
            lengths[index] = position + 1
        return lengths

    def _tokens(self) -> int:
        return self._n_base + sum(len(plan.block) for plan in self._plans)

    def _seconds(self, n: int) -> float:
        return self._target.seconds(n) + self.spent
