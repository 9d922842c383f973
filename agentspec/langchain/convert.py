"""LangChain messages to turns.

Every message type and content block is either understood or refused by name: a part of a conversation that
is dropped in silence is a wrong answer later. It must not know templates or tokens.

Dropped on purpose, from assistant messages only: blocks that repeat `tool_calls` (`tool_use` and the like).
Reasoning is kept apart from the text; most chat templates leave it out of earlier turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_messages,
)

from agentspec.errors import ConfigError
from agentspec.langchain.reply import raw_of
from agentspec.types import AssistantTurn, Json, SystemTurn, ToolTurn, Turn, UserTurn

__all__ = ["RECENT_CHARACTERS", "from_openai", "recent_texts", "to_turns", "with_instructions"]

RECENT_CHARACTERS = 20_000
_RECENT_TEXTS = 8
"""How much of a conversation drafts look for values in."""

_REPEATS_OF_CALLS = frozenset(
    {"tool_use", "tool_call", "tool_call_chunk", "invalid_tool_call", "function_call", "input_json_delta"}
)
_REASONING = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content"})
_DROPPED_FROM_ASSISTANT = _REPEATS_OF_CALLS | _REASONING
_TEXTS = frozenset({"text", "text-plain"})

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
}


def from_openai(messages: Sequence[Mapping[str, Json]]) -> list[BaseMessage]:
    """LangChain's messages of those in OpenAI's form."""
    return convert_to_messages([dict(message) for message in messages])


def to_turns(messages: Sequence[BaseMessage]) -> list[Turn]:
    """The turns of a conversation.

    Raises ConfigError naming the message type or content block that cannot be shown to a text model.
    """
    names = _call_names(messages)
    return [_turn(message, names) for message in messages]


def with_instructions(turns: Sequence[Turn], text: str) -> list[Turn]:
    """The turns with `text` at the end of the system turn, which is added where there is none."""
    if turns and isinstance(first := turns[0], SystemTurn):
        return [SystemTurn(f"{first.text}\n\n{text}"), *turns[1:]]
    return [SystemTurn(text), *turns]


def _turn(message: BaseMessage, names: Mapping[str, str]) -> Turn:
    match message:
        case SystemMessage():
            return SystemTurn(_text(message))
        case HumanMessage():
            return UserTurn(_text(message), name=message.name)
        case AIMessage():
            return _assistant_turn(message)
        case ToolMessage():
            return ToolTurn(
                _text(message),
                call_id=message.tool_call_id,
                name=message.name or names.get(message.tool_call_id),
                failed=message.status == "error",
            )
        case ChatMessage():
            return _role_turn(message)
        case _:
            raise ConfigError(
                f"messages of type {type(message).__name__} cannot be shown to the model",
                hint="use SystemMessage, HumanMessage, AIMessage or ToolMessage",
            )


def _assistant_turn(message: AIMessage) -> AssistantTurn:
    """The model sees its earlier calls as calls, and its invalid ones as the text it wrote."""
    text = _text(message, dropped=_DROPPED_FROM_ASSISTANT)
    reasoning = _reasoning(message)
    raws = [raw_of(call["args"] or "") for call in message.invalid_tool_calls]
    calls = tuple(
        (call["id"] or "", call["name"], cast(Mapping[str, Json], call["args"]))
        for call in message.tool_calls
    )
    return AssistantTurn("\n".join(part for part in (text, *raws) if part), calls=calls, reasoning=reasoning)


def _reasoning(message: AIMessage) -> str:
    """What the model thought, as it is kept beside the content or in blocks of it."""
    kept = message.additional_kwargs.get("reasoning_content")
    if isinstance(kept, str) or isinstance(message.content, str):
        return kept if isinstance(kept, str) else ""
    blocks = [block for block in message.content if isinstance(block, dict)]
    return "".join(
        text
        for block in blocks
        if block.get("type") in _REASONING
        for key in ("reasoning", "thinking", "reasoning_content")
        if isinstance(text := block.get(key), str)
    )


def _role_turn(message: ChatMessage) -> Turn:
    match _ROLES.get(message.role):
        case "system":
            return SystemTurn(_text(message))
        case "user":
            return UserTurn(_text(message), name=message.name)
        case "assistant":
            return AssistantTurn(_text(message, dropped=_DROPPED_FROM_ASSISTANT))
        case _:
            raise ConfigError(
                f"a ChatMessage of role {message.role!r} cannot be shown to the model",
                hint="known roles: " + ", ".join(sorted(_ROLES)),
            )


def _call_names(messages: Iterable[BaseMessage]) -> dict[str, str]:
    """Call id -> tool name, for tool messages that do not name their tool."""
    return {
        call["id"]: call["name"]
        for message in messages
        if isinstance(message, AIMessage)
        for call in message.tool_calls
        if call["id"]
    }


def _text(message: BaseMessage, *, dropped: frozenset[str] = frozenset()) -> str:
    """The text of a message's content, its blocks joined as they stand."""
    if isinstance(message.content, str):
        return _encodable(message.content)
    parts: list[str] = []
    for block in message.content:
        if isinstance(block, str):
            parts.append(block)
        elif block.get("type") in _TEXTS and isinstance(text := block.get("text"), str):
            parts.append(text)
        elif block.get("type") not in dropped:
            whose = f" of {message.name!r}" if message.name else ""
            raise ConfigError(
                f"a content block of type {block.get('type')!r} in a {type(message).__name__}{whose} "
                "cannot be shown to the model",
                hint="agentspec runs text models: send text blocks only",
            )
    return _encodable("".join(parts))


def _encodable(text: str) -> str:
    """The text, U+FFFD in the place of what is no character: names of files that are not UTF-8 have that."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def recent_texts(turns: Sequence[Turn]) -> tuple[str, ...]:
    """What the user and the tools said last, the latest first: where the values of a call come from."""
    texts: list[str] = []
    room = RECENT_CHARACTERS
    for turn in reversed(turns):
        if isinstance(turn, (UserTurn, ToolTurn)) and turn.text and room > 0:
            texts.append(turn.text[:room])
            room -= len(turn.text)
    return tuple(texts[:_RECENT_TEXTS])
