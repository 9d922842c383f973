"""`agentspec prove` on toy models: it says "exact" of the engine, and "not exact" of what is not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from agentspec.cli import main as cli
from agentspec.config import ProofOptions
from agentspec.drafts.base import Draft, DraftRequest, Offer
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.request import Request
from agentspec.errors import ConfigError, DecodeError, EngineError
from agentspec.proof.contexts import PROMPTS
from agentspec.proof.prove import Pair, Proof, prove
from agentspec.proof.rules import BrokenRule, TargetOnlyRule, broken, target_only
from agentspec.testing import (
    ScriptedChance,
    TableModel,
    TableVocab,
    TrieMatcher,
    enumerate_law,
    random_rows,
)
from agentspec.types import Distribution, LogitsArray, Proposal, Span

N = 6
END = 5
Run = Callable[..., int]
VOCAB = TableVocab(["a", "b", "c", "d", "e", "<end>"], end_ids=[END])
FORMS = TrieMatcher([(0, 1, 1, 2), (0, 1, 1, 3, 4), (2, 3)], end_ids=[END])
QUICK = ProofOptions(samples=900, greedy_tokens=12, greedy_prompts=3)


def table(seed: int, scale: float = 1.5) -> TableModel:
    rows = random_rows(N, seed=seed, scale=scale)
    return TableModel(rows, n_vocab=N, n_ctx=512, n_batch=128, n_outputs=128, n_slots=16)


def toy_pair(target: TableModel | None = None) -> Pair:
    requests = [Request((0, 1)), Request((3,)), Request((2, 2), FORMS, "enforce:canonical")]
    drafts: list[Draft] = [GrammarDraft(), ModelDraft(table(2), n_vocab=N)]
    return Pair(target or table(1), VOCAB, drafts, requests)


def silent(stage: str, done: int, due: int) -> None: ...


@pytest.fixture(scope="module")
def proof() -> Proof:
    return prove(toy_pair(), QUICK, report=silent)


# ------------------------------------------------------------------------------------ the verdict


def test_the_engine_is_exact(proof: Proof) -> None:
    assert proof.exact
    assert proof.comparison.p_value > 0.001
    assert proof.comparison.samples == (900, 900)
    assert proof.comparison.detectable_tv < 0.3
    assert (proof.greedy_prompts, proof.differences) == (3, {})
    for source in ("grammar", "model"):
        count = proof.drafted.sources[source]
        assert 0 < count.accepted < count.proposed


def test_a_broken_rule_is_found() -> None:
    proof = prove(toy_pair(), QUICK, report=silent, rules=broken)
    assert not proof.exact
    assert proof.comparison.differ
    assert proof.mismatches == 0  # at temperature 0 that rule is right


class Wrong(TableModel):
    """Rows of a pass with more than one token differ by `error` at token 0."""

    def __init__(self, error: float) -> None:
        super().__init__(
            random_rows(N, seed=1, scale=0.05), n_vocab=N, n_ctx=512, n_batch=128, n_outputs=128, n_slots=16
        )
        self._error = error

    def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
        rows = super().decode(spans)
        if sum(len(span.tokens) for span in spans) > 1:
            for row in rows:
                row[0] += self._error
        return rows


def test_a_greedy_reply_that_differs_is_found() -> None:
    """Sampled replies share their passes, so both arms see the wrong rows: only the greedy ones show them."""
    proof = prove(toy_pair(Wrong(30.0)), QUICK, report=silent)
    assert not proof.comparison.differ
    assert proof.mismatches > 0
    assert proof.near_ties == 0
    assert not proof.exact


def test_a_near_tie_is_no_mismatch() -> None:
    proof = prove(toy_pair(Wrong(0.2)), QUICK, report=silent)
    assert proof.near_ties > 0
    assert proof.mismatches == 0
    assert proof.exact


def test_a_reply_that_goes_on_after_the_others_end_is_a_mismatch(proof: Proof) -> None:
    cut = Proof(proof.comparison, proof.drafted, 3, {1: None})
    assert (cut.mismatches, cut.near_ties, cut.exact) == (1, 0, False)


# ------------------------------------------------------------------------------- what it is based on


def test_a_draft_that_fails_is_an_error() -> None:
    """It would be left out from then on, and the rest would pass for a proof."""

    class Fails(ModelDraft):
        asked = 0

        def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
            self.asked += 1
            if self.asked > 1:
                raise DecodeError("no more")
            return super().offer(requests)

    pair = toy_pair()
    drafts = [pair.drafts[0], Fails(table(2), n_vocab=N)]
    with pytest.raises(EngineError, match="model draft failed"):
        prove(Pair(pair.target, VOCAB, drafts, pair.requests), QUICK, report=silent)


def test_a_draft_that_proposes_nothing_is_an_error() -> None:
    """Such a proof would be about nothing."""
    pair = toy_pair()
    with pytest.raises(EngineError, match="grammar draft proposed nothing"):
        prove(Pair(pair.target, VOCAB, pair.drafts, pair.requests[:2]), QUICK, report=silent)


def test_every_reply_is_reported() -> None:
    seen: list[tuple[str, int, int]] = []
    prove(toy_pair(), QUICK, report=lambda *now: seen.append(now))
    for stage, due in (("with drafts", 900), ("target alone", 900), ("greedy", 6)):
        assert [at for at in seen if at[0] == stage] == [(stage, done + 1, due) for done in range(due)]


def test_the_same_seed_gives_the_same_proof_and_another_other_samples(proof: Proof) -> None:
    assert prove(toy_pair(), QUICK, report=silent) == proof
    other = prove(toy_pair(), QUICK.model_copy(update={"seed": 1}), report=silent)
    assert other.comparison.statistic != proof.comparison.statistic


def test_the_arms_have_chances_of_their_own() -> None:
    """Else equal seeds would make the arms alike, and hide what the test looks for."""
    proof = prove(toy_pair(), QUICK, report=silent, rules=target_only)
    assert proof.comparison.statistic > proof.comparison.expected / 2


def test_a_proof_does_not_ask_what_a_pass_costs() -> None:
    """It is to meet many proposals, on any machine, and the same at any time."""

    class Timed(GrammarDraft):
        timed = False

        def measure(self) -> list[tuple[int, float]]:
            self.timed = True
            return []

    pair, grammar = toy_pair(), Timed()
    few = QUICK.model_copy(update={"samples": 500, "greedy_prompts": 1})
    prove(Pair(pair.target, VOCAB, [grammar], pair.requests[2:]), few, report=silent)
    assert not grammar.timed


def test_samples_are_shared_out_among_the_prompts() -> None:
    proof = prove(toy_pair(), QUICK.model_copy(update={"samples": 1000}), report=silent)
    assert proof.comparison.samples == (1002, 1002)  # 334 of each of three


def law(*probs: float) -> Distribution:
    return Distribution(np.arange(len(probs)), np.array(probs))


TARGET = [law(0.5, 0.3, 0.2), law(0.1, 0.1, 0.8), law(0.6, 0.2, 0.2)]
DRAFT = law(0.2, 0.5, 0.3)


@pytest.mark.parametrize("soft", [True, False])
def test_the_target_only_rule_is_exact(soft: bool) -> None:
    """By enumeration, over blocks of two tokens that the draft drew, or is certain of."""

    def run(chance: ScriptedChance) -> tuple[int, ...]:
        rule = TargetOnlyRule(chance)
        tokens = [rule.draw(DRAFT, at) if soft else 1 for at in range(2)]
        block = [Proposal(token, DRAFT if soft else None, "model") for token in tokens]
        verdict = rule.verify(block, TARGET, 0)
        assert verdict.token is not None
        return (*tokens[: verdict.accepted], verdict.token)

    emitted = enumerate_law(run)
    for position, expected in enumerate(TARGET):
        reached = {reply: weight for reply, weight in emitted.items() if len(reply) > position}
        for token, probability in enumerate(expected.probs.tolist()):
            share = sum(weight for reply, weight in reached.items() if reply[position] == token)
            assert share == pytest.approx(probability * sum(reached.values()), abs=1e-12)


def test_the_broken_rule_is_broken() -> None:
    def run(chance: ScriptedChance) -> int:
        rule = BrokenRule(chance)
        token = rule.draw(DRAFT, 0)
        verdict = rule.verify([Proposal(token, DRAFT, "model")], TARGET[:1], 0)
        return token if verdict.accepted else int(verdict.token or 0)

    emitted = enumerate_law(run)
    assert abs(emitted[0] - 0.5) > 0.05


# -------------------------------------------------------------------------------------- the command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `agentspec prove` on the toy pair; returns its exit code."""

    @contextmanager
    def open_toy(target: Path, draft: Path | None, **_: object) -> Iterator[Pair]:
        assert (target, draft) == (Path("target.gguf"), Path("draft.gguf"))
        yield toy_pair()

    monkeypatch.setattr("agentspec.proof.pair.open_pair", open_toy)
    monkeypatch.setattr("agentspec.models.pull.ensure", Path)

    def command(*arguments: str) -> int:
        models = ("--model", "target.gguf", "--draft", "draft.gguf")
        size = ("--samples", "900", "--greedy-prompts", "3")
        monkeypatch.setattr(sys, "argv", ["agentspec", "prove", *models, *size, *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        assert isinstance(exited.value.code, int)
        return exited.value.code

    return command


def test_an_exact_pair_exits_with_0_and_prints_its_numbers(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("--json", str(tmp_path / "proof.json")) == 0
    printed = capsys.readouterr().out
    assert re.search(r"verdict +exact\n", printed)
    assert re.search(
        r"power +a total variation of 0\.\d+ in every prompt is found with probability 0\.99", printed
    )
    assert re.search(r"model +\d+% of [\d,]+ proposed tokens accepted", printed)
    found = json.loads((tmp_path / "proof.json").read_text(encoding="utf-8"))
    assert found["verdict"] == "exact"
    assert 0.001 < found["p_value"] <= 1.0
    assert (found["samples"], found["greedy_prompts"], found["greedy_mismatches"]) == (900, 3, 0)
    assert 0.0 < found["detectable_tv"] < 1.0
    assert (found["model"], found["draft"], found["alpha"]) == ("target.gguf", "draft.gguf", 1e-4)
    assert found["sources"]["model"]["accepted"] < found["sources"]["model"]["proposed"]


def test_a_broken_rule_exits_with_3(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--break-rule", "--json", "-") == 3
    captured = capsys.readouterr()
    found = json.loads(captured.out)  # and nothing else
    assert found["verdict"] == "not exact"
    assert found["p_value"] <= 1e-4
    assert "with drafts: 900 replies" in captured.err


def test_the_broken_rule_is_no_option_for_users(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "break" not in capsys.readouterr().out


def test_too_few_samples_are_an_error(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--samples", "10") == 1
    assert "option 'samples'" in capsys.readouterr().err


def test_a_result_that_could_not_be_written_is_an_error_at_once(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("--json", str(tmp_path / "nowhere" / "proof.json")) == 1
    captured = capsys.readouterr().err
    assert "proof.json cannot be written: No such file or directory" in captured
    assert "replies" not in captured


# ------------------------------------------------------------------------------------ what it continues


def test_every_law_has_prompts() -> None:
    laws = [prompt.law for prompt in PROMPTS]
    assert {law: laws.count(law) for law in laws} == {
        "off": 6,
        "enforce:canonical": 2,
        "enforce:any": 2,
        "propose": 2,
    }
    assert all((prompt.schema is None) == (prompt.law == "off") for prompt in PROMPTS)
    assert ProofOptions().greedy_prompts == len(PROMPTS)
    with pytest.raises(ConfigError):
        ProofOptions.parse({"greedy_prompts": len(PROMPTS) + 1})
