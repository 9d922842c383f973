"""`agentspec bench drafts`: its workload, the order of its replies, its figures, and what it prints.

No model: a fake answers, whose replies take the time and the passes that a test gives it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import jsonschema
import pytest
from rich.console import Console

from agentspec.bench.chat import answer_with
from agentspec.bench.drafts import Answer, Ask, Findings, bench_drafts
from agentspec.bench.figures import Reply, Series
from agentspec.bench.options import BenchOptions
from agentspec.bench.replay import Outcome
from agentspec.bench.stages import CONFIGS, ConfidentWrong, Setup, plan
from agentspec.bench.workload import Turn, load_workload, spread
from agentspec.chat.validate import validate_call
from agentspec.cli import main as cli
from agentspec.cli.bench import lines, table
from agentspec.drafts.base import DraftRequest
from agentspec.errors import EngineError
from agentspec.testing import TrieMatcher
from agentspec.types import Json, ValidCall
from tests.langchain_fakes import Reply as Written
from tests.langchain_fakes import call_text, fake_model, runtime_of

WORKLOAD = load_workload()
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "schemas" / "bench.v1.schema.json").read_text(encoding="utf-8")
)
Run = Callable[..., int]


def silent(stage: str, done: int, due: int) -> None: ...


# -------------------------------------------------------------------------------------- the workload


def test_the_workload_is_large_enough() -> None:
    called = {turn.call[0] for turn in WORKLOAD.calls if turn.call}
    assert len(WORKLOAD.calls) >= 40
    assert len(called) >= 12
    assert len(WORKLOAD.prose) == 6
    assert all(4 <= len(turn.tools) <= 14 for turn in WORKLOAD.calls)
    assert max(int(turn.name.rpartition("/")[2]) for turn in WORKLOAD.calls) >= 5  # loops of many calls


def test_names_are_unique() -> None:
    turns = [*WORKLOAD.calls, *WORKLOAD.prose]
    assert len({turn.name for turn in turns}) == len(turns)
    for turn in WORKLOAD.calls:
        names = [tool.name for tool in turn.tools]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("turn", WORKLOAD.calls, ids=lambda turn: turn.name)
def test_recorded_calls_are_valid(turn: Turn) -> None:
    assert turn.call is not None
    name, arguments = turn.call
    tools = {tool.name: tool for tool in turn.tools}
    assert validate_call(tools, name, json.dumps(arguments)) == ValidCall(name, arguments)
    properties = tools[name].parameters["properties"]
    assert isinstance(properties, Mapping)
    assert list(arguments) == [key for key in properties if key in arguments]  # the order a grammar has


@pytest.mark.parametrize("turn", WORKLOAD.calls, ids=lambda turn: turn.name)
def test_conversations_are_well_formed(turn: Turn) -> None:
    roles = [message["role"] for message in turn.messages]
    assert roles[:2] == ["system", "user"]
    assert roles[-1] in ("user", "tool")
    for before, message in zip(turn.messages, turn.messages[1:], strict=False):
        if message["role"] == "tool":
            calls = before["tool_calls"]
            assert isinstance(calls, Sequence)
            (call,) = calls
            assert isinstance(call, Mapping)
            assert call["id"] == message["tool_call_id"]
        assert (before["role"], message["role"]) != ("user", "user")


def test_a_later_turn_goes_on_from_an_earlier_ones_call() -> None:
    first, second = WORKLOAD.calls[:2]
    assert second.messages[: len(first.messages)] == first.messages
    assert first.call is not None
    assert json.dumps(second.messages).count(first.call[0]) == 2  # the call and its result


def test_agents_make_calls_of_one_kind_with_other_values() -> None:
    """Else there is nothing for a history to learn."""
    seen: dict[tuple[str, str], set[str]] = {}
    for turn in WORKLOAD.calls:
        assert turn.call is not None
        agent = turn.name.partition("/")[0]
        seen.setdefault((agent, turn.call[0]), set()).add(json.dumps(turn.call[1]))
    assert sum(len(values) > 1 for values in seen.values()) >= 8


def test_a_subset_is_spread_over_the_workload() -> None:
    assert spread(WORKLOAD.calls, 10**6) == WORKLOAD.calls
    few = WORKLOAD.subset(5)
    assert (len(few.calls), len(few.prose)) == (5, 5)
    assert few.calls[0] is WORKLOAD.calls[0]
    assert {turn.name.partition("/")[0] for turn in few.calls} >= {"travel", "shop", "office"}
    assert list(few.calls) == sorted(few.calls, key=WORKLOAD.calls.index)


# --------------------------------------------------------------------------------------- the figures


def reply(
    passes: int = 4,
    seconds: float = 1.0,
    *,
    tokens: int = 10,
    text: str = "x",
    sources: Mapping[str, tuple[int, int]] | None = None,
    draft: float = 0.0,
    llama: float | None = None,
) -> Reply:
    return Reply(text, tokens, passes, sources or {}, seconds, draft, llama)


def test_counts_are_those_of_the_median_round() -> None:
    rounds = [
        [reply(9, tokens=20, sources={"model": (4, 4)}), reply(1)],
        [
            reply(3, tokens=10, sources={"model": (4, 1), "lookup": (2, 2)}),
            reply(2, sources={"model": (1, 0)}),
        ],
        [reply(2), reply(2)],
    ]
    series = Series(rounds)
    assert (series.target_passes, series.tokens, series.tokens_per_pass) == (5, 20, 4.0)
    assert series.acceptance == {"lookup": 1.0, "model": 0.2}
    assert Series(rounds[:2]).target_passes == 5  # of two, the lower


def test_seconds_are_the_sum_of_each_turns_median() -> None:
    """One stall in each round must not show."""
    rounds = [
        [reply(seconds=1.0, draft=0.1), reply(seconds=99.0, draft=9.0)],
        [reply(seconds=50.0, draft=8.0), reply(seconds=2.0, draft=0.3)],
        [reply(seconds=1.2, draft=0.2), reply(seconds=2.2, draft=0.4)],
    ]
    series = Series(rounds)
    assert series.decode_seconds == pytest.approx(1.2 + 2.2)
    assert series.draft_seconds == pytest.approx(0.2 + 0.4)
    assert series.decode_tps == pytest.approx(20 / 3.4)


def test_replies_of_several_lengths_are_compared_per_token() -> None:
    rounds = [[reply(2, 1.0, tokens=10)], [reply(4, 4.0, tokens=40)], [reply(9, 9.0, tokens=30)]]
    assert Series(rounds).tokens == 40
    assert Series(rounds).decode_seconds == pytest.approx(4.0)  # 0.1 a token, the median of 0.1, 0.1, 0.3


def test_the_overhead_is_what_llama_cpp_did_not_take() -> None:
    rounds = [[reply(llama=0.9), reply(llama=0.7)], [reply(llama=0.5), reply(llama=0.5)]]
    assert Series(rounds).overhead_share == pytest.approx((0.2 + 0.5) / 2)
    assert Series([[reply(llama=0.9), reply()]]).overhead_share is None


def test_speeds_and_texts_are_compared_with_plain_decoding() -> None:
    none, fast = Series([[reply(10, 2.0), reply(10, 2.0, text="y")]]), Series([[reply(), reply()]])
    assert fast.ratio_to(none) == pytest.approx(2.0)
    assert (fast.differing(none), none.differing(none)) == (1, 0)
    assert fast.as_json(none) == {
        "target_passes": 8,
        "tokens": 20,
        "tokens_per_pass": 2.5,
        "acceptance": {},
        "draft_seconds": 0.0,
        "decode_seconds": 2.0,
        "decode_tps": 10.0,
        "ratio_to_none": 2.0,
    }


STATS: dict[str, Json] = {
    "tokens": 12,
    "target_passes": 5,
    "sources": {"grammar": {"proposed": 6, "accepted": 5}},
    "draft_failures": {},
    "seconds": {
        "queue": 0.25,
        "prefill": 0.5,
        "prefill_decode": 0.5,
        "draft": 0.125,
        "draft_decode": 0.0625,
        "target": 1.0,
        "target_decode": 0.75,
    },
}


def test_waiting_and_prefill_are_no_decoding() -> None:
    made = Reply.of("text", STATS, 3.0)
    assert made == Reply("text", 12, 5, {"grammar": (6, 5)}, 2.25, 0.125, 0.8125)


def test_the_engines_own_wall_time_is_taken_where_there_is_one() -> None:
    seconds = cast("dict[str, Json]", STATS["seconds"])
    made = Reply.of("text", {**STATS, "seconds": {**seconds, "wall": 2.0}}, 3.0)
    assert made.decode_seconds == pytest.approx(1.25)
    assert Reply.of("text", {**STATS, "seconds": {}}, 3.0).llama_seconds is None


def test_a_draft_that_failed_is_an_error() -> None:
    """Its figures would be those of the other sources."""
    with pytest.raises(EngineError, match="lookup"):
        Reply.of("text", {**STATS, "draft_failures": {"lookup": 1}}, 1.0)


# ----------------------------------------------------------------------------------- what is measured


class FakeModels:
    """Opens models that make 10 tokens in `passes(ask)` target passes, and notes what they are asked."""

    def __init__(self, passes: Callable[[Ask], int] | None = None) -> None:
        self._passes = passes or (lambda ask: 10 if not ask.sources else 10 - 2 * len(ask.sources))
        self.setups: list[Setup] = []
        self.asked: list[Ask] = []
        self.settings: Mapping[str, object] = {}
        self.open = 0

    @contextmanager
    def __call__(self, setup: Setup, **settings: object) -> Iterator[Answer]:
        self.setups.append(setup)
        self.settings = settings
        self.open += 1
        assert self.open == 1  # two pairs of models might not fit into memory
        yield self._answer
        self.open -= 1

    def _answer(self, ask: Ask) -> Outcome:
        self.asked.append(ask)
        passes = self._passes(ask)
        sources: Json = {name: {"proposed": 4, "accepted": 3} for name in ask.sources}
        wall, draft = 0.1 * passes, 0.01 * len(ask.sources)
        stats: dict[str, Json] = {
            "tokens": 10,
            "target_passes": passes,
            "sources": sources,
            "draft_failures": {},
            "seconds": {"wall": wall, "draft": draft, "target_decode": 0.8 * wall},
        }
        return Outcome("text", stats)


def options(**values: object) -> BenchOptions:
    return BenchOptions.parse({"rounds": 3, "subset": 2, **values})


def measured(models: FakeModels, chosen: BenchOptions, draft: str | None = "draft.gguf") -> Findings:
    planned = plan(WORKLOAD, chosen, draft=draft, random_draft="random.gguf")
    return bench_drafts(planned, models, chosen, report=silent)


def test_configurations_take_turns_after_one_reply_that_computes_the_prompt() -> None:
    models = FakeModels()
    measured(models, options(only="greedy"))
    first, again = models.asked[: -2 - 22], models.asked[-2:]
    assert [ask.turn.name for ask in first] == [WORKLOAD.subset(2).calls[0].name] * 22
    warm_up, *rest = first
    assert (warm_up.max_tokens, warm_up.sources) == (1, CONFIGS["all"])
    assert [ask.sources for ask in rest] == list(CONFIGS.values()) * 3
    assert {ask.max_tokens for ask in rest} == {256}
    assert [ask.sources for ask in again] == [CONFIGS["history"]] * 2


def test_every_round_of_a_configuration_is_an_agent_of_its_own() -> None:
    """Else its history would hold the very reply that is being drafted."""
    models = FakeModels()
    measured(models, options())
    seen: dict[tuple[str, str], int] = {}
    for ask in models.asked:
        seen[ask.agent, ask.turn.name] = seen.get((ask.agent, ask.turn.name), 0) + 1
    twice = {agent for (agent, _), times in seen.items() if times > 1}
    assert len(twice) == 1  # the one that does its work again
    assert {times for (agent, _), times in seen.items() if agent in twice} == {2}
    assert {ask.sources for ask in models.asked if ask.agent in twice} == {CONFIGS["history"]}
    assert "warm-up" not in {ask.agent.split("/")[1] for ask in models.asked if ask.max_tokens > 1}


def test_an_agent_of_one_run_is_unknown_to_the_next() -> None:
    first, second = FakeModels(), FakeModels()
    measured(first, options(only="greedy"))
    measured(second, options(only="greedy"))
    assert not {ask.agent for ask in first.asked} & {ask.agent for ask in second.asked}


def test_configurations_share_their_seeds_and_rounds_do_not() -> None:
    models = FakeModels()
    measured(models, options(only="sampled", seed=7))
    replies = [ask for ask in models.asked if ask.max_tokens > 1]
    assert {ask.temperature for ask in replies} == {0.7}
    by_config: dict[tuple[str, ...], list[int]] = {}
    for ask in replies:
        by_config.setdefault(ask.sources, []).append(ask.seed)
    (seeds,) = {tuple(seeds) for seeds in by_config.values()}
    assert sorted(seeds) == [7, 8, 9, 10, 11, 12]


def test_the_second_time_is_compared_with_the_first() -> None:
    seen: set[tuple[str, str]] = set()

    def passes(ask: Ask) -> int:
        known = (ask.agent, ask.turn.name) in seen
        seen.add((ask.agent, ask.turn.name))
        return 2 if known else 8

    findings = measured(FakeModels(passes), options(only="greedy"))
    assert findings.second_pass == pytest.approx(0.25)


def test_what_never_may_be_slower() -> None:
    models = FakeModels(lambda ask: 8 if ask.sources == ("confident_wrong",) else 10)
    findings = measured(models, options(only="never-slower", subset=3))
    assert findings.never_slower == pytest.approx(
        {"free_text": 1.0, "hot": 1.0, "confident_wrong": 1.25, "random_draft": 1.0}
    )
    assert [setup.draft for setup in models.setups] == ["draft.gguf", None, "random.gguf"]
    assert [name for name, _ in models.setups[1].plugins] == ["confident_wrong"]
    prose = [ask for ask in models.asked if not ask.turn.tools]
    assert {ask.sources for ask in prose} == {(), CONFIGS["all"]}
    assert {ask.temperature for ask in models.asked if ask.turn.tools} == {0.0, 1.5}
    calls = [ask for ask in models.asked if ask.turn.tools and ask.max_tokens > 1]
    assert {ask.sources for ask in calls} == {(), CONFIGS["all"], ("confident_wrong",), ("model",)}


def test_without_a_draft_model_its_configurations_are_left_out() -> None:
    models = FakeModels()
    planned = plan(WORKLOAD, options(), draft=None, random_draft=None)
    findings = bench_drafts(planned, models, options(), report=silent)
    assert all("model" not in ask.sources for ask in models.asked)
    found = findings.as_json()
    configs = cast("dict[str, Json]", found["configs"])
    assert list(configs) == list(CONFIGS)
    assert (configs["model"], configs["all"]) == (None, None)
    assert found["never_slower"] == {
        "free_text": pytest.approx(2.5),
        "confident_wrong": pytest.approx(1.25),
        "random_draft": None,
        "hot": pytest.approx(2.5),
    }


def test_every_reply_is_reported() -> None:
    chosen = options(only="greedy")
    planned = plan(WORKLOAD, chosen, draft=None, random_draft=None)
    ((_, (stage,)),) = planned
    seen: list[tuple[str, int, int]] = []
    bench_drafts(planned, FakeModels(), chosen, report=lambda *now: seen.append(now))
    due = stage.replies(3)
    assert due == 2 * (1 + 3 * 5 + 1)
    assert seen == [("greedy", done + 1, due) for done in range(due)]


def test_replies_that_differ_from_plain_decoding_are_counted() -> None:
    class Other(FakeModels):
        def _answer(self, ask: Ask) -> Outcome:
            made = super()._answer(ask)
            return Outcome("other", made.stats) if "lookup" in ask.sources else made

    found = measured(Other(), options(only="greedy"))
    assert found.differing == 3 * 2  # lookup, all_without_model and all, of two turns


# -------------------------------------------------------------------------------- the source that is wrong


def request(**values: object) -> DraftRequest:
    return cast(DraftRequest, SimpleNamespace(**values))


def test_the_wrong_source_is_legal_sure_and_silent_where_it_could_only_be_right() -> None:
    free = TrieMatcher([(0,), (3,), (7,)])
    only = TrieMatcher([(4, 1), (4, 2)])
    offers = ConfidentWrong().offer(
        [
            request(matcher=free, prefix=[1]),
            request(matcher=only, prefix=[1]),
            request(matcher=None, prefix=[1, 5]),
        ]
    )
    assert offers[0] is not None
    assert offers[0].tokens == (3,) * 8
    assert offers[0].confidence == (1.0,) * 8
    assert offers[1] is None
    assert offers[2] is not None
    assert offers[2].tokens == (5,) * 8


# ---------------------------------------------------------------------------------------- the chat model


def test_a_turn_with_tools_is_answered_by_a_call() -> None:
    turn = WORKLOAD.calls[1]
    assert turn.call is not None
    model = fake_model(call_text(turn.call[0], json.dumps(turn.call[1])))
    answer = answer_with(model)
    outcome = answer(Ask(turn, ("grammar", "lookup"), "a/b/0", 0.5, 3, 99))
    assert json.loads(outcome.text) == ["", [[turn.call[0], turn.call[1]]], []]
    assert outcome.stats["target_passes"] == 2
    runtime = runtime_of(model)
    (sent,) = runtime.engine.requests
    assert (sent.draft.sources, sent.draft.agent) == (("grammar", "lookup"), "a/b/0")
    assert (sent.sampling.temperature, sent.generation.seed, sent.generation.max_tokens) == (0.5, 3, 99)
    names, choice, parallel = runtime.asked[0]
    assert (names, choice, parallel) == (tuple(tool.name for tool in turn.tools), "required", False)
    for message in turn.messages:
        for part in str(message["content"]).splitlines():
            assert part in runtime.prompt


def test_prose_is_answered_without_tools() -> None:
    model = fake_model(Written("Because it scatters."))
    outcome = answer_with(model)(Ask(WORKLOAD.prose[0], (), "", 0.0, 0, 50))
    assert json.loads(outcome.text) == ["Because it scatters.", [], []]
    assert runtime_of(model).asked == []


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> FakeModels:
    opened = FakeModels()
    monkeypatch.setattr("agentspec.bench.chat.open_chat", opened)
    return opened


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `agentspec bench drafts`; returns its exit code."""

    def command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["agentspec", "bench", "drafts", *arguments])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        assert isinstance(exited.value.code, int)
        return exited.value.code

    return command


def test_the_json_is_as_its_schema_says(
    run: Run, models: FakeModels, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    assert run("--subset", "2", "--random-draft", "random.gguf", "--json", str(path)) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(found, SCHEMA)
    assert set(found["configs"]) >= {"none", "grammar", "lookup", "history", "model", "all"}
    wanted = {
        "target_passes",
        "tokens_per_pass",
        "acceptance",
        "draft_seconds",
        "decode_tps",
        "ratio_to_none",
    }
    assert all(wanted <= set(figures) for figures in found["configs"].values())
    assert found["configs"]["none"]["tokens_per_pass"] == 1.0
    assert found["configs"]["all"]["ratio_to_none"] == 5.0
    assert found["configs"]["all"]["acceptance"] == dict.fromkeys(CONFIGS["all"], 0.75)
    assert found["history_second_pass_ratio"] == 1.0
    assert found["overhead_share"] == pytest.approx(0.2)
    assert set(found["never_slower"]) == {"free_text", "confident_wrong", "random_draft", "hot"}
    assert (found["rounds"], found["differing_replies"]) == (3, 0)
    printed = capsys.readouterr().out
    assert re.search(r"2 tool calls, greedy, medians of 3", printed)
    assert re.search(r"all +4 +5\.00 +50\.0 +5\.00×", printed)
    assert re.search(r"never slower +5\.00× with drafts: prose, no tools\n", printed)
    assert models.setups[0].draft == "qwen2.5-coder-0.5b-instruct"
    assert models.settings["ignore_costs"] is found["ignore_costs"] is False
    assert models.settings["n_parallel"] == found["n_parallel"] == 1


def test_where_costs_are_ignored_only_passes_count(
    run: Run, models: FakeModels, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    size = ("--subset", "2", "--rounds", "1", "--random-draft", "random.gguf")
    assert run(*size, "--ignore-costs", "--json", str(path)) == 0
    found = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(found, SCHEMA)
    assert models.settings["ignore_costs"] is found["ignore_costs"] is True
    assert set(found["never_slower"].values()) == {None}
    printed = capsys.readouterr().out
    assert "2 tool calls, greedy, costs ignored, medians of 1" in printed
    assert "never slower" not in printed
    assert run("--ignore-costs", "--only", "never-slower") == 1
    assert "ignore_costs leaves out what never-slower measures" in capsys.readouterr().err


def test_json_to_stdout_is_all_there_is_on_it(
    run: Run, models: FakeModels, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--subset", "2", "--rounds", "1", "--only", "sampled", "--temperature", "0.3")
    assert run(*size, "--draft", "none", "--json", "-") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    jsonschema.validate(found, SCHEMA)
    assert (found["configs"], found["temperature"], found["draft"]) == (None, 0.3, None)
    assert found["sampled_configs"]["none"]["target_passes"] == 20
    assert "sampled: 8 replies" in captured.err
    assert {ask.temperature for ask in models.asked} == {0.3}


def test_a_bad_option_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--rounds", "0") == 1
    assert "option 'rounds'" in capsys.readouterr().err


def test_a_result_that_could_not_be_written_is_an_error_at_once(
    run: Run, models: FakeModels, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("--json", str(tmp_path / "nowhere" / "bench.json")) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert not models.setups


@pytest.mark.parametrize("command", [("bench",), ("bench", "drafts")])
def test_the_commands_have_help(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agentspec", *command, "--help"])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 0
    assert "drafts" in capsys.readouterr().out


def test_the_table_fits_into_a_terminal() -> None:
    findings = measured(FakeModels(lambda ask: 4321 if not ask.sources else 1234), options())
    assert findings.greedy is not None
    console = Console(width=200, record=True)
    console.print(table("greedy", findings.greedy))
    for label, text in lines(findings):
        console.print(f"{label:<15}{text}")
    printed = console.export_text()
    assert all(text in printed for text in ("8,642", "3.50×", "+ both", "speed", "draft s", "75%"))
    assert max(len(line.strip()) for line in printed.splitlines()) <= 80
