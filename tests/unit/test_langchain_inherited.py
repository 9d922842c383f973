"""What the chat model inherits from LangChain: caches, limits, fallbacks, callbacks, events, batches."""

from __future__ import annotations

import asyncio
import functools
import operator
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    UsageMetadataCallbackHandler,
    get_usage_metadata_callback,
)
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    filter_messages,
    trim_messages,
)
from langchain_core.outputs import LLMResult
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.tools import tool

from agentspec import ChatAgentSpec
from agentspec.engine.request import Request, Step
from agentspec.engine.stream import Stream
from agentspec.errors import QueueFullError
from tests.langchain_fakes import FakeEngine, Reply, call_text, fake_model, result, runtime_of
from tests.unit.test_langchain_reasoning import REPLY, thinking


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


CALL = call_text("add", '{"a": 1, "b": 2}')


# -- caches

NOT_IN_THE_KEY = {
    *("name", "callbacks", "tags", "metadata", "verbose", "profile"),  # for tracers and agents
    *(
        "cache",
        "rate_limiter",
        "custom_get_token_ids",
        "disable_streaming",
        "streaming",
    ),  # no reply hangs on it
    *("api_key", "base_url", "max_retries"),  # nor on these, which may be secret
    "draft_plugins",  # drafts change the speed alone
}


@pytest.mark.parametrize("name", sorted(set(ChatAgentSpec.model_fields) - NOT_IN_THE_KEY))
def test_the_cache_key_holds_every_setting(name: str) -> None:
    plain = ChatAgentSpec()
    other = plain.model_copy(update={name: ("not", "the", "default")})
    assert plain._get_llm_string() != other._get_llm_string()


def test_the_cache_key_holds_what_a_call_settles() -> None:
    model = fake_model()
    calls: list[dict[str, Any]] = [
        {},
        {"temperature": 0.5},
        {"seed": 1},
        {"model": "other"},
        {"stop": ["a"]},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
    ]
    assert len({model._get_llm_string(**call) for call in calls}) == len(calls)


def test_stop_strings_of_the_model_and_of_the_call_are_one_to_the_cache() -> None:
    assert fake_model(stop=["a"])._get_llm_string() == fake_model()._get_llm_string(stop=["a"])
    assert fake_model(stop=["a"])._get_llm_string(stop=[]) != fake_model(stop=["a"])._get_llm_string()


def test_a_model_with_stop_strings_does_not_take_a_reply_made_without() -> None:
    cache = InMemoryCache()
    assert fake_model("to the end", cache=cache).invoke("q").text == "to the end"
    assert fake_model("to", cache=cache, stop=["the"]).invoke("q").text == "to"


def test_the_cache_key_holds_no_secret() -> None:
    model = ChatAgentSpec(api_key="sesame", base_url="http://ann:sesame@host")
    for shown in (model._get_llm_string(), repr(model), repr(model.asdict())):
        assert "sesame" not in shown


async def test_whole_replies_are_cached_and_streams_are_not() -> None:
    model = fake_model("one", "two", "three", cache=InMemoryCache())
    assert model.invoke("q").text == "one"
    assert (await model.ainvoke("q")).text == "one"
    assert "".join(chunk.text for chunk in model.stream("q")) == "two"
    assert model.invoke("q").text == "one"
    assert "".join([chunk.text async for chunk in model.astream("q")]) == "three"


def test_a_cached_reply_has_its_calls() -> None:
    model = fake_model(CALL, cache=InMemoryCache()).bind_tools([add])
    assert model.invoke("q").tool_calls == model.invoke("q").tool_calls != []


# -- limits, retries, fallbacks


class Counting(BaseRateLimiter):
    """Lets everything through."""

    def __init__(self) -> None:
        self.acquired = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        self.acquired += 1
        return blocking

    async def aacquire(self, *, blocking: bool = True) -> bool:
        return self.acquire(blocking=blocking)


async def test_each_reply_asks_the_rate_limiter_once_but_for_cached_ones() -> None:
    limiter = Counting()
    model = fake_model("x", "x", "x", "x", rate_limiter=limiter, cache=InMemoryCache())
    model.invoke("a")
    assert list(model.stream("a"))
    assert limiter.acquired == 2
    await model.ainvoke("b")
    assert [chunk async for chunk in model.astream("b")]
    assert limiter.acquired == 4
    model.invoke("a")  # cached
    assert limiter.acquired == 4


async def test_a_prompt_that_is_too_long_goes_to_the_fallback() -> None:
    small, large = fake_model(n_ctx=20), fake_model(*["large"] * 4)
    model = small.with_fallbacks([large], exceptions_to_handle=(ContextOverflowError,))
    long = "x" * 50
    assert model.invoke(long).text == "large"
    assert "".join(chunk.text for chunk in model.stream(long)) == "large"
    assert (await model.ainvoke(long)).text == "large"
    assert "".join([chunk.text async for chunk in model.astream(long)]) == "large"


def test_a_fallback_has_the_tools_too() -> None:
    model = fake_model(n_ctx=20).with_fallbacks([fake_model(CALL)])
    assert model.bind_tools([add]).invoke("x" * 50).tool_calls


class _Full(FakeEngine):
    """Takes the third request."""

    refused = 0

    def submit(self, request: Request) -> Stream:
        if self.refused < 2:
            self.refused += 1
            raise QueueFullError("full")
        return super().submit(request)


def test_a_full_queue_is_tried_again() -> None:
    model = fake_model()
    runtime_of(model).engine = _Full(n_ctx=1000, replies=[Reply("at last")])
    patient = model.with_retry(retry_if_exception_type=(QueueFullError,), wait_exponential_jitter=False)
    assert patient.invoke("x").text == "at last"


# -- callbacks


class Recorder(BaseCallbackHandler):
    """What a handler is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.started: dict[str, Any] = {}
        self.ended: list[AIMessage] = []

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **kwargs: Any
    ) -> None:
        self.told.append("start")
        self.started = {"serialized": serialized, "messages": messages, **kwargs}

    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], **kwargs: Any) -> None:  # noqa: ARG002
        self.told.append(str(token))

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:  # noqa: ARG002 - LangChain's
        self.told.append("end")
        ((generation,),) = response.generations
        self.ended.append(cast(AIMessage, cast(Any, generation).message))

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:  # noqa: ARG002
        self.told.append(type(error).__name__)


class AsyncRecorder(AsyncCallbackHandler):
    """Recorder, for an event loop."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.told.append("start")

    async def on_llm_new_token(self, token: str | list[str | dict[str, Any]], **kwargs: Any) -> None:  # noqa: ARG002
        self.told.append(str(token))

    async def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:  # noqa: ARG002
        self.told.append("end")


TOLD = ["start", "hel", "lo", "", "end"]  # the last chunk has the metadata alone


def test_handlers_hear_each_piece_of_a_stream_in_order() -> None:
    recorder = Recorder()
    list(fake_model("hello").stream("x", config={"callbacks": [recorder]}))
    assert recorder.told == TOLD
    usage = recorder.ended[0].usage_metadata
    assert usage is not None
    assert usage["output_tokens"] == 5


async def test_async_handlers_hear_it_too() -> None:
    recorder = AsyncRecorder()
    assert [chunk async for chunk in fake_model("hello").astream("x", config={"callbacks": [recorder]})]
    assert recorder.told == TOLD


@pytest.mark.parametrize(("streaming", "told"), [(False, ["start", "end"]), (True, TOLD)])
def test_invoke_streams_to_handlers_where_the_model_says_so(streaming: bool, told: list[str]) -> None:
    recorder = Recorder()
    message = fake_model("hello", streaming=streaming).invoke("x", config={"callbacks": [recorder]})
    assert message.text == "hello"
    assert recorder.told == told


def test_handlers_hear_of_an_error() -> None:
    recorder = Recorder()
    with pytest.raises(ContextOverflowError):
        fake_model(n_ctx=20).invoke("x" * 50, config={"callbacks": [recorder]})
    assert recorder.told == ["start", "PromptTooLongError"]


def test_usage_is_summed_by_model() -> None:
    handler = UsageMetadataCallbackHandler()
    with get_usage_metadata_callback() as within:
        model = fake_model("hi", "hey")
        model.invoke("x", config={"callbacks": [handler]})
        list(model.stream("x", config={"callbacks": [handler]}))
    assert within.usage_metadata == handler.usage_metadata
    assert within.usage_metadata["fake-model"]["output_tokens"] == 5


def test_tracers_are_told_what_the_call_settles() -> None:
    recorder = Recorder()
    model = fake_model("x", temperature=0.5, stop=["a"]).with_config(tags=["mine"], metadata={"run": "7"})
    bound = cast(RunnableBinding[Any, AIMessage], model).bind_tools([add])
    bound.invoke("x", config={"callbacks": [recorder]}, temperature=0.25, max_tokens=9)
    metadata, parameters = recorder.started["metadata"], recorder.started["invocation_params"]
    assert (metadata["ls_provider"], metadata["ls_model_name"]) == ("agentspec", "fake-model")
    assert (metadata["ls_temperature"], metadata["ls_max_tokens"], metadata["ls_stop"]) == (0.25, 9, ["a"])
    assert (parameters["temperature"], parameters["stop"]) == (0.25, ["a"])
    assert metadata["run"] == "7"
    assert "mine" in recorder.started["tags"]
    assert recorder.started["invocation_params"]["tools"][0]["function"]["name"] == "add"


def test_the_name_of_a_calls_model_is_traced_under_either_name() -> None:
    assert ChatAgentSpec()._get_ls_params(model="other")["ls_model_name"] == "other"
    assert ChatAgentSpec()._get_ls_params(model_name="other")["ls_model_name"] == "other"
    params = ChatAgentSpec(stop=["a"])._get_ls_params(stop=["b"], temperature=None)
    assert (params["ls_stop"], params["ls_temperature"]) == (["b"], 0.0)
    assert "ls_stop" not in ChatAgentSpec(stop=["a"])._get_ls_params(stop=[])  # asks for none


# -- streaming


@pytest.mark.parametrize(
    ("disabled", "without_tools", "with_tools"), [(False, 5, 2), ("tool_calling", 5, 1), (True, 1, 1)]
)
def test_streaming_can_be_disabled(disabled: Any, without_tools: int, with_tools: int) -> None:
    model = fake_model("hello there", CALL, disable_streaming=disabled)
    assert len(list(model.stream("x"))) == without_tools
    chunks = list(model.bind_tools([add]).stream("x"))
    assert len(chunks) == with_tools
    assert functools.reduce(operator.add, chunks).tool_calls


def test_two_streams_of_one_model_in_one_thread() -> None:
    model = fake_model("one and one", "two and two")
    pairs = zip(model.stream("x"), model.stream("x"), strict=True)
    texts = [(one.text, two.text) for one, two in pairs]
    assert ["".join(side) for side in zip(*texts, strict=True)] == ["one and one", "two and two"]


async def test_two_streams_of_one_model_in_one_loop() -> None:
    async def read(stream: AsyncIterator[AIMessageChunk]) -> str:
        return "".join([chunk.text async for chunk in stream])

    model = fake_model("one and one", "two and two")
    texts = await asyncio.gather(read(model.astream("x")), read(model.astream("x")))
    assert sorted(texts) == ["one and one", "two and two"]


def test_the_model_can_be_called_while_its_stream_is_read() -> None:
    model = fake_model("outer", "inner")
    outer = iter(model.stream("x"))
    begun = next(outer).text
    assert model.invoke("x").text == "inner"
    assert begun + "".join(chunk.text for chunk in outer) == "outer"


def test_events_of_version_3() -> None:
    model = fake_model(f"let me see {CALL}").bind_tools([add])
    events = [cast(Mapping[str, Any], event) for event in cast(Any, model).stream_events("x", version="v3")]
    assert [event["event"] for event in events] == [
        "message-start",
        "content-block-start",
        *["content-block-delta"] * 4,
        "content-block-start",
        "content-block-delta",
        *["content-block-finish"] * 2,
        "message-finish",
    ]
    text, call = (event["content"] for event in events if event["event"] == "content-block-finish")
    assert text == {"type": "text", "text": "let me see "}
    assert (call["type"], call["args"]) == ("tool_call", {"a": 1, "b": 2})
    assert events[-1]["usage"]["output_tokens"] == len(f"let me see {CALL}")


async def test_events_of_version_2() -> None:
    model = fake_model("hello").with_config(tags=["mine"])
    events = [event async for event in model.astream_events("x", version="v2")]
    stream = "on_chat_model_stream"
    assert [event["event"] for event in events] == ["on_chat_model_start", *[stream] * 3, "on_chat_model_end"]
    told = [cast(AIMessageChunk, event["data"]["chunk"]) for event in events if event["event"] == stream]
    assert "".join(chunk.text for chunk in told) == "hello"
    assert all("mine" in event["tags"] for event in events)
    assert cast(AIMessage, events[-1]["data"]["output"]).usage_metadata is not None


# -- batches


class _Meeting(FakeEngine):
    """Answers when two requests are there; knows how many there were at once."""

    def __init__(self, n: int) -> None:
        super().__init__(n_ctx=1000, replies=[Reply("x")] * n)
        self._barrier = threading.Barrier(2)
        self._guard = threading.Lock()
        self._inside = 0
        self.most = 0

    def submit(self, request: Request) -> Stream:
        with self._guard:
            self._inside += 1
            self.most = max(self.most, self._inside)
        self._barrier.wait(timeout=60)
        with self._guard:
            self._inside -= 1
            return super().submit(request)


def test_a_batch_has_as_many_calls_at_once_as_it_may() -> None:
    model = fake_model()
    engine = runtime_of(model).engine = _Meeting(6)
    assert len(model.batch(["x"] * 6, config={"max_concurrency": 2})) == 6
    assert engine.most == 2


async def test_an_async_batch_has_as_many_calls_at_once_as_it_may() -> None:
    model = fake_model(*[None] * 4)
    engine = runtime_of(model).engine
    task = asyncio.create_task(model.abatch(["x"] * 4, config={"max_concurrency": 2}))
    for answered in range(4):
        wanted = min(answered + 2, 4)
        while len(engine.channels) < wanted:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(engine.channels) == wanted
        engine.channels[answered].put(Step((0,), b"x"))
        engine.channels[answered].finish(result(Reply("x"), engine.requests[answered]))
    assert len(await task) == 4


async def test_replies_of_a_batch_come_as_they_are_done() -> None:
    model = fake_model("x", "x", "x", "x")
    assert {position for position, _ in model.batch_as_completed(["a", "b"])} == {0, 1}
    assert {position async for position, _ in model.abatch_as_completed(["a", "b"])} == {0, 1}


def test_an_error_in_a_batch_stands_in_its_place() -> None:
    model = fake_model("x", "x", n_ctx=70)
    answers = model.batch(["a", "b" * 80, "c"], return_exceptions=True)
    assert [isinstance(answer, ContextOverflowError) for answer in answers] == [False, True, False]


# -- messages


@pytest.mark.parametrize("streamed", [False, True])
def test_version_1_content_has_reasoning_text_and_calls(streamed: bool) -> None:
    model = thinking(REPLY, version="v1").bind_tools([add])
    message = functools.reduce(operator.add, model.stream("x")) if streamed else model.invoke("x")
    thought, text, call = cast(list[dict[str, Any]], message.content)
    assert [block["type"] for block in (thought, text, call)] == ["reasoning", "text", "tool_call"]
    assert (thought["reasoning"], text["text"].strip()) == ("One and two.", "I add.")
    assert call["args"] == {"a": 1, "b": 2}
    assert message.text.strip() == "I add."


def test_the_keys_of_a_replys_metadata() -> None:
    whole = fake_model("x").invoke("x").response_metadata
    merged = functools.reduce(operator.add, fake_model("x").stream("x")).response_metadata
    for metadata in (whole, merged):
        assert set(metadata) == {"model_name", "model_provider", "finish_reason", "agentspec"}
        assert (metadata["model_name"], metadata["model_provider"]) == ("fake-model", "agentspec")


def test_messages_are_trimmed_by_the_models_own_count() -> None:
    model = fake_model()
    messages = [SystemMessage("s"), HumanMessage("a" * 200), AIMessage("b" * 200), HumanMessage("c")]
    count = model.get_num_tokens_from_messages
    fits = count([messages[0]]) + count([messages[3]])

    def trimmed(max_tokens: int) -> list[BaseMessage]:
        return trim_messages(messages, max_tokens=max_tokens, token_counter=model, include_system=True)

    assert trimmed(fits) == [messages[0], messages[3]]
    assert trimmed(fits - 1) == [messages[0]]
    assert trimmed(10_000) == messages


def test_messages_are_filtered_in_a_chain() -> None:
    model = fake_model("x")
    chain: Runnable[Any, AIMessage] = filter_messages(include_types=["human"]) | model
    assert chain.invoke([SystemMessage("left out"), HumanMessage("kept")]).text == "x"
    assert "left out" not in runtime_of(model).prompt
