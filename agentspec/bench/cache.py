"""What stored and kept KV states save: time to the first token in a new process, and of a second turn.

Question:  how much sooner does a new process answer when the models have read its tools before? Is any token
           of a conversation computed twice?
Method:    each sample is a process of its own that opens the models and then makes two calls of one
           conversation (where the first makes no whole call, it goes on with the one that is written down in
           the workload). Cold ones have a folder without snapshots, warm ones that of a cold one; they take
           turns, and a warm process asks another question than the one that left the snapshot.
Figures:   time to first token: from the call, messages in hand and models open, to the first chunk of its
           stream: rendering, compiling the grammar and loading the prompt included. The ratio is of medians.
           second turn: prompt tokens that were computed, and tokens that neither the first prompt nor the
           reply to it held; the former are more by the reply's forced end, which no pass had needed yet

This module runs in both: `bench_cache` starts the processes, `python -m agentspec.bench.cache` is one. It
must not know how results are shown.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentspec.bench.options import CacheBenchOptions
from agentspec.bench.workload import Turn, called, load_workload
from agentspec.errors import EngineError
from agentspec.prefix import common_prefix
from agentspec.types import Json

__all__ = ["Findings", "Sample", "bench_cache"]

_MOST_TOKENS = 256  # of the first reply
_QUESTIONS = ("What is still open for this week?", "Please look up what was agreed on with the printers.")


@dataclass(frozen=True, slots=True)
class Sample:
    """One process.

    first_token:    seconds
    prompt_tokens:  of the first turn
    reused:         how many of them were there already
    new_tokens, prefilled: of the second turn: see above
    """

    first_token: float
    prompt_tokens: int
    reused: int
    new_tokens: int
    prefilled: int


@dataclass(frozen=True, slots=True)
class Findings:
    """The samples without snapshots and with them."""

    cold: list[Sample]
    warm: list[Sample]

    @property
    def ratio(self) -> float:
        """Time to first token, warm over cold."""
        cold, warm = ([one.first_token for one in kind] for kind in (self.cold, self.warm))
        return statistics.median(warm) / statistics.median(cold)

    def as_json(self) -> dict[str, Json]:
        """The figures by name, as the documentation of the command has them."""
        last = self.warm[-1]
        return {
            "ttft_warm_ratio": round(self.ratio, 4),
            "ttft_cold_s": [round(one.first_token, 4) for one in self.cold],
            "ttft_warm_s": [round(one.first_token, 4) for one in self.warm],
            "prompt_tokens": last.prompt_tokens,
            "reused_tokens": last.reused,
            "second_turn_prefilled": last.prefilled,
            "second_turn_new_tokens": last.new_tokens,
        }


def bench_cache(
    model: Path,
    draft: Path | None,
    options: CacheBenchOptions,
    runtime_options: dict[str, Json],
    *,
    report: Callable[[str, int], None],
) -> Findings:
    """Measures.

    runtime_options: fields of `agentspec.config.RuntimeOptions`
    report:          told, after every process, its kind and how many there are in all

    Raises EngineError with what a process printed where it failed.
    """
    cold: list[Sample] = []
    warm: list[Sample] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for kind, samples in (("cold", cold), ("warm", warm)):
                asked: dict[str, Json] = {
                    "model": str(model),
                    "draft": None if draft is None else str(draft),
                    "agent": options.agent,
                    "runtime": runtime_options,
                    "question": _QUESTIONS[kind == "warm"],
                }
                samples.append(_sample(asked, Path(folder)))
                report(kind, 2 * options.rounds)
    return Findings(cold, warm)


def _sample(asked: dict[str, Json], folder: Path) -> Sample:
    done = subprocess.run(
        [sys.executable, "-m", "agentspec.bench.cache", json.dumps(asked)],
        env={**os.environ, "AGENTSPEC_CACHE": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EngineError(f"a process that was to be measured failed:\n{done.stderr.strip()[-2000:]}")
    return Sample(**json.loads(done.stdout.splitlines()[-1]))


def _measured(asked: dict[str, Any]) -> Sample:
    """Makes the two calls in this process."""
    from agentspec.bench.chat import call_of
    from agentspec.config import RuntimeOptions
    from agentspec.engine.loading import RuntimeSpec, open_runtime

    turn = next(one for one in load_workload().calls if one.name.startswith(f"{asked['agent']}/"))
    messages = (*turn.messages[:1], {"role": "user", "content": asked["question"]})
    options = RuntimeOptions.parse(asked["runtime"])
    runtime = open_runtime(
        RuntimeSpec(
            model=asked["model"],
            draft=asked["draft"],
            n_parallel=1,
            target=options,
            draft_runtime=options,
            calibration="memory",
            history="off",
        )
    )
    with closing(runtime):
        started = time.perf_counter()
        call = call_of(runtime, Turn("first", messages, turn.tools), max_tokens=_MOST_TOKENS)
        stream = call.submit()
        steps = [next(stream)]
        first_token = time.perf_counter() - started
        steps += stream
        for step in steps:
            call.take(step)
        call.end(stream.result)
        made = [(made["name"], made["args"]) for made in call.reply.message().tool_calls]
        name, arguments = made[0] if made else turn.call or ("none", {})
        trace = stream.result.trace
        held = (*call.request.prompt, *(token for step in steps for token in step.tokens))[:-1]
        answered = (*messages, *called("call_1", name, arguments, "done"))
        second = call_of(runtime, Turn("second", answered, turn.tools), max_tokens=_MOST_TOKENS)
        prompt = second.request.prompt
        again = second.submit()
        for _ in again:
            pass
        return Sample(
            first_token=first_token,
            prompt_tokens=len(call.request.prompt),
            reused=trace.prefill_reused,
            new_tokens=len(prompt) - common_prefix(held, prompt),
            prefilled=again.result.trace.prefill_computed,
        )


if __name__ == "__main__":
    print(json.dumps(asdict(_measured(json.loads(sys.argv[1])))))
