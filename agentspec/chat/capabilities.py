"""What a chat template can render, found by rendering short sample conversations and looking.

Templates differ in what they accept (system turns, two user turns in a row, several calls at once) and in
what they silently leave out (many ignore tools). No table of model names can keep up with them; a handful
of renderings can, once per template. It must not know wire formats.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from agentspec.chat.sandbox import PromptTemplate
from agentspec.chat.strictjson import write_json
from agentspec.errors import TemplateError
from agentspec.types import Json

__all__ = ["SAMPLE_ARGUMENTS", "SAMPLE_NAME", "Capabilities", "MessageShape", "probe"]

SAMPLE_NAME = "zq_tool"
SAMPLE_ARGUMENTS: Mapping[str, Json] = {"zq_key": "zq_value"}
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class MessageShape:
    """How a template wants the message of an assistant turn with calls.

    text_arguments: arguments as JSON text, not as an object
    short_ids:      ids of nine letters and digits (Mistral's rule)
    null_content:   None where the turn has no text, not ""
    """

    text_arguments: bool = False
    short_ids: bool = False
    null_content: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a template renders.

    system:       where system turns may stand
    repeats:      whether two turns of one role may follow each other
    tools:        whether bound tools are shown, with their schemas
    call_shape:   how past calls and their results are to be given; None where they cannot be rendered
    call_sample:  the rendering of one call of the sample tool; "" with call_shape None
    several:      whether one turn may hold several calls
    list_tools:   where there are no tools, the template needs an empty list and fails on None
    reasoning:    the key of a message under which the template takes earlier reasoning; None if it takes none
    """

    system: Literal["anywhere", "first", "nowhere"]
    repeats: bool
    tools: bool
    call_shape: MessageShape | None
    call_sample: str
    several: bool
    list_tools: bool
    reasoning: str | None


def call_message(
    text: str, calls: Sequence[tuple[str, str, Mapping[str, Json]]], shape: MessageShape
) -> dict[str, Json]:
    """An assistant turn with calls (id, name, arguments), in OpenAI form."""
    return {
        "role": "assistant",
        "content": None if shape.null_content and not text else text,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": write_json(arguments) if shape.text_arguments else arguments,
                },
            }
            for call_id, name, arguments in calls
        ],
    }


@lru_cache(maxsize=128)
def _probe_source(source: str) -> Capabilities:
    template = PromptTemplate(source, bos="<zq_bos>", eos="<zq_eos>")
    shape, sample = _call_shape(template)
    return Capabilities(
        system=_system(template),
        repeats=_shows(
            template, [_user("a"), _user("b"), _assistant("c"), _assistant("d"), _user("e")], "abcde"
        ),
        tools=_shows_tools(template),
        call_shape=shape,
        call_sample=sample,
        several=shape is not None and _several(template, shape),
        list_tools=_render_as_is(template, [_user("a")], None) is None,
        reasoning=_reasoning(template, shape),
    )


def probe(template: PromptTemplate) -> Capabilities:
    """The template's capabilities; cached by its source."""
    return _probe_source(template.source)


# ------------------------------------------------------------------------------------------ samples


def _text(mark: str) -> str:
    return f"zq_text_{mark}_zq"


def _user(mark: str) -> dict[str, Json]:
    return {"role": "user", "content": _text(mark)}


def _assistant(mark: str) -> dict[str, Json]:
    return {"role": "assistant", "content": _text(mark)}


def _system_message(mark: str) -> dict[str, Json]:
    return {"role": "system", "content": _text(mark)}


def _result(call_id: str, mark: str) -> dict[str, Json]:
    return {"role": "tool", "content": _text(mark), "tool_call_id": call_id, "name": SAMPLE_NAME}


_TOOL: Json = {
    "type": "function",
    "function": {
        "name": SAMPLE_NAME,
        "description": "zq_description",
        "parameters": {
            "type": "object",
            "properties": {"zq_key": {"type": "string", "description": "zq_key_description"}},
            "required": ["zq_key"],
        },
    },
}


def _render(template: PromptTemplate, messages: Sequence[Json], tools: Sequence[Json] = ()) -> str | None:
    if tools:
        return _render_as_is(template, messages, tools)
    shown = _render_as_is(template, messages, None)
    return _render_as_is(template, messages, []) if shown is None else shown


def _render_as_is(template: PromptTemplate, messages: Sequence[Json], tools: Json) -> str | None:
    try:
        return template.render(
            {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True}
        )
    except TemplateError:
        return None


def _shows(template: PromptTemplate, messages: Sequence[Json], marks: str) -> bool:
    shown = _render(template, messages)
    return shown is not None and all(_text(mark) in shown for mark in marks)


def _system(template: PromptTemplate) -> Literal["anywhere", "first", "nowhere"]:
    first: list[Json] = [_system_message("a"), _user("b")]
    if not _shows(template, first, "ab"):
        return "nowhere"
    late: list[Json] = [*first, _assistant("c"), _system_message("d"), _user("e")]
    return "anywhere" if _shows(template, late, "abcde") else "first"


def _shows_tools(template: PromptTemplate) -> bool:
    shown = _render(template, [_system_message("a"), _user("b")], [_TOOL])
    shown = shown or _render(template, [_user("b")], [_TOOL])
    return shown is not None and all(mark in shown for mark in (SAMPLE_NAME, "zq_description", "zq_key"))


def _call_shape(template: PromptTemplate) -> tuple[MessageShape | None, str]:
    for text_arguments, short_ids, null_content in itertools.product((False, True), repeat=3):
        shape = MessageShape(text_arguments, short_ids, null_content)
        call_id = _sample_ids(shape)[0]
        call = call_message("", [(call_id, SAMPLE_NAME, SAMPLE_ARGUMENTS)], shape)
        turns = [_user("a"), call, _result(call_id, "b"), _assistant("c"), _user("d")]
        shown = _render(template, turns, [_TOOL])
        if shown is None or not all(_text(mark) in shown for mark in "abcd"):
            continue
        # what stands between the user's text and the result is the call, as this family writes it
        sample = shown[shown.rindex(_text("a")) : shown.rindex(_text("b"))]
        if _is_call(sample):
            return shape, sample
    return None, ""


def _is_call(sample: str) -> bool:
    spoiled = ("'zq_key'", '\\"zq_key', "None")  # a Python dict, JSON in JSON, a null that was printed
    return all(mark in sample for mark in (SAMPLE_NAME, "zq_key", "zq_value")) and not any(
        mark in sample for mark in spoiled
    )


def _reasoning(template: PromptTemplate, shape: MessageShape | None) -> str | None:
    """Many templates show only the reasoning since the user spoke last."""
    turns: list[dict[str, Json]] = [_user("a"), _assistant("b")]
    if shape is not None:
        call_id = _sample_ids(shape)[0]
        call = call_message("", [(call_id, SAMPLE_NAME, SAMPLE_ARGUMENTS)], shape)
        turns = [_user("a"), call, _result(call_id, "b")]
    for key in _REASONING_KEYS:
        shown = _render(template, [turns[0], {**turns[1], key: _text("t")}, *turns[2:]], [_TOOL])
        if shown is not None and all(_text(mark) in shown for mark in "abt"):
            return key
    return None


def _sample_ids(shape: MessageShape) -> tuple[str, str]:
    return ("zqcall001", "zqcall002") if shape.short_ids else ("call_zq_0001", "call_zq_0002")


def _several(template: PromptTemplate, shape: MessageShape) -> bool:
    ids = _sample_ids(shape)
    calls = [(call_id, SAMPLE_NAME, {"zq_key": f"zq_value_{call_id}"}) for call_id in ids]
    turns = [_user("a"), call_message("", calls, shape), _result(ids[0], "b"), _result(ids[1], "c")]
    shown = _render(template, [*turns, _assistant("d"), _user("e")], [_TOOL])
    return (
        shown is not None
        and all(f"zq_value_{call_id}" in shown for call_id in ids)
        and all(_text(mark) in shown for mark in "abcde")
    )
