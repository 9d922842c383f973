"""Reasoning in front of a reply: it is told apart from text, it holds no call, and the grammar follows it."""

from __future__ import annotations

from typing import cast

import pytest

from agentspec.chat.formats import HERMES
from agentspec.chat.parser import CallEvent, ReasoningDelta, ReplyParser
from agentspec.chat.reasoning import Marks, Opening, Reasoning, ThoughtSplitter, find_marks, reasoning_of
from agentspec.chat.template import BUILTIN_TEMPLATES, ChatTemplate
from agentspec.engine.engine import Engine
from agentspec.engine.runtime import Runtime
from agentspec.grammar.matcher import Grammar
from agentspec.grammar.reply import compile_json, compile_reply, follow_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.testing import TableVocab
from agentspec.types import AssistantTurn, Json, ToolChoice, ToolTurn, Turn, UserTurn, ValidCall
from tests.unit.grammars import CLOSE, END, OPEN, PIECES, TIME, WEATHER, call, fits, small_tokenizer

THINK = Marks("<think>", "</think>")
CALL = call("get_time", {})


def reasoning(opening: Opening = "possible") -> Reasoning:
    return Reasoning(THINK, opening)


@pytest.mark.parametrize(
    ("source", "marks"),
    [
        ("{{ content.split('</think>')[-1] }}", THINK),
        ("{{ '<seed:think>' }}{{ '</seed:think>' }}", Marks("<seed:think>", "</seed:think>")),
        ("[THINK]{{ x }}[/THINK]", Marks("[THINK]", "[/THINK]")),
        ("<|START_THINKING|><|END_THINKING|>", Marks("<|START_THINKING|>", "<|END_THINKING|>")),
        (BUILTIN_TEMPLATES["chatml"], None),
    ],
)
def test_the_marks_are_found_in_the_template(source: str, marks: Marks | None) -> None:
    assert find_marks(source) == marks


@pytest.mark.parametrize(
    ("prompt", "opening"),
    [
        ("<|im_start|>assistant\n", "possible"),
        ("<|im_start|>assistant\n<think>\n", "inside"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "over"),
        ("say <think> if you like<|im_end|>", "possible"),
    ],
)
def test_the_prompt_says_whether_the_block_is_begun(prompt: str, opening: Opening) -> None:
    assert reasoning_of(prompt, THINK) == reasoning(opening)
    assert reasoning_of(prompt, None) == Reasoning()


# ---------------------------------------------------------------------------------------------- parsing


def split(text: str, opening: Opening, step: int) -> tuple[str, str]:
    splitter = ThoughtSplitter(reasoning(opening))
    thought, rest = "", ""
    for start in range(0, len(text), step):
        more = splitter.feed(text[start : start + step])
        thought, rest = thought + more[0], rest + more[1]
    last = splitter.finish()
    return thought + last[0], rest + last[1]


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("text", "opening", "wanted"),
    [
        ("<think>\nSo be it.\n</think>\n\nYes.", "possible", ("So be it.", "Yes.")),
        ("\n<think>a\n\n b</think>Yes. ", "possible", ("a\n\n b", "Yes. ")),
        ("<think>\n\n</think>\n\nYes.", "possible", ("", "Yes.")),
        ("  Yes, <think>.", "possible", ("", "  Yes, <think>.")),
        ("<thin", "possible", ("", "<thin")),
        ("<think>cut </thi", "possible", ("cut </thi", "")),
        ("<think>", "possible", ("", "")),
        ("", "possible", ("", "")),
        (" So.\n</think> Yes.", "inside", ("So.", "Yes.")),
        ("<think><think>So.</think>Yes.", "inside", ("<think>So.", "Yes.")),
        ("<think>\n<think><think>So.</think>Yes.", "possible", ("<think>So.", "Yes.")),
        ("<think> So.</think>Yes.", "inside", ("So.", "Yes.")),
        ("a < b </think>\n<think>x</think>", "inside", ("a < b", "<think>x</think>")),
        ("never ends \n ", "inside", ("never ends", "")),
        ("<think>x</think>", "over", ("", "<think>x</think>")),
    ],
)
def test_the_block_is_taken_off_however_the_text_arrives(
    text: str, opening: Opening, wanted: tuple[str, str], step: int
) -> None:
    assert split(text, opening, step) == wanted


@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_a_call_within_the_block_is_none(choice: ToolChoice) -> None:
    parser = ReplyParser(HERMES, [TIME], choice, reasoning=reasoning())
    text = f'<think>\nI could write {CALL}.\n{{"name": "get_time"}}\n</think>\n{CALL}'
    events = [event for byte in text.encode() for event in parser.feed(bytes([byte]))] + parser.finish("stop")
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert thought == f'I could write {CALL}.\n{{"name": "get_time"}}'
    calls = [event.call for event in events if isinstance(event, CallEvent)]
    assert calls == ([] if choice == "none" else [ValidCall("get_time", {})])


def test_a_reply_that_is_cut_within_the_block_has_no_call() -> None:
    parser = ReplyParser(HERMES, [TIME], "required", reasoning=reasoning("inside"))
    events = [*parser.feed(f"So {CALL}".encode()), *parser.finish("length", complete=False)]
    assert all(isinstance(event, ReasoningDelta) for event in events)


# --------------------------------------------------------------------------------------------- grammars


MARKED = [*PIECES, "<think>", "</think>"]
BEGUN: tuple[tuple[Opening, str], ...] = (("possible", "<think>"), ("inside", ""))
"""How a block comes to be, and what the reply has to write for it."""


def tokenizer(*, special: bool) -> GrammarTokenizer:
    """A vocabulary that has the marks, or spells them."""
    if not special:
        return small_tokenizer()
    n = len(MARKED)
    return GrammarTokenizer(TableVocab(MARKED, end_ids=[n - 3], special_ids=[n - 5, n - 4, n - 2, n - 1]))


@pytest.fixture(params=[True, False], ids=["marks are tokens", "marks are text"])
def words(request: pytest.FixtureRequest) -> GrammarTokenizer:
    return tokenizer(special=bool(request.param))


def grammar(words: GrammarTokenizer, choice: ToolChoice, opening: Opening) -> Grammar:
    found = compile_reply(words, HERMES, [WEATHER, TIME], choice, reasoning=reasoning(opening))
    assert found is not None
    return found


@pytest.mark.parametrize("space", ["", "\n", "\n\n"])
def test_a_call_is_required_behind_the_block(words: GrammarTokenizer, space: str) -> None:
    for opening, begin in BEGUN:
        state = grammar(words, "required", opening).start()
        assert fits(words, state, f"{begin}\nWhich {{tool}}? A <b> one.\n</think>{space}{CALL}")
        assert state.accepting()


def test_the_block_may_be_left_out_where_the_prompt_has_not_begun_it(words: GrammarTokenizer) -> None:
    assert fits(words, grammar(words, "required", "possible").start(), CALL)
    assert fits(words, grammar(words, "required", "over").start(), CALL)
    over = grammar(words, "required", "over").start()
    assert not fits(words, over, "<think>")


def test_a_reply_does_not_end_within_the_block_nor_without_the_call(words: GrammarTokenizer) -> None:
    state = grammar(words, "required", "inside").start()
    (end,) = words.vocab.end_ids
    for text in ("So", " be it.", "</think>"):
        assert fits(words, state, text)
        assert not state.accepting()
        legal = state.legal()
        assert legal is not None
        assert end not in legal
    assert not fits(words, state.fork(), "no call")


def test_markers_may_be_thought_of(words: GrammarTokenizer) -> None:
    state = grammar(words, "required", "possible").start()
    assert fits(words, state, f"<think>Not {CALL}</think>")
    assert not state.accepting()


def test_where_the_model_decides_no_call_begins_in_the_block(words: GrammarTokenizer) -> None:
    for opening, begin in BEGUN:
        state = grammar(words, "auto", opening).start()
        thought = f'{begin}\n```\nI could <tool_call> and\n{{"name": "get_time", and so on.</think>\n'
        assert fits(words, state, thought)
        assert state.legal() is None
        copy = state.fork()
        assert fits(words, state, "<tool_call>")
        assert state.legal() is not None
        assert fits(words, copy, '{"name": "get_time"')  # a fence in the block is none of the reply's
        assert copy.legal() is not None
        assert fits(words, copy, ', "arguments": {}}')
        assert copy.accepting()


def test_a_document_follows_the_block(words: GrammarTokenizer) -> None:
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    }
    state = compile_json(words, schema, reasoning=reasoning("inside")).start()
    assert fits(words, state, "Let me see.</think>\n\n")
    assert not state.accepting()
    assert fits(words, state, '{"a": 1}')
    assert state.accepting()


def test_what_only_proposes_waits_for_the_end_of_a_block_that_is_begun(words: GrammarTokenizer) -> None:
    ways: dict[Opening, bool] = {"inside": False, "over": True}
    for opening, follows in ways.items():
        followed = follow_reply(words, HERMES, [TIME], "required", end=None, reasoning=reasoning(opening))
        assert followed is not None
        assert followed.start().following is follows


# --------------------------------------------------------------------------------------------- templates

_THINKING = """\
{%- for message in messages -%}
<|{{ message.role }}|>
{%- if message.thoughts %}<think>{{ message.thoughts }}</think>{% endif -%}
{{ message.content }}
{%- for call in message.tool_calls %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}
{% endfor -%}
{{ tools | tojson }}{% if add_generation_prompt %}<|assistant|><think>{% endif %}"""


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_earlier_reasoning_is_given_back_as_the_template_wants_it(key: str) -> None:
    template = ChatTemplate(_THINKING.replace("thoughts", key))
    turns: list[Turn] = [
        UserTurn("What time is it?"),
        AssistantTurn("", (("call_1", "get_time", {}),), reasoning="I shall look."),
        ToolTurn("Noon.", "call_1", "get_time"),
    ]
    prompt = template.render(turns, [TIME])
    assert "<think>I shall look.</think><tool_call>" in prompt
    assert template.reasoning(prompt) == reasoning("inside")


def test_reasoning_that_a_template_refuses_is_left_out() -> None:
    refusal = "{% if message.thinking and message.content %}{{ raise_exception('no') }}{% endif %}"
    text = "{{ message.content }}"
    template = ChatTemplate(_THINKING.replace("thoughts", "thinking").replace(text, refusal + text))
    turns: list[Turn] = [UserTurn("a"), AssistantTurn("b", reasoning="c"), UserTurn("d")]
    assert "b" in template.render(turns)
    assert "c</think>" not in template.render(turns)
    assert "c</think>" in template.render([UserTurn("a"), AssistantTurn("", reasoning="c"), UserTurn("d")])


def test_a_template_that_takes_no_reasoning_is_given_none() -> None:
    template = ChatTemplate(BUILTIN_TEMPLATES["chatml"])

    def prompt(reasoning: str) -> str:
        return template.render([UserTurn("a"), AssistantTurn("b", reasoning=reasoning), UserTurn("d")])

    assert prompt("zq") == prompt("")


def test_the_control_tokens_of_marks_and_calls_are_shown() -> None:
    """The parser looks for what they spell; those of an end of the turn stay hidden."""
    runtime = Runtime(
        name="toy",
        engine=cast(Engine, None),
        vocab=tokenizer(special=True).vocab,
        template=ChatTemplate(_THINKING, wire_format=HERMES),
        wire_format=HERMES,
        n_ctx=100,
    )
    assert {MARKED[token] for token in runtime.shown} == {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
    }


def test_what_might_have_begun_the_block_is_part_of_the_reply() -> None:
    """`<tool_call>`, spelled in text, begins like `<think>`."""
    n = len(PIECES)
    plain = GrammarTokenizer(TableVocab([*PIECES[:-3], "<end>"], end_ids=[n - 3]))
    for text in ("<tool_call>", "\n <tool_call>", "<thin <tool_call>", "<think>x</think> <tool_call>"):
        state = grammar(plain, "auto", "possible").start()
        assert fits(plain, state, text)
        assert state.legal() is not None, text


def test_an_array_that_begins_like_the_block_is_no_call_inside() -> None:
    marks = Reasoning(Marks("[THINK]", "[/THINK]"), "possible")
    found = compile_reply(small_tokenizer(), HERMES, [TIME], "auto", reasoning=marks)
    assert found is not None
    state = found.start()
    assert fits(small_tokenizer(), state, '[{"name": "get_time", "arguments": {}}]')


def test_thousands_of_markers_are_no_burden() -> None:
    """Some vocabularies have reserved that many."""
    many = [f"<unused{index}>" for index in range(5000)]
    pieces = [*MARKED, *many]
    special = [OPEN, CLOSE, *range(len(MARKED) - 2, len(pieces))]
    wide = GrammarTokenizer(TableVocab(pieces, end_ids=[END], special_ids=special))
    state = grammar(wide, "required", "inside").start()
    assert fits(wide, state, f"So {many[7]} it{many[4000]} is.</think>{CALL}")
    assert state.accepting()


def test_a_first_call_behind_a_block_is_known_again(words: GrammarTokenizer) -> None:
    state = grammar(words, "required", "inside").start()
    assert fits(words, state, f"Twice.</think>\n{CALL}")
    assert not state.done()
    assert fits(words, state, f"\n{CALL}")
    assert state.done()


def test_looking_ahead_into_a_block_leaves_no_trace(words: GrammarTokenizer) -> None:
    state = grammar(words, "auto", "possible").start()
    ahead = state.fork()
    assert fits(words, ahead, "<think>So")
    assert fits(words, state, "<tool_call>")
    assert state.legal() is not None
    within = grammar(words, "auto", "inside").start()
    assert fits(words, within.fork(), "</think> yes")
    assert fits(words, within, "<tool_call>")
    assert within.legal() is None
