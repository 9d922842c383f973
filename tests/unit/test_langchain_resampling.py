"""Replies that are whole and do not fit their schema all the same are thrown away, and others sampled."""

from __future__ import annotations

import asyncio
import itertools
import json
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from pydantic import BaseModel, field_validator

from agentspec import ChatAgentSpec
from agentspec.engine.request import Request
from agentspec.engine.stream import Stream
from agentspec.errors import ConfigError, QueueFullError, SchemaError
from agentspec.testing import TrieMatcher
from tests.langchain_fakes import Reply, call_text, fake_model, runtime_of

TAGS = {
    "name": "tags",
    "parameters": {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
        "required": ["tags"],
    },
}
TWICE = call_text("tags", '{"tags": ["a", "a"]}')
ONCE = call_text("tags", '{"tags": ["a", "b"]}')


def enforcing(*replies: Reply | str, **options: Any) -> ChatAgentSpec:
    model = fake_model(*replies, **{"temperature": 0.7, **options})
    runtime_of(model).matcher = TrieMatcher([[0]])
    return model


def seeds(model: ChatAgentSpec) -> list[int | None]:
    return [request.generation.seed for request in runtime_of(model).engine.requests]


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
def test_a_misfit_is_sampled_again(way: str) -> None:
    model = enforcing(TWICE, TWICE, ONCE, seed=5)
    bound = model.bind_tools([TAGS], tool_choice="any")

    async def streamed() -> list[Any]:
        return [chunk async for chunk in bound.astream("x")]

    match way:
        case "invoke":
            reply: Any = bound.invoke("x")
        case "ainvoke":
            reply = asyncio.run(bound.ainvoke("x"))
        case "stream":
            chunks = list(bound.stream("x"))
            reply = sum(chunks[1:], chunks[0])
        case _:
            chunks = asyncio.run(streamed())
            reply = sum(chunks[1:], chunks[0])
    assert [call["args"] for call in reply.tool_calls] == [{"tags": ["a", "b"]}]
    assert not reply.invalid_tool_calls
    assert reply.response_metadata["agentspec"]["resampled"] == 2
    used = seeds(model)
    assert used[0] == 5
    assert len(set(used)) == 3
    again = enforcing(TWICE, TWICE, ONCE, seed=5)
    again.bind_tools([TAGS]).invoke("x")
    assert seeds(again) == used


def test_without_a_seed_each_draws_its_own() -> None:
    model = enforcing(TWICE, ONCE)
    assert model.bind_tools([TAGS]).invoke("x").tool_calls
    assert seeds(model) == [None, None]


def test_after_the_last_one_the_misfit_is_an_invalid_call() -> None:
    model = enforcing(*[TWICE] * 3, max_resamples=2)
    reply = model.bind_tools([TAGS]).invoke("x")
    assert not reply.tool_calls
    (invalid,) = reply.invalid_tool_calls
    assert "non-unique" in str(invalid["error"])
    assert reply.response_metadata["agentspec"]["resampled"] == 2
    assert len(seeds(model)) == 3


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        (TWICE, {"max_resamples": 0}),
        (TWICE, {"temperature": 0.0}),  # it would be the same
        (TWICE, {"grammar": "off"}),
        (Reply(TWICE, finish_reason="length"), {}),  # cut
        (ONCE, {}),
    ],
)
def test_what_is_not_sampled_again(reply: Reply | str, options: dict[str, Any]) -> None:
    model = enforcing(reply, **options)
    answer = model.bind_tools([TAGS]).invoke("x")
    assert len(seeds(model)) == 1
    assert "resampled" not in answer.response_metadata["agentspec"]


def test_a_stream_that_has_begun_is_not_taken_back() -> None:
    model = enforcing(f"Let me see.\n{TWICE}", ONCE)
    chunks = list(model.bind_tools([TAGS]).stream("x"))
    assert chunks[0].text
    assert sum(chunks[1:], chunks[0]).invalid_tool_calls
    assert len(seeds(model)) == 1
    assert enforcing(f"Let me see.\n{TWICE}", ONCE).bind_tools([TAGS]).invoke("x").tool_calls


def test_what_only_pydantic_refuses_is_sampled_again_too() -> None:
    class Even(BaseModel):
        """An even number."""

        n: int

        @field_validator("n")
        @classmethod
        def _even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("odd")
            return n

    replies = [call_text("Even", f'{{"n": {n}}}') for n in (1, 3, 4)]
    assert enforcing(*replies).with_structured_output(Even).invoke("x") == Even(n=4)
    documents = ['{"tags": ["a", "a"]}', '{"tags": ["a"]}']
    schema = {"title": "tags", **TAGS["parameters"]}  # type: ignore[dict-item]
    model = enforcing(*documents)
    assert model.with_structured_output(schema, method="json_schema").invoke("x") == {"tags": ["a"]}
    with pytest.raises(OutputParserException, match="non-unique"):
        enforcing(documents[0], max_resamples=0).with_structured_output(schema, method="json_schema").invoke(
            "x"
        )


def test_the_time_limit_holds_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 4.0)
    watch = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("agentspec.langchain.driving.time", watch)
    model = enforcing(TWICE, TWICE, TWICE, TWICE, timeout=10.0)
    assert model.bind_tools([TAGS]).invoke("x").invalid_tool_calls
    timeouts = [request.generation.timeout for request in runtime_of(model).engine.requests]
    assert timeouts == [10.0, 6.0, 2.0]


def test_where_the_queue_is_full_the_reply_is_kept() -> None:
    model = enforcing(TWICE, ONCE)
    engine = runtime_of(model).engine
    submit = engine.submit

    def once(request: Request) -> Stream:
        if engine.requests:
            raise QueueFullError("full")
        return submit(request)

    engine.submit = once  # type: ignore[method-assign]
    reply = model.bind_tools([TAGS]).invoke("x")
    assert reply.invalid_tool_calls
    assert "resampled" not in reply.response_metadata["agentspec"]


# ------------------------------------------------------------------------------------------- binding


SOUND = {"name": "sound", "parameters": {"type": "object", "properties": {}}}
BROKEN = {"name": "broken", "parameters": {"type": "object", "properties": {"x": {"type": "strnig"}}}}


def test_a_bad_tool_does_not_keep_the_others_out() -> None:
    with pytest.warns(UserWarning, match=r"not bound: tool 'broken': /properties/x.*strnig"):
        bound = fake_model("x").bind_tools([TAGS, BROKEN])
    kwargs: Any = bound
    assert [tool["function"]["name"] for tool in kwargs.kwargs["tools"]] == ["tags"]
    with (
        pytest.warns(UserWarning, match="broken"),
        pytest.raises(ConfigError, match="'broken', which is not bound"),
    ):
        fake_model("x").bind_tools([TAGS, BROKEN], tool_choice="broken")


def test_bad_tools_alone_are_an_error() -> None:
    impossible: dict[str, Any] = json.loads(json.dumps(BROKEN).replace("strnig", "string"))
    impossible["parameters"]["properties"]["x"] |= {"minLength": 3, "maxLength": 2}
    impossible["parameters"]["required"] = ["x"]
    with pytest.raises(SchemaError, match=r"'broken'.*/properties/x"):
        fake_model("x").bind_tools([impossible])


def test_unsupported_keywords_can_be_refused() -> None:
    with pytest.raises(SchemaError, match="'tags': /properties/tags/uniqueItems") as caught:
        fake_model("x", unsupported="error").bind_tools([TAGS])
    assert caught.value.keyword == "uniqueItems"
    with pytest.raises(SchemaError, match="'tags': /properties/tags/uniqueItems"):
        fake_model("x").bind_tools([TAGS], unsupported="error")
    with pytest.raises(SchemaError, match="'broken'"):
        fake_model("x", unsupported="error").bind_tools([SOUND, BROKEN])
    document = {"type": "json_object", "schema": TAGS["parameters"]}
    with pytest.raises(SchemaError, match="uniqueItems"):
        fake_model("x", unsupported="error").invoke("x", response_format=document)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fake_model("x").bind_tools([TAGS])
