"""What is learned of a model's JSON: white space by gap, and the order of keys."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from agentspec.grammar.habits import Habits, Lesson, Style
from agentspec.grammar.layout import Gap, GapKind, Layout
from agentspec.grammar.order import Orders, in_order
from agentspec.types import Json

VALUE: Json = {"a": {}, "b": [1, {"c": None, "d": []}], "e": {"f": 'x, {y}: \\ [\n"z'}}
DEEP: Json = {"a": {"b": {"c": [[1, 2], {"d": 3, "e": 4}]}}}
DEEP_COMPACT = json.dumps(DEEP, separators=(",", ":"))
STYLES = {
    "tight": json.dumps(VALUE),
    "compact": json.dumps(VALUE, separators=(",", ":")),
    "indented": json.dumps(VALUE, indent=2),
    "tabs": json.dumps(VALUE, indent="\t"),
    "padded": json.dumps(VALUE, separators=(" , ", " : ")),
}
OBJECT, ARRAY = ord("{"), ord("[")


def gap(kind: GapKind, depth: int = 1, container: int = OBJECT) -> Gap:
    return Gap(kind, container, depth)


def taught(*texts: str, habits: Habits | None = None, fits: bool = True) -> Habits:
    """What replies with these texts teach, byte by byte."""
    habits = Habits() if habits is None else habits
    for text in texts:
        lesson = Lesson(habits, lambda byte: bytes((byte,)))
        for byte in text.encode():
            lesson.see(byte, fits=fits)
    return habits


def latest(habits: Habits) -> Style:
    """What a reply is taken to be like before it begins."""
    return habits.styles({})[0]


def spaced(style: Style, value: str = STYLES["compact"]) -> str | None:
    """JSON without white space as it is in a style; None where that is not known."""
    layout = Layout()
    text = bytearray()
    for byte in value.encode():
        found = layout.gap(byte)
        if found is not None:
            space = style.space(found)
            if space is None:
                return None
            text += space
        text += layout.advance(bytes((byte,)))
    return text.decode()


# -------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_white_space_between_the_parts_of_a_value_is_left_out(style: str, size: int) -> None:
    text = f" so\n[x]: \n{STYLES[style]}\n and { {} } on".encode()
    layout = Layout()
    kept = b"".join(layout.advance(text[at : at + size]) for at in range(0, len(text), size))
    assert kept == f" so\n[x]: \n{STYLES['compact']}\n and { {} } on".encode()
    assert layout.depth == 0


@pytest.mark.parametrize(
    ("text", "byte", "expected"),
    [
        ("{", '"', gap("open")),
        ("{ ", "}", gap("empty")),
        ('{"a"', ":", gap("before colon")),
        ('{"a":', "1", gap("after colon")),
        ('{"a": [', "{", gap("open", 2, ARRAY)),
        ('{"a": [1', ",", gap("before comma", 2, ARRAY)),
        ('{"a": [1 ', "]", gap("close", 2, ARRAY)),
        ('{"a": [1],', '"', gap("after comma")),
        ('{"a": [1]', "}", gap("close")),
        ('{"a": 1', "2", None),  # the same number
        ('{"a": 1 ', "2", None),  # no JSON
        ('{"a": "', "}", None),
        ('{"a": "\\"', "}", None),
        ("{", ",", None),
        ("text ", "{", None),
    ],
)
def test_a_gap_is_known_by_what_comes_next(text: str, byte: str, expected: Gap | None) -> None:
    layout = Layout()
    layout.advance(text.encode())
    assert layout.gap(ord(byte)) == expected


@pytest.mark.parametrize("text", ["{,", "{]", '{"a" "b"', "{x", "[1 2", "[" * 65, "{}"])
def test_what_is_no_json_or_is_over_is_text(text: str) -> None:
    layout = Layout()
    layout.advance(text.encode())
    assert layout.depth == 0
    assert layout.advance(b" \n x") == b" \n x"


def test_a_fork_of_a_layout_is_independent() -> None:
    layout = Layout()
    layout.advance(b'{"a": [ ')
    copy = layout.fork()
    layout.advance(b"]}")
    assert (layout.depth, copy.depth, copy.space) == (0, 2, b" ")
    assert copy.gap(ord("]")) == gap("empty", 2, ARRAY)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("{", '"}'),
        ('{"a"', ":,}"),
        ('{"a":1', ":,}"),
        ('{"a":', '"{[1t'),
        ('{"a":1,', '"'),
        ("[", '"{[1t]'),
        ("[[]", ",]"),
        ('["', ""),
        ("", ""),
    ],
)
def test_a_gap_says_what_may_end_it(text: str, ends: str) -> None:
    layout = Layout()
    layout.advance(text.encode())
    named = layout.ends()
    assert {chr(byte) for byte, _ in named} == {*ends}
    assert all(layout.gap(byte) == found for byte, found in named)


# -------------------------------------------------------------------------------------- white space


@pytest.mark.parametrize("name", STYLES)
def test_a_style_that_was_seen_is_known(name: str) -> None:
    style = latest(taught(STYLES[name]))
    assert spaced(style) == STYLES[name]
    assert style.tight == (name == "tight")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ('{\n  "a": 1', json.dumps(DEEP, indent=2)),
        ('{\n\t"a"', json.dumps(DEEP, indent="\t")),
        ('{\n"a"', json.dumps(DEEP, indent=0)),
        ('{"a":1', DEEP_COMPACT),
        ("", json.dumps(DEEP)),
    ],
)
def test_gaps_that_were_not_seen_are_filled_like_those_that_were(seen: str, expected: str) -> None:
    assert spaced(latest(taught(seen)), DEEP_COMPACT) == expected


def test_depths_may_differ() -> None:
    """The call over several lines, its arguments on one."""
    text = '{\n  "name": "f",\n  "arguments": {"a": 1, "b": [1, 2]}\n}'
    for seen in (text, text[: text.index(": 1")]):
        assert spaced(latest(taught(seen)), '{"name":"f","arguments":{"a":1,"b":[1,2]}}') == text


def test_gaps_of_one_kind_are_alike_at_all_depths() -> None:
    style = latest(taught('{\n  "a": 1, "b"'))
    assert style.space(gap("open", 2)) == b"\n    "
    assert style.space(gap("after comma", 2)) == b" "


def test_the_whole_value_may_be_indented() -> None:
    text = '{\n      "a": {\n        "b": 1\n      }\n    }'
    deeper = '{\n      "a": {\n        "b": {\n          "c": 1\n        }\n      }\n    }'
    assert spaced(latest(taught(text)), '{"a":{"b":{"c":1}}}') == deeper


def test_no_indent_is_made_up() -> None:
    """A line break without one does not say how far deeper lines are indented."""
    style = latest(taught('{"a": 1\n}'))
    assert style.space(gap("close")) == b"\n"
    assert style.space(gap("close", 2)) is None
    assert style.space(gap("close", 2), b" ") is None


@pytest.mark.parametrize("pair", [*pairwise([*STYLES, "tight"])])
def test_a_style_that_changes_is_learned_anew(pair: tuple[str, str]) -> None:
    style = latest(taught(*(STYLES[name] for name in pair)))
    assert spaced(style) == STYLES[pair[1]]
    assert style.tight == (pair[1] == "tight")


def test_a_style_may_change_within_a_reply() -> None:
    style = latest(taught('{"a": 1, "b": 2,\n  "c": 3,\n  "d": 4'))
    assert style.space(gap("after comma")) == b"\n  "
    assert style.space(gap("after comma"), b" ") == b" "


def test_another_indent_is_known_at_all_levels_at_once() -> None:
    style = latest(taught(json.dumps(DEEP, indent=2), '{\n    "a"'))
    assert spaced(style, DEEP_COMPACT) == json.dumps(DEEP, indent=4)


@pytest.mark.parametrize(
    ("shown", "name"), [("{", "padded"), ('{"a":{', "compact"), ('{"a": ', "tight"), ('{\n  "a', "indented")]
)
def test_what_a_reply_has_shown_chooses_among_the_styles_that_are_known(shown: str, name: str) -> None:
    names = ["tight", "compact", "indented", "padded"]
    habits = taught(*(STYLES[name] for name in names))
    layout = Layout()
    layout.advance(shown.encode())
    layout.advance(b'"')
    assert spaced(habits.styles(layout.seen)[0]) == STYLES[name]


def test_a_reply_like_no_other_is_written_as_it_has_begun() -> None:
    habits = taught(*STYLES.values())
    layout = Layout()
    layout.advance(b'{\n   "a')
    assert spaced(habits.styles(layout.seen)[0], DEEP_COMPACT) == json.dumps(DEEP, indent=3)
    layout.advance(b'" \n:[')
    (style,) = habits.styles(layout.seen)
    assert spaced(style, '{"a":[1]}') == '{\n   "a" \n:[\n      1\n   ]\n}'


def test_few_styles_are_kept() -> None:
    habits = taught(*("{" + " " * size + '"a"' for size in range(20)))
    assert 1 < len(habits.styles({})) < 10


def test_what_is_already_written_says_which_of_several_habits_it_is() -> None:
    style = latest(taught('{"a": [\n    1\n  ], "b": [1]}'))
    assert style.space(gap("open", 2, ARRAY)) == b""
    assert style.space(gap("open", 2, ARRAY), b"\n ") == b"\n    "
    assert style.space(gap("open", 2, ARRAY), b"\t") is None


def test_endless_white_space_is_no_habit() -> None:
    assert latest(taught("{" + " " * 300 + '"a"')).tight


def test_only_what_is_json_teaches() -> None:
    assert latest(taught("so { x }, { \n1 } and [ \n y ]")).tight


# -------------------------------------------------------------------------------------- order of keys


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"name": "f", "arguments": {"b": 1, "a": {"d": "x", "c": 2}}}',
            (("f", ("d", "c")), ("f", ("b", "a"))),
        ),
        (
            '[{"name": "g", "arguments": {"a": 1}}, {"name": "f", "arguments": {"b": 1, "a": 2}}]',
            (("f", ("b", "a")),),
        ),
        ('{"b": [{"x": "g", "y": 1}, {"y": "h", "x": 1}]', (("", ("y", "x")),)),
        ('{"b": 1, "b": 2}', ()),  # not an order
        ('{"b": 1}', ()),
    ],
)
def test_an_object_that_does_not_fit_teaches_the_order_of_its_keys(text: str, expected: Orders) -> None:
    orders = taught(text, fits=False).orders
    assert tuple(order for order in orders if order[1] != ("name", "arguments")) == expected
    assert taught(text).orders == ()


def test_the_latest_order_of_the_same_keys_counts() -> None:
    habits = taught('{"a":1,"b":2}', '{"c":1,"d":2}', '{"b":1,"a":2}', fits=False)
    assert habits.orders == (("", ("c", "d")), ("", ("b", "a")))
    for index in range(100):
        habits.learn_order("f", ("a", f"key {index}"))
    assert len(habits.orders) < 50


def test_properties_come_in_the_order_that_was_written() -> None:
    def schema(*names: str) -> dict[str, Json]:
        return {"type": "object", "properties": {name: {"enum": ["z", "a"]} for name in names}}

    def keys(*orders: str) -> str:
        ordered = in_order(schema("a", "b", "c", "d"), [tuple(order) for order in orders])
        assert ordered == schema("a", "b", "c", "d")  # in all but order
        assert isinstance(ordered["properties"], dict)
        return "".join(ordered["properties"])

    assert keys() == "abcd"
    assert keys("bd") == "abcd"
    assert keys("dbca") == "dbca"
    assert keys("ca") == "cdab"  # what is not written stays behind what it was behind
    assert keys("ca", "ac") == "abcd"
    assert keys("ba", "xc") == "bcda"  # of another object


def test_nested_properties_are_put_in_order_too() -> None:
    inner: Json = {"properties": {"a": {}, "b": {}}}
    schema: dict[str, Json] = {"$defs": {"x": inner}, "anyOf": [{"items": inner}], "title": "ab"}
    ordered = json.dumps(in_order(schema, [("b", "a")]))
    assert ordered == json.dumps(schema).replace('"a": {}, "b": {}', '"b": {}, "a": {}')
