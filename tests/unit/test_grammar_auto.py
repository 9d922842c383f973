"""tool_choice "auto": where a call begins, and that its grammar holds from there on."""

from __future__ import annotations

import pytest

from agentspec.chat.formats import HERMES
from agentspec.chat.parser import CallEvent, ReplyParser
from agentspec.grammar.reply import compile_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.testing import TableVocab
from agentspec.types import BoundTool, ValidCall
from tests.unit.grammars import (
    OPEN,
    PIECES,
    TIME,
    WEATHER,
    call,
    fits,
    matcher,
    small_tokenizer,
    spell,
)


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return small_tokenizer()


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


# what stands before `{"name": "get_time", ...}`, which alone decides what that is
BARE = [
    "",
    "Let me look.\n",
    "Let me look.\n   \t",
    "x" * 80 + "\n" + " " * 80,
    "~~~\n",
    "x ```json\n",
    "```json\n{}\n```\n",
    "```json\n```\n",
    "```python\nprint()\n```\n",
    '{"calls": [], "text": "}\\"]"}\n',
    "{not JSON\n",
    '{"cut\n',
    "[link](x)\n",
]
FENCED = [
    "```\n",
    "```json\n",
    "```JSON \n",
    "```json\r\n",
    "```xml\n",
    "```tool_call\n",
    "  ```json\n  ",
    "```json\n" + "\n" * 80,
    "```python\nprint()\n```\n```json\n",
]
TEXT = [
    "Let me look. ",
    "word " + " " * 80,
    "- ",
    "```",
    "```json ",
    "``` json {\n",
    "```python\n",
    "```js\n\n",
    "```python\n" + "\n" * 80,
    "```json\nso:\n",
    "```json\n[1]\n",
    "```python\nprint()\n``` ",
    "[\n",
    '[\n{"name": "get_rain"},\n',
    '{"calls": [\n',
]


@pytest.mark.parametrize("whole_tokens", [True, False])
@pytest.mark.parametrize("opening", [*BARE, *FENCED, *TEXT])
def test_the_grammar_is_entered_where_the_parser_sees_a_call(
    tokenizer: GrammarTokenizer, opening: str, whole_tokens: bool
) -> None:
    grammar = compile_reply(tokenizer, HERMES, [WEATHER, TIME], "auto", parallel=False)
    assert grammar is not None
    head, body = '{"name": "get_time"', ', "arguments": {}}'
    state = grammar.start()
    for token in spell(tokenizer, opening + head) if whole_tokens else (opening + head).encode():
        assert state.legal() is None
        state.advance(token)
    assert (state.legal() is None) == (opening in TEXT)

    parser = ReplyParser(HERMES, [WEATHER, TIME])
    events = [*parser.feed((opening + head + body).encode()), *parser.finish("stop")]
    calls = [event for event in events if isinstance(event, CallEvent) and isinstance(event.call, ValidCall)]
    assert bool(calls) == (opening not in TEXT)

    if opening not in TEXT:
        assert fits(tokenizer, state, body + "\n```" if opening in FENCED else body)
        assert state.done()


def test_a_tool_name_that_begins_another_is_no_head_of_it(tokenizer: GrammarTokenizer) -> None:
    longer = BoundTool("get_time_zone", "", TIME.parameters)
    grammar = compile_reply(tokenizer, HERMES, [TIME, longer], "auto")
    assert grammar is not None
    assert fits(tokenizer, grammar.start(), 'So:\n{"name": "get_time_zone", "arguments": {}}')
