"""Finds from a chat template how its family writes calls, by rendering calls of known names and values.

What surrounds the name and the arguments in one call, and in two calls of one turn, is compared: what both
calls have is each call's own, the rest stands around them all. Families are found so that write arguments as
JSON or in tags; for the others there is no format to be had here.

It must not know models or tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from agentspec.chat.capabilities import Capabilities, MessageShape, call_message
from agentspec.chat.formats.base import LONG_ID, NUMBER, SHORT_ID, Hole, JsonId, Parts, Tags, WireFormat
from agentspec.chat.formats.explain import explained
from agentspec.chat.parser import CallEvent, ReplyParser, TextDelta
from agentspec.chat.sandbox import PromptTemplate
from agentspec.errors import TemplateError
from agentspec.types import BoundTool, Json, ValidCall

__all__ = ["DERIVED", "derive"]

DERIVED = "derived"
"""The name of a format that was found in a template, and is that template's alone."""

_NAMES = ("zq_first", "zq_second")
_KEYS = ("zq_text", "zq_count")
_ARGUMENTS: Sequence[Mapping[str, Json]] = (
    {"zq_text": "zq one", "zq_count": 701},
    {"zq_text": "zq two", "zq_count": 702},
)
_OTHER = "zq_other"
_PROSE = "Sure: in Italy (to be exact, in Rome) I will call it a day, and so on. Action follows <soon>."
_VALUES: Mapping[str, Json] = {
    "zq_text": "zq three",
    "zq_number": 2.5,
    "zq_true": True,
    "zq_list": [1, "zq", {"a": False}],
    "zq_object": {"b": [None], "c": "zq"},
}
_ASKED, _SAID = "zq_asked_zq", "zq_said_zq"
_SHORT_IDS = ("zqcall001", "zqcall002", "zqcall003")
_LONG_IDS = ("call_zq_0001", "call_zq_0002", "call_zq_0003")
_ID = "\ue000"  # stands where any of the ids stood

# reasoning that a template puts in front of a call, and the mark of where it ended
_THOUGHT = re.compile(
    r"\s*(?:<[^<>/\s]*think[^<>]*>\s*)?</[^<>\s]*think[^<>]*>\s*|\s*<\|START_THINKING\|><\|END_THINKING\|>"
)
_END_OF_TURN = re.compile(
    r"<[|｜](?:eot_id|eom_id|eot|im_end|end|end_of_msg|END_OF_TURN_TOKEN|end_of_text|endoftext|end▁of▁sentence|"
    r"call|calls|return|message_sep|role_end)[|｜]>|</s>|<SPECIAL_12>"
)
_MARKER = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_TOKEN = re.compile(r"<[^<>\s]*>|\[[A-Z_]+\]|\s+|\w+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call within rendered text, and how it is written there.

    start: of the object, or of the name
    head:  what is between the name and the arguments, where they are no object together
    """

    start: int
    end: int
    name_key: str = "name"
    arguments_key: str = "arguments"
    json_id: JsonId | None = None
    head: str | None = None
    tags: Tags | None = None


def derive(template: PromptTemplate, can: Capabilities, *, ends: Collection[str] = ()) -> WireFormat | None:
    """The format of the calls that the template writes; None where it writes none, or in another form.

    ends: spellings of the tokens that end a turn
    """
    shape = can.call_shape
    if shape is None:
        return None
    hole = SHORT_ID if shape.short_ids else LONG_ID
    calls = [*zip(_NAMES, _ARGUMENTS, strict=True)]
    others = [(_OTHER, _VALUES)] * 3
    # where three calls are not written as two are, one a turn is all that can be had
    for several in (True, False) if can.several else (False,):
        try:
            one = _reply(template, shape, ends, calls[:1])
            two = _reply(template, shape, ends, calls) if several else None
            found = _compared(one, two, hole)
            if found is not None and all(
                _reads(found, _reply(template, shape, ends, others[:n]), n)
                for n in ((1, 3) if several else (1,))
            ):
                return explained(found)
        except TemplateError:
            continue
    return None


def _reads(wire_format: WireFormat, text: str, n: int) -> bool:
    """Whether the format reads `n` calls of other values as the template writes them, and prose as text."""
    types = {"zq_text": "string", "zq_number": "number", "zq_true": "boolean", "zq_list": "array"}
    properties: Mapping[str, Json] = {key: {"type": types.get(key, "object")} for key in _VALUES}
    tool = BoundTool(_OTHER, "", {"type": "object", "properties": properties})
    parser = ReplyParser(wire_format, [tool], "required")
    events = [*parser.feed(text.encode()), *parser.finish("stop")]
    calls = [event for event in events if not isinstance(event, TextDelta) or event.text.strip()]
    if calls != [CallEvent(ValidCall(_OTHER, _VALUES))] * n:
        return False
    prose = ReplyParser(wire_format, [tool], "auto")
    said = [*prose.feed(_PROSE.encode()), *prose.finish("stop")]
    return all(isinstance(event, TextDelta) for event in said)


def _compared(one: str, two: str | None, hole: Hole) -> WireFormat | None:
    """What one call and two have in common."""
    one, two = _without_ids(one), None if two is None else _without_ids(two)
    call = _find(one, 0, hole)
    if call is None:
        return None
    lead, tail = one[: call.start], one[call.end :]
    if two is None:
        return _format(call, hole, opening="", begin=lead, between="", end=tail, closing="")
    calls = _find(two, 0, hole), _find(two, 1, hole)
    if calls[0] is None or calls[1] is None:
        return None
    middle = two[calls[0].end : calls[1].start]
    begin = _common_suffix(lead, middle)
    end = _common_prefix(tail, middle[: len(middle) - len(begin)])
    return _format(
        call,
        hole,
        opening=lead[: len(lead) - len(begin)],
        begin=begin,
        between=middle[len(end) : len(middle) - len(begin)],
        end=end,
        closing=tail[len(end) :],
    )


# --------------------------------------------------------------------------------------------- rendering


def _reply(
    template: PromptTemplate,
    shape: MessageShape,
    ends: Collection[str],
    calls: Sequence[tuple[str, Mapping[str, Json]]],
) -> str:
    """What the model writes in a turn of these calls. Raises TemplateError."""
    ids = _SHORT_IDS if shape.short_ids else _LONG_IDS
    asked: Json = {"role": "user", "content": _ASKED}
    given = [(call_id, name, arguments) for call_id, (name, arguments) in zip(ids, calls, strict=False)]
    called = _rendered(template, [asked, call_message("", given, shape)], prompt=False)
    said = _rendered(template, [asked, {"role": "assistant", "content": _SAID}], prompt=False)
    prompt = _rendered(template, [asked], prompt=True)
    turn = _behind(prompt, called)
    thought = _THOUGHT.match(turn)
    turn = turn[thought.end() :] if thought else turn
    turn = turn.removesuffix(_common_suffix(turn, said.partition(_SAID)[2]))
    last = max(0, turn.rfind(calls[-1][0]))  # before the last call, such a token ends nothing
    stops = [found.start() for found in _END_OF_TURN.finditer(turn, last)]
    stops += [at for end in ends if end and (at := turn.find(end, last)) >= 0]
    return turn[: min(stops, default=len(turn))]


def _behind(prompt: str, text: str) -> str:
    """The text without what the prompt ends with, or with what the two begin with."""
    tokens, behind = _TOKEN.findall(prompt), text[len(_common_prefix(text, prompt)) :]
    for start in range(len(tokens)):
        if behind.startswith(ending := "".join(tokens[start:])):
            return behind[len(ending) :]
    return behind


def _without_ids(text: str) -> str:
    for call_id in (*_SHORT_IDS, *_LONG_IDS):
        text = text.replace(call_id, _ID)
    return text


def _rendered(template: PromptTemplate, messages: Sequence[Json], *, prompt: bool) -> str:
    """From behind the user's text on."""
    text = template.render(
        {"messages": messages, "tools": _TOOLS, "documents": None, "add_generation_prompt": prompt}
    )
    return text.rpartition(_ASKED)[2]


_TOOLS: Json = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "zq",
            "parameters": {
                "type": "object",
                "properties": {
                    "zq_text": {"type": "string", "description": "zq"},
                    "zq_count": {"type": "integer", "description": "zq"},
                },
            },
        },
    }
    for name in (*_NAMES, _OTHER)
]


# ----------------------------------------------------------------------------------------- finding a call


def _find(text: str, index: int, hole: Hole) -> _Call | None:
    """A call in the text, by its name and arguments."""
    name, arguments = _NAMES[index], _ARGUMENTS[index]
    for at in (found.start() for found in re.finditer(r"\{", text)):
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            continue
        if value == arguments:
            named = text.rfind(name, 0, at)
            return None if named < 0 else _Call(named, end, head=text[named + len(name) : at])
        keys = list(value)
        name_keys = [key for key in keys if value[key] == name]
        argument_keys = [key for key in keys if value[key] == arguments]
        if len(name_keys) == len(argument_keys) == 1:
            others = [key for key in keys if key not in (*name_keys, *argument_keys, "type")]
            own = None
            if others:
                if len(others) > 1 or others[0] not in (keys[0], keys[-1]):
                    return None
                shown = str(value[others[0]])
                own = JsonId(others[0], NUMBER if shown.isdigit() else hole, others[0] == keys[0])
            return _Call(at, end, name_keys[0], argument_keys[0], own)
    return _find_tagged(text, index)


def _find_tagged(text: str, index: int) -> _Call | None:
    """A call whose arguments stand one by one."""
    name, arguments = _NAMES[index], _ARGUMENTS[index]
    values = str(arguments["zq_text"]), str(arguments["zq_count"])
    places: list[int] = []
    at = 0
    for part in (name, _KEYS[0], values[0], _KEYS[1], values[1]):
        at = text.find(part, at)
        if at < 0:
            return None
        places.append(at)
        at += len(part)
    named, key, value, next_key, next_value = places
    before = text[named + len(name) : key]
    after = text[key + len(_KEYS[0]) : value]
    after_json = text[next_key + len(_KEYS[1]) : next_value]
    middle = text[value + len(values[0]) : next_key]
    following = text.find(_NAMES[1], at) if index == 0 else -1
    tail = text[at : following if following >= 0 else len(text)]
    begin = _common_suffix(before, middle)
    end = _common_prefix(tail, middle[: len(middle) - len(begin)])
    if not begin or not end.strip() or _KEYS[0] in middle:
        return None
    if len(end) + len(begin) < len(middle):
        return None
    tags = Tags(begin, after, end, "", None if after_json == after else after_json)
    return _Call(named, at + len(end), head=before[: len(before) - len(begin)], tags=tags)


def _format(
    call: _Call, hole: Hole, *, opening: str, begin: str, between: str, end: str, closing: str
) -> WireFormat | None:
    opening = opening.lstrip() if begin or opening.strip() else opening
    tags = call.tags
    if tags is not None:  # what closes a call belongs to its tags
        tags, end = replace(tags, close=end), ""
    if closing:
        closing = closing.rstrip()
    elif tags is not None:
        tags = replace(tags, close=tags.close.rstrip())
    else:
        end = end.rstrip()
    begin, is_open, own = begin.partition(_ID)
    before = _parts(is_open + own, hole)
    if any(_ID in text for text in (opening, between, end, closing)):
        return None
    return WireFormat(
        name=DERIVED,
        opening=opening,
        begin=begin,
        between=between,
        end=end,
        closing=closing,
        marker=_marker(opening + begin),
        name_key=call.name_key,
        arguments_key=call.arguments_key,
        bare_objects=call.head is None,
        before_name=before,
        after_name=() if call.head is None else _parts(call.head, hole) or ("",),
        json_id=call.json_id,
        tags=tags,
    )


def _parts(text: str, hole: Hole) -> Parts:
    """The text with ids and counts as holes."""
    parts: list[str | Hole] = []
    for part in re.split(rf"({_ID}|(?<![\w.])\d+(?![\w.]))", text):
        if part:
            parts.append(hole if part == _ID else NUMBER if part.isdigit() else part)
    return tuple(parts)


def _marker(text: str) -> str:
    """What tells a call from text: the special token it begins with, or all that stands in front of it where
    that is no word; "" where it begins like text."""
    text = text.strip()
    found = _MARKER.match(text)
    if found:
        return found[0]
    return "" if text[:1] in ("{", "[", "") or re.fullmatch(r"\w*", text) else text


# -------------------------------------------------------------------------------------- comparing texts


def _common_prefix(left: str, right: str) -> str:
    """As far as neither ends within a word or a special token."""
    pairs = zip(_TOKEN.findall(left), _TOKEN.findall(right), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _common_suffix(left: str, right: str) -> str:
    """As `_common_prefix`."""
    pairs = zip(reversed(_TOKEN.findall(left)), reversed(_TOKEN.findall(right)), strict=False)
    return "".join(reversed([one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]))
