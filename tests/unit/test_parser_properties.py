"""Random tools, calls and replies: what is written is read back, and what jsonschema refuses is no call."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from agentspec.chat.formats import LLAMA3, Tags, WireFormat, render_calls
from agentspec.chat.parser import CallEvent, ReplyEvent, ReplyParser, TextDelta
from agentspec.chat.schema import closed_schema
from agentspec.chat.strictjson import write_json
from agentspec.types import BoundTool, FinishReason, InvalidCall, Json, ToolChoice, ValidCall
from tests.unit.random_schemas import arguments_schemas, fitting, mutated, repeatable, sound, values_of
from tests.unit.test_wire_formats import ALL

Call = tuple[str, dict[str, Json]]
Part = str | tuple[str, str] | InvalidCall
"""Text, a call with its arguments as JSON, or a call that is not valid."""

WIRES = [*ALL, LLAMA3]
CHOICES: Sequence[ToolChoice] = ("required", "auto")


TEXTS = st.text(st.sampled_from(' \n\t"\\{}[]<>/`é😀a1:,'), max_size=12) | st.sampled_from(
    sorted({mark for wire in WIRES for mark in (wire.begin, wire.end, wire.marker, wire.closing) if mark})
)
"""What is hard to write, and what ends a call elsewhere."""


@st.composite
def toolsets(draw: st.DrawFn) -> tuple[list[BoundTool], list[Call]]:
    """A few tools, each of which also takes a text, and calls that fit them."""
    names = st.sampled_from(["f", "get", "get_more", "send-it", "x2"])
    tools: list[BoundTool] = []
    for name in draw(st.lists(names, min_size=1, max_size=2, unique=True)):
        schema = draw(arguments_schemas().filter(sound))
        properties = schema["properties"]
        assert isinstance(properties, dict)
        tools.append(
            BoundTool(name, "", {**schema, "properties": {**properties, "text": {"type": "string"}}})
        )
    calls: list[Call] = []
    for tool in draw(st.lists(st.sampled_from(tools), min_size=1, max_size=2)):
        arguments = draw(values_of(closed_schema(tool.parameters)))
        assert isinstance(arguments, dict)
        if draw(st.booleans()):
            arguments = {**arguments, "text": draw(TEXTS)}
        assume(fitting(tool.parameters, arguments))
        calls.append((tool.name, arguments))
    return tools, calls


def read(
    wire: WireFormat,
    tools: Sequence[BoundTool],
    data: bytes,
    *,
    choice: ToolChoice = "required",
    reason: FinishReason = "stop",
    cuts: Sequence[int] = (),
) -> list[Part]:
    """The parts of a reply that came in pieces, neighbouring texts joined."""
    parser = ReplyParser(wire, tools, choice)
    events: list[ReplyEvent] = []
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        events += parser.feed(data[start:end])
    parts: list[Part] = []
    for event in [*events, *parser.finish(reason)]:
        match event:
            case TextDelta(text=text) if parts and isinstance(parts[-1], str):
                parts[-1] += text
            case TextDelta(text=text):
                parts.append(text)
            case CallEvent(call=ValidCall(name, arguments)):
                parts.append((name, write_json(arguments)))
            case CallEvent(call=InvalidCall() as invalid):
                parts.append(invalid)
    return parts


def places_in(data: bytes) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, len(data)), max_size=8)


def test_calls_are_read_back_as_they_were_written_however_they_arrive() -> None:
    outcome: Counter[str] = Counter()

    @repeatable(40)
    @given(st.data(), toolsets())
    def holds(data: st.DataObject, drawn: tuple[list[BoundTool], list[Call]]) -> None:
        tools, calls = drawn
        values = [value for _, arguments in calls for value in arguments.values()]
        for wire in WIRES:
            if wire.tags is not None and not all(can_be_tagged(wire.tags, value) for value in values):
                continue
            reply = render_calls(wire, calls).encode()
            cuts = data.draw(places_in(reply))
            for choice in CHOICES if wire.marker else CHOICES[:1]:
                parts = read(wire, tools, reply, choice=choice, cuts=cuts)
                assert parts == [(name, write_json(arguments)) for name, arguments in calls]
            outcome[wire.name] += bool(values)

    holds()
    assert min(outcome[wire.name] for wire in WIRES) > 10, outcome


def can_be_tagged(tags: Tags, value: Json) -> bool:
    """Strings stand in tags as they are. So one that has the tag's end in it cannot be written; quotes as in
    XML are taken off; and where the tags do not tell strings from other values, a string that looks like
    another value may be read as that."""
    if not isinstance(value, str):
        return True
    return (
        tags.end.strip() not in value
        and "CDATA" not in value
        and (tags.after_json_key is not None or not looks_otherwise(value))
    )


def looks_otherwise(text: str) -> bool:
    for parse in (json.loads, ast.literal_eval):
        try:
            parse(text)
        except (ValueError, SyntaxError):
            continue
        return True
    return False


def test_whatever_else_is_in_a_reply_no_call_is_valid_that_does_not_fit() -> None:
    """Nor does anything depend on how the bytes arrived."""
    outcome: Counter[str] = Counter()

    @repeatable(80)
    @given(st.data(), toolsets(), st.sampled_from(WIRES))
    def holds(data: st.DataObject, drawn: tuple[list[BoundTool], list[Call]], wire: WireFormat) -> None:
        tools, calls = drawn
        near = [(name, data.draw(mutated(arguments))) for name, arguments in calls]
        misfits = [(name, made) for name, made in near if isinstance(made, dict)]
        reply = data.draw(disturbed(wire, data.draw(st.sampled_from([calls, misfits, [*misfits, *calls]]))))
        choice: ToolChoice = data.draw(st.sampled_from(CHOICES))
        reason: FinishReason = data.draw(st.sampled_from(["stop", "length", "cancelled"]))
        parts = read(wire, tools, reply, choice=choice, reason=reason)
        cuts = data.draw(places_in(reply))
        assert read(wire, tools, reply, choice=choice, reason=reason, cuts=cuts) == parts
        known = {tool.name: tool for tool in tools}
        for part in parts:
            match part:
                case (str(name), str(arguments)):
                    outcome["valid"] += 1
                    assert fitting(known[name].parameters, json.loads(arguments))
                case InvalidCall(error=error):
                    outcome["invalid"] += 1
                    assert error
                case _:
                    outcome["text"] += 1

    holds()
    assert min(outcome[kind] for kind in ("valid", "invalid")) > 10, outcome


def disturbed(wire: WireFormat, calls: Sequence[Call]) -> st.SearchStrategy[bytes]:
    """A reply with calls, and pieces of it and of other text anywhere."""
    whole = render_calls(wire, calls).encode()
    marks = [wire.begin, wire.end, wire.between, wire.marker, wire.opening, wire.closing]
    marks += [
        "```json\n",
        "\n```",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        ": ",
        "\n",
        "</",
        '"name": "get"',
        "{}",
    ]
    pieces = st.one_of(
        st.sampled_from([mark.encode() for mark in marks]),
        st.text(max_size=4).map(lambda text: text.encode(errors="ignore")),
        st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole))).map(
            lambda ends: whole[slice(*sorted(ends))]
        ),
        st.just(b"\xff"),
        st.just(whole),
    )
    changes = st.lists(st.tuples(st.integers(0, len(whole)), st.integers(0, 3), pieces), max_size=3)
    return changes.map(lambda made: _changed(whole, made))


def _changed(whole: bytes, changes: Sequence[tuple[int, int, bytes]]) -> bytes:
    """changes: where, how many bytes are taken away there, and what is put there"""
    for at, taken, put in changes:
        whole = whole[:at] + put + whole[at + taken :]
    return whole
