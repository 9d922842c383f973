"""The completion model: its options, its calls, and that nothing is returned that does not fit."""

from __future__ import annotations

import asyncio
import copy
import functools
import operator
import pickle
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypedDict, cast

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.exceptions import ContextOverflowError, ModelTimeoutError, OutputParserException
from langchain_core.language_models import BaseLLM
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.outputs import GenerationChunk, LLMResult
from langchain_core.prompts import PromptTemplate
from pydantic import BaseModel, field_validator

from agentspec import AgentSpecLLM, ChatAgentSpec, config
from agentspec.engine.request import Step
from agentspec.errors import AgentSpecError, ConfigError, DeadlineExceededError, ReplyError, SchemaError
from agentspec.langchain.errors import UnfitReplyError
from agentspec.testing import TrieMatcher
from tests.langchain_fakes import Reply, fake_llm, result, runtime_of

SUM: dict[str, Any] = {
    "type": "object",
    "properties": {"value": {"type": "integer"}},
    "required": ["value"],
}
TAGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


class Even(BaseModel):
    """An even number."""

    n: int

    @field_validator("n")
    @classmethod
    def _even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n


class Point(TypedDict):
    """A point."""

    x: int
    y: int


# -- options


def test_fields_are_those_of_the_chat_model_but_for_its_own() -> None:
    own = {"chat_template", "wire_format", "parallel_tool_calls", "stream_tool_calls"}
    taken = {"streaming", "api_key", "base_url", "max_retries"}
    shared = ChatAgentSpec.model_fields.keys() - BaseLLM.model_fields.keys() - own - taken
    chats_base = {"rate_limiter", "disable_streaming", "output_version", "profile"}
    assert shared - chats_base <= AgentSpecLLM.model_fields.keys()
    assert not (own | taken) & AgentSpecLLM.model_fields.keys()
    llm = AgentSpecLLM()
    assert (llm.model, llm.max_tokens) == (config.DEFAULT_MODEL, config.GenerationOptions().max_tokens)


def test_equal_settings_are_one_runtimes() -> None:
    pytest.importorskip("agentspec.engine.loading")
    assert AgentSpecLLM()._spec("x.gguf") == ChatAgentSpec()._spec("x.gguf")
    assert AgentSpecLLM(n_ctx=512)._spec("x.gguf") != ChatAgentSpec()._spec("x.gguf")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"regexp": "a"}, "did you mean 'regex'"),
        ({"parallel_tool_calls": True}, "unknown option 'parallel_tool_calls'"),
        ({"temperature": -1}, "option 'temperature'"),
        ({"regex": "a", "lark": 'start: "a"'}, "regex and lark are given"),
        ({"regex": "a", "json_schema": SUM}, "json_schema and regex are given"),
        ({"regex": "a("}, r"regex cannot be used: .*\n    a\(\n     \^"),
        ({"regex": 5}, "regex is 5"),
        ({"lark": 5}, "lark is 5"),
        ({"json_schema": "x"}, "json_schema is 'x'"),
    ],
)
def test_a_bad_option_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AgentSpecLLM(**values)
    with pytest.raises(ConfigError, match=message):
        fake_llm("x").invoke("x", **values)
    with pytest.raises(ConfigError, match=message):
        next(fake_llm("x").stream("x", **values))


def test_what_loading_settles_is_not_an_option_of_a_call() -> None:
    with pytest.raises(ConfigError, match="unknown option 'n_ctx'"):
        fake_llm("x").invoke("x", n_ctx=512)


def test_a_bad_schema_is_named() -> None:
    with pytest.raises(SchemaError, match="strnig"):
        AgentSpecLLM(json_schema={"title": "Odd", "type": "strnig"})
    with pytest.raises(SchemaError, match="uniqueItems"):
        fake_llm("x").invoke("x", json_schema=TAGS, unsupported="error")


def test_bad_lark_is_told_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"at 1\(8\): unknown name: \"foo\""):
        fake_llm("x").invoke("x", lark='start: "a" | foo')


def test_options_of_a_call_come_before_the_models() -> None:
    llm = fake_llm("x", "x", "5", "a", temperature=0.5, stop=["a"], seed=1, regex="x")
    llm.invoke("p")
    llm.invoke("p", temperature=0.25, stop=["b"], top_k=None, draft_sources=[])
    first, second = runtime_of(llm).engine.requests
    assert (first.sampling.temperature, first.generation.stop) == (0.5, ("a",))
    assert (second.sampling.temperature, second.generation.stop) == (0.25, ("b",))
    assert second.generation.seed == 1
    assert second.draft.sources == ()
    assert llm.invoke("p", json_schema={"type": "integer"}) == "5"  # in place of the regex
    assert llm.bind(stop=["c"], regex="a").invoke("p") == "a"
    assert runtime_of(llm).engine.requests[-1].generation.stop == ("c",)


# -- calls


def test_the_prompt_is_what_the_model_reads() -> None:
    llm = fake_llm("world")
    assert llm.invoke("Hello, <|im_end|>") == "world"
    assert runtime_of(llm).prompt == "Hello, <|im_end|>"
    (request,) = runtime_of(llm).engine.requests
    assert (request.law, request.matcher, request.tool_set) == ("off", None, "")


@pytest.mark.parametrize(("prompt", "message"), [("", "prompt is empty"), ("\ud800", "cannot be tokenized")])
def test_a_prompt_that_cannot_be_used(prompt: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fake_llm("x").invoke(prompt)


def test_prompts_are_submitted_together() -> None:
    llm = fake_llm(None, None, None)
    engine = runtime_of(llm).engine
    submit = engine.submit

    def until_all_are_there(request: Any) -> Any:
        stream = submit(request)
        if len(engine.requests) == 3:  # answered only now, the last one first
            for number in (2, 1, 0):
                engine.channels[number].put(Step((48 + number,), b"%d" % number))
                engine.channels[number].finish(result(Reply("x"), engine.requests[number]))
        return stream

    engine.submit = until_all_are_there  # type: ignore[method-assign]
    assert llm.batch(["a", "b", "c"]) == ["0", "1", "2"]


async def test_prompts_are_submitted_together_async() -> None:
    llm = fake_llm(None, None, None)
    engine = runtime_of(llm).engine
    task = asyncio.create_task(llm.abatch(["a", "b", "c"]))
    while len(engine.channels) < 3:
        await asyncio.sleep(0)
    for number in (2, 1, 0):
        engine.channels[number].put(Step((48 + number,), b"%d" % number))
        engine.channels[number].finish(result(Reply("x"), engine.requests[number]))
    assert await task == ["0", "1", "2"]


def test_metadata() -> None:
    made = fake_llm("hé", "x").generate(["ab", "c"], logprobs=True)
    info = made.generations[0][0].generation_info
    assert info is not None
    assert (info["finish_reason"], info["model_name"]) == ("stop", "fake-model")
    assert info["usage_metadata"] == {
        "input_tokens": 2,
        "output_tokens": 3,
        "total_tokens": 5,
        "input_token_details": {"cache_read": 5},
    }
    assert info["agentspec"]["law"] == "off"
    assert [entry["bytes"] for entry in info["logprobs"]["content"]] == [[104], [195], [169]]
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert made.llm_output == {"token_usage": usage, "model_name": "fake-model"}


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_streaming_and_invoking_give_one_reply(way: str) -> None:
    class Heard(BaseCallbackHandler):
        def __init__(self) -> None:
            self.tokens: list[str] = []
            self.ended: list[LLMResult] = []

        def on_llm_new_token(self, token: Any, **_: Any) -> None:
            self.tokens.append(token)

        def on_llm_end(self, response: LLMResult, **_: Any) -> None:
            self.ended.append(response)

    async def streamed() -> list[str]:
        return [text async for text in llm.astream("p", {"callbacks": [heard]}, logprobs=True)]

    llm, heard = fake_llm("drømmen er hé", "drømmen er hé"), Heard()
    whole = llm.generate(["p"], logprobs=True).generations[0][0]
    if way == "stream":
        texts = list(llm.stream("p", {"callbacks": [heard]}, logprobs=True))
    else:
        texts = asyncio.run(streamed())
    assert "".join(texts) == "".join(heard.tokens) == whole.text == "drømmen er hé"
    assert len(texts) > 3
    (ended,) = heard.ended
    assert ended.generations[0][0].generation_info == whole.generation_info


def test_chunks_merge_to_the_whole_reply() -> None:
    llm = fake_llm("hello there")
    merged = functools.reduce(operator.add, llm._stream("p"))
    assert isinstance(merged, GenerationChunk)
    assert merged.text == "hello there"
    assert merged.generation_info is not None
    assert merged.generation_info["finish_reason"] == "stop"


def test_errors_are_both_libraries() -> None:
    llm = fake_llm("x", n_ctx=20)
    for use in (llm.invoke, lambda text: list(llm.stream(text)), lambda text: asyncio.run(llm.ainvoke(text))):
        with pytest.raises(ContextOverflowError):
            use("x" * 30)
    late = fake_llm(None, timeout=1.5)
    runtime_of(late).engine.failure = DeadlineExceededError("not done")
    with pytest.raises(ModelTimeoutError):
        late.invoke("x")


# -- streams that are not read to the end


def _write(llm: AgentSpecLLM) -> None:
    runtime_of(llm).engine.channels[-1].put(Step((104, 101), b"he"))


def test_an_abandoned_stream_is_cancelled() -> None:
    llm = fake_llm(None)
    engine = runtime_of(llm).engine
    submit = engine.submit

    def begun(request: Any) -> Any:
        stream = submit(request)
        _write(llm)
        return stream

    engine.submit = begun  # type: ignore[method-assign]
    stream = cast(Generator[str], llm.stream("x"))
    assert next(stream) == "he"
    assert not engine.channels[0].cancelled
    stream.close()
    assert engine.channels[0].cancelled


async def test_an_abandoned_async_stream_is_cancelled() -> None:
    llm = fake_llm(None)
    engine = runtime_of(llm).engine
    stream = cast(AsyncGenerator[GenerationChunk], llm._astream("x"))
    first = asyncio.ensure_future(anext(stream))
    while not engine.channels:
        await asyncio.sleep(0)
    _write(llm)
    assert (await first).text == "he"
    await stream.aclose()
    assert engine.channels[0].cancelled


async def test_a_cancelled_batch_cancels_every_reply() -> None:
    llm = fake_llm(None, None)
    engine = runtime_of(llm).engine
    task = asyncio.create_task(llm.abatch(["x", "y"]))
    while len(engine.channels) < 2:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(channel.cancelled for channel in engine.channels)


def test_where_one_of_a_batch_fails_the_others_are_cancelled() -> None:
    llm = fake_llm("x", None, None)
    engine = runtime_of(llm).engine
    engine.failure = DeadlineExceededError("not done")
    submit, held = engine.submit, []

    def holding(request: Any) -> Any:  # or they would be cancelled by being collected
        held.append(submit(request))
        return held[-1]

    engine.submit = holding  # type: ignore[method-assign]
    with pytest.raises(DeadlineExceededError):
        llm.batch(["a", "b", "c"])
    assert all(channel.cancelled for channel in engine.channels)


# -- replies that are held to something


def test_a_schema_is_enforced_whole_and_not_shown() -> None:
    llm = fake_llm('{"value": 3}', '{"n": 2}', '{"x": 1, "y": 2}', "[1]")
    assert llm.invoke("p", json_schema=SUM) == '{"value": 3}'
    assert runtime_of(llm).prompt == "p"
    assert llm.invoke("p", json_schema=Even) == '{"n": 2}'
    assert llm.invoke("p", json_schema=Point) == '{"x": 1, "y": 2}'
    assert llm.invoke("p", json_schema={"type": "array"}) == "[1]"
    assert [schema.get("title") for schema in runtime_of(llm).schemas] == [None, "Even", "Point", None]
    requests = runtime_of(llm).engine.requests
    assert {request.law for request in requests} == {"enforce:canonical"}
    assert len({request.tool_set for request in requests}) == 4  # what is learned of one is not for another


@pytest.mark.parametrize(
    ("options", "reply"),
    [({"regex": "[0-9]+ (apples|pears)"}, "12 pears"), ({"lark": 'start: /[a-z]+/ ("," /[a-z]+/)*'}, "a,bc")],
)
@pytest.mark.parametrize("spelling", ["canonical", "any"])
def test_a_pattern_is_enforced(options: dict[str, Any], reply: str, spelling: str) -> None:
    llm = fake_llm(reply, spelling=spelling, **options)
    assert llm.invoke("p") == reply
    (request,) = runtime_of(llm).engine.requests
    assert request.law == f"enforce:{spelling}"
    assert request.matcher is not None
    assert request.matcher.legal() is not None
    assert request.tool_set


@pytest.mark.parametrize("grammar", ["propose", "off"])
def test_where_nothing_is_enforced_replies_are_checked(grammar: str) -> None:
    llm = fake_llm("12", "twelve", grammar=grammar, regex="[0-9]+", temperature=1.0)
    assert llm.invoke("p") == "12"
    with pytest.raises(UnfitReplyError, match="does not match the regex"):
        llm.invoke("p")
    requests = runtime_of(llm).engine.requests
    assert [request.law for request in requests] == [grammar] * 2  # and none was sampled again
    follows = requests[0].matcher is not None and requests[0].matcher.legal() is None
    assert follows == (grammar == "propose")


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "batch", "generate", "stream", "astream"])
@pytest.mark.parametrize(
    ("options", "reply", "message"),
    [
        ({"json_schema": SUM}, Reply('{"value": 3', "length", complete=False), "ended early.*'length'"),
        ({"json_schema": {"type": "integer"}}, Reply("3", "length", complete=False), "ended early"),
        ({"json_schema": SUM}, Reply('{"value": "3"}'), "expected integer"),
        ({"json_schema": Even}, Reply('{"n": 3}'), "odd"),
        ({"regex": "a*b"}, Reply("aaa", "length", complete=False), "ended early"),
        ({"regex": "a*b"}, Reply("aa"), "does not match the regex"),
        ({"lark": 'start: "a" "b"'}, Reply("abb"), "does not match the lark"),
    ],
)
def test_what_does_not_fit_is_never_returned(
    way: str, options: dict[str, Any], reply: Reply, message: str
) -> None:
    async def streamed() -> str:
        return "".join([text async for text in llm.astream("p")])

    llm = fake_llm(reply, cache=InMemoryCache(), **options)
    uses: dict[str, Callable[[], object]] = {
        "invoke": lambda: llm.invoke("p"),
        "ainvoke": lambda: asyncio.run(llm.ainvoke("p")),
        "batch": lambda: llm.batch(["p"]),
        "generate": lambda: llm.generate(["p"]),
        "stream": lambda: "".join(llm.stream("p")),
        "astream": lambda: asyncio.run(streamed()),
    }
    with pytest.raises(UnfitReplyError, match=message) as caught:
        uses[way]()
    error = caught.value
    assert isinstance(error, ReplyError)
    assert isinstance(error, AgentSpecError)
    assert isinstance(error, OutputParserException)
    assert (error.text, error.llm_output, error.finish_reason) == (
        reply.text,
        reply.text,
        reply.finish_reason,
    )
    assert ("max_tokens" in error.hint) == (reply.finish_reason == "length")
    assert llm.cache._cache == {}  # type: ignore[union-attr]


def test_a_text_that_was_cut_is_returned_where_nothing_was_asked_of_it() -> None:
    llm = fake_llm(Reply("and then", "length", complete=False))
    (generation,) = llm.generate(["p"]).generations[0]
    assert generation.text == "and then"
    assert generation.generation_info is not None
    assert generation.generation_info["finish_reason"] == "length"


def test_what_a_stop_string_leaves_has_to_match_by_itself() -> None:
    def cut(llm: AgentSpecLLM, tokens: bytes, data: bytes) -> None:
        engine = runtime_of(llm).engine
        submit = engine.submit

        def answered(request: Any) -> Any:
            stream = submit(request)
            engine.channels[-1].put(Step(tuple(tokens), data))
            engine.channels[-1].finish(result(Reply("x"), request))
            return stream

        engine.submit = answered  # type: ignore[method-assign]

    llm = fake_llm(None, regex="[a-z]+!?")
    cut(llm, b"abc!", b"abc")
    assert llm.invoke("p", stop=["!"]) == "abc"
    llm = fake_llm(None, regex="[a-z]+!")
    cut(llm, b"abc!", b"abc")
    with pytest.raises(UnfitReplyError):
        llm.invoke("p", stop=["!"])


@pytest.mark.parametrize("regex", ["a+", "aa"])
def test_an_end_token_is_no_part_of_the_text(regex: str) -> None:
    llm = fake_llm(None, regex=regex, grammar="propose")
    engine = runtime_of(llm).engine
    submit = engine.submit

    def ended(request: Any) -> Any:
        stream = submit(request)
        engine.channels[-1].put(Step((97, 97, 256), b"aa"))
        engine.channels[-1].finish(result(Reply("x"), request))
        return stream

    engine.submit = ended  # type: ignore[method-assign]
    assert llm.invoke("p") == "aa"


def test_with_return_exceptions_each_prompt_has_its_own() -> None:
    llm = fake_llm("1", "x", "3", regex="[0-9]")
    runtime_of(llm).engine.replies = [Reply("x")] * 3
    found: list[Any] = llm.batch(["a", "b", "c"], return_exceptions=True)
    assert [type(one) for one in found] == [UnfitReplyError] * 3
    llm = fake_llm("1", "x", "3", regex="[0-9]")
    found = asyncio.run(llm.abatch(["a", "b", "c"], {"max_concurrency": 1}, return_exceptions=True))
    assert [found[0], type(found[1]), found[2]] == ["1", UnfitReplyError, "3"]


# -- replies that are sampled again


def enforcing(*replies: Reply | str, **options: Any) -> AgentSpecLLM:
    llm = fake_llm(*replies, **{"temperature": 0.7, **options})
    runtime_of(llm).matcher = TrieMatcher([[0]])
    return llm


@pytest.mark.parametrize("use", ["invoke", "ainvoke"])
@pytest.mark.parametrize(
    ("schema", "replies"), [(TAGS, ['["a", "a"]', '["a"]']), (Even, ['{"n": 1}', '{"n": 2}'])]
)
def test_a_misfit_is_sampled_again(use: str, schema: Any, replies: list[str]) -> None:
    llm = enforcing(replies[0], *replies, json_schema=schema, seed=5, logprobs=True)
    generated = llm.generate(["p"]) if use == "invoke" else asyncio.run(llm.agenerate(["p"]))
    (generation,) = generated.generations[0]
    assert generation.text == replies[1]
    assert generation.generation_info is not None
    assert generation.generation_info["agentspec"]["resampled"] == 2
    assert generation.generation_info["usage_metadata"]["output_tokens"] == len(replies[1])
    assert len(generation.generation_info["logprobs"]["content"]) == len(replies[1])
    seeds = [request.generation.seed for request in runtime_of(llm).engine.requests]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3


def test_in_a_batch_each_reply_is_sampled_again_by_itself() -> None:
    llm = enforcing('["a", "a"]', '["b"]', '["a"]', json_schema=TAGS)
    assert llm.batch(["p", "q"]) == ['["a"]', '["b"]']


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        ('["a", "a"]', {"max_resamples": 0}),
        ('["a", "a"]', {"temperature": 0.0}),
        ('["a", "a"]', {"grammar": "off"}),
        (Reply('["a", "a"]', "length"), {}),
    ],
)
def test_what_is_not_sampled_again(reply: Reply | str, options: dict[str, Any]) -> None:
    llm = enforcing(reply, json_schema=TAGS, **options)
    with pytest.raises(UnfitReplyError):
        llm.invoke("p")
    assert len(runtime_of(llm).engine.requests) == 1


# -- caches


def test_a_cache_is_asked_by_the_options_of_a_call() -> None:
    """LangChain leaves them out of its key."""
    cache = InMemoryCache()
    llm = fake_llm("1", "22", "333", "a", cache=cache, stop=["z"])
    assert llm.invoke("q", regex="[0-9]") == "1"
    assert llm.invoke("q", regex="[0-9]+") == "22"
    assert llm.invoke("q", lark="start: /[0-9]+/") == "333"
    assert llm.invoke("q", regex="[0-9]") == "1"
    assert asyncio.run(llm.ainvoke("q", regex="[0-9]+")) == "22"
    assert llm.invoke("q", stop=["b"]) == "a"
    assert len(runtime_of(llm).engine.requests) == 4


def test_a_cache_tells_classes_of_one_name_apart() -> None:
    def named(field: str) -> type[BaseModel]:
        return type("Thing", (BaseModel,), {"__annotations__": {field: int}, "__module__": __name__})

    llm = fake_llm('{"a": 1}', '{"b": 2}', cache=InMemoryCache())
    assert llm.invoke("q", json_schema=named("a")) == '{"a": 1}'
    assert llm.invoke("q", json_schema=named("b")) == '{"b": 2}'
    assert llm.invoke("q", json_schema=named("a")) == '{"a": 1}'


def test_of_a_batch_only_what_is_not_cached_is_generated() -> None:
    llm = fake_llm("1", "2", "3", cache=InMemoryCache())
    assert llm.invoke("b") == "1"
    assert llm.batch(["a", "b", "c"]) == ["2", "1", "3"]


# -- what LangChain asks


def test_it_composes() -> None:
    prompt = PromptTemplate.from_template("{a} + {b} =")
    llm = fake_llm('{"value": 3}', '{"n": 4}', "x")
    chain = prompt | llm.bind(json_schema=SUM) | JsonOutputParser()
    assert chain.invoke({"a": 1, "b": 2}) == {"value": 3}
    assert runtime_of(llm).prompt == "1 + 2 ="
    assert (llm.bind(json_schema=Even) | PydanticOutputParser(pydantic_object=Even)).invoke("p") == Even(n=4)
    assert (llm | StrOutputParser()).invoke([HumanMessage("hi")]) == "x"


def test_a_fallback_takes_over_for_a_reply_that_does_not_fit() -> None:
    llm = fake_llm("x", regex="[0-9]").with_fallbacks([fake_llm("5", regex="[0-9]")])
    assert llm.invoke("p") == "5"


async def test_events() -> None:
    events = [event async for event in fake_llm("hello").astream_events("p", version="v2")]
    streamed = [event["data"]["chunk"] for event in events if event["event"] == "on_llm_stream"]
    assert "".join(streamed if isinstance(streamed[0], str) else [one.text for one in streamed]) == "hello"


async def test_async_callbacks_hear_every_token() -> None:
    class Heard(AsyncCallbackHandler):
        text = ""

        async def on_llm_new_token(self, token: Any, **_: Any) -> None:
            self.text += token

    heard = Heard()
    async for _ in fake_llm("hello").astream("p", {"callbacks": [heard]}):
        pass
    assert heard.text == "hello"


def test_token_counts_are_those_of_the_prompt() -> None:
    llm = fake_llm()
    assert llm.get_num_tokens("på") == 3
    assert llm.get_token_ids("a") == [97]


def test_identifying_and_tracing_parameters() -> None:
    llm = AgentSpecLLM(seed=4, stop=["a"], temperature=0.5, json_schema=Even)
    params = llm._identifying_params
    for name in ("model", "draft", "temperature", "seed", "n_ctx", "grammar", "regex", "lark"):
        assert name in params
    assert "parallel_tool_calls" not in params
    assert params["json_schema"][0] == "Even"
    traced = llm._get_ls_params()
    assert (traced["ls_provider"], traced["ls_model_type"], traced["ls_stop"]) == ("agentspec", "llm", ["a"])
    assert traced["ls_temperature"] == 0.5
    assert llm._llm_type == "agentspec"
    assert llm.metadata is not None
    assert {"langchain-core", "langchain-agentspec"} <= llm.metadata["lc_versions"].keys()


def test_copies_share_the_runtime_and_pickles_do_not() -> None:
    llm = fake_llm("x", "y")
    assert copy.deepcopy(llm).invoke("x") == "x"
    assert llm.model_copy(update={"temperature": 1.0}).invoke("x") == "y"
    assert pickle.loads(pickle.dumps(llm))._runtimes.given is None


def test_making_a_model_loads_nothing() -> None:
    loaded = set(sys.modules)
    AgentSpecLLM(model="no-such-file.gguf", regex="a+").bind(stop=["x"])
    assert "llama_cpp" not in set(sys.modules) - loaded
