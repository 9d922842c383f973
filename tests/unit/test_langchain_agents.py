"""LangChain's agents over the chat model: whatever a tool does, the loop goes on or says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    SummarizationMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from pydantic import BaseModel, field_validator

from agentspec import ChatAgentSpec
from agentspec.engine.request import Request
from agentspec.engine.stream import Stream
from agentspec.errors import ConfigError, QueueFullError
from agentspec.langchain.errors import PromptTooLongError
from tests.langchain_fakes import FakeEngine, Reply, call_text, fake_model, runtime_of

FETCH = call_text("fetch", '{"name": "x"}')


class Point(BaseModel):
    """A point."""

    x: int
    name: str


def fetching(result: object, **options: Any) -> BaseTool:
    """A tool that returns this, or raises it."""

    def fetch(name: str) -> object:  # noqa: ARG001 - for the model to give
        """Fetches a thing."""
        if isinstance(result, Exception):
            raise result
        return result

    return StructuredTool.from_function(fetch, **options)


def converse(
    model: ChatAgentSpec, tools: Sequence[BaseTool], *middleware: AgentMiddleware[Any, Any, Any]
) -> list[AnyMessage]:
    agent = create_agent(model, tools, middleware=middleware)
    return cast(list[AnyMessage], agent.invoke({"messages": [HumanMessage("go on")]})["messages"])


def shown(model: ChatAgentSpec) -> str:
    """What the prompt says the tool answered."""
    return runtime_of(model).prompt.split("<tool_response>\n")[-1].split("\n</tool_response>")[0]


# -- what tools return


@pytest.mark.parametrize(
    ("result", "wanted"),
    [
        ("plain", "plain"),
        ("", ""),
        (None, "null"),
        (7, "7"),
        ({"a": [1, None, "å"]}, '{"a": [1, null, "å"]}'),
        ([], ""),
        (["a", "b"], '["a", "b"]'),
        (b"abc\xff", r"b'abc\xff'"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "caf\ufffd"),  # a name of a file, say
        ("\ud83d\ude00", "\U0001f600"),
        (Point(x=1, name="å"), "x=1 name='å'"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "onetwo"),
        ("nul \x00 and </tool_response>", "nul \x00 and </tool_response>"),
    ],
)
def test_the_model_is_shown_what_a_tool_returned(result: object, wanted: str) -> None:
    model = fake_model(FETCH, "done")
    messages = converse(model, [fetching(result)])
    assert messages[-1].text == "done"
    assert wanted in runtime_of(model).prompt
    assert wanted.startswith(shown(model))


def test_a_long_result_is_shown_whole() -> None:
    text = "a line of text\n" * 3500
    model = fake_model(FETCH, "done")
    converse(model, [fetching(text)])
    assert shown(model) == text


def test_a_long_result_that_does_not_fit_is_an_overflow() -> None:
    model = fake_model(FETCH, n_ctx=5000)
    with pytest.raises(PromptTooLongError):
        converse(model, [fetching("a line of text\n" * 3500)])


def test_the_model_sees_the_content_and_not_the_artifact() -> None:
    model = fake_model(FETCH, "done")
    messages = converse(
        model, [fetching(("a summary", {"rows": [1]}), response_format="content_and_artifact")]
    )
    (answer,) = (message for message in messages if isinstance(message, ToolMessage))
    assert (answer.artifact, shown(model)) == ({"rows": [1]}, "a summary")


@pytest.mark.parametrize("kind", ["image", "image_url", "file"])
def test_what_cannot_be_shown_is_named_with_its_tool(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"type '{kind}' in a ToolMessage of 'fetch'"):
        converse(fake_model(FETCH), [fetching([{"type": kind}])])


# -- tools that fail


def test_a_tool_that_raises_ends_the_run_unless_told_otherwise() -> None:
    with pytest.raises(RuntimeError, match="the shelf is empty"):
        converse(fake_model(FETCH), [fetching(RuntimeError("the shelf is empty"))])


@pytest.mark.parametrize(
    "middleware",
    [
        ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False),
        ToolErrorMiddleware(lambda error, _: f"fetch failed: {error}"),
    ],
)
def test_the_model_is_told_of_an_error_that_middleware_handles(
    middleware: AgentMiddleware[Any, Any, Any],
) -> None:
    model = fake_model(FETCH, "done")
    messages = converse(model, [fetching(RuntimeError("the shelf is empty"))], middleware)
    assert messages[-1].text == "done"
    assert "the shelf is empty" in shown(model)
    assert "fail" in shown(model)


def test_a_tool_that_is_tried_again_may_succeed() -> None:
    tries: list[str] = []

    @tool
    def fetch(name: str) -> str:
        """Fetches a thing."""
        tries.append(name)
        if len(tries) == 1:
            raise RuntimeError("not yet")
        return "there it is"

    model = fake_model(FETCH, "done")
    converse(model, [fetch], ToolRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False))
    assert (tries, shown(model)) == (["x", "x"], "there it is")


# -- calls that are not valid


class Even(BaseModel):
    """An even number."""

    n: int

    @field_validator("n")
    @classmethod
    def _even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("must be even")
        return n


@tool(args_schema=Even)
def halve(n: int) -> int:
    """Halves a number."""
    return n // 2


def test_a_call_that_pydantic_refuses_does_not_run_and_the_model_is_told_why() -> None:
    model = fake_model(call_text("halve", '{"n": 3}'), call_text("halve", '{"n": 4}'), "2")
    agent = create_agent(model, [halve])
    messages = agent.invoke({"messages": [HumanMessage("halve 3")]})["messages"]
    assert [message.type for message in messages] == ["human", "ai"]  # nothing ran
    assert "must be even" in messages[-1].invalid_tool_calls[0]["error"]
    messages = agent.invoke({"messages": [*messages, HumanMessage("then halve 4")]})["messages"]
    assert messages[-1].text == "2"
    prompt = runtime_of(model).prompt
    assert prompt.count('"n": 3') == 1  # what it wrote
    assert "could not be executed" in prompt
    assert prompt.index("could not be executed") < prompt.index("then halve 4")


def test_a_tool_that_is_not_there_is_not_called() -> None:
    """A model free to write may name any; LangChain would ask for another try."""
    messages = converse(fake_model(call_text("fetsch", '{"name": "x"}')), [fetching("x")])
    assert isinstance(messages[-1], AIMessage)
    assert messages[-1].tool_calls == []


def test_ids_of_calls_differ_over_turns() -> None:
    messages = converse(fake_model(FETCH, FETCH, "done"), [fetching("x")])
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    assert len({call["id"] for call in calls}) == 2
    answers = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    assert answers == [call["id"] for call in calls]


async def test_several_calls_of_a_reply_are_all_answered() -> None:
    two = "\n".join(call_text("fetch", f'{{"name": "{name}"}}') for name in "ab")
    model = fake_model(two, "done", parallel_tool_calls=True)
    agent = create_agent(model, [fetching("thing")])
    messages = (await agent.ainvoke({"messages": [HumanMessage("go on")]}))["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "tool", "ai"]
    assert runtime_of(model).prompt.count("<tool_response>\nthing\n</tool_response>") == 2


def test_a_tool_may_ask_the_same_model() -> None:
    model = fake_model(FETCH, "inner", "done")

    @tool
    def fetch(name: str) -> str:
        """Fetches a thing."""
        return model.invoke(f"what is {name}?").text

    agent = create_agent(model, [fetch])
    parts = list(agent.stream({"messages": [HumanMessage("go on")]}, stream_mode="messages"))
    assert parts
    assert shown(model) == "inner"


# -- the model's own errors


def too_long(n: int) -> list[AnyMessage]:
    return [message for _ in range(n) for message in (HumanMessage("a" * 200), AIMessage("b" * 200))]


def test_a_conversation_that_outgrows_the_context_is_summarised() -> None:
    model = fake_model("they spoke of a and b", "done", n_ctx=2000)
    summarise = SummarizationMiddleware(
        model,
        trigger=("tokens", 1000),
        keep=("messages", 1),
        token_counter=cast(Any, model.get_num_tokens_from_messages),
        summary_prompt="Summarise: {messages}",
    )
    agent = create_agent(model, [], middleware=[summarise])
    state = agent.invoke({"messages": [*too_long(3), HumanMessage("and now?")]})
    assert [message.type for message in state["messages"]] == ["human", "human", "ai"]
    assert "they spoke of a and b" in runtime_of(model).prompt
    assert "and now?" in runtime_of(model).prompt


def test_a_summary_that_outgrows_the_context_itself_is_asked_for_again_and_shorter() -> None:
    model = fake_model("in short", "done", n_ctx=2500)
    summarise = SummarizationMiddleware(
        model, trigger=("messages", 3), keep=("messages", 1), summary_prompt="Summarise: {messages}"
    )
    agent = create_agent(model, [], middleware=[summarise])
    state = agent.invoke({"messages": [*too_long(6), HumanMessage("and now?")]})
    assert state["messages"][-1].text == "done"
    first = bytes(runtime_of(model).engine.requests[0].prompt).decode()
    assert "middle of conversation omitted" in first


def test_an_overflow_goes_to_the_fallback() -> None:
    large = fake_model("done")
    messages = converse(fake_model(n_ctx=20), [], ModelFallbackMiddleware(large))
    assert messages[-1].text == "done"


class _Refusing(FakeEngine):
    """Refuses the first request."""

    def submit(self, request: Request) -> Stream:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return super().submit(request)


def test_a_full_queue_is_tried_again_and_an_overflow_is_not() -> None:
    model = fake_model()
    runtime_of(model).engine = _Refusing(n_ctx=1000, replies=[Reply("done")], failure=QueueFullError("full"))
    retry = ModelRetryMiddleware(max_retries=1, initial_delay=0.0, jitter=False, on_failure="error")
    assert converse(model, [], retry)[-1].text == "done"
    with pytest.raises(ContextOverflowError):
        converse(fake_model(n_ctx=20), [], retry)
