"""The chat model: its options, its calls, and what happens to a stream nobody reads any more."""

from __future__ import annotations

import asyncio
import copy
import functools
import operator
import pickle
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import Any, cast

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import ContextOverflowError, ModelTimeoutError
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.runnables import RunnableBinding
from langchain_core.tools import tool

from agentspec import ChatAgentSpec, config
from agentspec.engine.request import Request, Step
from agentspec.engine.stream import Stream
from agentspec.errors import (
    BackendError,
    ConfigError,
    ContextLengthError,
    DeadlineExceededError,
    SchemaError,
)
from agentspec.langchain.errors import ReplyTimeoutError
from agentspec.types import NamedTool
from tests.langchain_fakes import FakeEngine, Reply, call_text, fake_model, result, runtime_of


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


CALL = call_text("add", '{"a": 1, "b": 2}')


# -- options


def test_defaults_are_those_of_config() -> None:
    model = ChatAgentSpec()
    assert model.model == config.DEFAULT_MODEL
    assert model.temperature == config.SamplingOptions().temperature
    assert model.n_ctx == config.ContextOptions().n_ctx
    assert model.draft_sources == config.DraftOptions().sources
    assert ChatAgentSpec.model_fields["top_k"].description


def test_every_option_of_config_is_a_field() -> None:
    for options in (
        config.RuntimeOptions,
        config.ContextOptions,
        config.SamplingOptions,
        config.LawOptions,
        config.GenerationOptions,
        config.ToolOptions,
    ):
        assert set(options.model_fields) <= set(ChatAgentSpec.model_fields)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_gpu_layer": 1}, "unknown option 'n_gpu_layer'; did you mean 'n_gpu_layers'"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"quality": 1}, "unknown option 'quality'"),
        ({"temperature": -1}, "option 'temperature'"),
        ({"temperature": "hot"}, "option 'temperature'"),
        ({"max_tokens": 0}, "option 'max_tokens'"),
        ({"n_ctx": 1}, "option 'n_ctx'"),
        ({"n_gpu_layers": -2}, "n_gpu_layers"),
        ({"grammar": "maybe"}, "option 'grammar'"),
        ({"draft_sources": ["magic"]}, "draft_sources"),
        ({"draft_options": {"n_gpu_layer": 1}}, "did you mean 'n_gpu_layers'"),
        ({"draft_options": 3}, "draft_options"),
    ],
)
def test_a_bad_option_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChatAgentSpec(**values)


def test_none_means_not_given() -> None:
    model = ChatAgentSpec(max_tokens=None, timeout=None, stop=None, max_retries=2)
    assert model.max_tokens == config.GenerationOptions().max_tokens
    assert model.stop == ()


def test_model_name_is_model() -> None:
    model = ChatAgentSpec(model_name="x.gguf")
    assert model.model == model.model_name == "x.gguf"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"foo": 1}, "unknown option 'foo'"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"n_ctx": 512}, "unknown option 'n_ctx'"),  # settled when the model was loaded
        ({"top_p": 2}, "option 'top_p'"),
        ({"logit_bias": {5: float("nan")}}, "logit_bias.*token 5"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias.*-1 is not a token id"),
        ({"verifier": "fast"}, "option 'verifier'"),
    ],
)
def test_a_bad_option_of_a_call_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fake_model("x").invoke("x", **values)
    if "foo" in values:
        with pytest.raises(ConfigError, match=message):
            fake_model("x").bind_tools([add], **values)


def test_options_of_a_call_come_before_the_models() -> None:
    model = fake_model("x", "x", temperature=0.5, stop=["a"], seed=1, max_tokens=9)
    model.invoke("x")
    model.invoke("x", temperature=0.25, top_k=3, stop=["b"], max_tokens=None, draft_sources=[])
    first, second = runtime_of(model).engine.requests
    assert (first.sampling.temperature, first.generation.stop) == (0.5, ("a",))
    assert (second.sampling.temperature, second.sampling.top_k) == (0.25, 3)
    assert second.generation == config.GenerationOptions(stop=("b",), seed=1, max_tokens=9)
    assert second.draft.sources == ()


@pytest.mark.parametrize(
    ("values", "verifier"),
    [
        ({}, "auto"),
        ({"seed": 5}, "seed_invariant"),
        ({"seed": 5, "verifier": "block"}, "block"),
        ({"verifier": "token_wise"}, "token_wise"),
    ],
)
def test_a_seed_that_is_given_fixes_the_reply(values: dict[str, Any], verifier: str) -> None:
    """Blocks depend on what passes take, so no other rule gives the same reply twice."""
    model = fake_model("x")
    model.invoke("x", **values)
    (request,) = runtime_of(model).engine.requests
    assert request.draft.verifier == verifier


def test_the_draft_belongs_to_the_default_model() -> None:
    loading = pytest.importorskip("agentspec.engine.loading")
    spec = ChatAgentSpec()._spec(config.DEFAULT_MODEL)
    assert spec.draft == config.DEFAULT_DRAFT
    assert isinstance(spec, loading.RuntimeSpec)
    assert ChatAgentSpec(draft=None)._spec(config.DEFAULT_MODEL).draft is None
    assert ChatAgentSpec()._spec("other.gguf").draft is None
    assert ChatAgentSpec(draft="d.gguf")._spec("other.gguf").draft == "d.gguf"


def test_the_drafts_options_are_its_own_over_the_targets() -> None:
    pytest.importorskip("agentspec.engine.loading")
    spec = ChatAgentSpec(n_threads=3, type_k="q8_0", draft_options={"n_threads": 1})._spec("x")
    assert (spec.target.n_threads, spec.draft_runtime.n_threads) == (3, 1)
    assert spec.draft_runtime.type_k == "q8_0"


def test_gpu_errors_are_config_errors() -> None:
    assert issubclass(BackendError, ConfigError)


# -- calls


def test_text() -> None:
    message = fake_model("hello").invoke([HumanMessage("hi")])
    assert message.text == "hello"
    assert message.tool_calls == []
    assert message.response_metadata["finish_reason"] == "stop"


def test_the_prompt_holds_the_conversation_and_the_tools() -> None:
    model = fake_model("x")
    model.bind_tools([add]).invoke([("system", "be brief"), ("user", "hi")])
    prompt = runtime_of(model).prompt
    for part in ("be brief", "hi", '"name": "add"'):
        assert part in prompt


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        (None, [(("add",), "auto", False)]),
        ("any", [(("add",), "required", False)]),
        ("add", [(("add",), NamedTool("add"), False)]),
        ("none", []),
    ],
)
def test_the_grammar_follows_tool_choice(choice: str | None, asked: Sequence[object]) -> None:
    model = fake_model("x")
    model.bind_tools([add], tool_choice=choice).invoke("x")
    assert runtime_of(model).asked == asked


def test_parallel_tool_calls() -> None:
    model = fake_model("x", "x", parallel_tool_calls=True)
    model.bind_tools([add]).invoke("x")
    model.bind_tools([add], parallel_tool_calls=False).invoke("x")
    assert [parallel for _, _, parallel in runtime_of(model).asked] == [True, False]


def test_grammar_off_asks_for_no_grammar() -> None:
    model = fake_model(CALL)
    message = model.bind_tools([add], tool_choice="any").invoke("x", grammar="off")
    assert runtime_of(model).asked == []
    assert message.tool_calls[0]["args"] == {"a": 1, "b": 2}
    assert message.response_metadata["agentspec"]["law"] == "off"


def test_logprobs_are_in_the_metadata_when_asked_for() -> None:
    model = fake_model("hé", "hé", "hé")
    whole = model.invoke("x", logprobs=True).response_metadata["logprobs"]["content"]
    assert [(entry["token"], entry["bytes"], entry["logprob"]) for entry in whole] == [
        ("h", [104], -0.5),
        ("\ufffd", [195], -0.5),  # a token may be part of a character: its bytes say which
        ("\ufffd", [169], -0.5),
    ]
    chunks = list(model.stream("x", logprobs=True))
    merged = functools.reduce(operator.add, chunks)
    assert merged.response_metadata["logprobs"]["content"] == whole
    assert "logprobs" not in model.invoke("x").response_metadata


def test_bind_tools_is_a_binding_with_tools() -> None:
    bound = fake_model().bind_tools([add])
    assert isinstance(bound, RunnableBinding)
    assert bound.kwargs["tools"][0]["function"]["name"] == "add"
    assert fake_model().bind_tools([]) is not None


def test_bad_tools_are_refused_when_bound() -> None:
    with pytest.raises(SchemaError, match="'f'"):
        fake_model().bind_tools([{"name": "f", "parameters": {"type": 3}}])
    with pytest.raises(ConfigError, match="'g', which is not bound"):
        fake_model().bind_tools([add], tool_choice="g")


def test_a_long_prompt_is_both_libraries_error() -> None:
    model = fake_model("x", n_ctx=20)
    with pytest.raises(ContextOverflowError) as caught:
        model.invoke("x" * 30)
    assert isinstance(caught.value, ContextLengthError)
    assert caught.value.n_ctx == 20
    with pytest.raises(ContextOverflowError):
        list(model.stream("x" * 30))
    with pytest.raises(ContextOverflowError):
        asyncio.run(model.ainvoke("x" * 30))


def test_a_reply_that_takes_too_long_is_cancelled() -> None:
    """The engine sees to it; here its error becomes what LangChain knows, and is agentspec's own still."""
    model = fake_model(None, None, None, timeout=1.5)
    engine = runtime_of(model).engine
    engine.failure = DeadlineExceededError("the reply was not done within timeout=1.5 seconds")
    for use in (
        model.invoke,
        lambda text: list(model.stream(text)),
        lambda text: asyncio.run(model.ainvoke(text)),
    ):
        with pytest.raises(ModelTimeoutError, match=r"within timeout=1\.5") as caught:
            use("x")
        assert isinstance(caught.value, ReplyTimeoutError)
        assert isinstance(caught.value, DeadlineExceededError)
    assert [one.generation.timeout for one in engine.requests] == [1.5] * 3
    assert all(channel.cancelled for channel in engine.channels)


def test_token_counts_are_the_models() -> None:
    model = fake_model()
    assert model.get_num_tokens("på") == 3  # one token a byte
    bare = model.get_num_tokens_from_messages([HumanMessage("hi")])
    assert bare == len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert model.get_num_tokens_from_messages([HumanMessage("hi")], tools=[add]) > bare


def test_a_cache_is_asked_by_what_the_tools_are() -> None:
    cache = InMemoryCache()
    model = fake_model("x", "y", cache=cache)
    assert model.bind_tools([add]).invoke("q").text == "x"
    assert model.bind_tools([add]).invoke("q").text == "x"
    assert model.bind_tools([add], tool_choice="none").invoke("q").text == "y"


def test_a_cache_tells_models_with_other_stop_strings_apart() -> None:
    cache = InMemoryCache()
    assert fake_model("x", cache=cache).invoke("q").text == "x"
    assert fake_model("y", cache=cache, stop=["a"]).invoke("q").text == "y"
    assert fake_model(cache=cache, stop=["a"]).invoke("q").text == "y"


# -- streams that are not read to the end


class _Begun(FakeEngine):
    """Writes the first step of each reply and no more."""

    def submit(self, request: Request) -> Stream:
        stream = super().submit(request)
        self.channels[-1].put(Step((0, 1), b"he"))
        return stream


def test_an_abandoned_stream_is_cancelled() -> None:
    model = fake_model()
    engine = runtime_of(model).engine = _Begun(n_ctx=1000, replies=[None])
    stream = cast(Generator[AIMessageChunk], model.stream("x"))
    assert next(stream).text == "he"
    assert not engine.channels[0].cancelled
    stream.close()
    assert engine.channels[0].cancelled


async def test_an_abandoned_async_stream_is_cancelled() -> None:
    model = fake_model()
    engine = runtime_of(model).engine = _Begun(n_ctx=1000, replies=[None])
    stream = cast(AsyncGenerator[AIMessageChunk], model._astream([HumanMessage("x")]))
    async for chunk in stream:
        assert chunk.text == "he"
        break
    await stream.aclose()
    assert engine.channels[0].cancelled


async def test_a_cancelled_task_cancels_the_reply() -> None:
    model = fake_model(None)
    engine = runtime_of(model).engine
    task = asyncio.create_task(model.ainvoke("x"))
    while not engine.channels:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.channels[0].cancelled


def test_an_interrupt_cancels_the_reply_and_the_next_call_works() -> None:
    model = fake_model()
    engine = runtime_of(model).engine = _Begun(n_ctx=1000, replies=[None])
    stream = cast(Generator[AIMessageChunk], model.stream("x"))
    next(stream)
    with pytest.raises(KeyboardInterrupt):
        stream.throw(KeyboardInterrupt())
    assert engine.channels[0].cancelled
    runtime_of(model).engine = FakeEngine(n_ctx=1000, replies=[Reply("again")])
    assert model.invoke("x").text == "again"


async def test_async_calls_run_side_by_side() -> None:
    model = fake_model(*[None] * 8)
    engine = runtime_of(model).engine
    tasks = [asyncio.create_task(model.ainvoke("x")) for _ in range(8)]
    while len(engine.channels) < 8:
        await asyncio.sleep(0)
    for number in reversed(range(8)):
        engine.channels[number].put(Step((0,), str(number).encode()))
        engine.channels[number].finish(result(Reply("x"), engine.requests[number]))
    answers = await asyncio.gather(*tasks)
    assert sorted(answer.text for answer in answers) == [str(number) for number in range(8)]


async def test_an_async_stream() -> None:
    chunks = [chunk async for chunk in fake_model("hello there").astream("x")]
    assert "".join(chunk.text for chunk in chunks) == "hello there"
    assert chunks[-1].chunk_position == "last"


# -- what LangChain asks


def test_identifying_parameters_are_complete() -> None:
    params = ChatAgentSpec(seed=4)._identifying_params
    for name in ("model", "draft", "temperature", "seed", "n_ctx", "grammar", "max_block", "chat_template"):
        assert name in params
    assert params["seed"] == 4


def test_tracing_parameters() -> None:
    model = ChatAgentSpec(stop=["a"], temperature=0.5)
    params = model._get_ls_params()
    assert params["ls_provider"] == "agentspec"
    assert params["ls_model_type"] == "chat"
    assert params["ls_temperature"] == 0.5
    assert params["ls_stop"] == ["a"]
    assert model._get_ls_params(model="m")["ls_model_name"] == "m"
    assert model.metadata is not None
    assert {"langchain-core", "langchain-agentspec"} <= model.metadata["lc_versions"].keys()


def test_profile() -> None:
    profile = ChatAgentSpec(n_ctx=4096).profile
    assert profile is not None
    assert profile["max_input_tokens"] == 4096
    assert profile["tool_calling"]
    assert not profile["structured_output"]


def test_copies_share_the_runtime_and_pickles_do_not() -> None:
    model = fake_model("x", "y")
    assert copy.deepcopy(model).invoke("x").text == "x"
    assert model.model_copy(update={"temperature": 1.0}).invoke("x").text == "y"
    assert pickle.loads(pickle.dumps(model))._runtimes.given is None


def test_making_a_model_loads_nothing() -> None:
    loaded = set(sys.modules)
    model = ChatAgentSpec(model="no-such-file.gguf").bind_tools([add])
    assert isinstance(model, RunnableBinding)
    assert "llama_cpp" not in set(sys.modules) - loaded


# -- LangChain's agents


def test_an_agent_runs_its_tools() -> None:
    agents = pytest.importorskip("langchain.agents")
    model = fake_model(CALL, "it is 3")
    agent = agents.create_agent(model, [add], system_prompt="be brief")
    messages = agent.invoke({"messages": [("user", "1 + 2?")]})["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[2].content == "3"
    assert (
        "<tool_response>\n3\n</tool_response>" in runtime_of(model).prompt or "3" in runtime_of(model).prompt
    )


def test_an_agent_tells_the_model_that_its_call_was_cut() -> None:
    agents = pytest.importorskip("langchain.agents")
    cut = Reply(CALL[:50], "length", complete=False)
    model = fake_model(cut, "sorry")
    agent = agents.create_agent(model, [add])
    messages = agent.invoke({"messages": [("user", "1 + 2?")]})["messages"]
    assert isinstance(messages[-1], AIMessage)
    assert messages[-1].tool_calls == []  # nothing ran
    again = agent.invoke({"messages": [*messages, HumanMessage("try again")]})["messages"]
    assert again[-1].text == "sorry"
    assert "could not be executed" in runtime_of(model).prompt


def test_an_agent_with_a_response_format_forces_calls() -> None:
    agents = pytest.importorskip("langchain.agents")
    schema = {
        "title": "Sum",
        "description": "The sum.",
        "type": "object",
        "properties": {"value": {"type": "integer"}},
        "required": ["value"],
    }
    model = fake_model(CALL, call_text("Sum", '{"value": 3}'))
    agent = agents.create_agent(model, [add], response_format=schema)
    state = agent.invoke({"messages": [("user", "1 + 2?")]})
    assert state["structured_response"] == {"value": 3}
    assert {choice for _, choice, _ in runtime_of(model).asked} == {"required"}


def test_a_call_that_repeats_an_earlier_one_is_left_out_and_counted() -> None:
    text = "\n".join(call_text("add", f'{{"a": {a}, "b": 2}}') for a in (1, 2, 1, 2, 1))
    model = fake_model(text, text).bind_tools([add], parallel_tool_calls=True)
    merged = functools.reduce(operator.add, model.stream("x"))
    for reply in (model.invoke("x"), merged):
        assert isinstance(reply, AIMessage)
        assert [call["args"] for call in reply.tool_calls] == [{"a": 1, "b": 2}, {"a": 2, "b": 2}]
        assert reply.response_metadata["agentspec"]["repeated_calls"] == 3


def test_true_is_no_repetition_of_1() -> None:
    def put(value: object) -> str:
        """Puts."""
        return str(value)

    text = "\n".join(call_text("put", f'{{"value": {value}}}') for value in ("1", "true", "1.0", "1"))
    reply = fake_model(text).bind_tools([put], parallel_tool_calls=True).invoke("x")
    assert isinstance(reply, AIMessage)
    assert [repr(call["args"]["value"]) for call in reply.tool_calls] == ["1", "True", "1.0"]
