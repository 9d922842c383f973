"""Values without an end are ended, and only those."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from agentspec.chat.formats import FORMATS
from agentspec.grammar.bounds import DIGITS, LOOP, PIECE
from agentspec.grammar.reply import compile_json, compile_reply
from agentspec.types import BoundTool, Json, Matcher
from tests.unit.grammars import END, PIECES, closed, fits, small_tokenizer, spell

TEXTS = [piece.encode() if isinstance(piece, str) else piece for piece in PIECES]


def state_of(value: Json, begin: str = "") -> Matcher:
    state = compile_json(small_tokenizer(), closed({"a": value})).start()
    assert fits(small_tokenizer(), state, '{"a": ' + begin)
    return state


def written(state: Matcher, wanted: Callable[[str], str], limit: int = 6000) -> str:
    """What a model writes that goes on with `wanted(text so far)` as long as that is legal, and ends what it
    can when it is not."""
    tokenizer, text = small_tokenizer(), ""
    while not state.done() and len(text) < limit:
        legal = state.legal()
        assert legal is not None
        assert len(legal)
        token = spell(tokenizer, wanted(text)[:9])[0]
        if token not in legal:
            token = next((one for one in legal.tolist() if TEXTS[one] in (b'"', b"]", b"}")), int(legal[0]))
        if token == END:
            break
        state.advance(token)
        text += TEXTS[token].decode()
    return text


def again(piece: str) -> Callable[[str], str]:
    """Goes round."""
    return lambda text: piece[len(text) % len(piece) :] + piece


@pytest.mark.parametrize("piece", ["x", " ", "\\n", "ab", "lo and behold, ", "y" * (PIECE - 1) + "z"])
def test_a_string_that_goes_round_is_closed(piece: str) -> None:
    text = written(state_of({"type": "string"}, '"'), again(piece))
    value = json.loads('{"a": "' + text)["a"]
    assert LOOP - 8 <= len(text) <= LOOP + PIECE + 8
    assert isinstance(value, str)


@pytest.mark.parametrize(
    ("items", "piece"),
    [
        ({"type": "integer"}, "0, "),
        ({"type": "string"}, '"Os", '),
        ({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}, '{"b": true}, '),
        ({"type": "array", "items": {"type": "null"}}, "[null], "),
    ],
)
def test_a_list_that_goes_round_is_closed(items: Json, piece: str) -> None:
    text = written(state_of({"type": "array", "items": items}, "["), again(piece))
    value = json.loads('{"a": [' + text)["a"]
    assert len(value) > 50
    assert len(text) < LOOP + 3 * len(piece) + 8


def test_a_number_has_no_more_digits_than_that() -> None:
    for begin in ("", "0."):
        text = written(state_of({"type": "number"}, begin), lambda _: "3")
        assert DIGITS - 2 <= len(text.rstrip("}")) <= DIGITS
        assert json.loads('{"a": ' + begin + text)["a"] > 0


def test_a_string_that_must_be_longer_may_be() -> None:
    text = written(state_of({"type": "string", "minLength": LOOP + 20}, '"'), lambda _: "1")
    assert len(json.loads('{"a": "' + text)["a"]) == LOOP + 20


def test_long_values_that_say_something_are_left_alone() -> None:
    said = " ".join(f"{number:x}" for number in range(3000))
    state = state_of({"type": "string"}, '"')
    assert fits(small_tokenizer(), state, said + '"}')
    assert state.accepting()


def test_looking_ahead_does_not_count() -> None:
    state = state_of({"type": "string"}, '"')
    assert fits(small_tokenizer(), state, "x" * (LOOP - 1))
    ahead = state.fork()
    assert fits(small_tokenizer(), ahead, "x")
    closing, free = ahead.legal(), state.legal()
    assert closing is not None
    assert free is not None
    assert len(closing) < len(free)
    assert all(TEXTS[token].startswith(b'"') for token in closing.tolist())


def test_text_that_is_no_json_is_left_alone() -> None:
    """Strings in tags, and what a model thinks: a quote closes nothing there."""
    tool = BoundTool("write", "", closed({"text": {"type": "string"}}))
    grammar = compile_reply(small_tokenizer(), FORMATS["qwen3-coder"], [tool], "required")
    assert grammar is not None
    state = grammar.start()
    begin = "<tool_call>\n<function=write>\n<parameter=text>\n"
    assert fits(small_tokenizer(), state, begin + "=" * (LOOP + 200) + "1" * (DIGITS + 20))
    assert fits(small_tokenizer(), state, "\n</parameter>\n</function>\n</tool_call>")


def test_a_string_of_digits_is_no_number() -> None:
    digits = "".join(str(number) for number in range(300, 500))
    assert fits(small_tokenizer(), state_of({"type": "string"}, '"'), digits + '"}')


def test_a_string_is_not_closed_behind_half_an_escape() -> None:
    state = state_of({"type": "string"}, '"')
    assert fits(small_tokenizer(), state, "n" + "\\n" * (LOOP // 2 - 1) + "\\")
    legal = state.legal()
    assert legal is not None
    assert {TEXTS[token] for token in legal.tolist()} >= {b"n", b"t", b"\\"}
