"""Replies in channels: OpenAI's Harmony, as its documentation and gpt-oss' template write it."""

from __future__ import annotations

import functools

import pytest

from agentspec.chat.channels import ChannelParser, parser_of
from agentspec.chat.formats import HARMONY, HERMES
from agentspec.chat.parser import CallEvent, ReasoningDelta, ReplyEvent, ReplyParser, TextDelta
from agentspec.grammar.reply import compile_json, compile_reply, follow_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.testing import TableVocab
from agentspec.types import FinishReason, InvalidCall, Json, Matcher, ToolChoice, ValidCall
from tests.unit.grammars import MERGES, TIME, WEATHER, fits

MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"]
PIECES: list[bytes | str] = [
    *(bytes([byte]) for byte in range(256)),
    *MERGES,
    "functions",
    *MARKS,
    "<|call|>",
]
CALL_END = len(PIECES) - 1
OSLO: dict[str, Json] = {"city": "Oslo"}

THOUGHT = "<|channel|>analysis<|message|>The user asks for <the> weather.<|end|><|start|>assistant"
DOCUMENTED = (
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + '{"city": "Oslo"}'
)
TEMPLATE = " to=functions.get_weather<|channel|>commentary json<|message|>" + '{"city": "Oslo"}'
FINAL = "<|channel|>final<|message|>It rains."


@functools.cache
def words() -> GrammarTokenizer:
    n = len(PIECES)
    return GrammarTokenizer(
        TableVocab(PIECES, end_ids=[CALL_END], special_ids=range(n - 1 - len(MARKS), n - 1))
    )


def read(
    text: str,
    choice: ToolChoice = "auto",
    *,
    step: int = 1000,
    reason: FinishReason = "stop",
    complete: bool = True,
    parallel: bool = False,
) -> tuple[str, str, list[ValidCall | InvalidCall]]:
    """Reasoning, text and calls."""
    parser = parser_of(HARMONY, [WEATHER, TIME], choice, parallel=parallel)
    assert isinstance(parser, ChannelParser)
    data = text.encode()
    events: list[ReplyEvent] = []
    for start in range(0, len(data), step):
        events += parser.feed(data[start : start + step])
    events += parser.finish(reason, complete)
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    return thought, said, [event.call for event in events if isinstance(event, CallEvent)]


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("call", [DOCUMENTED, TEMPLATE])
def test_thoughts_a_preamble_and_a_call(call: str, step: int) -> None:
    preamble = "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant"
    thought, said, calls = read(THOUGHT + preamble + call, step=step)
    assert thought == "The user asks for <the> weather."
    assert said == "I look it up."
    assert calls == [ValidCall("get_weather", OSLO)]


@pytest.mark.parametrize("step", [1, 1000])
def test_an_answer_is_text(step: int) -> None:
    assert read(THOUGHT + FINAL, step=step) == ("The user asks for <the> weather.", "It rains.", [])
    again = THOUGHT + THOUGHT + "<|channel|>commentary<|message|>So.<|end|><|start|>assistant" + FINAL
    thought, said, _ = read(again, step=step)
    assert thought.count("weather.\n\nThe") == 1
    assert said == "So.\n\nIt rains."


@pytest.mark.parametrize("step", [1, 1000])
def test_text_without_a_header_is_not_lost(step: int) -> None:
    assert read("It rains.", step=step) == ("", "It rains.", [])
    assert read("Hello <|message|>x", step=step)[1] == "Hello <|message|>x"
    between = "<|channel|>commentary<|message|>a<|end|>Hi there<|start|>assistant" + FINAL
    assert read(between, step=step)[1] == "a\n\nHi there\n\nIt rains."
    empty = "<|channel|>analysis<|end|><|start|>assistant" + FINAL
    assert read(empty, step=step) == ("", "It rains.", [])
    assert read("to be, or <|channel|>") == ("", "to be, or <|channel|>", [])


def test_a_call_that_is_thought_of_is_none() -> None:
    _, _, calls = read(THOUGHT.replace("<the>", "to=functions.get_time {}") + FINAL)
    assert calls == []
    assert read("<|channel|>final<|message|>to=functions.get_time {}")[2] == []


def test_without_tools_a_call_is_text() -> None:
    assert read(DOCUMENTED, "none") == ("", '{"city": "Oslo"}', [])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (DOCUMENTED.replace('"city"', '"town"'), "city"),
        (DOCUMENTED.replace("get_weather", "get_rain"), "get_rain"),
        (DOCUMENTED.replace("functions.get_weather", "python"), "python"),
        (DOCUMENTED.replace('{"city": "Oslo"}', "[1]"), "expected an object"),
        (DOCUMENTED.replace('{"city": "Oslo"}', ""), "expected an object"),
        (DOCUMENTED + ", or so", "arguments"),
    ],
)
def test_what_does_not_fit_is_invalid(text: str, fault: str) -> None:
    (call,) = read(text)[2]
    assert isinstance(call, InvalidCall)
    assert fault in call.error


ENDS: tuple[tuple[FinishReason, bool], ...] = (("length", True), ("cancelled", True), ("stop", False))


@pytest.mark.parametrize("call", [DOCUMENTED, TEMPLATE])
def test_nothing_that_is_cut_is_a_call(call: str) -> None:
    for cut in range(len(call) + 1):
        for reason, complete in ENDS:
            calls = read(call[:cut], reason=reason, complete=complete)[2]
            assert not any(isinstance(one, ValidCall) for one in calls)
            assert bool(calls) == ("to=f" in call[:cut])
            assert all(one.raw in call for one in calls if isinstance(one, InvalidCall))


def test_a_further_call_is_invalid_where_one_is_allowed() -> None:
    two = f"{DOCUMENTED}<|end|><|start|>assistant{DOCUMENTED.replace('Oslo', 'Rome')}"
    assert [type(call) for call in read(two)[2]] == [ValidCall, InvalidCall]
    assert [type(call) for call in read(two, parallel=True)[2]] == [ValidCall, ValidCall]


# ---------------------------------------------------------------------------------------------- grammar


def state(choice: ToolChoice) -> Matcher:
    grammar = compile_reply(words(), HARMONY, [WEATHER, TIME], choice, parallel=False)
    assert grammar is not None
    return grammar.start()


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize("call", [DOCUMENTED, TEMPLATE, DOCUMENTED.replace(" <|constrain|>json", "")])
@pytest.mark.parametrize("thoughts", ["", THOUGHT, THOUGHT + THOUGHT])
def test_the_grammar_takes_a_call_as_it_is_documented(choice: ToolChoice, call: str, thoughts: str) -> None:
    matcher = state(choice)
    assert fits(words(), matcher, thoughts + call)
    assert matcher.accepting()
    legal = matcher.legal()
    assert legal is not None
    assert legal.tolist() == [CALL_END]


@pytest.mark.parametrize("choice", ["required", "auto"])
@pytest.mark.parametrize(
    "wrong",
    [
        DOCUMENTED.replace("get_weather", "get_rain"),
        DOCUMENTED.replace("city", "town"),
        DOCUMENTED.replace("json<", "yaml<"),
        DOCUMENTED.replace('Oslo"', 'Oslo", "x": 1'),
    ],
)
def test_near_misses_are_refused(choice: ToolChoice, wrong: str) -> None:
    assert not fits(words(), state(choice), THOUGHT + wrong)


def test_a_required_call_cannot_be_left_out() -> None:
    assert not fits(words(), state("required"), FINAL)
    assert not fits(words(), state("required"), "It rains.")
    assert fits(words(), state("auto"), THOUGHT + FINAL)


def test_a_recipient_within_a_message_is_text() -> None:
    matcher = state("auto")
    assert fits(words(), matcher, THOUGHT.replace("<the>", "to=functions.no such tool"))
    assert fits(words(), matcher, "<|channel|>final<|message|>to=functions.no such tool")
    assert matcher.legal() is None


def test_a_document_is_the_answer() -> None:
    schema: dict[str, Json] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    matcher = compile_json(words(), schema, channels=HARMONY.channels).start()
    assert fits(words(), matcher, THOUGHT + '<|channel|>final<|message|>{"n": 1}')
    assert matcher.accepting()


def test_what_only_proposes_follows_a_call() -> None:
    followed = follow_reply(words(), HARMONY, [WEATHER, TIME], "auto", end=None)
    assert followed is not None
    matcher = followed.start()
    for token in words().vocab.tokenize(
        (THOUGHT + DOCUMENTED[: DOCUMENTED.index("get_w")]).encode(), special=True
    ):
        assert not matcher.following
        matcher.advance(token)
    assert matcher.following


def test_other_formats_have_the_other_parser() -> None:
    assert isinstance(parser_of(HERMES, []), ReplyParser)
