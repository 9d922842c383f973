"""The sampler chain, against its definition written out slowly."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

from agentspec import samplers
from agentspec.config import SamplingOptions
from agentspec.errors import ConfigError
from agentspec.law import point_mass, probabilities, probability_of
from agentspec.types import FloatArray, IdArray, Legal, LogitsArray


def slow_law(
    logits: LogitsArray, legal: list[int], sampling: SamplingOptions, before: list[int]
) -> dict[int, float]:
    """mask, bias, penalties, top-k, typical, top-p, min-p, temperature, one token at a time."""
    score = {token: penalised(logits[token], token, sampling, before) for token in legal}
    kept = sorted(legal, key=lambda token: (-score[token], token))
    if sampling.top_k:
        kept = kept[: sampling.top_k]
    if sampling.typical_p < 1.0:
        kept = slow_typical(kept, [score[token] for token in kept], sampling.typical_p)
    if sampling.top_p < 1.0:
        weights = [math.exp(score[token] - score[kept[0]]) for token in kept]
        mass, size = 0.0, 0
        while mass < sampling.top_p * sum(weights):
            mass += weights[size]
            size += 1
        kept = kept[:size]
    best = score[kept[0]]
    if sampling.min_p > 0.0:
        kept = [token for token in kept if score[token] >= best + math.log(sampling.min_p)]
    if sampling.temperature == 0.0:
        return {kept[0]: 1.0}
    tempered = {token: math.exp((score[token] - best) / sampling.temperature) for token in kept}
    return {token: weight / sum(tempered.values()) for token, weight in tempered.items()}


def penalised(logit: np.float32, token: int, sampling: SamplingOptions, before: list[int]) -> float:
    """In float32, each number and each step."""
    if token in sampling.logit_bias:
        logit = logit + np.float32(sampling.logit_bias[token])
    last_n = sampling.repeat_last_n
    recent = [] if last_n == 0 else before if last_n == -1 else before[-last_n:]
    if token in recent:
        repeat = np.float32(sampling.repeat_penalty)
        logit = logit * repeat if logit <= 0 else logit / repeat
        frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
        logit = logit - (np.float32(recent.count(token)) * frequency + presence)
    return float(logit)


def slow_typical(kept: list[int], scores: list[float], typical_p: float) -> list[int]:
    """Takes and returns tokens in the order of their scores."""
    weights = [math.exp(score - scores[0]) for score in scores]
    prob = {token: weight / sum(weights) for token, weight in zip(kept, weights, strict=True)}
    entropy = -sum(p * math.log(p) for p in prob.values())
    mass, typical = 0.0, set()
    for token in sorted(kept, key=lambda token: abs(-math.log(prob[token]) - entropy)):
        typical.add(token)
        mass += prob[token]
        if mass > typical_p:
            break
    return [token for token in kept if token in typical]


@pytest.mark.parametrize("seed", range(80))
def test_random_chains_equal_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_vocab = int(rng.integers(5, 900))
    logits = rng.normal(0, 3, n_vocab).astype(np.float32)
    legal = None if seed % 3 == 0 else np.flatnonzero(rng.random(n_vocab) < 0.4)
    if legal is not None and not len(legal):
        legal = np.array([1])
    likely = [*np.argsort(-logits)[:15], *rng.integers(0, n_vocab + 9, 5)]  # some beyond the row
    sampling = SamplingOptions(
        temperature=float(rng.choice([0.0, 0.2, 0.9, 2.0])),
        logit_bias={int(token): float(rng.normal(0, 5)) for token in rng.choice(likely, 5)},
        repeat_penalty=float(rng.choice([1.0, 0.7, 1.5])),
        frequency_penalty=float(rng.choice([0.0, -0.3, 0.4])),
        presence_penalty=float(rng.choice([0.0, -0.3, 0.4])),
        repeat_last_n=int(rng.choice([-1, 0, 1, 30])),
        top_k=int(rng.choice([0, 1, 7, 40])),
        typical_p=float(rng.choice([1.0, 0.9, 0.3])),
        top_p=float(rng.choice([1.0, 0.95, 0.5, 0.05])),
        min_p=float(rng.choice([0.0, 0.05, 0.4])),
    )
    before = rng.choice(likely, int(rng.choice([0, 20, 120]))).tolist()
    law = probabilities(logits, legal, sampling, before)
    expected = slow_law(logits, list(range(n_vocab)) if legal is None else legal.tolist(), sampling, before)
    assert law.ids.tolist() == sorted(expected)
    assert law.probs.tolist() == pytest.approx([expected[token] for token in sorted(expected)], abs=1e-9)
    assert law.probs.sum() == pytest.approx(1.0)


def test_top_p_beyond_the_candidates_it_looks_at_first() -> None:
    """A flat law needs nearly every token to reach top_p: more than the short list holds."""
    sampling = SamplingOptions(temperature=1.0, top_p=0.9)
    law = probabilities(np.zeros(4000, dtype=np.float32), None, sampling, [])
    assert len(law.ids) in (3600, 3601)  # rounding decides whether 3600 tokens reach 0.9


@pytest.mark.parametrize("options", [{"top_p": 0.9}, {"typical_p": 0.9}], ids=str)
def test_a_mass_is_looked_for_in_ever_longer_lists(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More tokens than the short list holds, and the whole vocabulary is not sorted for them."""
    sorted_sizes: list[int] = []
    argsort = np.argsort

    def counting(keys: FloatArray, kind: Literal["stable"]) -> IdArray:
        sorted_sizes.append(len(keys))
        return argsort(keys, kind=kind)

    monkeypatch.setattr(np, "argsort", counting)
    rng = np.random.default_rng(0)
    logits = rng.normal(-20, 0.1, 50_000).astype(np.float32)
    likely = rng.choice(50_000, 2000, replace=False)
    logits[likely] = np.linspace(0, 1e-3, 2000)
    law = probabilities(logits, None, SamplingOptions.parse({"temperature": 1.0, **options}), [])
    assert set(law.ids.tolist()) <= set(likely.tolist())
    assert 1795 < len(law.ids) < 1805
    assert sorted_sizes[0] == samplers._CANDIDATES
    assert max(sorted_sizes) < 10_000


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = np.array([0, 5, 1, 5, 5], dtype=np.float32)
    assert probabilities(logits, None, SamplingOptions(temperature=0), []).ids.tolist() == [1]
    legal = np.array([2, 3, 4])
    assert probabilities(logits, legal, SamplingOptions(temperature=0), []).ids.tolist() == [3]


def test_top_k_takes_the_lowest_ids_of_equals() -> None:
    logits = np.array([1, 2, 1, 1, 2], dtype=np.float32)
    law = probabilities(logits, None, SamplingOptions(temperature=1, top_k=3), [])
    assert law.ids.tolist() == [0, 1, 4]


def test_a_cold_law_approaches_greedy() -> None:
    logits = np.array([0, 1, 3, 2], dtype=np.float32)
    law = probabilities(logits, None, SamplingOptions(temperature=0.01), [])
    assert probability_of(law, 2) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [1e-308, 5e-324])
def test_the_coldest_law_there_is(temperature: float) -> None:
    """Its scores overflow; warnings are errors here."""
    logits = np.array([-np.inf, 30, 80, 80, -1e30], dtype=np.float32)
    law = probabilities(logits, None, SamplingOptions(temperature=temperature), [])
    assert law.probs.tolist() == [0.0, 0.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_rows_without_a_finite_logit_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        probabilities(np.full(4, bad, dtype=np.float32), None, SamplingOptions(), [])


def test_an_empty_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="no token is legal"):
        probabilities(np.zeros(4, dtype=np.float32), np.array([], dtype=np.int64), SamplingOptions(), [])


def test_probability_of_unlisted_tokens_is_zero() -> None:
    assert probability_of(point_mass(3), 3) == 1.0
    assert probability_of(point_mass(3), 2) == 0.0
    assert probability_of(point_mass(3), 9) == 0.0


def test_a_bias_moves_its_tokens_and_no_others() -> None:
    logits = np.array([1, 2, 3, 4], dtype=np.float32)
    bias = {0: 4.0, 3: -math.inf, 9: 50.0, 2**31 - 1: 50.0}
    law = probabilities(logits, None, SamplingOptions(temperature=1, logit_bias=bias), [])
    weights = np.exp([5.0, 2.0, 3.0])
    assert law.probs.tolist() == pytest.approx([*(weights / weights.sum()), 0.0])
    masked = probabilities(logits, np.array([1, 2]), SamplingOptions(temperature=1, logit_bias=bias), [])
    assert masked.probs.tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)])


def test_a_row_whose_legal_tokens_are_all_ruled_out_is_refused() -> None:
    logits = np.array([5, 0, -np.inf], dtype=np.float32)
    sampling = SamplingOptions(logit_bias={1: -math.inf})
    with pytest.raises(ValueError, match="every legal token is ruled out, by a logit bias"):
        probabilities(logits, np.array([1, 2]), sampling, [])
    assert probabilities(logits, None, sampling, []).ids.tolist() == [0]


@pytest.mark.parametrize("options", [{"logit_bias": {0: 1e300}}, {"repeat_penalty": 1e-300}], ids=str)
def test_settings_beyond_float32_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SamplingOptions.parse(options)


def test_scores_beyond_float32_are_refused() -> None:
    """The sum of two that are not."""
    row = np.full(3, 3.4e38, dtype=np.float32)
    with pytest.raises(ValueError, match="0, after logit bias and penalties, has inf"):
        probabilities(row, None, SamplingOptions(repeat_penalty=0.5), [0])


@pytest.mark.parametrize(
    ("last_n", "penalised_ids"),
    [(-1, {0, 1, 2}), (0, set()), (1, {2}), (2, {1, 2}), (3, {1, 2}), (4, {0, 1, 2}), (99, {0, 1, 2})],
)
def test_penalties_read_the_last_tokens(last_n: int, penalised_ids: set[int]) -> None:
    sampling = SamplingOptions(temperature=1, presence_penalty=1.0, repeat_last_n=last_n)
    law = probabilities(np.ones(9, dtype=np.float32), None, sampling, [0, 1, 1, 2])
    assert set(np.flatnonzero(law.probs < law.probs[8]).tolist()) == penalised_ids


@pytest.mark.parametrize("legal", [None, np.array([0, 2, 3])], ids=["all", "some"])
@pytest.mark.parametrize("options", [{"logit_bias": {0: 2.0}}, {"repeat_penalty": 2.0}, {"top_k": 3}])
def test_the_callers_logits_stay_as_they_are(legal: Legal, options: dict[str, object]) -> None:
    logits = np.array([1, 2, 3, 4], dtype=np.float32)
    logits.flags.writeable = False
    probabilities(logits, legal, SamplingOptions.parse({"temperature": 0.5, **options}), [0, 1])
    assert logits.tolist() == [1, 2, 3, 4]


def test_work_is_on_the_legal_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    softmax = samplers.softmax

    def counting(scores: LogitsArray, temperature: float = 1.0) -> FloatArray:
        sizes.append(len(scores))
        return softmax(scores, temperature)

    monkeypatch.setattr(samplers, "softmax", counting)
    sampling = SamplingOptions(
        temperature=1,
        logit_bias={7: 1.0},
        repeat_penalty=1.1,
        top_k=3,
        typical_p=0.99,
        top_p=0.99,
        min_p=0.01,
    )
    probabilities(np.zeros(50_000, dtype=np.float32), np.array([3, 5, 7, 40_000]), sampling, [5])
    assert sizes == [3, 3, 3]


def test_typical_ignores_what_cannot_occur() -> None:
    """Tokens of probability 0 add nothing to the entropy; warnings are errors here."""
    likely = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    impossible = np.array([-np.inf, -1e30, -2000.0], dtype=np.float32)
    for typical_p in (0.2, 0.6, 0.9, 1 - 1e-16):
        sampling = SamplingOptions(temperature=1, typical_p=typical_p)
        alone = probabilities(likely, None, sampling, [])
        beside = probabilities(np.concatenate([likely, impossible]), None, sampling, [])
        assert beside.ids[: len(alone.ids)].tolist() == alone.ids.tolist()
        assert beside.probs[: len(alone.ids)].tolist() == pytest.approx(alone.probs.tolist())
        assert beside.probs[len(alone.ids) :].sum() == 0.0


def test_typical_stops_above_its_mass_and_top_p_at_it() -> None:
    """Four equals of 1/4, the lowest ids first: half is reached by two, and passed by three."""
    logits = np.zeros(4, dtype=np.float32)
    assert probabilities(logits, None, SamplingOptions(temperature=1, top_p=0.5), []).ids.tolist() == [0, 1]
    typical = SamplingOptions(temperature=1, typical_p=0.5)
    assert probabilities(logits, None, typical, []).ids.tolist() == [0, 1, 2]


def test_greedy_takes_the_best_of_what_typical_leaves() -> None:
    logits = np.log(np.array([0.01] * 10 + [0.4] + [0.01] * 50)).astype(np.float32)
    assert probabilities(logits, None, SamplingOptions(temperature=0), []).ids.tolist() == [10]
    typical = SamplingOptions(temperature=0, typical_p=0.3)
    assert probabilities(logits, None, typical, []).ids.tolist() == [0]
    assert probabilities(logits, None, SamplingOptions(temperature=0, typical_p=0.3, top_k=1), []).ids == [10]
