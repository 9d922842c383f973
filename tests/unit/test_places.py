"""Where in its JSON a reply stands: kinds, paths and values, and that no text makes the scanner fail."""

from __future__ import annotations

import random

import pytest

from agentspec.places import TEXT, Place, PlaceScanner

CALL = (
    b'<tool_call>\n{"name": "pay", "arguments": {"amount": 12.5, "to": {"city": "Oslo"}, "on": ["mon", 2]}}'
)


def after(text: bytes) -> Place:
    scanner = PlaceScanner()
    scanner.advance(text)
    return scanner.place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (b"", TEXT),
        (b"Let me see: 12 and", TEXT),
        (b"{", Place("structure", ("", ""))),
        (b'{"na', Place("key", ("",), b"na")),
        (b'{"name"', Place("structure", ("", "name"))),
        (b'{"name": ', Place("structure", ("", "name"))),
        (b'{"name": "pa', Place("string", ("", "name"), b"pa")),
        (b'{"name": "pay"', Place("structure", ("pay", "name"))),
        (b'{"name": "pay", "', Place("key", ("pay",))),
        (b'{"name": "pay", "arguments": {', Place("structure", ("pay", "arguments", ""))),
        (b'{"name": "pay", "arguments": {"am', Place("key", ("pay", "arguments"), b"am")),
        (
            b'{"name": "pay", "arguments": {"amount": 12.',
            Place("number", ("pay", "arguments", "amount"), b"12."),
        ),
        (b'{"name": "pay", "arguments": {"now": tru', Place("number", ("pay", "arguments", "now"), b"tru")),
        (b'{"name": "pay", "arguments": {"amount": 12}', Place("structure", ("pay", "arguments"))),
        (b'{"name": "pay", "arguments": {}}', TEXT),
        (b"[", Place("structure", ("", "[]"))),
        (b'["a", "b', Place("string", ("", "[]"), b"b")),
        (b'{"days": [{"at": "ni', Place("string", ("", "days", "[]", "at"), b"ni")),
    ],
)
def test_kinds_paths_and_values(text: bytes, place: Place) -> None:
    assert after(text) == place


def test_a_tools_name_is_the_first_string_of_the_outermost_object() -> None:
    """Not a string inside its arguments, also where those come first."""
    assert after(b'{"id": 7, "name": "pay", "x": ').path == ("pay", "x")
    assert after(b'{"arguments": {"city": "Oslo"}, "name": "pay", "x": ').path == ("pay", "x")


def test_each_call_has_a_head_of_its_own() -> None:
    assert after(b'{"name": "pay"}\n{"name": "tell", "to": "').path == ("tell", "to")


def test_a_value_is_as_it_is_spelled() -> None:
    """Escapes stay, and an escaped quote ends nothing."""
    assert after(rb'{"a": "x\"y\\').value == rb"x\"y\\"
    assert after(rb'{"a": "x\\"').kind == "structure"
    assert after(rb'{"a\"b": "').path == ("", r"a\"b")


def test_brackets_in_strings_open_nothing() -> None:
    assert after(b'{"a": "}{[').path == ("", "a")
    assert after(b'{"a": "}"}') == TEXT


@pytest.mark.parametrize(
    "text", [b"{not json", b'{"a": 1]', b"{1", b"{{", b'{"a" x', b"[}", b"[" * 65, b'{"a":' * 65]
)
def test_what_is_not_json_is_text(text: bytes) -> None:
    assert after(text) == TEXT
    assert after(text + b' so {"a": "').kind == "string"  # and the next bracket begins anew


def test_it_does_not_matter_how_the_text_is_cut_into_tokens() -> None:
    whole = [after(CALL[:end]) for end in range(len(CALL) + 1)]
    for size in (1, 2, 3, 7):
        scanner = PlaceScanner()
        for start in range(0, len(CALL), size):
            scanner.advance(CALL[start : start + size])
            assert scanner.place == whole[min(start + size, len(CALL))]


def test_a_fork_goes_its_own_way() -> None:
    scanner = PlaceScanner()
    for end in range(len(CALL)):
        fork = scanner.fork()
        fork.advance(b'x"}]: {"y": [1')
        assert scanner.place == after(CALL[:end])
        scanner.advance(CALL[end : end + 1])


def test_a_place_stays_what_it_was() -> None:
    """It is kept while the reply goes on."""
    scanner = PlaceScanner()
    scanner.advance(b'{"a": "x')
    place = scanner.place
    scanner.advance(b'yz", "b": [')
    assert place == Place("string", ("", "a"), b"x")


def test_no_text_makes_it_fail() -> None:
    rng = random.Random(0)
    for _ in range(300):
        after(bytes(rng.choice(b'{}[]":,\\ 1tx\xff') for _ in range(60)))
