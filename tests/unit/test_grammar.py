"""Grammars of replies: what is legal, forced and guessed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agentspec.chat.formats import HERMES, LLAMA3
from agentspec.chat.parser import CallEvent, ReplyParser
from agentspec.chat.reasoning import Marks, Reasoning
from agentspec.errors import GrammarError, SchemaError
from agentspec.grammar.matcher import CompiledGrammar, unpacked
from agentspec.grammar.reply import compile_json, compile_reply, follow_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.testing import TableVocab
from agentspec.types import BoundTool, Json, Matcher, NamedTool, ToolChoice
from tests.unit.grammars import (
    CLOSE,
    END,
    IMPOSSIBLE,
    OPEN,
    PIECES,
    TIME,
    WEATHER,
    call,
    closed,
    fits,
    matcher,
    small_tokenizer,
    spell,
    view,
)


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return small_tokenizer()


def lark_matcher(tokenizer: GrammarTokenizer, lark: str) -> Matcher:
    return CompiledGrammar(tokenizer, lark).start()


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


@pytest.mark.parametrize("spelling", ["canonical", "any"])
def test_a_guess_leaves_no_trace(tokenizer: GrammarTokenizer, spelling: str) -> None:
    """Two walks over the same tokens, only one of which asks for guesses, see the same masks."""
    asking, silent = (matcher(tokenizer, spelling=spelling) for _ in range(2))
    guessed = 0
    for token in spell(tokenizer, call("get_weather", {"city": "Oslo", "unit": "celsius"})):
        before = view(asking.fork())
        guessed += bool(asking.guess())
        assert view(asking) == before == view(silent)
        asking.advance(token)
        silent.advance(token)
    assert guessed


def test_a_guess_ends_before_half_a_character(tokenizer: GrammarTokenizer) -> None:
    """The tokens of a character depend on all its bytes, and its first ones may have none of their own."""
    state = lark_matcher(tokenizer, '%llguidance {"no_forcing": true}\nstart: "name" ("é" | "è")')
    assert [PIECES[token] for token in state.guess()] == ["name"]


def test_no_guess_where_the_vocabulary_cannot_spell_the_text() -> None:
    poor = GrammarTokenizer(TableVocab(["a", "b", "<end>"], end_ids=[2]))
    assert lark_matcher(poor, '%llguidance {"no_forcing": true}\nstart: "azb"').guess() == ()


class SpacedVocab(TableVocab):
    """Puts a space in front of every text, as SentencePiece models do."""

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        return super().tokenize(b" " + text, special=special)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("spelling", ["canonical", "any"])
def test_a_space_that_the_tokenizer_adds_is_not_in_the_reply(spelling: str, special: bool) -> None:
    pieces = PIECES if special else [*PIECES[:-3], " <", "<to", "<end>"]
    ids = [OPEN, CLOSE] if special else []
    spaced, plain = (
        GrammarTokenizer(kind(pieces, end_ids=[len(pieces) - 1], special_ids=ids))
        for kind in (SpacedVocab, TableVocab)
    )
    state, twin = (matcher(tokenizer, spelling=spelling, parallel=False) for tokenizer in (spaced, plain))
    reply = spell(plain, call("get_weather", {"city": "Oslo"}))
    for token in reply:
        assert state.forced() == twin.forced()
        assert state.guess() == twin.guess()
        state.advance(token)
        twin.advance(token)
    assert state.done()


def test_text_that_begins_with_a_line_break_is_tokenized_as_it_is() -> None:
    """Where two line breaks merge, the one put in front cannot be taken away again."""
    merging = TableVocab([*PIECES[:-1], "\n\n", "<end>"], end_ids=[len(PIECES)])
    assert GrammarTokenizer(merging).tokenize(b"\nlo") == [ord("\n"), PIECES.index("lo")]


def test_an_illegal_token_is_refused_in_one_line(tokenizer: GrammarTokenizer) -> None:
    with pytest.raises(GrammarError, match="doesn't satisfy the grammar") as caught:
        matcher(tokenizer).advance(ord("x"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_grammar_that_does_not_compile_is_not_quoted(tokenizer: GrammarTokenizer) -> None:
    properties: dict[str, Json] = {f"property_{index}": {"type": "string"} for index in range(200)}
    bad = BoundTool("odd", "", closed({**properties, "x": IMPOSSIBLE}))
    with pytest.raises(SchemaError, match="nsatisfiable") as caught:
        compile_reply(tokenizer, HERMES, [bad], "required")
    assert len(str(caught.value)) < 300
    assert caught.value.pointer == "/properties/x"


def test_where_no_token_goes_on_the_error_is_short() -> None:
    poor = GrammarTokenizer(TableVocab(["a", "b", "<end>"], end_ids=[2]))
    state = lark_matcher(poor, 'start: "a" ("z" | "y")')
    state.advance(0)
    with pytest.raises(GrammarError) as caught:
        state.legal()
    assert len(str(caught.value)) < 200


def test_a_schema_the_engine_cannot_take_names_its_tool(tokenizer: GrammarTokenizer) -> None:
    bad = BoundTool("odd", "", closed({"x": IMPOSSIBLE}))
    with pytest.raises(SchemaError, match="'odd'") as caught:
        compile_reply(tokenizer, HERMES, [TIME, bad], "required")
    assert caught.value.tool == "odd"


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
        compile_json(tokenizer, {"title": "Person", **IMPOSSIBLE})


@pytest.mark.parametrize(
    ("schema", "fitting", "misfit"),
    [
        ({"enum": ["red", "blue"]}, '"red"', "{}"),
        ({"const": 3}, "3", "{}"),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", "{}"),
        ({"type": "string"}, '"x"', "{}"),
        ({"type": "object"}, '{"any": 1}', "[]"),
        ({"properties": {"a": {"type": "integer"}}, "type": "object"}, '{"a": 1}', '{"b": 1}'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", "{}"),
    ],
    ids=str,
)
def test_a_json_reply_need_not_be_an_object(
    tokenizer: GrammarTokenizer, schema: dict[str, Json], fitting: str, misfit: str
) -> None:
    state = compile_json(tokenizer, schema).start()
    assert fits(tokenizer, state, fitting)
    assert state.accepting()
    assert not fits(tokenizer, compile_json(tokenizer, schema).start(), misfit)


@pytest.mark.parametrize("count", [1, 7, 900, 1200, 20_000])
def test_masks_of_a_large_vocabulary_are_unpacked_whole(count: int) -> None:
    """Few legal tokens and many are unpacked in different ways; the mask is wider than the vocabulary."""
    n_tokens = 20_001
    legal = np.sort(np.random.default_rng(count).choice(n_tokens, count, replace=False))
    bits = np.ones(20_032, dtype=np.uint8)
    bits[:n_tokens] = 0
    bits[legal] = 1
    mask = np.packbits(bits, bitorder="little").tobytes()
    assert unpacked(mask, n_tokens).tolist() == legal.tolist()
    with pytest.raises(ValueError, match="read-only"):
        unpacked(mask, n_tokens)[0] = 3  # others may hold the same ids


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_call_that_repeats_an_earlier_one_is_the_last(
    tokenizer: GrammarTokenizer, choice: ToolChoice
) -> None:
    """Small models go round in circles, and an agent would go with them."""
    osl, lo = call("get_weather", {"city": "Os"}), call("get_weather", {"city": "lo"})
    state = matcher(tokenizer, choice)
    for text in (osl, f"\n{lo}"):
        assert fits(tokenizer, state, text)
        assert not state.done()
    ahead = state.fork()
    for one in (state, ahead):
        assert fits(tokenizer, one, f"\n{osl}".removesuffix("</tool_call>"))
        assert not one.done()
        one.advance(CLOSE)
        assert one.done()
        assert one.accepting()
        assert one.fork().done()


def test_objects_without_markers_are_not_repeated_either(tokenizer: GrammarTokenizer) -> None:
    grammar = compile_reply(tokenizer, LLAMA3, [TIME, WEATHER], "required")
    assert grammar is not None
    state = grammar.start()
    assert fits(tokenizer, state, '{"name": "get_time", "parameters": {}}')
    assert not state.done()
    assert fits(tokenizer, state, '; {"name": "get_time", "parameters": {}}')
    assert state.done()


def test_beside_an_answer_a_call_may_be_in_any_form_that_is_read(tokenizer: GrammarTokenizer) -> None:
    """Where the model's own form is not allowed, its bracket begins an answer, and it calls nothing."""
    answer = closed({"city": {"type": "string"}})
    one = '{"name": "get_time", "arguments": {}}'
    for parallel in (True, False):
        grammar = compile_reply(tokenizer, HERMES, [TIME], "auto", answer=answer, parallel=parallel)
        assert grammar is not None
        for text in (one, f"```json\n{one}\n```", call("get_time", {}), '{"city": "Os"}'):
            state = grammar.start()
            assert fits(tokenizer, state, text)
            assert state.accepting()


def test_the_digits_of_an_answer_are_no_calls_that_repeat(tokenizer: GrammarTokenizer) -> None:
    grammar = compile_reply(tokenizer, HERMES, [TIME], "auto", answer={"type": "integer"})
    assert grammar is not None
    state = grammar.start()
    assert fits(tokenizer, state, "1101")
    assert state.accepting()
    assert not state.done()


def test_an_answer_follows_reasoning(tokenizer: GrammarTokenizer) -> None:
    reasoning = Reasoning(Marks("<think>", "</think>"), "possible")
    grammar = compile_reply(tokenizer, HERMES, [TIME], "auto", answer=closed({}), reasoning=reasoning)
    assert grammar is not None
    for thought in ("", "<think>Hm. {</think>\n\n"):
        for text in ("{}", call("get_time", {})):
            state = grammar.start()
            assert fits(tokenizer, state, thought + text)
            assert state.accepting()
    assert not fits(tokenizer, grammar.start(), "<think>Hm.</think>\n\nSo")


def test_an_answer_that_the_engine_cannot_take_is_named(tokenizer: GrammarTokenizer) -> None:
    answer: dict[str, Json] = {"title": "Answer", **closed({"n": IMPOSSIBLE})}
    with pytest.raises(SchemaError, match="'Answer'"):
        compile_reply(tokenizer, HERMES, [TIME], "auto", answer=answer)


def test_following_goes_along_with_an_answer(tokenizer: GrammarTokenizer) -> None:
    answer = closed({"city": {"const": "Os"}})
    followed = follow_reply(tokenizer, HERMES, [TIME], "auto", end=END, answer=answer)
    assert followed is not None
    for before in ("", "So:\n"):
        state = followed.start()
        for token in spell(tokenizer, before + '{"city'):
            state.advance(token)
        guess = b"".join(map(tokenizer.vocab.token_bytes, state.guess() or state.forced()))
        assert guess.startswith(b'": "')
        assert guess.removeprefix(b'": "') in (b"", b"Os", b'Os"', b'Os"}')


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_reply_of_several_calls_may_end_behind_the_line_break(
    tokenizer: GrammarTokenizer, choice: ToolChoice
) -> None:
    """Qwen always writes it behind a call, and only then says whether another one follows."""
    state = matcher(tokenizer, choice)
    assert fits(tokenizer, state, f"{call('get_time', {})}\n")
    for one in (state, state.fork()):
        legal = one.legal()
        assert legal is not None
        assert set(legal.tolist()) == {OPEN, END}
        assert one.accepting()
    assert fits(tokenizer, state, call("get_weather", {"city": "Os"}))
    alone = matcher(tokenizer, choice, parallel=False)
    assert fits(tokenizer, alone, call("get_time", {}))
    assert alone.done()


def test_several_fenced_calls(tokenizer: GrammarTokenizer) -> None:
    block = '```json\n{"name": "get_time", "arguments": {}}\n```'
    for parallel in (True, False):
        state = matcher(tokenizer, "auto", parallel=parallel)
        assert fits(tokenizer, state, f"So:\n{block}")
        assert state.accepting()
        assert state.done() is not parallel
    state = matcher(tokenizer, "auto")
    assert fits(tokenizer, state, f"So:\n{block}\n\n{block}")
    assert not fits(tokenizer, state.fork(), "\n\nAnd so on")


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "```\n{}\n```"])
def test_several_calls_may_be_written_in_any_form_that_is_read(
    tokenizer: GrammarTokenizer, form: str
) -> None:
    """Held to `<tool_call>`, small models left it after one call; to one call, they are held to it."""
    one = form.replace("{}", '{"name": "get_time", "arguments": {}}')
    two = form.replace("{}", '{"name": "get_weather", "arguments": {"city": "Os"}}')
    state = matcher(tokenizer, "required")
    assert fits(tokenizer, state, one)
    assert state.accepting()
    assert fits(tokenizer, state, f"\n{two}")
    assert state.accepting()
    assert not fits(tokenizer, matcher(tokenizer, "required"), one.replace("get_time", "get_tide"))
    assert not fits(tokenizer, matcher(tokenizer, "required", parallel=False), one)
    events = ReplyParser(HERMES, [TIME, WEATHER], "required").feed(f"{one}\n{two}".encode())
    assert len([event for event in events if isinstance(event, CallEvent)]) == 2
