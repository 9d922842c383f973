"""Messages to turns: nothing of a conversation is lost in silence."""

from __future__ import annotations

import pytest
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from agentspec.errors import ConfigError
from agentspec.langchain.convert import to_turns, with_instructions
from agentspec.types import AssistantTurn, SystemTurn, ToolTurn, UserTurn


def test_a_whole_conversation() -> None:
    call = {"name": "add", "args": {"a": 1}, "id": "c1", "type": "tool_call"}
    turns = to_turns(
        [
            SystemMessage("be brief"),
            HumanMessage("hi", name="ann"),
            AIMessage("let me see", tool_calls=[call]),
            ToolMessage("2", tool_call_id="c1"),
            ToolMessage("no", tool_call_id="c1", status="error"),
        ]
    )
    assert turns == [
        SystemTurn("be brief"),
        UserTurn("hi", name="ann"),
        AssistantTurn("let me see", calls=(("c1", "add", {"a": 1}),)),
        ToolTurn("2", call_id="c1", name="add"),
        ToolTurn("no", call_id="c1", name="add", failed=True),
    ]


def test_text_blocks_are_joined_and_blocks_that_repeat_calls_are_dropped() -> None:
    message = AIMessage(
        content=[
            {"type": "reasoning", "reasoning": "hm"},
            {"type": "text", "text": "a"},
            "b",
            {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
        ],
        tool_calls=[{"name": "add", "args": {"a": 1}, "id": "c1"}],
    )
    wanted = AssistantTurn("ab", calls=(("c1", "add", {"a": 1}),), reasoning="hm")
    assert to_turns([message]) == [wanted]


def test_plain_text_in_a_block_of_its_own_is_text() -> None:
    block = {"type": "text-plain", "text": "of a file", "mime_type": "text/plain"}
    assert to_turns([HumanMessage([{"type": "text", "text": "see "}, block])]) == [UserTurn("see of a file")]
    with pytest.raises(ConfigError, match="text-plain"):
        to_turns([HumanMessage([{"type": "text-plain", "url": "x"}])])


def test_what_is_no_character_has_a_mark_in_its_place() -> None:
    assert to_turns([HumanMessage("å\udce9\ud83d\ude00")]) == [UserTurn("å\ufffd\U0001f600")]
    assert to_turns([HumanMessage([{"type": "text", "text": "\udce9"}])]) == [UserTurn("\ufffd")]


def test_an_invalid_call_is_shown_as_the_text_it_was() -> None:
    raw = '<tool_call>\n{"name": "add", "arg'
    invalid = {"name": "add", "args": f"invalid: {raw}", "id": "c1", "error": "cut"}
    message = AIMessage("", invalid_tool_calls=[invalid])
    assert to_turns([message]) == [AssistantTurn(raw)]


@pytest.mark.parametrize(
    ("role", "turn"),
    [
        ("user", UserTurn("x")),
        ("developer", SystemTurn("x")),
        ("assistant", AssistantTurn("x")),
    ],
)
def test_chat_message_roles(role: str, turn: object) -> None:
    assert to_turns([ChatMessage(content="x", role=role)]) == [turn]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (HumanMessage([{"type": "image_url", "image_url": {"url": "x"}}]), "image_url"),
        (ToolMessage([{"type": "image", "base64": "x"}], tool_call_id="c"), "image"),
        (HumanMessage([{"type": "reasoning", "reasoning": "x"}]), "reasoning"),
        (FunctionMessage(content="x", name="f"), "FunctionMessage"),
        (ChatMessage(content="x", role="narrator"), "narrator"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_name(message: BaseMessage, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        to_turns([message])


def test_instructions_go_to_the_end_of_the_system_turn() -> None:
    assert with_instructions([SystemTurn("a"), UserTurn("b")], "c") == [SystemTurn("a\n\nc"), UserTurn("b")]
    assert with_instructions([UserTurn("b")], "c") == [SystemTurn("c"), UserTurn("b")]
