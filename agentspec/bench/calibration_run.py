"""Runs what `agentspec bench calibration` measures: records replies, times replies, and puts it together.

It must not know commands or terminals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from agentspec.bench.calibration import CalibrationFindings, by_class, curve, lengths, online
from agentspec.bench.figures import Reply, Series
from agentspec.bench.mechanism import Measured, toy_mechanism
from agentspec.bench.options import CalibrationBenchOptions
from agentspec.bench.record import record
from agentspec.bench.workload import Turn, Workload, load_workload, spread
from agentspec.calibration.fit import fit, gain, split
from agentspec.calibration.lengths import Price
from agentspec.calibration.traces import ReplyTrace
from agentspec.config import RuntimeOptions
from agentspec.engine.loading import RuntimeSpec, open_runtime
from agentspec.langchain.chat_model import ChatAgentSpec
from agentspec.langchain.tools import OpenAITool

__all__ = ["Report", "bench_calibration"]

Report = Callable[[str, int], None]
"""Told, after every reply, the part it is of and how many replies that part has."""

_MAIN: Final = 0.8
_OTHERS: Final = (0.0, 0.4, 1.2)
_TIMED_TURNS: Final = 4
_USELESS_TURNS: Final = 10
_USUAL: Final = Price(draft=0.4, check=0.3)  # of the default pair on two CPU cores, where none was measured
_CONFIDENT: Final = 0.25
"""Factor of the temperature of a draft that is made wrongly sure."""


@dataclass(frozen=True)
class _Config:
    """How a timed configuration answers."""

    chat: ChatAgentSpec
    sources: tuple[str, ...]
    settings: Mapping[str, float] = field(default_factory=dict)


def bench_calibration(
    model: str,
    draft: str,
    small: str,
    options: CalibrationBenchOptions,
    runtime: RuntimeOptions,
    *,
    report: Report,
) -> CalibrationFindings:
    """Measures the parts that were asked for.

    small: a target that is its own draft, for what needs many replies: a draft that cannot be better, and,
           made wrongly sure, one that cannot be worse

    Raises what loading models and answering raise.
    """
    findings = CalibrationFindings()
    bench = _Bench(options, runtime, report, load_workload())
    if options.measures("toy"):
        findings.toy = toy_mechanism()
        report("toy", 1)
    if options.measures("mechanism"):
        findings.mechanism, findings.price = bench.mechanism(model, draft)
    if options.measures("replays"):
        traces = bench.recorded("replays", model, draft, _MAIN, options.replies)
        findings.curves = {_MAIN: curve(traces)}
        findings.classes = by_class(traces)
        findings.online = online(traces)
        fitted, held_out = split(traces)
        findings.good_draft = gain(fit(fitted), held_out)
        findings.price = findings.price or _USUAL
        findings.lengths = lengths(traces, findings.price)
        for temperature in _OTHERS:
            few = bench.recorded(f"at {temperature:g}", model, draft, temperature, options.replies // 5)
            findings.curves[temperature] = curve(few)
    if options.measures("useless"):
        findings.cost_when_useless = bench.useless(small)
    if options.measures("bad-draft"):
        traces = bench.recorded("bad draft", small, small, _MAIN, options.replies, bad=True)
        fitted, held_out = split(traces)
        findings.bad_draft = gain(fit(fitted), held_out)
    return findings


class _Bench:
    def __init__(
        self, options: CalibrationBenchOptions, runtime: RuntimeOptions, report: Report, workload: Workload
    ) -> None:
        self._options = options
        self._runtime = runtime
        self._report = report
        self._workload = workload

    def recorded(
        self, part: str, model: str, draft: str, temperature: float, replies: int, *, bad: bool = False
    ) -> list[ReplyTrace]:
        """Two thirds calls, one third prose, mixed: each kind as an agent's life has it."""
        turns = self._mixed(max(3, replies))
        draft_temperature = temperature * _CONFIDENT if bad else None
        return record(
            turns,
            model=model,
            draft=draft,
            temperature=temperature,
            draft_temperature=1.0 if temperature == 0.0 else draft_temperature,
            max_tokens=self._options.max_tokens,
            seed=self._options.seed,
            options=self._runtime,
            progress=lambda: self._report(part, len(turns)),
        )

    def mechanism(self, model: str, draft: str) -> tuple[Mapping[str, Measured], Price]:
        """Prose, drafted by the model alone, so many tokens in every block, whether that pays or not."""
        length = self._options.length
        forced = {"max_model_tokens": length, "max_block": length}
        sure = {**forced, "draft_temperature": _MAIN * _CONFIDENT}
        with ExitStack() as stack:
            off = stack.enter_context(self._chat(model, draft, "off"))
            on = stack.enter_context(self._chat(model, draft, "memory"))
            series = self._timed(
                "mechanism",
                {
                    "plain": _Config(off, ()),
                    "humble": _Config(off, ("model",), forced),
                    "confident": _Config(off, ("model",), sure),
                    "calibrated": _Config(on, ("model",), sure),
                },
                spread(self._workload.prose, _TIMED_TURNS),
            )
        plain = series.pop("plain")
        found = {name: Measured(one.tokens_per_pass, one.ratio_to(plain)) for name, one in series.items()}
        return found, _price(plain, series["humble"], length)

    def useless(self, small: str) -> float:
        """What calibration takes where a draft is right: a share of the decode speed; below 0 for a gain."""
        with ExitStack() as stack:
            off = stack.enter_context(self._chat(small, small, "off"))
            on = stack.enter_context(self._chat(small, small, "memory"))
            sources = ("grammar", "model")
            series = self._timed(
                "useless",
                {"off": _Config(off, sources), "on": _Config(on, sources)},
                self._mixed(_USELESS_TURNS),
            )
        return 1.0 - series["on"].ratio_to(series["off"])

    def _mixed(self, size: int) -> list[Turn]:
        prose = spread(self._workload.prose, max(1, size // 3))
        calls = spread(self._workload.calls, size - len(prose))
        turns = list(calls)
        for number, turn in enumerate(prose):
            turns.insert(3 * number + number % 3, turn)  # both kinds among every third, which is held out
        return turns

    @contextmanager
    def _chat(self, model: str, draft: str, calibration: str) -> Iterator[ChatAgentSpec]:
        spec = RuntimeSpec(
            model=model,
            draft=draft,
            n_parallel=1,
            target=self._runtime,
            draft_runtime=self._runtime,
            calibration=calibration,
            history="off",
            snapshots="off",
            ignore_costs=True,
        )
        with closing(open_runtime(spec)) as runtime:
            yield ChatAgentSpec.from_runtime(runtime)

    def _timed(self, part: str, configs: Mapping[str, _Config], turns: Sequence[Turn]) -> dict[str, Series]:
        rounds = range(self._options.rounds)
        due = len(turns) * len(configs) * (len(rounds) + 1)
        replies: dict[str, list[list[Reply]]] = {name: [[] for _ in rounds] for name in configs}
        for index, turn in enumerate(turns):
            for config in configs.values():  # reads the prompt
                self._answer(config, turn, 0, 1)
                self._report(part, due)
            for number in rounds:
                seed = self._options.seed + number * len(turns) + index
                for name, config in configs.items():
                    reply = self._answer(config, turn, seed, self._options.max_tokens)
                    replies[name][number].append(reply)
                    self._report(part, due)
        return {name: Series(made) for name, made in replies.items()}

    def _answer(self, config: _Config, turn: Turn, seed: int, max_tokens: int) -> Reply:
        tools = [OpenAITool(tool) for tool in turn.tools]
        chat = config.chat.bind_tools(tools, tool_choice="any") if tools else config.chat
        started = time.perf_counter()
        settings: dict[str, object] = {
            "draft_sources": config.sources,
            "temperature": _MAIN,
            "verifier": "seed_invariant" if len(config.sources) > 1 else "token_wise",
            "seed": seed,
            "max_tokens": max_tokens,
            **config.settings,
        }
        reply = chat.bind(**settings).invoke([dict(message) for message in turn.messages])
        wall = time.perf_counter() - started
        return Reply.of(reply.text, reply.response_metadata["agentspec"], wall)


def _price(plain: Series, forced: Series, length: int) -> Price:
    """What a drafted token and a checked one took, in plain passes."""
    one = _llama(plain) / plain.target_passes
    proposed = sum(count for reply in forced.counted for count, _ in reply.sources.values())
    drafts = sum(reply.draft_seconds for reply in forced.counted)
    checked = (_llama(forced) - drafts) / forced.target_passes
    return Price(drafts / proposed / one, max(0.0, checked / one - 1.0) / length)


def _llama(series: Series) -> float:
    return sum(reply.llama_seconds or reply.decode_seconds for reply in series.counted)
