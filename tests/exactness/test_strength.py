"""What equal laws do not show: that the draft's probabilities are used, and that seeds share no noise.

A rule that ignores what a token was drawn from keeps the target's law and merely accepts less, so most of
these tests count what is accepted. `make mutants` has the mutants that only they catch.
"""

from __future__ import annotations

import numpy as np
import pytest

from agentspec.chance import GumbelNoise
from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.testing import ScriptedChance, TableModel, TableVocab, enumerate_law, random_rows
from agentspec.types import Distribution
from tests.exactness.laws import enumerated, generate

N_VOCAB = 6
WARM = SamplingOptions(temperature=0.9)
PLAIN = TableVocab([f"t{token}" for token in range(N_VOCAB)], end_ids=())


def model(*, seed: int = 3, n_vocab: int = N_VOCAB) -> TableModel:
    return TableModel(random_rows(n_vocab, seed=seed), n_vocab=n_vocab)


@pytest.mark.parametrize("verifier", ["block", "token_wise", "seed_invariant"])
def test_the_target_as_its_own_draft_is_never_rejected(verifier: str) -> None:
    """The laws are equal to the last bit, so a warm reply of 12 tokens takes three blocks of 4."""
    for seed in range(10):
        request = Request(
            (0, 1),
            sampling=WARM,
            generation=GenerationOptions(max_tokens=12, seed=seed),
            draft=DraftOptions.parse({"max_block": 3, "max_model_tokens": 3, "verifier": verifier}),
        )
        core = Core(model(), PLAIN, [ModelDraft(model(), n_vocab=N_VOCAB)], costs=Costs.free())
        trace = generate(core, request)[1]
        assert trace.accepted_lengths == {4: 3}
        assert trace.sources["model"].accepted == trace.sources["model"].proposed == 9


def test_the_block_rule_saves_more_passes_than_the_token_wise_one() -> None:
    """Through the engine, by enumeration: the target passes of a reply of 3 tokens, expected exactly."""

    def expected_passes(verifier: str) -> float:
        options = DraftOptions.parse({"max_block": 2, "max_model_tokens": 2, "verifier": verifier})
        generation = GenerationOptions(max_tokens=3, seed=0)
        request = Request((0, 1), sampling=WARM, generation=generation, draft=options)

        def run(chance: ScriptedChance) -> int:
            draft = ModelDraft(model(seed=5, n_vocab=3), n_vocab=3)
            core = Core(model(n_vocab=3), PLAIN, [draft], rules=enumerated(chance), costs=Costs.free())
            return generate(core, request)[1].target_passes

        return sum(passes * weight for passes, weight in enumerate_law(run).items())

    assert expected_passes("block") < expected_passes("token_wise") - 1e-3


def test_the_noise_of_a_seed_is_not_that_of_the_next_a_position_later() -> None:
    """Else two replies of neighbouring seeds repeat each other, shifted by one token."""
    uniform = Distribution(np.arange(50), np.full(50, 1 / 50))
    first, second = GumbelNoise(0), GumbelNoise(1)
    shifted = [first.draw(uniform, position + 1) for position in range(20)]
    assert shifted != [second.draw(uniform, position) for position in range(20)]
