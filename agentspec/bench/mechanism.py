"""The mechanism of speculative decoding, on a toy: the same wrong draft, humble, confident and calibrated.

A target and a draft are tables of random logits (`agentspec.testing`); the draft knows the target's logits up
to noise, so it is wrong, and its temperature says how sure it is of that. Passes cost what they are said to
cost, so speeds are counts and the same on every machine. Drafting is forced: so many tokens in every block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from agentspec.calibration.calibrator import Calibrator
from agentspec.calibration.lengths import Price
from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.testing import TableModel, TableVocab, generate
from agentspec.types import Json

__all__ = ["TOY_PRICE", "Measured", "toy_mechanism"]

TOY_PRICE: Final = Price(draft=0.1, check=0.05)
_VOCAB: Final = 32
_LENGTH: Final = 4
_NOISE: Final = 1.0
_CONTEXT: Final = 2  # tokens that decide a row
_TEMPERATURE: Final = 1.0
_HUMBLE, _CONFIDENT = 1.25, 0.25


@dataclass(frozen=True, slots=True)
class Measured:
    """accepted_length: tokens per target pass. speed_to_plain: decode speed over that without drafts"""

    accepted_length: float
    speed_to_plain: float

    def as_json(self) -> dict[str, Json]:
        return {
            "accepted_length": round(self.accepted_length, 4),
            "speed_to_plain": round(self.speed_to_plain, 4),
        }


def toy_mechanism(replies: int = 40, tokens: int = 64, seed: int = 0) -> Mapping[str, Measured]:
    """The three drafts, by name. "calibrated" is the confident one, with calibration from its first reply."""
    return {
        "humble": _run(_HUMBLE, Calibrator(neutral=True), replies, tokens, seed),
        "confident": _run(_CONFIDENT, Calibrator(neutral=True), replies, tokens, seed),
        "calibrated": _run(_CONFIDENT, Calibrator(), replies, tokens, seed),
    }


def _run(temperature: float, calibrator: Calibrator, replies: int, tokens: int, seed: int) -> Measured:
    target = TableModel(_rows(seed, 0.0), n_vocab=_VOCAB, n_ctx=256)
    draft = ModelDraft(TableModel(_rows(seed, _NOISE), n_vocab=_VOCAB, n_ctx=256), n_vocab=_VOCAB)
    vocab = TableVocab([chr(65 + token) for token in range(_VOCAB)], end_ids=())
    core = Core(target, vocab, [draft], costs=Costs.free(), calibrator=calibrator)
    options = DraftOptions(
        max_block=_LENGTH, max_model_tokens=_LENGTH, draft_temperature=temperature, verifier="token_wise"
    )
    written, cost = 0, 0.0
    passes = 0
    for number in range(replies):
        request = Request(
            (number % _VOCAB, (7 * number) % _VOCAB),
            sampling=SamplingOptions(temperature=_TEMPERATURE),
            generation=GenerationOptions(max_tokens=tokens, seed=seed + number),
            draft=options,
        )
        _, trace = generate(core, request)
        proposed = sum(one.proposed for one in trace.sources.values())
        written, passes = written + trace.tokens, passes + trace.target_passes
        cost += trace.target_passes + proposed * (TOY_PRICE.draft + TOY_PRICE.check)
    return Measured(written / passes, written / cost)


def _rows(seed: int, noise: float) -> Callable[[Sequence[int]], Sequence[float]]:
    """Logits by the last tokens: the target's, and some noise on them."""

    @functools.cache
    def known(last: tuple[int, ...]) -> Sequence[float]:
        logits = 2.0 * np.random.default_rng([seed, *last]).normal(size=_VOCAB)
        wrong = 2.0 * np.random.default_rng([seed, 1, *last]).normal(size=_VOCAB)
        return tuple((logits + noise * wrong).tolist())

    return lambda prefix: known(tuple(prefix[-_CONTEXT:]))
