"""`agentspec bench concurrency`: opens models, makes the requests, and has them measured.

What is measured, and how, is said in `agentspec.bench.together` and `agentspec.bench.soak`. It must not know
how results are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from agentspec.bench.chat import call_of
from agentspec.bench.options import ConcurrencyOptions
from agentspec.bench.soak import Soak, soak
from agentspec.bench.together import Gap, Odd, Throughput, explain, measure_gap, measure_throughput
from agentspec.bench.workload import Workload, load_workload, spread
from agentspec.config import RuntimeOptions
from agentspec.engine.loading import RuntimeSpec, open_runtime
from agentspec.engine.request import Request
from agentspec.engine.runtime import Runtime
from agentspec.llama import Context, Model
from agentspec.models.pull import ensure
from agentspec.types import Json

__all__ = ["Findings", "Report", "bench_concurrency"]

Report: TypeAlias = Callable[[str, int], None]
"""Told, after every reply, the part it is of and how many replies that part has."""

_CALL_TOKENS = 160  # most tokens of an agent's call
_GAP_TOKENS = 1500  # of the reply that goes on while a prompt is loaded
_CTX_EACH, _SOAK_CTX_EACH = 3072, 512  # tokens of context for each agent
_ANSWER: Mapping[str, Json] = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 24}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}


@dataclass(slots=True)
class Findings:
    """What was measured; None for a part that was left out.

    near_ties: replies that part from the one alone at a proven near-tie, of both parts
    wrong:     replies that do so without one, by part
    """

    throughput: Throughput | None = None
    gap: Gap | None = None
    soak: Soak | None = None
    near_ties: int = 0
    wrong_calls: int = 0
    wrong_in_soak: int = 0

    def as_json(self) -> dict[str, Json]:
        """The figures by name, as the documentation of the command has them."""
        shown: dict[str, Json] = {"near_ties": self.near_ties}
        if self.throughput is not None:
            one = self.throughput
            shown |= {
                f"throughput_ratio_{one.agents}": round(one.ratio, 4),
                "tokens_per_second": {
                    "one_after_another": [round(value, 3) for value in one.alone],
                    "at_once": [round(value, 3) for value in one.together],
                },
                "replies_equal": self.wrong_calls == 0,
                "differing_replies": len(one.odd),
            }
        if self.gap is not None:
            shown |= {
                "worst_gap_ms": round(1e3 * self.gap.worst, 1),
                "gaps_before_ms": [round(1e3 * value, 1) for value in self.gap.before],
                "gaps_meanwhile_ms": [round(1e3 * value, 1) for value in self.gap.meanwhile],
                "prompt_tokens": self.gap.prompt_tokens,
                "prompt_seconds": round(self.gap.seconds, 3),
            }
        if self.soak is not None:
            shown["soak"] = {
                "requests": self.soak.requests,
                "cancelled": self.soak.cancelled,
                "deadlocks": int(self.soak.stuck > 0),
                "leaked_slots": self.soak.leaked,
                "wrong": self.wrong_in_soak,
                "differing_replies": len(self.soak.odd),
                "rss_start_mb": self.soak.rss_start_mb,
                "rss_end_mb": self.soak.rss_end_mb,
                "seconds": round(self.soak.seconds, 1),
            }
        return shown


def bench_concurrency(
    model: str,
    draft: str | None,
    soak_model: str,
    options: ConcurrencyOptions,
    runtime_options: RuntimeOptions,
    *,
    report: Report,
) -> Findings:
    """Measures what the options ask for. Raises what loading models and replies raise."""
    findings = Findings()
    workload = load_workload()
    if options.measures("throughput") or options.measures("gap"):
        turns = spread(workload.calls, options.agents)
        spec = _spec(model, draft, options.agents, _CTX_EACH * options.agents, runtime_options)
        with _opened(spec) as runtime:
            if options.measures("throughput"):
                requests = [call_of(runtime, turn, max_tokens=_CALL_TOKENS).request for turn in turns]
                due = len(requests) * (1 + 4 * options.rounds)
                findings.throughput = measure_throughput(
                    runtime.engine, requests, options.rounds, lambda: report("agents at once", due)
                )
            if options.measures("gap"):
                findings.gap = measure_gap(
                    runtime.engine,
                    *_gap_requests(runtime, workload, options.prompt_tokens),
                    lambda: report("a long prompt", 1),
                )
        if findings.throughput is not None:
            ties, findings.wrong_calls = _judged(spec, findings.throughput.odd)
            findings.near_ties += ties
    if options.measures("soak"):
        spec = _spec(soak_model, None, options.agents, _SOAK_CTX_EACH * options.agents, runtime_options)
        with _opened(spec) as runtime:
            requests = list(_soak_requests(runtime, workload))
            findings.soak = soak(
                runtime.engine,
                requests,
                count=options.requests,
                n_slots=options.agents,
                seed=options.seed,
                progress=lambda: report("soak", options.requests),
            )
        ties, findings.wrong_in_soak = _judged(spec, findings.soak.odd)
        findings.near_ties += ties
    return findings


def _spec(model: str, draft: str | None, n_parallel: int, n_ctx: int, options: RuntimeOptions) -> RuntimeSpec:
    return RuntimeSpec(
        model=model,
        draft=draft,
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        target=options,
        draft_runtime=options,
        calibration="memory",
        history="memory",
        snapshots="off",
    )


@contextmanager
def _opened(spec: RuntimeSpec) -> Iterator[Runtime]:
    with closing(open_runtime(spec)) as runtime:
        yield runtime


def _gap_requests(runtime: Runtime, workload: Workload, prompt_tokens: int) -> tuple[Request, Request]:
    """A reply that goes on for as long as it may, and a prompt that takes long to load."""
    running = call_of(runtime, workload.prose[0], max_tokens=_GAP_TOKENS).request
    never = dict.fromkeys(runtime.vocab.end_ids, -math.inf)
    running = replace(running, sampling=running.sampling.model_copy(update={"logit_bias": never}))
    text = "\n".join(str(message) for turn in workload.calls for message in turn.messages)
    prompt = runtime.tokenize_prompt(text)[:prompt_tokens]
    loading = call_of(runtime, workload.prose[1], max_tokens=1).request
    return running, replace(loading, prompt=prompt, texts=(), n_stable=0)


def _soak_requests(runtime: Runtime, workload: Workload) -> Iterator[Request]:
    """Short ones, with a grammar and without."""
    for turn in workload.prose:
        for max_tokens in (4, 8, 12):
            yield call_of(runtime, turn, max_tokens=max_tokens).request
        yield call_of(runtime, turn, max_tokens=40, answer=_ANSWER).request


def _judged(spec: RuntimeSpec, odd: Sequence[Odd]) -> tuple[int, int]:
    """How many of these replies part from the expected ones at a near-tie, and how many do not."""
    if not odd:
        return 0, 0
    different = list(dict.fromkeys(odd))
    with (
        Model.load(ensure(spec.model), spec.target) as model,
        Context(model, spec.n_ctx, n_slots=spec.n_parallel, options=spec.target) as context,
    ):
        found = dict(zip(different, explain(context, different), strict=True))
    ties = sum((difference := found[one]) is not None and difference.near_tie for one in odd)
    return ties, len(odd) - ties
