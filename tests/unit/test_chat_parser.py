"""The parser: what is a call, what is text, and that neither cuts nor feeds change the answer."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agentspec.chat.formats import HERMES, LLAMA3, WireFormat, render_call
from agentspec.chat.parser import CallDelta, CallEvent, ReplyEvent, ReplyParser, TextDelta
from agentspec.errors import SchemaError
from agentspec.types import BoundTool, FinishReason, InvalidCall, Json, NamedTool, ToolChoice, ValidCall

TOOLS = (
    BoundTool(
        "get_weather",
        "",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "note": {"type": "string"},
            },
            "required": ["city"],
        },
    ),
    BoundTool("now", "", {"type": "object", "properties": {}}),
)
COLOGNE = ValidCall("get_weather", {"city": "Köln"})
NOW = ValidCall("now", {})
OBJECT = '{"name": "get_weather", "arguments": {"city": "Köln"}}'
MARKED = f"<tool_call>\n{OBJECT}\n</tool_call>"

REPLIES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted((Path(__file__).parents[1] / "golden" / "replies").glob("*.txt"))
}

Call = ValidCall | InvalidCall


def parse(
    reply: str | bytes,
    choice: ToolChoice = "auto",
    *,
    wire_format: WireFormat = HERMES,
    tools: Sequence[BoundTool] = TOOLS,
    reason: FinishReason = "stop",
    complete: bool = True,
    parallel: bool = True,
    cuts: Sequence[int] = (),
) -> list[str | Call]:
    """The reply as text and calls in their order, neighbouring texts joined."""
    data = reply.encode() if isinstance(reply, str) else reply
    parser = ReplyParser(wire_format, tools, choice, parallel=parallel)
    events: list[ReplyEvent] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += parser.feed(data[start:end])
    events += parser.finish(reason, complete)
    parts: list[str | Call] = []
    for event in events:
        if isinstance(event, CallEvent):
            parts.append(event.call)
        else:
            assert not isinstance(event, CallDelta)
            assert event.text
            if parts and isinstance(parts[-1], str):
                parts[-1] += event.text
            else:
                parts.append(event.text)
    return parts


def invalid(parts: Sequence[str | Call]) -> InvalidCall:
    (part,) = (part for part in parts if isinstance(part, InvalidCall))
    return part


def valid(parts: Sequence[str | Call]) -> list[ValidCall]:
    return [part for part in parts if isinstance(part, ValidCall)]


# ----------------------------------------------------------------------------------- golden replies

SAN_JOSE = ValidCall("get_weather", {"city": "San José", "note": 'quotes " and \\ and </tool_call> and é'})
TWO_DAYS = ValidCall("get_weather", {"city": "Köln", "days": 2})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("marked_one", [TWO_DAYS]),
        ("marked_two_after_text", ["Let me look both up — one moment 🙂\n", SAN_JOSE, NOW]),
        ("fenced", [TWO_DAYS]),
        (
            "fenced_after_text",
            [
                "To find out, I call the tool:\n\n",
                ValidCall("get_weather", {"city": "東京"}),
                "\n\nI will tell you what it says.",
            ],
        ),
        ("bare", [ValidCall("get_weather", {"city": "New York"})]),
        ("bare_array", [COLOGNE, NOW]),
        ("bare_several", [COLOGNE, ValidCall("get_weather", {"city": "Bonn"})]),
        ("text_json", [REPLIES["text_json"]]),
        ("text_misfit", [REPLIES["text_misfit"]]),
    ],
)
def test_golden(name: str, expected: list[str | Call]) -> None:
    assert parse(REPLIES[name]) == expected


def test_a_broken_marked_call_is_invalid_and_the_next_one_is_not_lost() -> None:
    broken, after = parse(REPLIES["marked_broken"])
    assert isinstance(broken, InvalidCall)
    assert broken.raw == '{"name": "get_weather", "arguments": {"city": "Köln"}'
    assert "JSON" in broken.error
    assert after == NOW


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("choice", ["auto", "none", "required", NamedTool("get_weather")])
def test_events_do_not_depend_on_how_the_bytes_were_cut(name: str, choice: ToolChoice) -> None:
    data = REPLIES[name].encode()
    whole = parse(data, choice)
    assert parse(data, choice, cuts=range(1, len(data))) == whole
    chance = random.Random(name)
    for _ in range(50):
        cuts = sorted(chance.sample(range(1, len(data)), chance.randint(1, 12)))
        assert parse(data, choice, cuts=cuts) == whole


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("reason", ["length", "cancelled", "stop"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_cut_anywhere_no_call_comes_about_that_the_whole_reply_does_not_have(
    name: str, reason: FinishReason, choice: ToolChoice
) -> None:
    data = REPLIES[name].encode()
    calls = valid(parse(data, choice))
    for end in range(len(data)):
        cut = valid(parse(data[:end], choice, reason=reason))
        assert cut == calls[: len(cut)]


@pytest.mark.parametrize("name", REPLIES)
def test_under_none_everything_is_text(name: str) -> None:
    assert parse(REPLIES[name], "none") == [REPLIES[name]]
    assert parse(REPLIES[name], tools=()) == [REPLIES[name]]


def test_every_written_call_is_read_back() -> None:
    chance = random.Random(7)
    letters = 'ab"\\/{}[]<>`\n\té😀: ,tool_call'
    for _ in range(300):
        note = "".join(chance.choice(letters) for _ in range(chance.randint(0, 30)))
        arguments: Mapping[str, Json] = {"city": note, "days": chance.randint(-9, 9), "note": note[::-1]}
        for wire_format in (HERMES, LLAMA3):
            text = render_call(wire_format, "get_weather", arguments)
            for choice in ("auto", "required"):
                assert parse(text, choice, wire_format=wire_format) == [ValidCall("get_weather", arguments)]


def test_random_text_is_never_lost() -> None:
    # without a call, what comes out is what went in
    chance = random.Random(8)
    pieces = [
        "```",
        "json",
        "\n",
        "{",
        "}",
        "[",
        "]",
        '"name"',
        ": ",
        '"now"',
        ", ",
        '"arguments"',
        "x",
        " ",
        "<to",
    ]
    for _ in range(2000):
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 25)))
        parts = parse(text)
        if not any(isinstance(part, ValidCall | InvalidCall) for part in parts):
            assert "".join(part for part in parts if isinstance(part, str)) == text


# ---------------------------------------------------------------------------------------- marked


@pytest.mark.parametrize(
    ("body", "name", "reason"),
    [
        ('{"name": "nope", "arguments": {}}', "nope", "unknown tool 'nope'"),
        (
            '{"name": "get_weather", "arguments": {"city": 1}}',
            "get_weather",
            "city: expected string, got integer",
        ),
        ('{"name": "get_weather", "arguments": {"city": "a", "zip": 1}}', "get_weather", "unexpected 'zip'"),
        ('{"name": "get_weather"}', "get_weather", "'city' is missing"),
        ('{"name": "now", "arguments": "{}"}', "now", "expected an object"),
        ('{"name": "now", "arguments": {}, "parameters": {}}', "now", "twice"),
        ('{"name": "now", "arguments": {}, "id": 1}', "now", "unexpected 'id'"),
        ('{"name": "now", "name": "now", "arguments": {}}', None, "'name' appears twice"),
        ('{"arguments": {}}', None, "names no tool"),
        ('{"name": 3, "arguments": {}}', None, "names no tool"),
        ('{"name": "get_weather", "arguments": {"city": "\\ud800"}}', None, "surrogate"),
        ('{"name": "get_weather", "arguments": {"city": "a", "days": NaN}}', None, "JSON"),
        ('{"name": "get_weather", "arguments": {"city": "a", "days": 1e999}}', None, "out of range"),
        ("{{}}", None, "JSON"),
        ('[{"name": "now", "arguments": {}}]', None, "must be a JSON object"),
        ("now()", None, "must be a JSON object"),
        ("", None, "must be a JSON object"),
        ('{"name": "now", "arguments": {}} {}', None, "text after"),
        ('{"name": "now", "arguments": {]}', None, "JSON"),
    ],
)
def test_marked_calls_that_must_not_run(body: str, name: str | None, reason: str) -> None:
    parts = parse(f"Hm.\n<tool_call>\n{body}\n</tool_call>\nSo?")
    assert [part for part in parts if isinstance(part, str)] == ["Hm.\n", "\nSo?"]
    call = invalid(parts)
    assert call.raw == body
    assert call.name == name
    assert reason in call.error


def test_a_marked_call_without_arguments_of_a_tool_that_has_none() -> None:
    assert parse('<tool_call>{"name": "now"}</tool_call>') == [NOW]


def test_the_end_marker_inside_a_string_is_part_of_it() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "</tool_call>"}}\n</tool_call>'
    assert parse(text) == [ValidCall("get_weather", {"city": "</tool_call>"})]


def test_a_call_that_forgot_its_end_marker_ends_where_the_next_begins() -> None:
    assert parse(f"<tool_call>\n{OBJECT}\n{MARKED}") == [COLOGNE, COLOGNE]


def test_space_around_calls_is_dropped_and_other_text_is_not() -> None:
    assert parse(f"\n\n{MARKED}\n\n{MARKED}\n ") == [COLOGNE, COLOGNE]
    assert parse(f"\n\na {MARKED}\n\nb\n") == ["\n\na ", COLOGNE, "\n\nb\n"]
    assert parse(" \n") == [" \n"]


@pytest.mark.parametrize("reason", ["length", "cancelled"])
@pytest.mark.parametrize("end", [len("<tool_call>"), 20, 40, len(f"<tool_call>\n{OBJECT}"), len(MARKED) - 1])
def test_a_marked_call_that_was_cut_is_invalid(reason: FinishReason, end: int) -> None:
    call = invalid(parse(MARKED[:end], reason=reason))
    assert call.error.startswith("cut: ")
    assert call.raw == MARKED[len("<tool_call>") : end].strip()


def test_a_cut_call_is_named_where_its_name_was_written() -> None:
    assert invalid(parse(MARKED[:40], reason="length")).name == "get_weather"
    assert invalid(parse(MARKED[:25], reason="length")).name is None


def test_a_whole_object_without_end_marker_counts_only_if_the_model_ended_there() -> None:
    text = f"<tool_call>\n{OBJECT}"
    assert parse(text, reason="stop") == [COLOGNE]
    assert parse(text, reason="stop", complete=False) == [
        InvalidCall("get_weather", OBJECT, "cut: the reply ended before its grammar allowed")
    ]
    assert invalid(parse(text, reason="length")).error.startswith("cut: ")


def test_a_model_that_ends_within_a_call() -> None:
    assert "ended within the call" in invalid(parse(MARKED[:40], reason="stop")).error


def test_a_cut_marker_is_a_cut_call_only_where_a_call_was_due() -> None:
    assert parse("<tool_c", reason="length") == ["<tool_c"]
    assert invalid(parse("<tool_c", "required", reason="length")).raw == "<tool_c"


def test_another_tool_than_the_one_asked_for() -> None:
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert "tool_choice asks for 'get_weather'" in invalid(parse(text, NamedTool("get_weather"))).error
    assert parse(text, NamedTool("now")) == [NOW]


def test_without_parallel_calls_the_second_is_invalid() -> None:
    parts = parse(f"{MARKED}\n{MARKED}", parallel=False)
    assert parts[0] == COLOGNE
    assert "only one call" in invalid(parts).error


# ------------------------------------------------------------------------------------------ bare


@pytest.mark.parametrize(
    "text",
    [
        OBJECT,
        f"```json\n{OBJECT}\n```",
        f"```\n{OBJECT}\n```\n",
        f"```JSON \r\n  {OBJECT}\r\n```\r\n",
        f"```xml\n{MARKED}\n```",
        f"[{OBJECT}]",
        f"  {OBJECT}\n",
        '{"arguments": {"city": "Köln"}, "name": "get_weather"}',
        '{"name": "get_weather", "parameters": {"city": "Köln"}}',
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Köln"}}',
        '{"n\\u0061me": "get_we\\u0061ther", "arguments": {"city": "K\\u00f6ln"}}',
    ],
)
def test_ways_to_write_a_bare_call(text: str) -> None:
    assert parse(text) == [COLOGNE]


@pytest.mark.parametrize("between", ["\n", "", " ", ", ", "; ", ",\n"])
def test_several_bare_calls(between: str) -> None:
    assert parse(between.join([OBJECT] * 3)) == [COLOGNE] * 3


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_weather", "arguments": {"town": "Köln"}}',
        '{"name": "get_weather", "arguments": {"city": "Köln", "city": "Bonn"}}',
        '{"name": "get_weather", "arguments": ["Köln"]}',
        '{"name": "get_weather", "arguments": {}, "comment": "hi"}',
        '{"name": "get_weather"}',
        '{"name": "now"}',
        '{"arguments": {"city": "Köln"}}',
        '{"name": "get_weather_2", "arguments": {"city": "Köln"}}',
        '{"name": "get", "arguments": {"city": "Köln"}}',
        f"{{{OBJECT}}}",
        f'[{OBJECT}, "x"]',
        f'[{OBJECT}, {{"name": "unknown", "arguments": {{}}}}]',
        "[]",
        "{}",
        "[[]]",
        f'{{"calls": [\n{OBJECT}\n]}}',
        f"[1,\n{OBJECT}]",
        f"For example, {OBJECT}",
        f"```python\n{OBJECT}\n```",
        f"```json\n// a call\n{OBJECT}\n```",
        f'```json\n{{"a": 1}}\n```\nThe call would be `{OBJECT}`.\n```\nx\n```',
        "{ return 1; }\n",
        "``",
        "```js",
        "# Title\n\n- [x] done\n{% raw %}\n",
    ],
)
def test_text_that_is_no_call_is_delivered_unchanged(text: str) -> None:
    assert parse(text) == [text]


def test_text_before_and_after_a_bare_call_stays() -> None:
    assert parse(f"I will.\n{OBJECT}\nDone.") == ["I will.\n", COLOGNE, "\nDone."]


def test_a_call_after_json_that_is_none() -> None:
    assert parse(f'```json\n{{"a": 1}}\n```\n{OBJECT}') == ['```json\n{"a": 1}\n```\n', COLOGNE]
    assert parse(f"{{ f() }}\n{OBJECT}") == ["{ f() }\n", COLOGNE]


def test_a_bare_call_counts_at_its_last_brace() -> None:
    assert parse(OBJECT, reason="length") == [COLOGNE]
    for end in range(OBJECT.index("get_weather") + len('get_weather"'), len(OBJECT)):
        assert invalid(parse(OBJECT[:end], reason="length")).raw == OBJECT[:end]


def test_a_bare_object_cut_before_it_names_a_tool_is_text() -> None:
    assert parse('{"name": "get_w', reason="length") == ['{"name": "get_w']
    assert parse('```json\n{"na', reason="length") == ['```json\n{"na']


def test_only_the_tool_asked_for() -> None:
    assert parse(OBJECT, NamedTool("now")) == [OBJECT]


def test_a_family_without_markers_under_a_forced_choice() -> None:
    misfit = '{"name": "unknown", "parameters": {}}'
    assert parse(misfit, "auto", wire_format=LLAMA3) == [misfit]
    assert invalid(parse(misfit, "required", wire_format=LLAMA3)).name == "unknown"
    assert invalid(parse('{"na', "required", wire_format=LLAMA3, reason="length")).error.startswith("cut: ")


# ------------------------------------------------------------------------------------- streaming


def settled(pieces: Sequence[str]) -> list[str]:
    """The text that each piece settles."""
    parser = ReplyParser(HERMES, TOOLS, "auto")
    return [
        "".join(event.text for event in parser.feed(piece.encode()) if isinstance(event, TextDelta))
        for piece in pieces
    ]


def test_text_goes_out_at_once() -> None:
    assert settled(["Hel", "lo", " wor", "ld\n"]) == ["Hel", "lo", " wor", "ld\n"]


def test_only_what_may_become_a_call_is_held_back() -> None:
    assert settled(["a <", "tool", "s> b"]) == ["a ", "", "<tools> b"]
    assert settled(["x\n`", "`", "`js", "on\n", "[1"]) == ["x\n", "", "", "", "```json\n[1"]
    assert settled(['{"', "n", "o", 'te": 1}']) == ["", "", '{"no', 'te": 1}']
    assert settled(['{"name": "', "get_", "x", '", "arguments": {']) == [
        "",
        "",
        '{"name": "get_x',
        '", "arguments": {',
    ]
    assert settled(["{", " ", "f"]) == ["", "", "{ f"]
    assert settled(['{"name": "get', '"']) == ["", '{"name": "get"']  # begins like a tool, and is none
    assert settled(['{"arg', '"']) == ["", '{"arg"']


def test_a_call_goes_out_with_its_last_byte() -> None:
    for text in (OBJECT, MARKED):
        parser = ReplyParser(HERMES, TOOLS, "auto")
        assert parser.feed(text[:-1].encode()) == []
        assert parser.feed(text[-1:].encode()) == [CallEvent(COLOGNE)]


def test_characters_are_never_split() -> None:
    parser = ReplyParser(HERMES, TOOLS, "auto")
    assert [parser.feed(bytes([byte])) for byte in "é😀".encode()] == [
        [],
        [TextDelta("é")],
        [],
        [],
        [],
        [TextDelta("😀")],
    ]


def test_bytes_that_are_no_character_are_marked() -> None:
    assert parse(b"a\xff\xe2\x82") == ["a��"]
    assert parse(b"a\xff\xe2\x82", "none") == ["a��"]


def test_a_broken_tool_is_named_before_the_reply() -> None:
    with pytest.raises(SchemaError, match="'bad'"):
        ReplyParser(HERMES, [BoundTool("bad", "", {"type": "any"})], "auto")


@pytest.mark.parametrize(
    "piece",
    [
        "{",
        "[",
        "[{",
        '{"name": ',
        "```json\n{",
        "<tool_call>",
        '\n{"name": "now", "arguments": {\n',
        "`",
        " ",
    ],
)
def test_hostile_text_does_not_stall(piece: str) -> None:
    started = time.process_time()
    parse(piece * (20_000 // len(piece)), reason="length")
    assert time.process_time() - started < 5
