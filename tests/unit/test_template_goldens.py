"""What each family writes, as its own documentation shows it, and what it would not call a call.

The texts in `tests/golden/families` follow the documents that each file names, not what this project writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from agentspec.chat.channels import parser_of
from agentspec.chat.formats import FORMATS
from agentspec.chat.parser import CallEvent, TextDelta
from agentspec.grammar.matcher import Grammar
from agentspec.grammar.reply import compile_reply
from agentspec.types import FinishReason, ToolChoice, ValidCall
from tests.golden.families import FAMILIES, Call, Example, Family
from tests.unit.grammars import fits, small_tokenizer

CHOICES: Sequence[ToolChoice] = ("auto", "required")

Cases = Sequence[tuple[Family, Example]]

REPLIES: Cases = [(family, one) for family in FAMILIES for one in family.replies]
TOLERATED: Cases = [(family, one) for family in FAMILIES for one in family.tolerated]
NEAR_MISSES: Cases = [(family, one) for family in FAMILIES for one in family.near_misses]


def each(cases: Cases) -> pytest.MarkDecorator:
    found = [pytest.param(family, one, id=f"{family.name}: {one.what}") for family, one in cases]
    return pytest.mark.parametrize(("family", "example"), found)


def read(
    family: Family, text: str, choice: ToolChoice, reason: FinishReason = "stop"
) -> tuple[str, list[Call]]:
    """The text and the valid calls of a reply."""
    parser = parser_of(FORMATS[family.name], family.tools, choice)
    said: list[str] = []
    calls: list[Call] = []
    for event in [*parser.feed(text.encode()), *parser.finish(reason)]:
        match event:
            case TextDelta(text=more):
                said.append(more)
            case CallEvent(call=ValidCall(name, arguments)):
                calls.append((name, dict(arguments)))
    return "".join(said).strip(), calls


@cache
def compiled(name: str, choice: ToolChoice) -> Grammar:
    (tools,) = (family.tools for family in FAMILIES if family.name == name)
    grammar = compile_reply(small_tokenizer(), FORMATS[name], tools, choice, parallel=True)
    assert grammar is not None
    return grammar


def accepts(family: Family, text: str, choice: ToolChoice = "required") -> bool:
    """Whether the grammar lets a reply be written, and end there."""
    state = compiled(family.name, choice).start()
    return fits(small_tokenizer(), state, text) and state.accepting()


def test_every_format_has_its_documents() -> None:
    assert {family.name for family in FAMILIES} == FORMATS.keys()
    assert all(source.startswith("https://") for family in FAMILIES for source in family.sources)
    assert all(len(family.near_misses) >= 2 for family in FAMILIES)


@each(REPLIES)
def test_a_documented_reply_is_read(family: Family, example: Example) -> None:
    choices: Sequence[ToolChoice] = CHOICES if example.auto else ("required",)
    for choice in choices if not example.said else ("auto",):
        assert read(family, example.text, choice) == (example.said, example.calls)


@each(REPLIES)
def test_the_grammar_takes_a_documented_reply(family: Family, example: Example) -> None:
    assert accepts(family, example.text, "auto" if example.said else "required")
    if example.said:  # the text is free, the calls behind it are not
        wrong = example.text.replace(example.calls[0][0], "no_such_tool")
        assert not accepts(family, wrong, "auto")


@each(REPLIES)
def test_a_documented_reply_that_is_cut_has_fewer_calls(family: Family, example: Example) -> None:
    choice: ToolChoice = "auto" if example.said else "required"
    for cut in range(len(example.text)):
        _, calls = read(family, example.text[:cut], choice, "length")
        assert len(calls) < len(example.calls)
        assert calls == example.calls[: len(calls)]


@each(REPLIES)
def test_a_tool_that_is_not_bound_is_not_called(family: Family, example: Example) -> None:
    text = example.text
    for tool in family.tools:
        text = text.replace(tool.name, "no_such_tool")
    for choice in CHOICES:
        assert read(family, text, choice)[1] == []
    assert not accepts(family, text)


@each(TOLERATED)
def test_what_is_tolerated_is_read_and_not_written(family: Family, example: Example) -> None:
    assert read(family, example.text, "required") == (example.said, example.calls)
    assert not accepts(family, example.text)


@each(NEAR_MISSES)
def test_a_near_miss_is_no_call(family: Family, example: Example) -> None:
    for choice in CHOICES:
        assert read(family, example.text, choice, example.reason)[1] == []
    assert not accepts(family, example.text)
