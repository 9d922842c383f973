"""Drafts of other vocabularies leave the target's law as it is, by enumeration of every random outcome."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from agentspec.config import DraftOptions, SamplingOptions
from agentspec.drafts.model import ModelDraft
from agentspec.drafts.vocab_map import MappedVocab
from agentspec.engine.cost import Costs
from agentspec.testing import Asked, TableModel, TableVocab, random_rows
from agentspec.types import Matcher
from tests.exactness.laws import target_law, total_variation
from tests.exactness.test_engine import BOUND, PROMPT, VERIFIERS, WARM, engine_law, replies, scarce

N = 4
END = 3
TARGET = TableVocab(["a", "b", "ab", "<end>"], end_ids={END})


@functools.cache
def vocab_map(kind: str) -> tuple[MappedVocab, int]:
    """A map, and the size of its draft's vocabulary.

    pruned: it reads "b" and "ab" by a token that has no twin, and so cannot propose them
    mapped: it reads "ab" as two tokens, and half of its own tokens mean nothing to the target
    """
    if kind == "pruned":
        draft = TableVocab(["<end>", "a", "b"], end_ids={0})
        return MappedVocab.pruned(TARGET, draft, np.array([END, 0, -1])), 3
    draft = TableVocab(["b", "ba", "<stop>", "a", "aa", "bb"], end_ids={2})
    return MappedVocab.by_spelling(TARGET, draft, roles={END: 2}), 6


def draft(kind: str, *, scale: float = 2.0, sampling: SamplingOptions | None = None) -> ModelDraft:
    found, n_draft = vocab_map(kind)
    session = TableModel(random_rows(n_draft, seed=5, scale=scale), n_vocab=n_draft)
    return ModelDraft(session, n_vocab=N, sampling=sampling, vocab_map=found)


DRAFTS: dict[str, Callable[[str], ModelDraft]] = {
    "soft": draft,
    "over-confident": lambda kind: draft(kind, scale=9.0),
    "truncated": lambda kind: draft(kind, sampling=SamplingOptions(temperature=1.5, top_k=2)),
    "certain": lambda kind: draft(kind, sampling=SamplingOptions(temperature=0.0)),
}


def target() -> TableModel:
    return TableModel(random_rows(N, seed=3), n_vocab=N)


@pytest.mark.parametrize("kind", ["pruned", "mapped"])
@pytest.mark.parametrize("made", DRAFTS)
@pytest.mark.parametrize("case", ["free", "grammar"])
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_the_output_law_is_the_targets(kind: str, made: str, case: str, verifier: str) -> None:
    matcher: Matcher | None = replies(N) if case == "grammar" else None
    end_ids = frozenset({END})
    expected = target_law(target(), PROMPT, length=3, sampling=WARM, matcher=matcher, end_ids=end_ids)
    actual = engine_law(
        target,
        lambda: [DRAFTS[made](kind)],
        length=3,
        sampling=WARM,
        matcher=matcher,
        end_ids=end_ids,
        options=DraftOptions.parse({"max_block": 2, "max_model_tokens": 2, "verifier": verifier}),
    )
    assert total_variation(expected, actual) <= BOUND


@pytest.mark.parametrize("kind", ["pruned", "mapped"])
@pytest.mark.parametrize("costs", [Costs.free, scarce])
def test_truncations_and_penalties_are_those_of_target_ids(kind: str, costs: Callable[[], Costs]) -> None:
    sampling = SamplingOptions(temperature=0.9, top_p=0.9, presence_penalty=0.7, logit_bias={1: 1.0})
    expected = target_law(target(), PROMPT, length=3, sampling=sampling)
    actual = engine_law(
        target,
        lambda: [draft(kind)],
        length=3,
        sampling=sampling,
        options=DraftOptions(max_block=2, max_model_tokens=2),
        costs=costs,
    )
    assert total_variation(expected, actual) <= BOUND


@pytest.mark.parametrize("kind", ["pruned", "mapped"])
def test_the_drafts_take_part(kind: str) -> None:
    """Else the laws above would be equal whatever the maps do."""
    (offer,) = draft(kind).offer([Asked(list(PROMPT), sampling=WARM)])
    assert offer is not None
    assert offer.draft_probs is not None
    assert offer.draft_probs.ids.tolist() == {"pruned": [0, END], "mapped": [0, 1, END]}[kind]
