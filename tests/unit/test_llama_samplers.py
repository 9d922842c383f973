"""The law, against llama.cpp's own samplers: no model is needed, only the installed library.

llama.cpp works in float32, the law in float64 from where probabilities begin. They may therefore disagree
about the one token at which a mass meets top_p or typical_p, or a score min_p. Such a case counts as "border"
only when the law with its borders moved by `ROUNDING` equals llama.cpp's result to the same precision.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from agentspec.config import SamplingOptions
from agentspec.law import probabilities
from agentspec.llama import capi_samplers as capi
from agentspec.llama.samplers import reference_probabilities
from agentspec.types import Distribution, FloatArray, Legal, LogitsArray

PRECISION = 1e-5
ROUNDING = 1e-5


@dataclass(frozen=True)
class Case:
    """The arguments of a law."""

    logits: LogitsArray
    legal: Legal
    sampling: SamplingOptions
    before: list[int]

    def compare(self) -> Literal["equal", "border"]:
        theirs = reference_probabilities(self.logits, self.legal, self.sampling, self.before)
        if self._equals(self.sampling, theirs):
            return "equal"
        if any(self._equals(moved, theirs) for moved in borders_moved(self.sampling)):
            return "border"
        pytest.fail(f"{self.sampling!r}\nlegal: {self.legal}\nbefore: {self.before}\nllama.cpp: {theirs}")

    def _equals(self, sampling: SamplingOptions, theirs: Distribution) -> bool:
        ours = probabilities(self.logits, self.legal, sampling, self.before)
        return bool(np.max(np.abs(self._dense(ours) - self._dense(theirs))) <= PRECISION)

    def _dense(self, distribution: Distribution) -> FloatArray:
        dense = np.zeros(len(self.logits))
        dense[distribution.ids] = distribution.probs
        return dense


def borders_moved(sampling: SamplingOptions) -> Iterator[SamplingOptions]:
    for moves in itertools.product((1 - ROUNDING, 1.0, 1 + ROUNDING), repeat=3):
        borders = zip(("top_p", "typical_p", "min_p"), moves, strict=True)
        changes = {name: min(1.0, getattr(sampling, name) * move) for name, move in borders}
        yield sampling.model_copy(update=changes)


def random_case(rng: np.random.Generator, n_vocab: int, **options: Any) -> Case:
    """Rows as models have them: many unlikely tokens and a few that stand out."""
    logits = rng.normal(0, 2, n_vocab) + rng.exponential(2.5, n_vocab) * (rng.random(n_vocab) < 0.2)
    legal = None
    if rng.random() < 0.6:
        legal = np.flatnonzero(rng.random(n_vocab) < rng.choice([0.02, 0.3, 0.9]))
        if not len(legal):
            legal = np.array([n_vocab - 1])
    # mostly tokens that the samplers keep, so that the penalties show; some beyond the row
    near = [*np.argsort(-logits)[:20], *rng.integers(0, n_vocab + 3, 5)]
    before = rng.choice(near, int(rng.choice([0, 3, 40, 200]))).tolist()
    sampling = SamplingOptions.parse({"temperature": 1.0, **options})
    return Case(logits.astype(np.float32), legal, sampling, before)


def random_bias(rng: np.random.Generator, n_vocab: int) -> dict[int, float]:
    tokens = rng.integers(0, n_vocab + 3, 6).tolist()
    return dict(zip(tokens, rng.normal(0, 4, 6).tolist(), strict=True))


def random_options(rng: np.random.Generator, n_vocab: int) -> dict[str, Any]:
    """Each sampler is on in half of the chains."""
    chosen = {
        "logit_bias": random_bias(rng, n_vocab),
        "repeat_penalty": rng.uniform(0.7, 1.6),
        "frequency_penalty": rng.uniform(-0.2, 0.5),
        "presence_penalty": rng.uniform(-0.5, 1.0),
        "top_k": int(rng.choice([1, 5, 40, 1000])),
        "typical_p": rng.uniform(0.05, 0.99),
        "top_p": rng.uniform(0.05, 0.99),
        "min_p": rng.uniform(0.001, 0.6),
    }
    options = {name: value for name, value in chosen.items() if rng.random() < 0.5}
    options["temperature"] = float(rng.choice([0.0, 0.3, 0.7, 1.0, 1.7]))
    options["repeat_last_n"] = int(rng.choice([-1, 0, 1, 7, 64]))
    return options


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.4},
        {"temperature": 2.0},
        {"logit_bias": {1: 3.5, 2: -8.0, 3: 0.5, 4_000_000: 1.0}},
        {"repeat_penalty": 1.3},
        {"repeat_penalty": 0.8, "repeat_last_n": -1},
        {"frequency_penalty": 0.2},
        {"frequency_penalty": 0.2, "repeat_last_n": 7},
        {"presence_penalty": 1.5, "repeat_last_n": 1},
        {"repeat_penalty": 1.2, "frequency_penalty": 0.1, "presence_penalty": 0.4, "repeat_last_n": 39},
        {"repeat_penalty": 1.2, "presence_penalty": 0.4, "repeat_last_n": 0},
        {"top_k": 1},
        {"top_k": 40},
        {"typical_p": 0.2},
        {"typical_p": 0.9},
        {"top_p": 0.05},
        {"top_p": 0.95},
        {"min_p": 0.05},
        {"min_p": 1.0},
    ],
    ids=str,
)
def test_each_sampler_alone(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    for n_vocab in (2, 10, 200, 2000, 2000):
        assert random_case(rng, n_vocab, **options).compare() == "equal"


def test_random_chains() -> None:
    rng = np.random.default_rng(2)
    counts: Counter[str] = Counter()
    for n_vocab in [3, 15, 300, 1500] * 70 + [50_000] * 20:
        counts[random_case(rng, n_vocab, **random_options(rng, n_vocab)).compare()] += 1
    assert counts["equal"] >= 298  # of 300; all of them where this was written


@pytest.mark.parametrize("name", ["top_p", "typical_p"])
def test_masses_that_meet_their_border_are_decided_by_rounding(name: str) -> None:
    """Where the kept mass is the border itself, either is right: the exception is needed here, and enough."""
    rng = np.random.default_rng(3)
    counts: Counter[str] = Counter()
    for _ in range(20):
        case = random_case(rng, 300, **{name: rng.uniform(0.2, 0.9)})
        kept = probabilities(case.logits, case.legal, case.sampling, case.before).ids
        full = probabilities(case.logits, case.legal, SamplingOptions(temperature=1.0), case.before)
        mass = float(full.probs[np.isin(full.ids, kept)].sum())
        at_border = case.sampling.model_copy(update={name: mass})
        counts[Case(case.logits, case.legal, at_border, case.before).compare()] += 1
    assert counts["border"] > 0


def test_greedy_takes_the_best_of_what_typical_leaves() -> None:
    """One token of 40 % among sixty of 1 % is not typical: the entropy is nearer to the many."""
    logits = np.log(np.array([0.01] * 10 + [0.4] + [0.01 + 1e-5 * i for i in range(50)])).astype(np.float32)
    for temperature in (0.0, 1.0):
        case = Case(logits, None, SamplingOptions(temperature=temperature, typical_p=0.3), [])
        assert case.compare() == "equal"
        assert 10 not in probabilities(logits, None, case.sampling, []).ids


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_llama_cpp_cannot_sort_is_not_given_to_it(bad: float) -> None:
    row = np.array([0.0, bad], dtype=np.float32)
    with pytest.raises(ValueError, match=r"NaN or \+inf"):
        reference_probabilities(row, None, SamplingOptions(), [])
    for legal in (np.array([], dtype=np.int64), np.array([0])):
        with pytest.raises(ValueError, match="no"):
            reference_probabilities(np.full(1, -np.inf, np.float32), legal, SamplingOptions(), [])


def test_the_chain_is_freed_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[capi.SamplerHandle] = []
    free = capi.free_sampler

    def counting(sampler: capi.SamplerHandle) -> None:
        freed.append(sampler)
        free(sampler)

    def failing(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(capi, "free_sampler", counting)
    row = np.zeros(3, np.float32)
    reference_probabilities(row, None, SamplingOptions(), [1])
    assert len(freed) == 1
    monkeypatch.setattr(capi, "sampler_accept", failing)
    with pytest.raises(MemoryError):
        reference_probabilities(row, None, SamplingOptions(), [1])
    assert len(freed) == 2
