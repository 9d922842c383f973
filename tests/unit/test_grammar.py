"""Grammars of replies over a small vocabulary: bytes, a few merges and two special tokens."""

from __future__ import annotations

import json
import random

import pytest

from agentspec.chat.formats import HERMES
from agentspec.errors import GrammarError, SchemaError
from agentspec.grammar.reply import compile_json, compile_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.testing import TableVocab
from agentspec.types import BoundTool, Json, Matcher, NamedTool, ToolChoice

MERGES = ['{"', '":', ' "', '",', '"}', "}}"]
MERGES += ["name", "arguments", "get_", "weather", "time", "city", "Os", "lo"]
SPECIAL = ["<tool_call>", "</tool_call>", "<end>"]
PIECES: list[bytes | str] = [*(bytes([byte]) for byte in range(256)), *MERGES, *SPECIAL]
OPEN, CLOSE, END = (len(PIECES) - 3, len(PIECES) - 2, len(PIECES) - 1)

WEATHER = BoundTool(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
)
TIME = BoundTool("get_time", "", {"type": "object", "properties": {}})


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return GrammarTokenizer(TableVocab(PIECES, end_ids=[END], special_ids=[OPEN, CLOSE]))


def matcher(
    tokenizer: GrammarTokenizer,
    choice: ToolChoice = "required",
    tools: tuple[BoundTool, ...] = (WEATHER, TIME),
    *,
    spelling: str = "canonical",
    parallel: bool = True,
) -> Matcher:
    grammar = compile_reply(tokenizer, HERMES, tools, choice, spelling=spelling, parallel=parallel)
    assert grammar is not None
    return grammar.start()


def spell(tokenizer: GrammarTokenizer, text: str) -> list[int]:
    return tokenizer.vocab.tokenize(text.encode(), special=True)


def fits(tokenizer: GrammarTokenizer, state: Matcher, text: str) -> bool:
    """Whether the mask allows the text token by token, in its canonical spelling."""
    for token in spell(tokenizer, text):
        legal = state.legal()
        if legal is not None and token not in legal:
            return False
        state.advance(token)
    return True


def call(name: str, arguments: Json) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_forced_runs_are_exactly_where_one_token_is_legal(tokenizer: GrammarTokenizer) -> None:
    state = matcher(tokenizer, NamedTool("get_weather"))
    reply = spell(tokenizer, call("get_weather", {"city": "Oslo", "unit": "celsius"}))
    forced_total = 0
    for at, token in enumerate(reply):
        forced = state.forced()
        legal = state.legal()
        assert legal is not None
        assert (len(legal) == 1) == bool(forced)
        assert list(forced) == reply[at : at + len(forced)]
        forced_total += bool(forced)
        state.advance(token)
    assert state.done()
    assert state.accepting()
    assert forced_total > len(reply) / 2


def test_one_choice_one_call(tokenizer: GrammarTokenizer) -> None:
    one = call("get_time", {})
    several = one + "\n" + call("get_weather", {"city": "Oslo"})
    assert fits(tokenizer, matcher(tokenizer), several)
    assert fits(tokenizer, matcher(tokenizer, parallel=False), one)
    assert not fits(tokenizer, matcher(tokenizer, parallel=False), several)
    assert not fits(tokenizer, matcher(tokenizer, NamedTool("get_weather")), one)


@pytest.mark.parametrize(
    "text",
    [
        "Sure! ",
        call("get_rain", {}),
        call("get_weather", {}),
        call("get_weather", {"city": 3}),
        call("get_weather", {"city": "Oslo", "planet": "Mars"}),
        call("get_weather", {"city": "Oslo", "unit": "kelvin"}),
        call("get_time", {"city": "Oslo"}),
        '<tool_call>\n{"name":"get_time"',
    ],
)
def test_what_is_not_a_call_is_masked(tokenizer: GrammarTokenizer, text: str) -> None:
    assert not fits(tokenizer, matcher(tokenizer), text)


def test_a_reply_may_end_after_a_call_and_nowhere_before(tokenizer: GrammarTokenizer) -> None:
    state = matcher(tokenizer)
    for token in spell(tokenizer, call("get_time", {})):
        legal = state.legal()
        assert legal is not None
        assert END not in legal
        state.advance(token)
    legal = state.legal()
    assert legal is not None
    assert END in legal
    assert state.accepting()
    assert not state.done()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_looking_ahead_leaves_no_trace(tokenizer: GrammarTokenizer, choice: ToolChoice, seed: int) -> None:
    """Masks depend on the tokens alone, whatever forks have looked into other branches before."""
    rng = random.Random(seed)
    opening = "" if choice == "required" else "Let me see. "
    texts = [
        opening + call("get_weather", {"city": "Oslo", "unit": "celsius"}),
        opening + call("get_weather", {"city": "x"}),
        opening + call("get_time", {}),
        opening + call("send", {"to": "Ada", "text": "y"}),
    ]
    send = BoundTool("send", "", closed({"to": {"type": "string"}, "text": {"type": "string"}}))
    tools = (WEATHER, TIME, send)
    tokens = spell(tokenizer, texts[seed % 4])
    state, fresh = (matcher(tokenizer, choice, tools) for _ in range(2))
    for at, token in enumerate(tokens):
        for text in rng.sample(texts, 2):
            other = spell(tokenizer, text)
            if other[:at] == tokens[:at]:
                ahead = state.fork()
                for step in other[at : at + rng.randint(1, 30)]:
                    ahead.legal(), ahead.forced(), ahead.guess()
                    ahead.advance(step)
        assert view(state) == view(fresh)
        state.advance(token)
        fresh.advance(token)
    assert state.accepting()


def closed(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def view(state: Matcher) -> tuple[list[int] | None, tuple[int, ...]]:
    legal = state.legal()
    return (None if legal is None else legal.tolist()), state.forced()


def test_auto_is_free_until_the_marker_and_enforced_from_there(tokenizer: GrammarTokenizer) -> None:
    state = matcher(tokenizer, "auto")
    for token in spell(tokenizer, "I say {anything} here. "):
        assert state.legal() is None
        assert state.accepting()
        state.advance(token)
    state.advance(OPEN)
    assert state.legal() is not None
    assert not state.accepting()
    assert fits(tokenizer, state, call("get_time", {})[len("<tool_call>") :])
    assert state.accepting()


def test_a_marker_that_is_text_is_found_over_any_tokens() -> None:
    pieces = [*PIECES[:-3], "<to", "ol_call>\n", ">no", "<end>"]
    plain = GrammarTokenizer(TableVocab(pieces, end_ids=[len(pieces) - 1]))
    grammar = compile_reply(plain, HERMES, [TIME], "auto")
    assert grammar is not None
    state = grammar.start()
    assert fits(plain, state, 'ok <tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>')
    assert state.accepting()
    assert fits(plain, grammar.start(), "a <tool_call>no call in the token that ends the marker: text")
    assert not fits(plain, grammar.start(), "a <tool_call>yet enforced where the marker ends its token")


@pytest.mark.parametrize("opening", ["", "Let me look.\n", "```json\n", "Here:\n\n```\n"])
def test_auto_knows_a_bare_or_fenced_object_that_names_a_tool(
    tokenizer: GrammarTokenizer, opening: str
) -> None:
    grammar = compile_reply(tokenizer, HERMES, [WEATHER, TIME], "auto", parallel=False)
    assert grammar is not None
    state = grammar.start()
    for token in spell(tokenizer, opening + '{"name": "get_weather"'):
        assert state.legal() is None
        state.advance(token)
    assert state.legal() is not None
    body = ', "arguments": {"city": "Oslo"}}'
    assert fits(tokenizer, state, body + "\n```" if "```" in opening else body)
    assert state.done()


@pytest.mark.parametrize(
    "text", ['{"name": "get_rain"', 'x {"name": "get_time"', '{ "name": "get_time"', '{"name": "get_time']
)
def test_auto_leaves_other_objects_free(tokenizer: GrammarTokenizer, text: str) -> None:
    grammar = compile_reply(tokenizer, HERMES, [WEATHER, TIME], "auto")
    assert grammar is not None
    state = grammar.start()
    assert fits(tokenizer, state, text)
    assert state.legal() is None


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_no_tools_or_no_choice_leaves_the_reply_free(tokenizer: GrammarTokenizer, choice: ToolChoice) -> None:
    tools = [WEATHER] if choice == "none" else []
    assert compile_reply(tokenizer, HERMES, tools, choice) is None


def test_any_spelling_is_legal_where_asked_and_the_guess_is_canonical(tokenizer: GrammarTokenizer) -> None:
    state = matcher(tokenizer, NamedTool("get_weather"), spelling="any")
    head = spell(tokenizer, call("get_weather", {"city": ""}))
    state.advance(OPEN)
    state.advance(head[1])
    assert state.forced() == ()
    guess = state.guess()
    assert list(guess) == head[2 : 2 + len(guess)]
    assert len(guess) > 5
    legal = state.legal()
    assert legal is not None
    assert {ord("{"), PIECES.index('{"')} <= set(legal.tolist())


def test_the_guess_spans_the_border_of_fixed_and_free_text(tokenizer: GrammarTokenizer) -> None:
    state = matcher(tokenizer, NamedTool("get_weather"))
    for token in state.forced():
        state.advance(token)
    assert state.forced() == ()
    assert [PIECES[token] for token in state.guess()] == [' "']


def test_an_illegal_token_is_refused(tokenizer: GrammarTokenizer) -> None:
    with pytest.raises(GrammarError):
        matcher(tokenizer).advance(ord("x"))


def test_a_schema_the_engine_cannot_take_names_its_tool(tokenizer: GrammarTokenizer) -> None:
    bad = BoundTool("odd", "", {"type": "object", "properties": {"x": {"not": {"type": "string"}}}})
    with pytest.raises(SchemaError, match="'odd'") as caught:
        compile_reply(tokenizer, HERMES, [TIME, bad], "required")
    assert caught.value.tool == "odd"
    assert caught.value.keyword == "not"


def test_a_json_reply_is_one_document(tokenizer: GrammarTokenizer) -> None:
    schema: dict[str, Json] = {
        "title": "Person",
        "type": "object",
        "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}},
        "required": ["name", "tags"],
    }
    state = compile_json(tokenizer, schema).start()
    assert fits(tokenizer, state, '{"name": "Ada", "tags": [1, 2]}')
    assert state.done()
    assert not fits(tokenizer, compile_json(tokenizer, schema).start(), '{"name": "Ada"}')
    with pytest.raises(SchemaError, match="Person"):
        compile_json(tokenizer, {"title": "Person", "not": {}})
