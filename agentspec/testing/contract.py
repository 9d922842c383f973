"""The contract of draft sources, as tests: a subclass that says how its source is made inherits them all.

    class TestMine(DraftContract):
        def make(self) -> Draft:
            return MyDraft(self.context)

pytest collects the subclass; nothing here needs pytest. It must not know any particular source.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from agentspec.drafts.base import Draft, Offer
from agentspec.drafts.plugins import DraftContext
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.offers import BlockPlan
from agentspec.engine.request import Request
from agentspec.engine.rules import SampledRule
from agentspec.testing.chance import ScriptedChance, enumerate_law
from agentspec.testing.fakes import TableVocab
from agentspec.testing.laws import generate, target_law, total_variation
from agentspec.testing.world import LIMIT, Situation, World, alike, request_state
from agentspec.trace import Trace

__all__ = ["DraftContract"]

_TOY = TableVocab(['{"', '":"', '"}', "a", "b", "c", "<end>"], end_ids={6})

_BOUND = 1e-12
"""Rounding, as a total variation."""


class DraftContract:
    """What is asked of a draft source.

    context: what sources are made with: by default a vocabulary of seven tokens
    texts:   the conversation, the latest message first; the prompt is made of them
    replies: replies of the kind that the source is good at, a few tokens each. The source is told that they
             have ended and asked at every place of each, with and without a grammar of just these; it must
             offer something somewhere, and within a reply's first tokens.
    n_slots: how many sequences are asked about at once; a session that the source runs needs as many slots
    """

    context = DraftContext(_TOY, functools.partial(_TOY.tokenize, special=False))
    texts: Sequence[str] = ('a":"bc', "ab")
    replies: Sequence[str] = ('{"a":"b"}', '{"a":"bc"}', '{"b":"c"}')
    n_slots = 4

    def make(self) -> Draft:
        """A new source, which remembers nothing of another."""
        raise NotImplementedError("say how the source is made: override `make`")

    # -------------------------------------------------------------------------------------------- offers

    def test_it_has_a_name(self) -> None:
        name, again = self._name(), self._name()
        assert name == again, f"each source that is made has another name: {name!r}, {again!r}"
        assert isinstance(name, str), f"the name is {name!r}"
        assert name, "the name is empty"

    def test_it_has_something_to_offer(self) -> None:
        assert any(self._offers()), "no offer anywhere: set `replies` to some that it is good at"

    def test_each_request_gets_an_answer(self) -> None:
        for plans in self._world.together():
            with self._taught() as draft:
                offers = draft.offer(plans)
            assert len(offers) == len(plans), f"{len(offers)} answers to {len(plans)} requests"

    def test_an_offer_is_a_run_or_a_distribution(self) -> None:
        for offer in filter(None, self._offers()):
            both = bool(offer.tokens) and offer.draft_probs is not None
            assert not both, f"a run and a distribution: {offer}"
            assert offer.tokens or offer.draft_probs is not None, f"neither: give None in place of {offer}"

    def test_each_token_of_a_run_has_a_confidence(self) -> None:
        n_vocab = self.context.vocab.n_tokens
        for offer in filter(None, self._offers()):
            tokens, confidence = offer.tokens, offer.confidence
            assert len(tokens) == len(confidence), f"one confidence for each token: {offer}"
            assert all(type(token) is int for token in tokens), f"tokens must be Python ints: {offer}"
            assert all(0 <= token < n_vocab for token in tokens), f"outside the vocabulary: {offer}"
            assert all(0.0 < value <= 1.0 for value in confidence), f"confidence outside (0, 1]: {offer}"

    def test_a_distribution_is_one_over_the_vocabulary(self) -> None:
        for offer in filter(None, self._offers()):
            if offer.draft_probs is not None:
                ids, probs = map(np.asarray, offer.draft_probs)
                assert (ids.ndim, ids.shape) == (1, probs.shape), f"ids and probabilities: {offer}"
                assert ids.size, f"no ids: {offer}"
                assert np.all(np.diff(ids) > 0), f"ids must ascend: {offer}"
                assert 0 <= ids[0] <= ids[-1] < self.context.vocab.n_tokens, f"unknown ids: {offer}"
                assert np.all(probs >= 0.0), f"a probability below 0: {offer}"
                assert abs(float(probs.sum()) - 1.0) <= 1e-6, f"probabilities must sum to 1: {offer}"

    # -------------------------------------------------------------------------- what an offer depends on

    def test_the_same_request_gets_the_same_offer(self) -> None:
        """There is no chance in a source, and to be asked changes nothing."""
        for situation, expected in zip(self._world.situations(), self._offers(), strict=True):
            with self._taught() as draft:
                for _ in range(2):
                    offer = _ask(draft, self._world.asks(situation))
                    assert alike(offer, expected), f"{situation}: {offer}, of another source {expected}"

    def test_sequences_asked_together_get_what_each_gets_alone(self) -> None:
        offers: list[Offer | None] = []
        for plans in self._world.together():
            with self._taught() as draft:
                offers += draft.offer(plans)
        for situation, together, alone in zip(self._world.situations(), offers, self._offers(), strict=True):
            assert alike(together, alone), f"{situation}: {together}, alone {alone}"

    def test_a_block_may_grow_between_two_questions(self) -> None:
        """A request is a live view: what was read of it at the last question may have changed."""
        for reply in self._world.known:
            plan = self._world.asks(Situation(()))
            with self._taught() as draft:
                for length, token in enumerate(reply[:LIMIT]):
                    grown, new = _ask(draft, plan), self._offer(Situation(reply[:length], n_proposed=length))
                    assert alike(grown, new), f"after {reply[:length]}: {grown}, of a new source {new}"
                    plan.block.propose(token, "another")

    def test_a_reply_may_go_on_with_other_tokens_than_were_proposed(self) -> None:
        for reply in self._world.known:
            with self._taught() as draft:
                for length, token in enumerate(reply):
                    wrong = self._world.another(token)
                    for situation in (
                        Situation(reply[:length]),
                        Situation((*reply[:length], wrong), n_proposed=1),
                    ):
                        offer, new = _ask(draft, self._world.asks(situation)), self._offer(situation)
                        assert alike(offer, new), f"{situation}: {offer}, of a new source {new}"

    def test_a_slot_may_go_to_another_sequence(self) -> None:
        """To one with a prompt of the same length, as it happens, once the reply before has ended."""
        world = self._world
        places = {reply[:length]: length for reply in world.known for length in range(min(len(reply), LIMIT))}
        with self._taught() as draft:
            for (place, length), prompt in itertools.product(places.items(), world.prompts):
                situation = Situation(place, n_proposed=length, prompt=prompt)
                offer, new = _ask(draft, world.asks(situation)), self._offer(situation)
                assert alike(offer, new), f"{situation}: {offer}, of a new source {new}"
                draft.ended(world.ended((), prompt=prompt, complete=False))

    def test_a_request_is_only_read(self) -> None:
        for situation in self._world.situations():
            plan = self._world.asks(situation)
            with self._taught() as draft:
                draft.offer([plan])
            unread = self._world.asks(situation)
            assert request_state(plan) == request_state(unread), f"a request was changed: {situation}"

    # --------------------------------------------------------------------------------------- its course

    def test_it_says_what_a_model_must_read(self) -> None:
        """The engine asks a source that runs a model only where there is something to read."""
        for situation in self._world.situations():
            with self._taught() as draft:
                plan, before = self._world.asks(situation), draft.model_seconds
                missing = draft.missing(plan)
                offer = _ask(draft, plan)
                assert draft.model_seconds >= before >= 0.0, "model_seconds must not fall"
                if draft.cheap:
                    assert missing == 0, f"a cheap source with {missing} tokens to read"
                else:
                    assert missing > 0 or offer is None, f"an offer, and nothing to read: {situation}"

    def test_its_passes_are_measured(self) -> None:
        with self._made() as draft:
            for n, seconds in draft.measure():
                assert n >= 1, f"a pass of {n} tokens"
                assert seconds >= 0.0, f"a pass of {seconds} s"

    def test_any_reply_may_end(self) -> None:
        """One of a slot that it was never asked about, a cut one, an empty one; and then it may be closed."""
        world = self._world
        with self._made() as draft:
            for reply in ((), *world.known):
                for complete in (False, True):
                    draft.ended(world.ended(reply, slot=self.n_slots - 1, complete=complete))
                    plans = [world.asks(Situation(()), slot) for slot in range(self.n_slots - 1)]
                    assert len(draft.offer(plans)) == len(plans)

    def test_the_output_law_is_the_targets(self) -> None:
        """By enumeration of every draw from its distributions and of every decision about its offers."""
        world, traces = self._world, list[Trace]()
        drawn = [offer.draft_probs for offer in self._offers() if offer and offer.draft_probs]
        n_drawn = max((len(draft_probs.ids) for draft_probs in drawn), default=1)
        for request in world.requests(self._name(), n_drawn=n_drawn):

            def reply(chance: ScriptedChance, request: Request = request) -> tuple[int, ...]:
                return self._reply(request, chance, traces)

            expected = target_law(
                world.target(),
                request.prompt,
                length=request.generation.max_tokens,
                sampling=request.sampling,
                matcher=request.matcher,
                end_ids=world.vocab.end_ids,
            )
            apart = total_variation(enumerate_law(reply), expected)
            assert apart <= _BOUND, f"the law is off by {apart} in {request}"
        failed = sum(trace.draft_failures.total() for trace in traces)
        assert not failed, f"it failed {failed} times: the engine's log says with what"
        assert any(trace.sources for trace in traces), "it proposed nothing near the start of any reply"

    # ---------------------------------------------------------------------------------------- the source

    @functools.cached_property
    def _world(self) -> World:
        return World(self.context, self.texts, self.replies, n_slots=self.n_slots)

    @contextlib.contextmanager
    def _made(self) -> Iterator[Draft]:
        draft = self.make()
        yield draft
        draft.close()

    @contextlib.contextmanager
    def _taught(self) -> Iterator[Draft]:
        """A source that has seen the replies end."""
        with self._made() as draft:
            for reply in self._world.known:
                draft.ended(self._world.ended(reply))
            yield draft

    def _name(self) -> str:
        with self._made() as draft:
            return draft.name

    def _offer(self, situation: Situation) -> Offer | None:
        """What a source that was never asked before offers."""
        with self._taught() as draft:
            return _ask(draft, self._world.asks(situation))

    def _offers(self) -> list[Offer | None]:
        return [self._offer(situation) for situation in self._world.situations()]

    def _reply(self, request: Request, chance: ScriptedChance, traces: list[Trace]) -> tuple[int, ...]:
        """A reply of an engine that has this source alone; its trace is added to `traces`."""
        world = self._world
        with self._taught() as draft:
            core = Core(
                world.target(), world.vocab, [draft], rules=lambda *_: SampledRule(chance), costs=Costs.free()
            )
            tokens, trace = generate(core, request)
        traces.append(trace)
        return tokens


def _ask(draft: Draft, plan: BlockPlan) -> Offer | None:
    return draft.offer([plan])[0]
