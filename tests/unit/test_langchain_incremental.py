"""Arguments that go out while they are written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from pydantic import BaseModel, field_validator

from agentspec.chat.channels import parser_of
from agentspec.chat.formats import HARMONY, HERMES, WireFormat
from agentspec.chat.formats.render import render_calls
from agentspec.chat.parser import CallDelta, CallEvent
from agentspec.engine.request import Step
from agentspec.langchain.opened import OpenedCall
from agentspec.types import NamedTool, ToolChoice, ValidCall
from tests.langchain_fakes import Reply, call_text, fake_model, runtime_of
from tests.unit.test_wire_formats import ALL, BEHIND, EMPTY, RICH, SIMPLE, TOOLS, Call

ANN = '{"amount": 1, "to": "Ann"}'


class Pay(BaseModel):
    """Pays."""

    amount: int
    to: str

    @field_validator("to")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "Nobody":
            raise ValueError("there is no such person")
        return value


def streamed(*replies: Reply | str, **options: Any) -> list[AIMessageChunk]:
    model = fake_model(*replies, **{"stream_tool_calls": "incremental", **options})
    return [chunk for chunk in model.bind_tools([Pay]).stream("x") if isinstance(chunk, AIMessageChunk)]


def parts(chunks: Sequence[AIMessageChunk]) -> list[str]:
    return [call["args"] or "" for chunk in chunks for call in chunk.tool_call_chunks]


def test_a_call_comes_in_pieces_under_one_index_and_id() -> None:
    chunks = streamed(call_text("Pay", ANN))
    assert len(parts(chunks)) > 3
    assert "".join(parts(chunks)) == ANN
    first, *rest = [call for chunk in chunks for call in chunk.tool_call_chunks]
    assert (first["name"], first["index"]) == ("Pay", 0)
    assert first["id"]
    assert {(call["name"], call["id"], call["index"]) for call in rest} == {(None, None, 0)}
    (call,) = reduce(add, chunks).tool_calls
    assert (call["id"], call["args"]) == (first["id"], json.loads(ANN))


def test_arguments_come_while_the_call_is_written() -> None:
    model = fake_model(None, stream_tool_calls="incremental")
    chunks = model.bind_tools([Pay]).astream("x")

    async def first() -> AIMessage:
        waiting = asyncio.ensure_future(anext(aiter(chunks)))
        engine = runtime_of(model).engine
        while not engine.channels:
            await asyncio.sleep(0)
        half = call_text("Pay", ANN).partition("nn")[0].encode()
        engine.channels[0].put(Step(tuple(half), half))
        return await waiting

    chunk = asyncio.run(first())
    assert isinstance(chunk, AIMessageChunk)
    (call,) = chunk.tool_call_chunks
    assert (call["name"], call["args"]) == ("Pay", '{"amount": 1, "to": "A')


def test_by_default_a_call_comes_whole() -> None:
    assert parts(streamed(call_text("Pay", ANN), stream_tool_calls="whole")) == [ANN]


def test_a_call_that_its_model_refuses_is_taken_back() -> None:
    text = call_text("Pay", '{"amount": 1, "to": "Nobody"}')
    total = reduce(add, streamed(text))
    assert total.tool_calls == []
    (invalid,) = total.invalid_tool_calls
    (noted,) = total.response_metadata["agentspec"]["invalid_tool_calls"]
    assert invalid["id"] == noted["id"]
    assert "there is no such person" in noted["error"]


def test_a_further_call_where_one_was_allowed_is_taken_back() -> None:
    text = call_text("Pay", ANN) + "\n" + call_text("Pay", ANN.replace("Ann", "Bo"))
    total = reduce(add, streamed(text))
    assert [call["args"]["to"] for call in total.tool_calls] == ["Ann"]
    assert len(total.invalid_tool_calls) == 1


def test_a_repeated_call_does_not_go_out() -> None:
    texts = [ANN, ANN.replace("Ann", "Anna"), ANN]
    reply = "\n".join(call_text("Pay", text) for text in texts)
    total = reduce(add, streamed(reply, parallel_tool_calls=True))
    assert [call["args"]["to"] for call in total.tool_calls] == ["Ann", "Anna"]
    assert total.invalid_tool_calls == []
    assert total.response_metadata["agentspec"]["repeated_calls"] == 1


def test_a_stream_that_has_begun_is_not_sampled_again() -> None:
    text = call_text("Pay", '{"amount": 1, "to": "Nobody"}')
    total = reduce(add, streamed(text, call_text("Pay", ANN), temperature=1.0))
    assert total.tool_calls == []


@pytest.mark.parametrize(
    "text", ["{", '{"a": [', '{"a": "x', '{"a": "x\\', '{"a": [{"b": "\\u00', '{"a": 1}', '{"a": [1, ']
)
def test_what_is_taken_back_is_no_call_whatever_has_gone_out(text: str) -> None:
    opened = OpenedCall("id", "f")
    opened.text = text
    chunks = [opened.send(0), *opened.take_back()]
    total = reduce(add, (AIMessageChunk(content="", tool_call_chunks=[chunk]) for chunk in chunks))
    assert total.tool_calls == []
    assert len(total.invalid_tool_calls) == 1


def test_nothing_has_to_be_taken_back_that_has_not_gone_out() -> None:
    assert OpenedCall("id", "f").take_back() == []


# -------------------------------------------------------------------------------------------- every format


def deltas(
    wire: WireFormat, text: str, choice: ToolChoice, step: int = 1
) -> tuple[dict[int, str], dict[int, str]]:
    """The arguments of each call, as its deltas and as its event have them."""
    parser, data = parser_of(wire, TOOLS, choice, deltas=True), text.encode()
    events = [
        event for start in range(0, len(data), step) for event in parser.feed(data[start : start + step])
    ]
    events += parser.finish("stop")
    said: dict[int, str] = {}
    called: dict[int, str] = {}
    for event in events:
        if isinstance(event, CallDelta):
            assert event.key not in called
            said[event.key] = said.get(event.key, "") + event.arguments
        elif isinstance(event, CallEvent) and isinstance(event.call, ValidCall):
            called[event.key] = json.dumps(event.call.arguments)
    return said, called


@pytest.mark.parametrize("wire", [*ALL, HARMONY], ids=lambda wire: wire.name)
@pytest.mark.parametrize("calls", [[SIMPLE], [RICH], [EMPTY], [SIMPLE, EMPTY, RICH]], ids=str)
@pytest.mark.parametrize("step", [1, 5, 1000])
def test_deltas_add_up_to_the_call(wire: WireFormat, calls: list[Call], step: int) -> None:
    text = render_calls(wire, calls[:1] if wire is HARMONY else calls)
    said, called = deltas(wire, text, "required", step)
    assert len(called) == (1 if wire is HARMONY else len(calls))
    assert {key: json.loads(arguments) for key, arguments in said.items()} == {
        key: json.loads(arguments) for key, arguments in called.items()
    }


def test_nothing_is_said_of_calls_that_cannot_be_valid() -> None:
    text = call_text("get_wether", '{"city": "Oslo", "days": 3}')
    assert deltas(HERMES, text, "auto") == ({}, {})
    assert deltas(HERMES, call_text("now", "{}"), NamedTool("get_weather")) == ({}, {})
    assert deltas(BEHIND, "get_wether\n{}", "required") == ({}, {})
    assert deltas(HERMES, '{"name": "now", "arguments": {}}', "auto")[0] == {}  # may yet be text


def test_a_call_that_breaks_leaves_its_deltas_without_an_event() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", }}}\n</tool_call>'
    said, called = deltas(HERMES, text + "\n" + call_text("now", "{}"), "auto")
    assert called == {max(said): "{}"}
    assert said[max(said)] == "{}"
