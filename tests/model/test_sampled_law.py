"""Drafts do not change what a real model writes: sampled continuations, with each draft and without.

20,000 of each with `--full` (`make proofs`), a quarter else; a broken rule is found with either.

SmolLM2 is the target; the drafts are soft, and wrong in different ways: itself at another temperature, and a
table of which token followed which. The laws are compared by a test whose error rate is exact at every size
(agentspec.proof.two_sample); it must find no difference, and find one where the rule is broken.

Many replies share a pass, which makes the numbers affordable, but no pass has more than 60 tokens: from 64
on, llama.cpp computes attention on a CPU by another kernel, which moves the law of this model by a total
variation of 0.03. Below, a row is the same to the last bit, whatever else is in its pass. At this size of
sample the test would find the difference between the kernels, whatever the drafts do.
"""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from agentspec.calibration.calibrator import Calibrator
from agentspec.config import DraftOptions, GenerationOptions, RuntimeOptions, SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest, Offer
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.engine.rules import make_rule
from agentspec.llama import Context, Model
from agentspec.proof.arms import Counts, generate
from agentspec.proof.contexts import PROMPTS
from agentspec.proof.prove import Rules
from agentspec.proof.rules import broken
from agentspec.proof.two_sample import Arm, Comparison, compare
from agentspec.types import Distribution

pytestmark = [pytest.mark.model, pytest.mark.slow]

SAMPLES = 20_000  # at full size
PASS = 60  # tokens a pass, and replies at once
LAYERS, KEPT_LAYERS = 30, 2  # of SmolLM2; and how many stay at either end
TOKENS = {"another temperature": 3, "n-gram": 2}
"""Of a continuation: 3 for a block of two soft tokens; fewer are cheaper."""
LAW = SamplingOptions(temperature=1.0, top_k=40)
OTHER = SamplingOptions(temperature=1.7, top_k=30)


class NGramDraft(Draft):
    """Offers the law of what followed the last token in some text, or nothing."""

    name = "model"

    def __init__(self, text: Sequence[Sequence[int]]) -> None:
        counts: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for tokens in text:
            for last, token in pairwise(tokens):
                counts[last][token] += 1
        self._laws = {last: _law(following) for last, following in counts.items()}

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        laws = (self._laws.get(request.prefix[-1]) for request in requests)
        return [None if law is None else Offer(draft_probs=law) for law in laws]


def _law(counts: Counter[int]) -> Distribution:
    ids = np.array(sorted(counts), dtype=np.int64)
    weights = np.array([counts[token] for token in ids.tolist()], dtype=np.float64)
    return Distribution(ids, weights / weights.sum())


class Sampler:
    """Samples arms: each with seeds of its own."""

    def __init__(self, model: Model, samples: int) -> None:
        self.samples = samples
        options = RuntimeOptions(n_batch=PASS)
        self._target, draft = (
            Context(model, PASS * 32, n_slots=PASS, options=options, n_outputs=PASS) for _ in range(2)
        )
        self._vocab = model.vocab
        self._prompts = [
            tuple(model.vocab.tokenize(prompt.text.encode(), special=False))
            for prompt in PROMPTS
            if prompt.schema is None
        ]
        self._arms = 0
        self.model = ModelDraft(draft, n_vocab=model.vocab.n_tokens, sampling=OTHER)

    def arm(
        self, drafts: Sequence[Draft], rules: Rules, *, tokens: int, samples: int | None = None
    ) -> tuple[Arm, Counts]:
        counts = Counts()
        as_they_are = Calibrator(neutral=True)  # a calibrated draft is less wrong, and shows less
        core = Core(
            self._target, self._vocab, drafts, rules=rules, costs=Costs.free(), calibrator=as_they_are
        )
        self._arms += 1
        each = -(-(samples or self.samples) // len(self._prompts))
        seeds = np.random.default_rng(self._arms).integers(2**63, size=each * len(self._prompts))
        requests = (
            Request(
                self._prompts[number // each],
                sampling=LAW,
                generation=GenerationOptions(max_tokens=tokens, seed=int(seed)),
                draft=DraftOptions(sources=("model",) if drafts else ()),
            )
            for number, seed in enumerate(seeds)
        )
        replies = generate(core, requests, counts, at_once=2 * PASS, on_reply=lambda: None)
        return [replies[start : start + each] for start in range(0, len(replies), each)], counts

    def bigrams(self) -> NGramDraft:
        """A table made of a few replies of the target, with their prompts."""
        arm, _ = self.arm([], make_rule, tokens=3, samples=600)
        pairs = zip(self._prompts, arm, strict=True)
        return NGramDraft([[prompt[-1], *reply] for prompt, replies in pairs for reply in replies])


@pytest.fixture(scope="module")
def sampler(
    small_model: Path, tmp_path_factory: pytest.TempPathFactory, full_size: bool
) -> Iterator[Sampler]:
    """On the model with fewer layers and in half precision: a law like any other, for a third of the time."""
    path = tmp_path_factory.mktemp("half") / "smollm2-f16.gguf"
    dropped = [*range(KEPT_LAYERS, LAYERS - KEPT_LAYERS), -1]  # -1 ends the list
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_F16
    params.allow_requantize = True
    params.prune_layers = (ctypes.c_int32 * len(dropped))(*dropped)
    code = llama_cpp.llama_model_quantize(bytes(small_model), bytes(path), ctypes.byref(params))
    assert code == 0
    with Model.load(path) as model:
        yield Sampler(model, SAMPLES if full_size else SAMPLES // 4)


@pytest.fixture(scope="module")
def plain(sampler: Sampler) -> Arm:
    """The replies without drafts."""
    return sampler.arm([], make_rule, tokens=max(TOKENS.values()))[0]


@pytest.fixture(scope="module")
def drafts(sampler: Sampler) -> dict[str, Draft]:
    return {"another temperature": sampler.model, "n-gram": sampler.bigrams()}


def report(name: str, found: Comparison, counts: Counts) -> None:
    source = counts.sources["model"]
    print(
        f"{name}: p {found.p_value:.4f}, statistic {found.statistic:.0f} "
        f"({found.expected:.0f} ± {found.spread:.0f}), {found.samples} samples, {found.cells} cells, "
        f"{source.accepted} of {source.proposed} draft tokens accepted, "
        f"finds a total variation of {found.detectable_tv:.3f}"
    )


def beginnings(arm: Arm, tokens: int) -> Arm:
    """The first tokens of each reply."""
    return [[reply[:tokens] for reply in replies] for replies in arm]


@pytest.mark.parametrize("name", TOKENS)
def test_the_law_is_that_without_drafts(
    sampler: Sampler, plain: Arm, drafts: dict[str, Draft], name: str
) -> None:
    drafted, counts = sampler.arm([drafts[name]], make_rule, tokens=TOKENS[name])
    found = compare(drafted, beginnings(plain, TOKENS[name]))
    report(name, found, counts)
    assert min(found.samples) >= sampler.samples
    assert 0.2 < counts.sources["model"].accepted / counts.sources["model"].proposed < 0.9
    assert not found.differ


def test_a_broken_rule_is_found(sampler: Sampler, plain: Arm, drafts: dict[str, Draft]) -> None:
    """Rejected tokens replaced by a draw from the whole law: the bug that is easiest to write."""
    drafted, counts = sampler.arm([drafts["n-gram"]], broken, tokens=TOKENS["n-gram"])
    found = compare(drafted, beginnings(plain, TOKENS["n-gram"]))
    report("broken", found, counts)
    assert found.differ
