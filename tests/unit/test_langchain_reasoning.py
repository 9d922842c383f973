"""Reasoning as LangChain has it: beside the content, in blocks of its own, and back to the model."""

from __future__ import annotations

import functools
import operator

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tools import tool

from agentspec import ChatAgentSpec
from tests.langchain_fakes import Reply, call_text, fake_model, runtime_of

THINKING = """\
{%- for message in messages -%}
<|{{ message.role }}|>
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
{{ message.content }}
{% endfor -%}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


CALL = call_text("add", '{"a": 1, "b": 2}')
REPLY = f"<think>\nOne and two.\n</think>\n\nI add.\n{CALL}"


def thinking(*replies: Reply | str, version: str = "v0") -> ChatAgentSpec:
    return fake_model(*replies, chat_template=THINKING, output_version=version)


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_reasoning_is_beside_the_content_streamed_or_not(cut: int) -> None:
    whole = thinking(Reply(REPLY, cut=cut)).bind_tools([add]).invoke("1 + 2?")
    chunks = list(thinking(Reply(REPLY, cut=cut)).bind_tools([add]).stream("1 + 2?"))
    merged = functools.reduce(operator.add, chunks)
    assert isinstance(merged, AIMessageChunk)
    for message in (whole, merged):
        assert message.additional_kwargs["reasoning_content"] == "One and two."
        assert str(message.content).strip() == "I add."
        assert [call["args"] for call in message.tool_calls] == [{"a": 1, "b": 2}]
        kinds = [block["type"] for block in message.content_blocks]
        assert kinds == ["reasoning", "text", "tool_call"]


def test_content_blocks_of_version_1_hold_it() -> None:
    model = thinking(REPLY, REPLY, version="v1").bind_tools([add])
    whole = model.invoke("1 + 2?")
    merged = functools.reduce(operator.add, list(model.stream("1 + 2?")))
    for message in (whole, merged):
        reasoning = [block for block in message.content_blocks if block["type"] == "reasoning"]
        assert [block.get("reasoning") for block in reasoning] == ["One and two."]


def test_the_model_is_given_back_what_it_thought() -> None:
    model = thinking("<think>Hm.</think>Yes.", "Fine.", "Fine.")
    first = model.invoke("Is it?")
    model.invoke([HumanMessage("Is it?"), first, HumanMessage("Sure?")])
    assert "<think>Hm.</think>Yes." in runtime_of(model).prompt
    blocks = AIMessage(content=[{"type": "thinking", "thinking": "Ha."}, {"type": "text", "text": "No."}])
    model.invoke([HumanMessage("Is it?"), blocks, HumanMessage("Sure?")])
    assert "<think>Ha.</think>No." in runtime_of(model).prompt


def test_a_model_that_does_not_reason_writes_text() -> None:
    reply = fake_model("<think>Hm.</think>Yes.").invoke("Is it?")
    assert reply.content == "<think>Hm.</think>Yes."
    assert "reasoning_content" not in reply.additional_kwargs


def test_what_is_judged_as_a_document_is_the_text_behind_it() -> None:
    schema = {"title": "Sum", "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    model = thinking('<think>{"n": "x"}</think>{"n": 3}').with_structured_output(schema, method="json_schema")
    assert model.invoke("1 + 2?") == {"n": 3}
