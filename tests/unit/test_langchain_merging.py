"""A call that was cut off, or does not fit, is never valid: whichever way LangChain puts the reply together.

LangChain parses the argument fragments of streamed calls leniently at each merge, so that `{"amount": 12`
becomes a payment of 12. These tests take each of its ways from a stream to a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import permutations
from operator import add
from typing import Any, cast

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, message_chunk_to_message
from langchain_core.tracers._streaming import _StreamingCallbackHandler

from agentspec.langchain.chat_model import ChatAgentSpec
from tests import langchain_fakes
from tests.langchain_fakes import Reply, call_text


def pay(amount: int, to: str) -> str:
    """Pays."""
    return f"{amount} to {to}"


GOOD = call_text("pay", '{"amount": 1, "to": "Ann"}')
CUT = '<tool_call>\n{"name": "pay", "arguments": {"amount": 12, "to": "Bo'
BARE = '{"name": "pay", "arguments": {"amount": 12'
WRONG = call_text("pay", '{"amount": "12", "to": "Bo"}')


class _Callback(BaseCallbackHandler, _StreamingCallbackHandler[Any]):
    """Makes `invoke` stream, as tracers and LangGraph's message streaming do."""

    def tap_output_aiter(self, run_id: Any, output: Any) -> Any:  # noqa: ARG002
        return output

    def tap_output_iter(self, run_id: Any, output: Any) -> Any:  # noqa: ARG002
        return output


def fake_model(*replies: Reply | str, mode: str = "whole") -> ChatAgentSpec:
    return langchain_fakes.fake_model(*replies, parallel_tool_calls=True, stream_tool_calls=mode)


def _bound(model: ChatAgentSpec) -> Any:
    return model.bind_tools([pay])


def invoke(model: ChatAgentSpec) -> AIMessage:
    return cast(AIMessage, _bound(model).invoke("x"))


def ainvoke(model: ChatAgentSpec) -> AIMessage:
    return cast(AIMessage, asyncio.run(_bound(model).ainvoke("x")))


def invoke_under_a_streaming_callback(model: ChatAgentSpec) -> AIMessage:
    return cast(AIMessage, _bound(model).invoke("x", config={"callbacks": [_Callback()]}))


def stream_kwarg(model: ChatAgentSpec) -> AIMessage:
    return cast(AIMessage, _bound(model).invoke("x", stream=True))


def from_stream(model: ChatAgentSpec) -> AIMessage:
    chunks = model._stream([HumanMessage("x")], tools=[pay])
    return cast(AIMessage, generate_from_stream(chunks).generations[0].message)


def sum_of_chunks(model: ChatAgentSpec) -> AIMessage:
    chunks: list[AIMessageChunk] = list(_bound(model).stream("x"))
    return cast(AIMessage, message_chunk_to_message(reduce(add, chunks)))


def sum_from_the_right(model: ChatAgentSpec) -> AIMessage:
    chunks: list[AIMessageChunk] = list(_bound(model).stream("x"))
    total = chunks[-1]
    for chunk in reversed(chunks[:-1]):
        total = chunk + total
    return cast(AIMessage, total)


def sum_at_once(model: ChatAgentSpec) -> AIMessage:
    first, *rest = _bound(model).stream("x")
    return cast(AIMessage, first + rest)


def sum_of_astream(model: ChatAgentSpec) -> AIMessage:
    async def collect() -> list[AIMessageChunk]:
        return [chunk async for chunk in _bound(model).astream("x")]

    return reduce(add, asyncio.run(collect()))


def sum_of_v1_chunks(model: ChatAgentSpec) -> AIMessage:
    model.output_version = "v1"
    chunks: list[AIMessageChunk] = list(_bound(model).stream("x"))
    return reduce(add, chunks)


def astream_events(model: ChatAgentSpec) -> AIMessage:
    async def collect() -> AIMessage:
        events = [event async for event in _bound(model).astream_events("x", version="v2")]
        return cast(AIMessage, events[-1]["data"]["output"])

    return asyncio.run(collect())


def stream_events_v3(model: ChatAgentSpec) -> AIMessage:
    return model.stream_events("x", version="v3", tools=[pay]).output


WAYS: Sequence[Callable[[ChatAgentSpec], AIMessage]] = (
    invoke,
    ainvoke,
    invoke_under_a_streaming_callback,
    stream_kwarg,
    from_stream,
    sum_of_chunks,
    sum_from_the_right,
    sum_at_once,
    sum_of_astream,
    sum_of_v1_chunks,
    astream_events,
    stream_events_v3,
)

ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
modes = pytest.mark.parametrize("mode", ["whole", "incremental"])
filtered = pytest.mark.filterwarnings("ignore:.*is in beta")


@filtered
@ways
@modes
@pytest.mark.parametrize("text", [CUT, BARE], ids=["marked", "bare"])
def test_a_cut_call_is_not_a_call(way: Callable[[ChatAgentSpec], AIMessage], mode: str, text: str) -> None:
    message = way(fake_model(Reply(text, "length", complete=False), mode=mode))
    assert message.tool_calls == []
    (invalid,) = message.invalid_tool_calls
    assert invalid["id"]
    (noted,) = message.response_metadata["agentspec"]["invalid_tool_calls"]
    assert noted["id"] == invalid["id"]
    assert noted["error"]
    assert '{"amount": 12' in (invalid["args"] or "")
    assert noted["raw"] == text.removeprefix("<tool_call>\n")
    assert message.response_metadata["finish_reason"] == "length"


@filtered
@ways
@modes
def test_a_call_that_does_not_fit_its_schema_is_not_a_call(
    way: Callable[[ChatAgentSpec], AIMessage], mode: str
) -> None:
    message = way(fake_model(WRONG, mode=mode))
    assert message.tool_calls == []
    assert len(message.invalid_tool_calls) == 1
    (noted,) = message.response_metadata["agentspec"]["invalid_tool_calls"]
    assert "amount" in noted["error"]


@filtered
@ways
@modes
def test_a_good_call_stays_beside_a_cut_one(way: Callable[[ChatAgentSpec], AIMessage], mode: str) -> None:
    message = way(fake_model(Reply(f"{GOOD}\n{CUT}", "length", complete=False), mode=mode))
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [
        ("pay", {"amount": 1, "to": "Ann"})
    ]
    assert len(message.invalid_tool_calls) == 1


@filtered
@ways
@modes
def test_a_whole_reply_arrives_whole(way: Callable[[ChatAgentSpec], AIMessage], mode: str) -> None:
    text = "Så gør jeg det – 😀\n"
    second = call_text("pay", '{"amount": 2, "to": "Bøe 😀"}')
    message = way(fake_model(f"{text}{GOOD}\n{second}", mode=mode))
    assert str(message.text).strip() == text.strip()
    assert [call["args"] for call in message.tool_calls] == [
        {"amount": 1, "to": "Ann"},
        {"amount": 2, "to": "Bøe 😀"},
    ]
    assert len({call["id"] for call in message.tool_calls}) == 2
    assert message.invalid_tool_calls == []
    metadata = message.response_metadata
    assert metadata["model_provider"] == "agentspec"
    assert metadata["model_name"] == "fake-model"
    assert metadata["finish_reason"] == "tool_calls"
    assert metadata["agentspec"]["seconds"] == {"target": 0.25}
    assert message.usage_metadata is not None
    usage = message.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_token_details"] == {"cache_read": 5}


@modes
@pytest.mark.parametrize("length", range(1, len(GOOD)))
def test_a_call_cut_at_any_byte_is_not_a_call(length: int, mode: str) -> None:
    model = fake_model(Reply(GOOD[:length], "length", complete=False), mode=mode)
    chunks = list(model._stream([HumanMessage("x")], tools=[pay]))
    message = generate_from_stream(iter(chunks)).generations[0].message
    assert isinstance(message, AIMessage)
    closed = GOOD[:length].count("}") == 2  # the object is whole; only the end marker is missing
    if not closed:
        assert message.tool_calls == []
    for call in message.tool_calls:
        assert call["args"] == {"amount": 1, "to": "Ann"}


def test_merging_in_any_order_keeps_a_cut_call_invalid() -> None:
    chunks = list(
        fake_model(Reply(f"a{GOOD}\n{CUT}", "length", complete=False, cut=999))._stream(
            [HumanMessage("x")], tools=[pay]
        )
    )
    assert len(chunks) == 3
    for order in permutations(chunks):
        message = cast(AIMessageChunk, reduce(add, order).message)
        assert [call["args"] for call in message.tool_calls] == [{"amount": 1, "to": "Ann"}]
        assert len(message.invalid_tool_calls) == 1


def test_only_the_last_chunk_has_metadata() -> None:
    *chunks, last = _bound(fake_model(f"hello{GOOD}")).stream("x")
    assert all(set(chunk.response_metadata) == {"model_provider"} for chunk in chunks)
    assert all(chunk.usage_metadata is None and chunk.chunk_position is None for chunk in chunks)
    assert last.chunk_position == "last"
    assert last.usage_metadata is not None


def test_content_blocks_keep_text_and_calls_apart() -> None:
    model = fake_model(f"hello{GOOD}\n{CUT}", f"hello{GOOD}")
    model.output_version = "v1"
    total = reduce(add, list(_bound(model).stream("x")))
    assert [block["type"] for block in total.content_blocks] == ["text", "tool_call", "invalid_tool_call"]
    text, call, invalid = total.content_blocks
    assert text["text"] == "hello"
    assert call["args"] == {"amount": 1, "to": "Ann"}
    assert invalid["error"]
    whole = _bound(model).invoke("x")
    assert [block["type"] for block in whole.content_blocks] == ["text", "tool_call"]
