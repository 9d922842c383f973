"""Replays of recorded replies against real runs of the engine, and what is concluded from them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from agentspec.calibration.calibrator import Calibrator, Where
from agentspec.calibration.fit import chosen_by, fit, gain, split
from agentspec.calibration.lengths import (
    AdaEdl,
    Fixed,
    LengthRule,
    PMin,
    Price,
    Survived,
    Svip,
    entropy,
)
from agentspec.calibration.replay import Change, Replayed, replay
from agentspec.calibration.steps import Step, accept_prob, steps
from agentspec.calibration.temper import tempered
from agentspec.calibration.traces import ReplyTrace, recorded
from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.errors import TraceError
from agentspec.testing import TableModel, TableVocab
from agentspec.types import Distribution

N_VOCAB = 12
LENGTH = 3
HERE = Where("", "text", 2)
AS_IS: Change = lambda _, law: law  # noqa: E731


def rows(seed: int, noise: float = 0.0) -> TableModel:
    """Rows by the last two tokens: the target's, or a draft's that knows them up to noise."""

    @functools.cache
    def known(last: tuple[int, ...]) -> Sequence[float]:
        own = 1.5 * np.random.default_rng([seed, *last]).normal(size=N_VOCAB)
        wrong = 1.5 * np.random.default_rng([seed, 1, *last]).normal(size=N_VOCAB)
        return tuple((own + noise * wrong).tolist())

    return TableModel(lambda prefix: known(tuple(prefix[-2:])), n_vocab=N_VOCAB, n_ctx=256)


def run(
    replies: int, *, most: int, seed: int = 0, draft_temperature: float | None = None, tokens: int = 48
) -> tuple[list[ReplyTrace], float]:
    """Recorded replies of the engine, and their tokens per pass."""
    draft = ModelDraft(rows(3, noise=0.8), n_vocab=N_VOCAB)
    vocab = TableVocab([chr(97 + token) for token in range(N_VOCAB)], end_ids=())
    core = Core(rows(3), vocab, [draft], costs=Costs.free(), calibrator=Calibrator(neutral=True))
    found, written, passes = [], 0, 0
    for number in range(replies):
        channel = Channel()
        request = Request(
            (number % N_VOCAB, (5 * number) % N_VOCAB),
            sampling=SamplingOptions(temperature=1.0),
            generation=GenerationOptions(max_tokens=tokens, seed=1000 * seed + number),
            draft=DraftOptions(
                max_block=most,
                max_model_tokens=most,
                draft_temperature=draft_temperature,
                verifier="token_wise",
            ),
            recorded=64,
        )
        core.add(request, channel)
        while core.busy():
            core.step()
        stream = Stream(channel)
        list(stream)
        result = stream.result
        assert result.recording is not None
        written, passes = written + result.trace.tokens, passes + result.trace.target_passes
        found.append(
            ReplyTrace.model_validate(
                {
                    "model": "m",
                    "draft": "d",
                    "vocab": "v",
                    "law": "off",
                    "sampling": {"temperature": 1.0},
                    "tool_set": "",
                    "agent": "",
                    "prompt": [0],
                    "finish_reason": "length",
                    **recorded(result.recording),
                }
            )
        )
    return found, written / passes


@functools.cache
def traces() -> list[ReplyTrace]:
    return run(40, most=12)[0]


def replies() -> list[list[Step]]:
    return [steps(trace) for trace in traces()]


def at(temperature: float) -> Change:
    return lambda _, law: tempered(law, temperature)


# ----------------------------------------------------------------------------------------------- the replay


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_a_replay_is_what_the_engine_does(temperature: float) -> None:
    """Replies recorded with one draft tell how long blocks of another temperature would have been."""
    _, real = run(40, most=LENGTH, seed=7, draft_temperature=temperature)
    thought = replay(replies(), "model", at(temperature), Fixed(LENGTH), times=10).accepted_length
    assert thought == pytest.approx(real, rel=0.05)


def test_temperatures_differ_by_more_than_a_replay_is_off() -> None:
    found = [
        replay(replies(), "model", at(one), Fixed(LENGTH), times=10).accepted_length
        for one in (0.3, 1.0, 5.0)
    ]
    assert found[1] > 1.05 * max(found[0], found[2])


def test_what_was_proposed_and_by_whom_is_in_the_steps() -> None:
    for trace in traces()[:5]:
        found = steps(trace)
        assert [step.token for step in found] == trace.reply
        assert sum(step.knows("model") for step in found) > 0.8 * len(found)
        assert not any(step.knows("history") for step in found)
        for step in found:
            if step.target_probs is not None:
                assert float(step.target_probs.probs.sum()) == pytest.approx(1.0, abs=1e-5)


def test_forced_positions_are_left_out() -> None:
    step = replies()[0][0]
    assert step.knows("model")
    assert not step._replace(forced=True).knows("model")
    assert not step._replace(target_probs=None).knows("model")


def test_the_sampling_of_a_trace_may_be_anything_that_has_a_temperature() -> None:
    odd = traces()[0].model_copy(
        update={"sampling": {"temperature": 1.2, "logit_bias": {"5": None}, "new": 1}}
    )
    assert steps(odd)[0].where.heat == 3
    assert steps(odd.model_copy(update={"sampling": {}}))[0].where.heat == 0
    with pytest.raises(TraceError, match="the temperature of a trace"):
        steps(odd.model_copy(update={"sampling": {"temperature": "hot"}}))


def law(*probs: float) -> Distribution:
    return Distribution(np.arange(len(probs), dtype=np.int64), np.array(probs))


def test_the_chance_of_acceptance_given_what_was_written() -> None:
    step = Step(1, HERE, False, law(0.5, 0.5), {})
    assert accept_prob(step, law(0.75, 0.25)) == 0.5
    assert accept_prob(step, law(0.2, 0.8)) == 1.0
    assert accept_prob(step, law(1.0)) == 0.0
    outside = step._replace(token=9)  # neither law was recorded there
    assert accept_prob(outside, law(0.5, 0.5)) == 0.0


def certain(n: int, right: bool = True) -> list[list[Step]]:
    """A reply of tokens that the target is sure of, and a draft that is sure of them, or of another."""
    drafted = law(0.0, 1.0) if right else law(1.0, 0.0)
    return [[Step(1, HERE, False, law(0.0, 1.0), {"model": drafted})] * n]


def test_passes_are_counted() -> None:
    found = replay(certain(12), "model", AS_IS, Fixed(3))
    assert (found.tokens, found.passes, found.drafted, found.accepted, found.asked) == (12, 3, 9, 9, 9)
    assert found.accepted_length == 4.0
    assert found.speed_to_plain(Price(0.1, 0.05)) == pytest.approx(12 / (3 + 9 * 0.15))
    wrong = replay(certain(12, right=False), "model", AS_IS, Fixed(3))
    assert (wrong.passes, wrong.accepted) == (12, 0)
    plain = replay(certain(12), "model", AS_IS, Fixed(0))
    assert (plain.passes, plain.asked) == (12, 0)
    assert plain.speed_to_plain(Price(0.1, 0.05)) == 1.0
    assert Replayed().speed_to_plain(Price(1.0, 1.0)) == 1.0


def test_a_block_is_told_up_to_its_first_rejected_token() -> None:
    seen: list[int] = []
    mixed = [*certain(2)[0], *certain(1, right=False)[0], *certain(3)[0]]
    replay([mixed], "model", AS_IS, Fixed(4), after=lambda block: seen.append(len(block)))
    assert seen == [3, 3]


# ----------------------------------------------------------------------------------------- rules of length

PRICE = Price(draft=0.15, check=0.05)


def speed(rule: LengthRule) -> float:
    return replay(replies(), "model", AS_IS, rule, times=3).speed_to_plain(PRICE)


def test_rules_look_at_the_law() -> None:
    sure, unsure = law(0.96, 0.04), law(0.25, 0.25, 0.25, 0.25)
    assert entropy(unsure) == pytest.approx(math.log(4))
    for rule in (PMin(8, 0.5), Svip(8, 0.6), AdaEdl(8, 0.8, threshold=0.6)):
        rule.begin()
        assert rule.asks(HERE, 1)
        assert rule.goes_on(sure, HERE, 1)
        assert not rule.goes_on(unsure, HERE, 1)
        assert not rule.asks(HERE, 8)


def test_the_threshold_of_ada_edl_moves_with_acceptance() -> None:
    rule = AdaEdl(8, 0.8)
    start = rule.threshold
    for _ in range(20):
        rule.learn(0, 4)
    assert rule.threshold > start
    for _ in range(60):
        rule.learn(4, 4)
    assert rule.threshold < start
    moved = rule.threshold
    rule.learn(0, 0)
    assert rule.threshold == moved


def test_learned_survival_is_no_worse_than_rules_whose_thresholds_were_chosen_for_it() -> None:
    ours = speed(Survived(PRICE, 8))
    others = [speed(Fixed(most)) for most in range(9)]
    others += [speed(PMin(8, least)) for least in (0.2, 0.4, 0.6, 0.8)]
    others += [speed(Svip(8, most)) for most in (0.6, 0.9, 1.2)]
    others += [speed(AdaEdl(8, rate)) for rate in (0.4, 0.6, 0.8)]
    assert ours > 1.0
    assert ours > 0.97 * max(others)


def test_learned_survival_stops_where_drafts_do_not_pay_and_comes_back() -> None:
    rule = Survived(PRICE, 8)
    replay(certain(300, right=False), "model", AS_IS, rule)
    wrong = replay(certain(300, right=False), "model", AS_IS, rule)
    assert wrong.speed_to_plain(PRICE) > 0.95
    replay(certain(400), "model", AS_IS, rule)
    assert replay(certain(300), "model", AS_IS, rule).speed_to_plain(PRICE) > 2.0


# ----------------------------------------------------------------------------------------- from traces


def badly(trace: ReplyTrace, factor: float) -> ReplyTrace:
    """The same reply, drafted by a law that is wrongly sure."""

    def power(probs: list[float]) -> list[float]:
        raised = np.array(probs) ** (1.0 / factor)
        return [min(1.0, float(one)) for one in raised / raised.sum()]

    changed = [
        row.model_copy(update={"offers": {name: power(law) for name, law in row.offers.items()}})
        for row in trace.rows
    ]
    return trace.model_copy(update={"rows": changed})


def test_a_calibration_from_traces_gains_on_others() -> None:
    bad = [badly(trace, 0.3) for trace in traces()]
    fitted, held_out = split(bad)
    assert (len(fitted), len(held_out)) == (27, 13)
    made = fit(fitted)
    found = gain(made, held_out)
    assert found.ratio > 1.15
    assert found.places["text"].after > found.places["text"].before + 0.1
    ((_, temperature),) = chosen_by(made, "model").items()
    assert temperature > 2.0
    kept, others = split(traces())
    good = gain(fit(kept), others)
    assert good.ratio > 0.995
    assert found.after == pytest.approx(good.after, rel=0.03)


def test_where_nothing_is_known_nothing_is_gained() -> None:
    found = gain(Calibrator(), traces()[:3], source="history")
    assert (found.ratio, found.places) == (1.0, {})
    assert split([]) == ([], [])


def test_lengths_are_fitted_too() -> None:
    """How often such proposals are accepted is known to a block that has not begun."""
    made = fit(traces())
    cells = dict(made.survival.items())
    whole = [cell for cell in cells if cell.source == "model" and cell.level is None]
    assert len(whole) == 1
    alpha = gain(made, traces()).places["text"].after
    assert made.survival.estimate(whole[0]) == pytest.approx(alpha, abs=0.06)
