"""Where a reply's chance comes from: a stream of random numbers, or noise that is a function of the position.

SeededRandomness is what sampling needs: accept with a probability, draw from a distribution.
GumbelNoise makes every draw a function of (seed, position, law), so that how many draws were made before, and
for what, cannot matter.

This module must not know blocks, drafts or rules of acceptance.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from agentspec.types import Distribution, FloatArray, IdArray

__all__ = ["GumbelNoise", "SeededRandomness"]

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15


class SeededRandomness:
    """Randomness from a seed: one generator per request, one uniform number per decision.

    A draw from a point mass uses none, and neither does a decision that is certain.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def accept(self, probability: float) -> bool:
        """True with the given probability."""
        if probability <= 0.0:
            return False
        return float(self._generator.random()) < probability

    def draw(self, distribution: Distribution) -> int:
        """A token by inversion of the cumulated probabilities."""
        if len(distribution.ids) == 1:
            return int(distribution.ids[0])
        cumulated = np.cumsum(distribution.probs)
        point = float(self._generator.random()) * float(cumulated[-1])
        index = int(np.searchsorted(cumulated, point, side="right"))
        return int(distribution.ids[min(index, len(distribution.ids) - 1)])


class GumbelNoise:
    """Draws by the Gumbel-max trick, with noise that is keyed by seed, position and token id.

    argmax(log probs + Gumbel noise) has the law `probs` (Maddison et al. 2014, arXiv:1411.0030). It is found
    as the first of exponential clocks with rates `probs`, which is the same token and needs no logarithm of
    a probability. Two laws at one position are decided by the same noise, so a draft whose law is near the
    target's mostly draws the target's own token.

    The noise is the SplitMix64 sequence (Steele et al. 2014, doi:10.1145/2660193.2660195) of a key made of
    seed and position, read at the token's id: only listed tokens are worked on.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def draw(self, distribution: Distribution, position: int) -> int:
        """The token of `distribution` at a position of the reply (0 for its first token)."""
        if len(distribution.ids) == 1:
            return int(distribution.ids[0])
        with np.errstate(divide="ignore", over="ignore"):  # a token of (almost) no probability is never first
            arrivals = self._clocks(distribution.ids, position) / distribution.probs
        return int(distribution.ids[np.argmin(arrivals)])

    def gumbel(self, ids: IdArray, position: int) -> FloatArray:
        """The noise of tokens at a position: standard Gumbel variables, shape (k,)."""
        return -np.log(self._clocks(ids, position))

    def _clocks(self, ids: IdArray, position: int) -> FloatArray:
        """Standard exponential variables, one a token, shape (k,)."""
        key = _mixed(_mixed(self._seed) + position)
        counters = np.uint64(key) + (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP)
        uniform = ((_mix(counters) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # in (0, 1)
        return -np.log1p(-uniform)


def _mixed(value: int) -> int:
    """One output of SplitMix64, as an int: every bit of `value` decides every bit of it."""
    return int(_mix(np.array([(value + _STEP) & _MASK], dtype=np.uint64))[0])


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function; arithmetic is modulo 2**64."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
