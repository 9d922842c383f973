"""The contract finds what it is there to find: each fault of a source fails the test that is about it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from agentspec.drafts.base import Draft, DraftRequest, EndedReply, Offer
from agentspec.drafts.plugins import DraftContext
from agentspec.engine.rules import SampledRule
from agentspec.law import probability_of
from agentspec.testing import DraftContract, TableVocab
from agentspec.types import Distribution, Proposal
from agentspec.verify import Laws, Verdict

N_VOCAB = DraftContract.context.vocab.n_tokens
CHECKS = [name for name in dir(DraftContract) if name.startswith("test_")]


class Follower(Draft):
    """Offers what follows the last token in the alphabet. It keeps the contract."""

    name = "follower"

    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        return [self.one(request) for request in requests]

    def one(self, request: DraftRequest) -> Offer | None:
        return Offer([(request.prefix[-1] + 1) % N_VOCAB], [0.5])


class Uniform(Follower):
    """Offers a distribution over the whole vocabulary, legal or not. It keeps the contract too."""

    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002 - the same everywhere
        return Offer(draft_probs=distribution(range(N_VOCAB), [1 / N_VOCAB] * N_VOCAB))


class Countries(Follower):
    """Speaks at one place of a reply only."""

    def __init__(self, context: DraftContext) -> None:
        self._country = context.tokenize(b"Norway")

    def one(self, request: DraftRequest) -> Offer | None:
        place = request.place
        if place.path[-1:] != ("country",) or place.kind != "string" or place.value:
            return None
        return Offer(self._country, [0.5] * len(self._country))


def distribution(ids: Sequence[int], probs: Sequence[float]) -> Distribution:
    return Distribution(np.array(ids, dtype=np.int64), np.array(probs, dtype=np.float64))


def check(source: type[Draft], *names: str) -> None:
    """Runs tests of the contract on a source."""

    class Tested(DraftContract):
        def make(self) -> Draft:
            return source()

    for name in names:
        getattr(Tested(), name)()


@pytest.mark.parametrize("source", [Follower, Uniform])
def test_a_source_that_keeps_it_passes(source: type[Draft]) -> None:
    check(source, *CHECKS)


class TestASourceWithAWorldOfItsOwn(DraftContract):
    """All it knows is in its vocabulary and its replies."""

    _vocab = TableVocab(['{"city":"Oslo","country":"', "Nor", "way", '"}', "Oslo?", "<end>"], end_ids={5})
    context = DraftContext(_vocab, functools.partial(_vocab.tokenize, special=False))
    texts = ("Oslo?",)
    replies = ('{"city":"Oslo","country":"Norway"}',)

    def make(self) -> Draft:
        return Countries(self.context)


def test_a_contract_that_does_not_say_how_its_source_is_made_is_no_test() -> None:
    with pytest.raises(NotImplementedError, match="override `make`"):
        DraftContract().test_it_has_a_name()


# ------------------------------------------------------------------------------------------------ faults


class Nameless(Follower):
    name = ""


class Renamed(Follower):
    count = 0

    def __init__(self) -> None:
        Renamed.count += 1
        self.name = f"follower {Renamed.count}"


class Mute(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002 - whatever it is
        return None


class ShortOfAnswers(Follower):
    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        return super().offer(requests)[: max(1, len(requests) - 1)]


class Reversed(Follower):
    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        return super().offer(requests)[::-1]


class Both(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer([3], [0.5], distribution([3], [1.0]))


class Neither(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer()


class Unsure(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer([3, 4], [0.5])


class OverConfident(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer([3, 4], [0.5, 1.5])


class Impossible(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer([3], [0.0])


class Numeric(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer([3, cast(int, np.int64(4))], [0.5, 0.5])


class OfAnotherVocabulary(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer([N_VOCAB], [0.5])


class Lossy(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer(draft_probs=distribution([3, 4], [0.5, 0.4]))


class Negative(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer(draft_probs=distribution([3, 4], [1.5, -0.5]))


class Unordered(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer(draft_probs=distribution([4, 3], [0.5, 0.5]))


class Wide(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer(draft_probs=distribution([3, N_VOCAB], [0.5, 0.5]))


class Ragged(Follower):
    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        return Offer(draft_probs=distribution([3, 4], [1.0]))


class Random(Follower):
    seed = 0

    def one(self, request: DraftRequest) -> Offer | None:  # noqa: ARG002
        Random.seed += 1
        return Offer([int(np.random.default_rng(Random.seed).integers(N_VOCAB))], [0.5])


class Tiring(Follower):
    """Is less sure each time it is asked."""

    confidence = 1.0

    def one(self, request: DraftRequest) -> Offer | None:
        self.confidence *= 0.9
        return Offer([(request.prefix[-1] + 1) % N_VOCAB], [self.confidence])


class Sociable(Follower):
    """Lets all sequences follow the first."""

    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        return [self.one(requests[0])] * len(requests)


class HoldsTheView(Follower):
    """Takes its own reference to a prefix for a copy of it."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Sequence[int], Offer | None]] = {}

    def one(self, request: DraftRequest) -> Offer | None:
        seen, offer = self._seen.get(request.slot, ((), None))
        if seen != request.prefix:
            offer = super().one(request)
            self._seen[request.slot] = (request.prefix, offer)
        return offer


class KeepsProposals(Follower):
    """Reads the new tokens of a prefix only, as if none were ever taken back."""

    def __init__(self) -> None:
        self._read: dict[int, list[int]] = {}

    def one(self, request: DraftRequest) -> Offer | None:
        read = self._read.setdefault(request.slot, [])
        read += request.prefix[len(read) :]
        return Offer([(read[-1] + 1) % N_VOCAB], [0.5])


class KeepsThePrompt(Follower):
    """Knows a slot's prompt by its length."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[int, int], int] = {}

    def one(self, request: DraftRequest) -> Offer | None:
        key = (request.slot, request.n_prompt)
        return Offer([self._prompts.setdefault(key, request.prefix[request.n_prompt - 1])], [0.5])


class Meddler(Follower):
    def one(self, request: DraftRequest) -> Offer | None:
        offer = super().one(request)
        if isinstance(request.prefix, list):
            request.prefix.append(0)
        return offer


class Unreadable(Follower):
    """Runs a model, and never says so: the engine would not ask it."""

    cheap = False


class NotSoCheap(Follower):
    def missing(self, request: DraftRequest) -> int:
        return len(request.prefix)


class TurnsBackTheClock(Follower):
    seconds = 1.0

    @property
    def model_seconds(self) -> float:
        self.seconds -= 0.1
        return self.seconds


class Timeless(Follower):
    def measure(self) -> Sequence[tuple[int, float]]:
        return [(4, -1.0)]


class OfNothing(Follower):
    def measure(self) -> Sequence[tuple[int, float]]:
        return [(0, 1.0)]


class Startled(Follower):
    """Takes every reply that ends for one that it was asked about."""

    def __init__(self) -> None:
        self._slots: set[int] = set()

    def one(self, request: DraftRequest) -> Offer | None:
        self._slots.add(request.slot)
        return super().one(request)

    def ended(self, reply: EndedReply) -> None:
        if reply.slot:
            self._slots.remove(reply.slot)


class Failing(Follower):
    """Fails where the engine asks, and nowhere else."""

    def one(self, request: DraftRequest) -> Offer | None:
        if request.room < 8 and len(request.prefix) == request.n_settled:
            raise RuntimeError("out of luck")
        return super().one(request)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Nameless, "test_it_has_a_name"),
        (Renamed, "test_it_has_a_name"),
        (Mute, "test_it_has_something_to_offer"),
        (Mute, "test_the_output_law_is_the_targets"),
        (ShortOfAnswers, "test_each_request_gets_an_answer"),
        (Both, "test_an_offer_is_a_run_or_a_distribution"),
        (Neither, "test_an_offer_is_a_run_or_a_distribution"),
        (Unsure, "test_each_token_of_a_run_has_a_confidence"),
        (OverConfident, "test_each_token_of_a_run_has_a_confidence"),
        (Impossible, "test_each_token_of_a_run_has_a_confidence"),
        (Numeric, "test_each_token_of_a_run_has_a_confidence"),
        (OfAnotherVocabulary, "test_each_token_of_a_run_has_a_confidence"),
        (Lossy, "test_a_distribution_is_one_over_the_vocabulary"),
        (Negative, "test_a_distribution_is_one_over_the_vocabulary"),
        (Unordered, "test_a_distribution_is_one_over_the_vocabulary"),
        (Wide, "test_a_distribution_is_one_over_the_vocabulary"),
        (Ragged, "test_a_distribution_is_one_over_the_vocabulary"),
        (Random, "test_the_same_request_gets_the_same_offer"),
        (Tiring, "test_the_same_request_gets_the_same_offer"),
        (Reversed, "test_sequences_asked_together_get_what_each_gets_alone"),
        (Sociable, "test_sequences_asked_together_get_what_each_gets_alone"),
        (HoldsTheView, "test_a_block_may_grow_between_two_questions"),
        (KeepsProposals, "test_a_reply_may_go_on_with_other_tokens_than_were_proposed"),
        (KeepsThePrompt, "test_a_slot_may_go_to_another_sequence"),
        (Meddler, "test_a_request_is_only_read"),
        (Unreadable, "test_it_says_what_a_model_must_read"),
        (NotSoCheap, "test_it_says_what_a_model_must_read"),
        (TurnsBackTheClock, "test_it_says_what_a_model_must_read"),
        (Timeless, "test_its_passes_are_measured"),
        (OfNothing, "test_its_passes_are_measured"),
        (Startled, "test_any_reply_may_end"),
        (Failing, "test_the_output_law_is_the_targets"),
        (Unsure, "test_the_output_law_is_the_targets"),
        (Lossy, "test_the_output_law_is_the_targets"),
    ],
)
def test_a_fault_is_found(source: type[Draft], name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)  # the engine's warnings about it are expected
    with pytest.raises((AssertionError, KeyError)):
        check(source, name)


class TrustingRule(SampledRule):
    """Keeps whatever is possible."""

    def verify(self, block: Sequence[Proposal], target_probs: Laws, position: int) -> Verdict:
        n = 0
        while n < len(block) and probability_of(target_probs[n], block[n].token) > 0.0:
            n += 1
        return Verdict(n, self.draw(target_probs[n], position) if n < len(target_probs) else None)


@pytest.mark.parametrize("source", [Follower, Uniform])
def test_a_wrong_law_is_found(source: type[Draft], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.testing.contract.SampledRule", TrustingRule)
    with pytest.raises(AssertionError, match="the law is off by"):
        check(source, "test_the_output_law_is_the_targets")
