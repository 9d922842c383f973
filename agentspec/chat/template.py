"""Turns and tools to a prompt, with the chat template of the model's own file.

Where a template cannot render a conversation as it stands, the conversation is put into a form that it can,
so that nothing is lost: system turns go into the first user turn, turns of one role are joined, tools and
past calls are written into the text. Which of these are needed is found once per template, by
`agentspec.chat.capabilities`. This module must not know how prompts are tokenized or what runs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from agentspec.chat.capabilities import MessageShape, call_message, probe
from agentspec.chat.detect import detect
from agentspec.chat.formats import WireFormat, writes
from agentspec.chat.reasoning import Reasoning, find_marks, reasoning_of
from agentspec.chat.reshape import Reshaping
from agentspec.chat.sandbox import PromptTemplate
from agentspec.errors import ConfigError, TemplateError
from agentspec.types import AssistantTurn, BoundTool, Json, SystemTurn, ToolTurn, Turn, UserTurn

__all__ = ["BUILTIN_TEMPLATES", "ChatTemplate", "template_source", "tool_json"]

BUILTIN_TEMPLATES: Mapping[str, str] = {
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
}
"""Templates that can be chosen by name."""

_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


def template_source(found: str | None, chosen: str | None = None) -> str:
    """The template to use: `chosen` (a built-in name, or Jinja source) where given, else the model's own.

    Raises TemplateError where there is neither, ConfigError for a name that is not built in.
    """
    if chosen is not None:
        if chosen in BUILTIN_TEMPLATES:
            return BUILTIN_TEMPLATES[chosen]
        if "{" not in chosen:
            raise ConfigError(
                f"chat_template {chosen!r} is neither a built-in name nor Jinja source",
                hint="built-in templates: " + ", ".join(sorted(BUILTIN_TEMPLATES)),
            )
        return chosen
    if not found:
        raise TemplateError(
            "the model file holds no chat template",
            hint="pass chat_template='chatml', or the Jinja source its makers give; a base model, "
            "not tuned for chat, has none and will not follow any",
        )
    return found


def tool_json(tool: BoundTool) -> dict[str, Json]:
    """The tool in OpenAI form, keys in the order they were given in."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        },
    }


class ChatTemplate:
    """One model's chat template, with the wire format its calls are written in.

    bos, eos:     spellings of those tokens, for templates that print them. A prompt that begins with bos
                  must not get another from the tokenizer.
    ends:         spellings of the tokens that end a turn
    wire_format:  how calls are written; None finds it from the template

    `marks` are what stands around the model's reasoning; None where it does none.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        ends: Collection[str] = (),
        wire_format: WireFormat | None = None,
    ) -> None:
        """Raises TemplateError if `source` is not a Jinja template."""
        self._template = PromptTemplate(source, bos=bos, eos=eos)
        self._can = probe(self._template)
        found = detect(source, bos=bos, eos=eos, ends=ends)
        self.wire_format = found if wire_format is None else wire_format
        written = self.wire_format == found or writes(self.wire_format, self._can.call_sample)
        self._shape = self._can.call_shape if written else None
        self.marks = find_marks(source)

    def reasoning(self, prompt: str) -> Reasoning:
        """What the reply to a rendered prompt may begin with."""
        return reasoning_of(prompt, self.marks)

    @property
    def shows_tools(self) -> bool:
        """Whether the template itself explains tools, and writes calls in this wire format.

        Where it does not, the format's instructions go into the system turn; where it writes no calls, past
        calls go into the text.
        """
        return self._can.tools and self._shape is not None

    def render(
        self,
        turns: Sequence[Turn],
        tools: Sequence[BoundTool] = (),
        *,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Json] | None = None,
    ) -> str:
        """The prompt text.

        extra: variables of the template's own, such as enable_thinking

        Raises TemplateError if the template refuses the conversation, ConfigError for a name in `extra`
        that is not the caller's to set.
        """
        clash = _OURS.intersection(extra or ())
        if clash:
            raise ConfigError(f"template variable {min(clash)!r} is set by agentspec and cannot be given")
        shape = self._shape
        reshaping = Reshaping(
            self._can, self.wire_format, shows_tools=self.shows_tools, writes_calls=shape is not None
        )
        listed = [tool_json(tool) for tool in tools]
        shaped = reshaping.apply(turns, listed)
        shown = listed if shape is not None else []
        variables: dict[str, Json] = {
            **(extra or {}),
            "messages": _messages(shaped, shape or MessageShape(), self._can.reasoning),
            "tools": shown or ([] if self._can.list_tools else None),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(variables)
        except TemplateError as error:
            if any(isinstance(turn, AssistantTurn) and turn.reasoning for turn in turns):
                # some take it only in turns that say nothing else
                without = [
                    replace(turn, reasoning="") if isinstance(turn, AssistantTurn) else turn for turn in turns
                ]
                return self.render(without, tools, add_generation_prompt=add_generation_prompt, extra=extra)
            roles = ", ".join(_role(turn) for turn in turns) or "none"
            hint = error.hint or "change the conversation, or pass another chat_template="
            raise TemplateError(f"{error.message} (roles given: {roles})", hint=hint) from error


def _role(turn: Turn) -> str:
    match turn:
        case SystemTurn():
            return "system"
        case UserTurn():
            return "user"
        case AssistantTurn():
            return "assistant"
        case ToolTurn():
            return "tool"


def _messages(turns: Sequence[Turn], shape: MessageShape, reasoning_key: str | None) -> list[Json]:
    names: dict[str, str] = {}  # of calls, by id
    messages: list[Json] = []

    def thought(reasoning: str) -> dict[str, Json]:
        return {reasoning_key: reasoning} if reasoning and reasoning_key is not None else {}

    for turn in turns:
        match turn:
            case SystemTurn(text):
                messages.append({"role": "system", "content": text})
            case UserTurn(text, name):
                messages.append({"role": "user", "content": text, **({"name": name} if name else {})})
            case AssistantTurn(text, (), reasoning):
                messages.append({"role": "assistant", "content": text, **thought(reasoning)})
            case AssistantTurn(text, calls, reasoning):
                names.update((call_id, name) for call_id, name, _ in calls)
                given = [(_id(call_id, shape), name, arguments) for call_id, name, arguments in calls]
                messages.append({**call_message(text, given, shape), **thought(reasoning)})
            case ToolTurn(text, call_id, name):
                messages.append(
                    {
                        "role": "tool",
                        "content": text,
                        "tool_call_id": _id(call_id, shape),
                        "name": name or names.get(call_id, ""),
                    }
                )
    return messages


def _id(call_id: str, shape: MessageShape) -> str:
    if not shape.short_ids or (len(call_id) == 9 and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
