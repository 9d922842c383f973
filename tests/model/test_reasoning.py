"""A model that is made to reason: what it thinks is told apart, and the call that is required follows it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from agentspec import ChatAgentSpec
from agentspec.config import DEFAULT_MODEL, RuntimeOptions
from agentspec.llama import Model
from agentspec.models.pull import ensure

pytestmark = pytest.mark.model

PROMPT = "<|im_start|>assistant\\n"
ASKED = [
    SystemMessage("First think briefly, in one sentence, then write </think>, then act."),
    HumanMessage("How is the weather in Oslo for the next 3 days?"),
]


def get_weather(city: str, days: int = 1) -> str:
    """Weather forecast of a city."""
    return f"rain in {city} for {days} days"


@pytest.fixture(scope="module")
def model() -> Iterator[ChatAgentSpec]:
    """Its own template, but that every reply begins within a block of reasoning."""
    with Model.load(ensure(DEFAULT_MODEL), RuntimeOptions(), vocab_only=True) as file:
        template = file.chat_template
    assert template is not None
    assert PROMPT in template
    thinking = template.replace(PROMPT, f"{PROMPT}<think>\\n") + "{# </think> #}"
    model = ChatAgentSpec(
        chat_template=thinking, n_ctx=1024, n_parallel=1, temperature=0.0, max_tokens=200, history="off"
    )
    yield model
    model.close()


def test_a_required_call_follows_what_the_model_thinks(model: ChatAgentSpec) -> None:
    message = model.bind_tools([get_weather], tool_choice="any").invoke(ASKED)
    assert isinstance(message, AIMessage)
    (call,) = message.tool_calls
    assert (call["name"], call["args"]["city"]) == ("get_weather", "Oslo")
    assert message.additional_kwargs["reasoning_content"]
    assert message.content == ""


def test_a_block_that_is_cut_is_reasoning_and_no_call(model: ChatAgentSpec) -> None:
    message = model.bind_tools([get_weather], tool_choice="any").invoke(ASKED, max_tokens=5)
    assert isinstance(message, AIMessage)
    assert message.response_metadata["finish_reason"] == "length"
    assert message.additional_kwargs["reasoning_content"]
    assert (message.content, message.tool_calls, message.invalid_tool_calls) == ("", [], [])
