"""The sampler chain, against its definition written out slowly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentspec import law as law_module
from agentspec.config import SamplingOptions
from agentspec.law import point_mass, probabilities, probability_of
from agentspec.types import IdArray, LogitsArray


def slow_law(logits: LogitsArray, legal: list[int], sampling: SamplingOptions) -> dict[int, float]:
    """mask, top-k, top-p, min-p, temperature, one token at a time."""
    kept = sorted(legal, key=lambda token: (-float(logits[token]), token))
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    if sampling.top_p < 1.0:
        weights = [math.exp(float(logits[token]) - float(logits[kept[0]])) for token in kept]
        mass, size = 0.0, 0
        while mass < sampling.top_p * sum(weights):
            mass += weights[size]
            size += 1
        kept = kept[:size]
    best = float(logits[kept[0]])
    if sampling.min_p > 0.0:
        kept = [token for token in kept if float(logits[token]) >= best + math.log(sampling.min_p)]
    tempered = {token: math.exp((float(logits[token]) - best) / sampling.temperature) for token in kept}
    return {token: weight / sum(tempered.values()) for token, weight in tempered.items()}


@pytest.mark.parametrize("seed", range(40))
def test_random_chains_equal_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_vocab = int(rng.integers(5, 900))
    logits = rng.normal(0, 3, n_vocab).astype(np.float32)
    legal = None if seed % 3 == 0 else np.flatnonzero(rng.random(n_vocab) < 0.4)
    if legal is not None and not len(legal):
        legal = np.array([1])
    sampling = SamplingOptions(
        temperature=float(rng.uniform(0.2, 2.0)),
        top_k=int(rng.choice([0, 1, 7, 40])),
        top_p=float(rng.choice([1.0, 0.95, 0.5, 0.05])),
        min_p=float(rng.choice([0.0, 0.05, 0.4])),
    )
    law = probabilities(logits, legal, sampling)
    expected = slow_law(logits, list(range(n_vocab)) if legal is None else legal.tolist(), sampling)
    assert law.ids.tolist() == sorted(expected)
    assert law.probs.tolist() == pytest.approx([expected[token] for token in sorted(expected)], abs=1e-9)
    assert law.probs.sum() == pytest.approx(1.0)


def test_top_p_beyond_the_candidates_it_looks_at_first() -> None:
    """A flat law needs nearly every token to reach top_p: more than the short list holds."""
    law = probabilities(np.zeros(4000, dtype=np.float32), None, SamplingOptions(temperature=1.0, top_p=0.9))
    assert len(law.ids) in (3600, 3601)  # rounding decides whether 3600 tokens reach 0.9


def test_top_p_widens_before_it_sorts_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_sizes: list[int] = []
    descending = law_module._descending

    def counting(scores: LogitsArray) -> IdArray:
        sorted_sizes.append(len(scores))
        return descending(scores)

    monkeypatch.setattr(law_module, "_descending", counting)
    logits = np.full(50_000, -20.0, dtype=np.float32)
    likely = np.random.default_rng(0).choice(50_000, 2000, replace=False)
    logits[likely] = 0.0
    law = probabilities(logits, None, SamplingOptions(temperature=1.0, top_p=0.9))
    assert set(law.ids.tolist()) <= set(likely.tolist())
    assert len(law.ids) in (1800, 1801)
    assert max(sorted_sizes) < 10_000


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = np.array([0, 5, 1, 5, 5], dtype=np.float32)
    assert probabilities(logits, None, SamplingOptions(temperature=0)).ids.tolist() == [1]
    legal = np.array([2, 3, 4])
    assert probabilities(logits, legal, SamplingOptions(temperature=0)).ids.tolist() == [3]


def test_top_k_takes_the_lowest_ids_of_equals() -> None:
    logits = np.array([1, 2, 1, 1, 2], dtype=np.float32)
    law = probabilities(logits, None, SamplingOptions(temperature=1, top_k=3))
    assert law.ids.tolist() == [0, 1, 4]


def test_a_cold_law_approaches_greedy() -> None:
    logits = np.array([0, 1, 3, 2], dtype=np.float32)
    law = probabilities(logits, None, SamplingOptions(temperature=0.01))
    assert probability_of(law, 2) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [1e-308, 5e-324])
def test_the_coldest_law_there_is(temperature: float) -> None:
    """Its scores overflow; warnings are errors here."""
    logits = np.array([-np.inf, 30, 80, 80, -1e30], dtype=np.float32)
    law = probabilities(logits, None, SamplingOptions(temperature=temperature))
    assert law.probs.tolist() == [0.0, 0.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_rows_without_a_finite_logit_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        probabilities(np.full(4, bad, dtype=np.float32), None, SamplingOptions())


def test_an_empty_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="no token is legal"):
        probabilities(np.zeros(4, dtype=np.float32), np.array([], dtype=np.int64), SamplingOptions())


def test_probability_of_unlisted_tokens_is_zero() -> None:
    assert probability_of(point_mass(3), 3) == 1.0
    assert probability_of(point_mass(3), 2) == 0.0
    assert probability_of(point_mass(3), 9) == 0.0
