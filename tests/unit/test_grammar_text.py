"""Grammars of the user's own: regular expressions and Lark, taken as they are written."""

from __future__ import annotations

import pytest

from agentspec.errors import ConfigError, GrammarError
from agentspec.grammar import bounds, text
from agentspec.grammar.text import Pattern, compile_pattern, follow_pattern, matches
from tests.unit.grammars import END, OPEN, fits, small_tokenizer, spell


def regex(pattern: str) -> Pattern:
    return Pattern("regex", pattern)


def lark(grammar: str) -> Pattern:
    return Pattern("lark", grammar)


@pytest.mark.parametrize("spelling", ["canonical", "any"])
@pytest.mark.parametrize(
    ("pattern", "reply", "other"),
    [
        (regex("weather in (Oslo|Rome)"), "weather in Oslo", "weather in Os"),
        (regex(r"\d{4}-\d{2}"), "2026-03", "2026-3"),
        (regex("^a/b$"), "a/b", "a"),
        (regex(r"a\/b\\"), "a/b\\", "a/b"),
        (regex("a\nb"), "a\nb", "a\n"),
        (regex("né{1,2}"), "néé", "n"),
        (regex("a*"), "", "b"),
        (regex(""), "", "a"),
        (lark('start: pair ("," pair)*\npair: /[a-z]+/ "=" /[0-9]+/'), "a=1,city=22", "a=1,"),
        (lark('%import common.INT\nstart: INT "!" # an end without a line break'), "12!", "12"),
        (lark('start: %json {"type": "integer"}'), "-7", "-"),
    ],
)
def test_what_matches(pattern: Pattern, reply: str, other: str, spelling: str) -> None:
    tokenizer = small_tokenizer()
    state = compile_pattern(tokenizer, pattern, spelling=spelling).start()
    assert matches(state, spell(tokenizer, reply))
    assert not matches(state, spell(tokenizer, other))
    assert fits(tokenizer, state, reply)  # and it was not moved before
    assert state.accepting()
    assert state.done() or END in state.legal()


def test_lark_may_name_control_tokens() -> None:
    state = compile_pattern(small_tokenizer(), lark('start: <tool_call> "a"')).start()
    assert state.legal().tolist() == [OPEN]


def test_forced_text_has_one_spelling_or_any() -> None:
    tokenizer = small_tokenizer()
    canonical, any_one = (
        compile_pattern(tokenizer, regex(r'\{"name": .'), spelling=spelling).start()
        for spelling in ("canonical", "any")
    )
    assert len(canonical.legal()) == 1
    assert canonical.forced()
    assert len(any_one.legal()) > 1
    assert any_one.guess()[:1] == canonical.forced()[:1]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (regex("a(+b"), r"regex cannot be used: invalid regex.*\n    a\(\+b\n      \^\nerror: repetition"),
        (regex("(?=a)b"), "look-around"),
        (regex(r"[^\s\S]"), "no text can follow"),
        (regex("\ud800"), "not valid Unicode"),
        (lark('start: "a" | foo'), r"lark cannot be used: at 1\(8\): unknown name: \"foo\""),
        (lark('start: "a"\nx: ( "b"\n'), r"2\(9\): Expected token '\)'"),
        (lark(""), "lark cannot be used"),
        (lark("start: x\nx: x"), "no text can follow"),
        (lark('start: "a" <|nothing|>'), "unknown special token"),
        (lark('start: %json {"type": "strnig"}'), "strnig"),
        (lark(' {"grammars": []}'), "begins like JSON"),
    ],
)
@pytest.mark.parametrize("spelling", ["canonical", "any"])
def test_what_cannot_be_used_is_told_with_its_place(pattern: Pattern, message: str, spelling: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compile_pattern(small_tokenizer(), pattern, spelling=spelling)
    assert "<state>" not in str(caught.value)
    assert str(caught.value).count("\n") < 6


def test_reasons_are_short_however_long_the_pattern_is() -> None:
    with pytest.raises(ConfigError) as caught:
        compile_pattern(small_tokenizer(), regex("a" * 90_000 + "("))
    assert len(str(caught.value)) < 600


def test_what_is_too_big_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for pattern in (regex("a" * 100_001), lark("start: " + '"a"|' * 30_000 + '"b"')):
        with pytest.raises(ConfigError, match="at most 100000 are taken"):
            compile_pattern(small_tokenizer(), pattern)
    monkeypatch.setattr(text, "CompiledGrammar", _panicking)
    with pytest.raises(ConfigError, match="too big for the grammar engine"):
        compile_pattern(small_tokenizer(), lark('start: "a"'))


def test_what_the_user_wrote_is_not_ended_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules that end JSON values would forbid a third digit here."""
    monkeypatch.setattr(bounds, "DIGITS", 2)
    tokenizer = small_tokenizer()
    for pattern in (regex("[0-9]+,"), lark('start: /[0-9]+/ ","')):
        assert fits(tokenizer, compile_pattern(tokenizer, pattern).start(), "12345,")


def test_a_follower_goes_along_until_the_text_does_not_match() -> None:
    tokenizer = small_tokenizer()
    state = follow_pattern(tokenizer, regex("name: (Oslo|Rome)!"), end=END).start()
    assert state.legal() is None
    assert state.forced()
    for token in spell(tokenizer, "name: Oslo!"):
        state.advance(token)
    assert state.forced() == (END,)
    state = follow_pattern(tokenizer, regex("name: (Oslo|Rome)!"), end=END).start()
    for token in spell(tokenizer, "nope"):
        state.advance(token)
    assert state.forced() == state.guess() == ()


def _panicking(*_: object, **__: object) -> None:
    raise GrammarError("panic: assertion failed: grammar.symbols.len() < u16::MAX as usize - 10")
