"""Proves, or refutes, that drafts leave the law of a pair of models as it is.

Sampling: short continuations of a few prompts, once as the engine writes them with its drafts, once with
every token drawn from the target's law alone; the two-sample test compares them. The second arm computes
blocks and passes of the same kind and only decides by another rule. Without them it would differ under any
rule: llama.cpp's logits move with the size of a pass (CONTRIBUTING.md).

Greedy: longer replies with drafts, and truly without, one token a pass, must be the same tokens. Where they
are not, the difference must be a near-tie, proven without the engine.

A proof is about the rule, which is to meet many proposals: wherever drafts are in use, whatever is offered is
proposed, at any cost and after any failure. So a proof's replies do not depend on a clock either.

It must not know files, options of llama.cpp or how a result is shown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentspec.calibration.calibrator import Calibrator
from agentspec.config import DraftOptions, GenerationOptions, ProofOptions, SamplingOptions
from agentspec.drafts.base import Draft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.engine.rules import Rule, make_rule
from agentspec.errors import EngineError
from agentspec.proof.arms import Counts, Tokens, generate
from agentspec.proof.near_tie import Difference, first_difference, measure
from agentspec.proof.rules import target_only
from agentspec.proof.two_sample import Arm, Comparison, compare
from agentspec.types import Session, Vocabulary

__all__ = ["Pair", "Proof", "Report", "prove"]

Report = Callable[[str, int, int], None]
"""Told how far a proof is: the stage, and how many replies are done and due in it."""

Rules = Callable[[DraftOptions, int], Rule]
"""Makes the rule of a reply: see `engine.core.Core`."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What a proof is about.

    target:   a session that nobody else uses
    drafts:   the sources; of offers that promise the same, that of the first is taken
    requests: prompts, with their grammars; the rest of them is the proof's to set
    """

    target: Session
    vocab: Vocabulary
    drafts: Sequence[Draft]
    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found.

    comparison:     of the continuations sampled with drafts and from the target alone
    drafted:        what the drafts did in the former
    greedy_prompts: greedy replies compared
    differences:    where a prompt's two greedy replies part, by the prompt's number; None where one of them
                    went on after the other had ended
    """

    comparison: Comparison
    drafted: Counts
    greedy_prompts: int
    differences: dict[int, Difference | None]

    @property
    def near_ties(self) -> int:
        """Greedy replies that differ at a near-tie."""
        return sum(found is not None and found.near_tie for found in self.differences.values())

    @property
    def mismatches(self) -> int:
        """Greedy replies that differ, and not at a near-tie."""
        return len(self.differences) - self.near_ties

    @property
    def exact(self) -> bool:
        return not self.comparison.differ and self.mismatches == 0


def prove(pair: Pair, options: ProofOptions, *, report: Report, rules: Rules = make_rule) -> Proof:
    """Compares the two laws and the greedy replies of a pair.

    rules: what is put to the proof; the engine's own by default

    Raises EngineError where a draft source proposed nothing or failed, so that little could be said about
    it, and whatever made a reply fail.
    """
    prover = _Prover(pair, options, report)
    drafted = Counts()
    with_drafts = prover.sample("with drafts", rules, drafted)
    for source in prover.sources:
        if source not in drafted.sources or drafted.failures[source]:
            done = "failed" if drafted.failures[source] else "proposed nothing"
            raise EngineError(
                f"the {source} draft {done}, so nothing was proven about it",
                hint="see the warnings above; models with recurrent memory cannot use drafts",
            )
    alone = prover.sample("target alone", target_only, Counts())
    return Proof(
        comparison=compare(with_drafts, alone, alpha=options.alpha, seed=options.seed),
        drafted=drafted,
        greedy_prompts=min(options.greedy_prompts, len(pair.requests)),
        differences=prover.greedy_differences(rules),
    )


class _Prover:
    """The replies that a proof needs."""

    def __init__(self, pair: Pair, options: ProofOptions, report: Report) -> None:
        self._pair = pair
        self._options = options
        self._report = report
        self._arms = 0  # sampled so far: each has seeds of its own
        self.sources = [draft.name for draft in pair.drafts]

    def sample(self, stage: str, rules: Rules, counts: Counts) -> Arm:
        """The sampled continuations of each prompt, drafts in use."""
        seeds = np.random.default_rng([self._options.seed, self._arms])
        self._arms += 1
        each = -(-self._options.samples // len(self._pair.requests))
        requests = (
            self._request(request, temperature=self._options.temperature, seed=int(seeds.integers(2**63)))
            for request in self._pair.requests
            for _ in range(each)
        )
        replies = self._generate(stage, rules, requests, each * len(self._pair.requests), counts)
        return [replies[start : start + each] for start in range(0, len(replies), each)]

    def greedy_differences(self, rules: Rules) -> dict[int, Difference | None]:
        """Where the greedy replies with and without drafts part, by prompt."""
        count = self._options.greedy_prompts
        requests = [self._request(request, greedy=True) for request in self._pair.requests[:count]]
        count = len(requests)
        plain = [replace(request, draft=DraftOptions(sources=())) for request in requests]
        stage, due = "greedy", 2 * count
        left = self._generate(stage, rules, plain, due, Counts(), at_once=1)
        right = self._generate(stage, rules, requests, due, Counts(), at_once=1, done=count)
        pairs = enumerate(zip(left, right, strict=True))
        return {at: self._difference(requests[at], *pair) for at, pair in pairs if pair[0] != pair[1]}

    def _difference(self, request: Request, left: Tokens, right: Tokens) -> Difference | None:
        at = first_difference(left, right)
        if at is None or at >= min(len(left), len(right)):
            return None
        return measure(self._pair.target, request.prompt, left[:at], left[at], right[at])

    def _request(
        self, request: Request, *, temperature: float = 0.0, seed: int = 0, greedy: bool = False
    ) -> Request:
        """A prompt's request: a short sample, or a long greedy reply."""
        tokens = self._options.tokens * (1 if request.matcher is None else 2)
        return replace(
            request,
            sampling=SamplingOptions(temperature=temperature),
            generation=GenerationOptions(
                max_tokens=self._options.greedy_tokens if greedy else tokens, seed=seed
            ),
            draft=DraftOptions.parse({"sources": self.sources}),
        )

    def _generate(
        self,
        stage: str,
        rules: Rules,
        requests: Iterable[Request],
        due: int,
        counts: Counts,
        *,
        at_once: int | None = None,
        done: int = 0,
    ) -> list[Tokens]:
        pair = self._pair
        core = Core(
            pair.target,
            pair.vocab,
            pair.drafts,
            rules=rules,
            costs=Costs.free(),
            calibrator=Calibrator(neutral=True),  # a calibrated draft is less wrong, and shows less
        )
        steps = itertools.count(done + 1)
        return generate(
            core,
            requests,
            counts,
            at_once=at_once or 2 * pair.target.n_slots,
            on_reply=lambda: self._report(stage, next(steps), due),
        )
