"""Calls in every form that a format can have: found in a template, written, held to a grammar, read back.

The real templates are in tests/model/test_templates.py; these are small ones of each kind.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from agentspec.chat.channels import parser_of
from agentspec.chat.detect import detect
from agentspec.chat.formats import FORMATS, HERMES, Hole, JsonId, Tags, WireFormat, by_name
from agentspec.chat.formats.render import render_call, render_calls
from agentspec.chat.parser import CallEvent, TextDelta
from agentspec.chat.template import ChatTemplate
from agentspec.chat.typing import kinds_of, read_value
from agentspec.errors import ConfigError, TemplateError
from agentspec.grammar.reply import compile_reply
from agentspec.types import (
    AssistantTurn,
    BoundTool,
    FinishReason,
    InvalidCall,
    Json,
    NamedTool,
    NamedTools,
    ToolChoice,
    ToolTurn,
    UserTurn,
    ValidCall,
)
from tests.unit.grammars import fits, small_tokenizer
from tests.unit.small_templates import ARRAY, XML

WEATHER = BoundTool(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "days": {"type": "integer"},
            "unit": {"enum": ["c", "f"]},
            "when": {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
            "spots": {"type": "array", "items": {"$ref": "#/$defs/spot"}},
        },
        "required": ["city", "days"],
        "$defs": {"spot": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
    },
)
NOW = BoundTool("now", "", {"type": "object", "properties": {}})
TOOLS = (WEATHER, NOW)

NEMO = WireFormat(
    "nemo",
    begin="",
    end="",
    between=", ",
    marker="[TOOL_CALLS]",
    opening="[TOOL_CALLS][",
    closing="]",
    json_id=JsonId("id", Hole("[a-z0-9]{9}", "call00001"), first=False),
)
NUMBERED = dataclasses.replace(
    NEMO, name="numbered", json_id=JsonId("no", Hole("[0-9]{1,3}", "0"), first=True)
)
ARGS = WireFormat("args", begin="[C]", end="", between="", marker="[C]", after_name=("[ARGS]",))
KIMI = WireFormat(
    "kimi",
    begin="<|call|>functions.",
    end="<|done|>",
    between="",
    marker="<|calls|>",
    opening="<|calls|>",
    closing="<|end_calls|>",
    after_name=(":", Hole("[0-9]{1,3}", "0"), "<|args|>"),
)
FENCED = WireFormat(
    "fenced",
    begin="<call>function<sep>",
    end="\n```</call>",
    between="\n",
    marker="<calls>",
    opening="<calls>",
    closing="</calls>",
    after_name=("\n```json\n",),
)
BEHIND = WireFormat(
    "behind", begin="", end="", between=">>>", marker="", after_name=("\n",), bare_objects=False
)
TAGS = WireFormat(
    "tags",
    begin="<tool>\n<function=",
    end="",
    between="\n",
    marker="<tool>",
    after_name=(">",),
    tags=Tags("\n<parameter=", ">\n", "\n</parameter>", "\n</function>\n</tool>"),
)
TYPED = WireFormat(
    "typed",
    begin='\n<invoke name="',
    end="",
    between="",
    marker="<calls>",
    opening="<calls>",
    closing="\n</calls>",
    after_name=('">',),
    tags=Tags('\n<q name="', '" string="true">', "</q>", "\n</invoke>", '" string="false">'),
)
ALL = [HERMES, NEMO, NUMBERED, ARGS, KIMI, FENCED, BEHIND, TAGS, TYPED]

Call = tuple[str, dict[str, Json]]
SIMPLE: Call = ("get_weather", {"city": "Oslo", "days": 3})
RICH: Call = ("get_weather", {"city": 'a\n"b" </p> é', "days": -2, "unit": "f", "spots": [[1.5, 2], []]})
EMPTY: Call = ("now", {})

everywhere = pytest.mark.parametrize("wire", ALL, ids=lambda wire: wire.name)


def read(
    wire: WireFormat,
    text: str,
    *,
    choice: ToolChoice = "required",
    reason: FinishReason = "stop",
    step: int = 3,
) -> list[object]:
    """Calls as (name, arguments), invalid ones and text as they are."""
    parser, data = parser_of(wire, TOOLS, choice), text.encode()
    events = [
        event for start in range(0, len(data), step) for event in parser.feed(data[start : start + step])
    ]
    events += parser.finish(reason)
    shown: list[object] = []
    for event in events:
        match event:
            case TextDelta(text=said):
                shown.append(said)
            case CallEvent(call=ValidCall() as call):
                shown.append((call.name, dict(call.arguments)))
            case CallEvent(call=InvalidCall() as invalid):
                shown.append(invalid)
    return shown


# ---------------------------------------------------------------------------------------- parser and grammar


@everywhere
@pytest.mark.parametrize("calls", [[SIMPLE], [RICH], [EMPTY], [SIMPLE, EMPTY, RICH]], ids=str)
def test_what_is_written_is_read_back_and_the_grammar_takes_it(wire: WireFormat, calls: list[Call]) -> None:
    text = render_calls(wire, calls)
    for step in (1, 7, 1000):
        assert read(wire, text, step=step) == calls
    if wire.marker:
        said = read(wire, f"So.\n{text}", choice="auto", step=1000)
        assert said == ["So.", *calls] or said == ["So.\n", *calls]
    grammar = compile_reply(small_tokenizer(), wire, TOOLS, "required", parallel=True)
    assert grammar is not None
    state = grammar.start()
    assert fits(small_tokenizer(), state, text)
    assert state.accepting()


ANSWER: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "message": {"type": "string"},
        "sure": {"type": "boolean"},
        "id": {"type": "string"},
    },
    "required": ["message"],
}


@everywhere
@pytest.mark.parametrize("parallel", [True, False])
def test_a_reply_is_calls_or_the_answer(wire: WireFormat, parallel: bool) -> None:
    tokenizer, answer = small_tokenizer(), '{"message": "It rains.", "sure": true}'
    named = '{"name": "get_up", "message": ""}'
    assert isinstance(ANSWER, dict)
    grammar = compile_reply(tokenizer, wire, TOOLS, "auto", parallel=parallel, answer=ANSWER)
    assert grammar is not None
    for text in (answer, named, '{"message": "", "id": "no"}'):
        state = grammar.start()
        assert fits(tokenizer, state, text)
        assert state.done()
        assert read(wire, text, choice="auto", step=1000) == [text]
    for text in ("It rains.", answer.replace('"It rains."', "3"), answer.replace("message", "massage")):
        assert not fits(tokenizer, grammar.start(), text)
    # where nothing tells a call from text, there is none
    sees_calls = bool(wire.marker or wire.bare_objects)
    for calls in ([RICH], [EMPTY, SIMPLE]) if parallel else ([RICH],):
        text = render_calls(wire, calls)
        state = grammar.start()
        assert fits(tokenizer, state, text) is sees_calls
        if sees_calls:
            assert state.accepting()
            assert read(wire, text, choice="auto") == calls
    forced = compile_reply(tokenizer, wire, TOOLS, "required", answer=ANSWER)
    assert forced is not None
    assert not fits(tokenizer, forced.start(), answer)


@everywhere
@pytest.mark.parametrize("calls", [[RICH], [SIMPLE, RICH]], ids=["one", "two"])
def test_nothing_that_is_cut_is_taken_as_whole(wire: WireFormat, calls: list[Call]) -> None:
    text = render_calls(wire, calls)
    for cut in range(len(text)):
        found = read(wire, text[:cut], reason="length", step=1000)
        assert [one for one in found if isinstance(one, tuple)] in ([], calls[:1] if len(calls) > 1 else [])


@everywhere
@pytest.mark.parametrize(
    ("old", "new"), [("get_weather", "get_wether"), ("days", "dayz"), ("3", "three"), ("Oslo", "x" * 21)]
)
def test_the_grammar_refuses_near_misses_and_so_does_the_check(wire: WireFormat, old: str, new: str) -> None:
    text = render_call(wire, *SIMPLE).replace(old, new)
    text = wire.opening + text + wire.closing
    grammar = compile_reply(small_tokenizer(), wire, TOOLS, "required", parallel=False)
    assert grammar is not None
    assert not fits(small_tokenizer(), grammar.start(), text)
    assert all(isinstance(one, InvalidCall) for one in read(wire, text))


@pytest.mark.parametrize("wire", [NEMO, NUMBERED], ids=lambda wire: wire.name)
def test_a_bare_object_may_have_the_id_that_the_format_gives_it(wire: WireFormat) -> None:
    """The grammar of several calls allows it so."""
    text = render_call(wire, *SIMPLE)
    grammar = compile_reply(small_tokenizer(), wire, TOOLS, "required", parallel=True)
    assert grammar is not None
    assert fits(small_tokenizer(), grammar.start(), text)
    assert read(wire, text) == [SIMPLE]
    assert read(wire, text, choice="auto") == [SIMPLE]


@everywhere
def test_white_space_between_the_parts_may_vary(wire: WireFormat) -> None:
    """Small models get it wrong; within a value it counts."""
    text = render_calls(wire, [SIMPLE])
    for space in ("\n", "  "):
        looser = text.replace("><", f">{space}<").replace("]{", f"]{space}{{").replace(">\n<", f">{space}\n<")
        assert read(wire, looser) == [SIMPLE]


@pytest.mark.parametrize("after_key", ["</key>\n<value>", "</key><value>"])
@pytest.mark.parametrize("written", ["</key>\n<value>", "</key><value>", "</key> \n <value>"])
def test_white_space_between_a_key_and_its_value_may_vary(after_key: str, written: str) -> None:
    tags = Tags("<key>", after_key, "</value>", "</tool>")
    wire = dataclasses.replace(TAGS, begin="<tool>", after_name=("",), tags=tags)
    text = render_call(wire, *SIMPLE)
    assert after_key in text
    assert read(wire, text.replace(after_key, written)) == [SIMPLE]


@everywhere
def test_one_call_is_held_to_the_tool_that_was_asked_for(wire: WireFormat) -> None:
    choices: list[ToolChoice] = [NamedTool("get_weather"), NamedTools(("get_weather", "other"))]
    for choice in choices:
        (found,) = read(wire, render_calls(wire, [EMPTY]), choice=choice)
        assert isinstance(found, InvalidCall)
        assert "tool_choice asks for 'get_weather'" in found.error
        assert read(wire, render_calls(wire, [SIMPLE]), choice=choice) == [SIMPLE]
        grammar = compile_reply(small_tokenizer(), wire, TOOLS, choice)
        assert grammar is not None
        assert fits(small_tokenizer(), grammar.start(), render_calls(wire, [SIMPLE]))
        assert not fits(small_tokenizer(), grammar.start(), render_calls(wire, [EMPTY]))


@pytest.mark.parametrize(
    ("wire", "text", "error"),
    [
        (ARGS, "[C]get_weather{}", "not a tool's name and a complete JSON object"),
        (ARGS, '[C]get_weather[ARGS]{"city"', "the reply ended within the call"),
        (KIMI, "<|calls|>get_weather", "does not begin as calls do"),
        (
            KIMI,
            "<|calls|><|call|>functions.now:0<|args|>{}<|done|>and so on<|end_calls|>",
            "there is text after",
        ),
        (TAGS, "<tool>\n<function=now>\n<parameter=a", "the reply ended within the call"),
        (TAGS, "<tool>\n<function=now>\n<other>\n</function>\n</tool>", "ended within the call"),
        (TAGS, render_call(TAGS, *SIMPLE).replace("days", "city"), "'city' is given twice"),
        (TAGS, render_call(TAGS, *SIMPLE).replace("3", "three"), "expected integer, got string"),
    ],
)
def test_what_is_wrong_is_said(wire: WireFormat, text: str, error: str) -> None:
    (found,) = read(wire, text)
    assert isinstance(found, InvalidCall)
    assert error in found.error


def test_a_quoted_value_of_xml_loses_its_quotes() -> None:
    text = render_call(TAGS, "get_weather", {"city": "<![CDATA[a<b]]>", "days": 1})
    assert read(TAGS, text) == [("get_weather", {"city": "a<b", "days": 1})]


@pytest.mark.parametrize(
    ("kinds", "text", "value"),
    [
        ({"string"}, "3", "3"),
        ({"string"}, "null", "null"),
        ({"integer"}, "3", 3),
        ({"integer"}, "three", "three"),
        ({"boolean"}, "true", True),
        ({"boolean"}, "True", True),
        ({"string", "null"}, "null", None),
        ({"string", "null"}, "None", None),
        ({"string", "null"}, "nothing", "nothing"),
        ({"string", "null"}, "3", "3"),
        ({"array"}, "['a', True, None]", ["a", True, None]),
        ({"array"}, "__import__('os')", "__import__('os')"),
        ({"object"}, '{"a": [1]}', {"a": [1]}),
        ({"number"}, "3", 3),
    ],
)
def test_a_text_is_read_as_what_belongs_there(kinds: set[str], text: str, value: Json) -> None:
    assert read_value(text, frozenset(kinds)) == value


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1]}, {"string", "integer", "number"}),
        ({"const": None}, {"null"}),
        ({"$ref": "#/$defs/a"}, {"array"}),
        ({"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}, {"array", "null"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": "string"}]}, {"string"}),
        ({"type": "string", "$ref": "#/$defs/b"}, {"string"}),
    ],
)
def test_the_kinds_of_a_schema(schema: Json, kinds: set[str]) -> None:
    root: dict[str, Json] = {"$defs": {"a": {"type": "array"}, "b": {"$ref": "#/$defs/b"}}}
    assert kinds_of(schema, root) == kinds


# ------------------------------------------------------------------------------------------------ templates


def test_a_format_is_found_in_what_a_template_renders() -> None:
    found = detect(ARRAY, eos="</s>")
    assert (found.opening, found.between, found.closing) == ("[TOOL_CALLS][", ", ", "]")
    assert found.json_id == JsonId("id", Hole("[a-zA-Z0-9]{9}", "call00001"), first=False)
    assert found.marker == "[TOOL_CALLS]"
    tagged = detect(XML, ends=["<|im_end|>"])
    assert tagged.after_name == (">",)
    assert tagged.tags == Tags("\n<parameter=", ">\n", "\n</parameter>", "\n</function>\n</tool>")
    for wire in (found, tagged):
        assert read(wire, render_calls(wire, [RICH, EMPTY])) == [RICH, EMPTY]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        XML.replace("v|tojson", "'?'"),  # values that cannot be read back
        XML.replace("</function>", "</function ' + c.function.name + '>"),  # the name, once more
    ],
)
def test_where_none_is_found_it_is_hermes(source: str) -> None:
    assert detect(source) is HERMES


def test_a_format_that_has_a_name_is_found_under_it() -> None:
    """White space around calls is not looked at; what stands between two calls is."""
    assert detect(ARRAY, eos="</s>") is FORMATS["mistral-v3"]
    assert detect(ARRAY.replace("', ' if", "' and ' if"), eos="</s>").name == "derived"
    qwen = XML.replace("tool>", "tool_call>")
    for source in (qwen, qwen.replace("'<tool_call>", "'\\n\\n<tool_call>")):
        assert detect(source, ends=["<|im_end|>"]) is FORMATS["qwen3-coder"]


SILENT = """
{%- if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools|tojson }}
Answer with <|tool_call|> and a list.{% endif %}
{%- for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"""


def test_where_no_calls_are_rendered_a_familys_own_markers_say_which_it_is() -> None:
    assert detect(SILENT) is FORMATS["granite"]
    assert detect(SILENT.replace("<|tool_call|>", "a call")) is HERMES  # all of them, not one
    chat = ChatTemplate(SILENT)
    assert not chat.shows_tools
    assert '<|tool_call|>[{"name": "function-name"' in chat.render([UserTurn("Hello")], [NOW])
    unread = XML.replace("v|tojson", "'?'")  # calls in a form of its own: they say more than what it spells
    assert detect(unread + "{# <|tool_call|> <|start_of_role|>available_tools<|end_of_role|> #}") is HERMES


def test_tools_are_listed_as_one_array_where_the_words_for_them_have_one() -> None:
    for name in ("lfm2", "phi-4-mini"):
        prompt = ChatTemplate(ARRAY, wire_format=FORMATS[name]).render([UserTurn("Hello")], TOOLS)
        listed = json.loads(prompt[prompt.index("[{") : prompt.index("}]<|") + 2])
        assert [tool["function"]["name"] for tool in listed] == ["get_weather", "now"]


WORDS = """
{%- for m in messages %}{{ m.role }}: {% if m.tool_calls %}{% for c in m.tool_calls -%}
{{ lead }}{{ c.function.name }}({{ c.function.arguments|tojson }});
{%- endfor %}{% else %}{{ m.content }}{% endif %}<end>
{%- endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""


@pytest.mark.parametrize("lead", ["I ", "I will call ", "{{ loop.index }}: "])
def test_a_format_that_would_take_prose_for_calls_is_not_taken(lead: str) -> None:
    """A word is no mark of a call, nor does the second call begin with the number of the first."""
    found = detect(WORDS.replace("{{ lead }}", lead), ends=["<end>"])
    assert (
        found is HERMES
        or not found.marker
        or read(found, "I will call you, Sure.", choice="auto", step=99) == ["I will call you, Sure."]
    )


def test_a_template_that_writes_calls_and_shows_no_tools_is_told_of_them_in_the_prompt() -> None:
    template = ChatTemplate(ARRAY, eos="</s>")
    assert not template.shows_tools
    prompt = template.render([UserTurn("Hello")], [NOW])
    assert '"name": "now"' in prompt
    assert '[TOOL_CALLS][{"name": "function-name", "arguments": {"argument-name"' in prompt
    called = AssistantTurn("", (("call00001", "now", {}),))
    past = template.render([UserTurn("Hello"), called, ToolTurn("Noon", "call00001")], [NOW])
    assert '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "call00001"}]</s>[RESULT]Noon' in past
    shown = ChatTemplate(XML, ends=["<|im_end|>"])
    assert shown.shows_tools
    assert "function-name" not in shown.render([UserTurn("Hello")], [NOW])


def test_the_docs_show_every_format_that_has_a_name() -> None:
    docs = (Path(__file__).parents[2] / "docs/formats.md").read_text(encoding="utf-8")
    rows = [line for line in docs.splitlines() if line.startswith("| `")]
    assert len(rows) == len(FORMATS)
    for name, wire in FORMATS.items():
        call = render_calls(wire, [("f", {"city": "Oslo"})]).strip()
        (row,) = (row for row in rows if row.startswith(f"| `{name}` |"))
        assert call.replace("\n", "⏎").replace("|", "\\|") in row


# --------------------------------------------------------------------------------------------- one's own


def test_a_format_of_ones_own_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/formats.md").read_text(encoding="utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_formats.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    mine = by_name("my_formats:MINE")
    assert read(mine, render_calls(mine, [RICH, EMPTY])) == [RICH, EMPTY]
    prompt = ChatTemplate(ARRAY, eos="</s>", wire_format=mine).render([UserTurn("Hello")], [NOW])
    assert "Call these functions when they help:" in prompt
    for name in ("my_formats:YOURS", "your_formats:MINE", "my_formats:WireFormat"):
        with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
            by_name(name)
    with pytest.raises(ConfigError, match=r"known formats: .*\bhermes, .*\bllama3\b"):
        by_name("mine")


def test_a_format_without_words_for_tools_says_so() -> None:
    mute = dataclasses.replace(ARGS, instructions="")
    with pytest.raises(TemplateError, match="no text of its own"):
        ChatTemplate(ARRAY, wire_format=mute).render([UserTurn("Hello")], [NOW])


# --------------------------------------------------------------------------------- what hostile text may do


@pytest.mark.parametrize("wire", [TAGS, TYPED, ARGS, KIMI, FENCED, HERMES], ids=lambda wire: wire.name)
def test_nothing_within_a_value_becomes_a_call_whatever_comes_behind_it(wire: WireFormat) -> None:
    """A document that is quoted may spell a call; where the quoting call breaks, it stays a value."""
    evil = (wire.closing or wire.end or "</tool>") + render_calls(wire, [EMPTY])
    if wire.tags is not None:
        evil = evil.replace(wire.tags.end.strip(), "")
    text = render_calls(wire, [("get_weather", {"city": f"x {evil}", "days": 1})])
    end = (wire.closing or wire.end).strip() or "</tool>"
    cut = text[: text.rindex(end)] if end in text else text
    for broken in (f"{cut} oops", f"{cut} oops{end} and so on", f"{text} oops", text):
        assert EMPTY not in read(wire, broken)
        assert EMPTY not in read(wire, broken, choice="auto") or not wire.marker


def test_a_value_ends_where_the_grammar_has_it_end() -> None:
    """Also without the white space that belongs in front of the end."""
    text = render_call(TAGS, "get_weather", {"city": "a</parameter> b", "days": 1})
    grammar = compile_reply(small_tokenizer(), TAGS, TOOLS, "required", parallel=False)
    assert grammar is not None
    assert not fits(small_tokenizer(), grammar.start(), text)
    tight = render_call(TAGS, "get_weather", {"city": "a", "days": 1}).replace("a\n</par", "a</par")
    assert fits(small_tokenizer(), grammar.start(), tight)
    assert read(TAGS, tight) == [("get_weather", {"city": "a", "days": 1})]


@pytest.mark.parametrize("filler", ["x", " ", "<", '"', "\n</parameter"])
@pytest.mark.parametrize("wire", [TAGS, TYPED, KIMI, HERMES], ids=lambda wire: wire.name)
def test_long_text_is_read_in_time_that_grows_with_it(wire: WireFormat, filler: str) -> None:
    """Behind a marker, in a value, and between values: a hundred thousand characters take seconds at most."""
    begin = wire.opening + wire.begin
    for head in (begin, render_call(wire, *SIMPLE)[:-3], begin + "get_weather"):
        read(wire, head + filler * (40_000 // len(filler)), step=1000)


# -------------------------------------------------------------------------------------- schemas behind tags


def tagged_tool(**schema: Json) -> BoundTool:
    return BoundTool("get_weather", "", {"type": "object", **schema})


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        (
            tagged_tool(properties={"kids": {"type": "array", "items": {"$ref": "#"}}}),
            {"kids": [{"kids": []}]},
        ),
        (tagged_tool(properties={"child": {"$ref": "#"}, "n": {"type": "integer"}}), {"child": {"n": 1}}),
        (
            tagged_tool(properties={"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}),
            {"a": 1, "b": 2},
        ),
        (tagged_tool(properties={"t": {"$ref": "#/$defs/t"}}, **{"$defs": {"t": {"const": 5}}}), {"t": 5}),
        (tagged_tool(additionalProperties={"type": "string"}), {"id": "5"}),
        (tagged_tool(additionalProperties={"type": "integer"}), {"id": 5, "no": 6}),
        (tagged_tool(allOf=[{"properties": {"id": {"type": "string"}}, "required": ["id"]}]), {"id": "5"}),
        (
            BoundTool(
                "get_weather",
                "",
                {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"id": {"type": "string"}}}}},
            ),
            {"id": "7"},
        ),
        (tagged_tool(properties={"v": {"enum": ["auto", 1]}}), {"v": "auto"}),
        (tagged_tool(properties={"v": {"enum": ["auto", 1]}}), {"v": 1}),
        (tagged_tool(properties={"v": {"anyOf": [{"type": "string"}, {"type": "null"}]}}), {"v": None}),
        (tagged_tool(properties={"v": {}}), {"v": {"a": [1]}}),
        (tagged_tool(properties={"v": {"type": "string", "minLength": 3}}), {"v": "abc"}),
        (tagged_tool(properties={'k"\\ é': {"type": "integer"}}), {'k"\\ é': 1}),
        (tagged_tool(properties={}), {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("wire", [TAGS, TYPED], ids=lambda wire: wire.name)
def test_values_are_held_to_their_schema_wherever_it_is(
    wire: WireFormat, tool: BoundTool, arguments: dict[str, Json]
) -> None:
    text = render_calls(wire, [("get_weather", arguments)])
    grammar = compile_reply(small_tokenizer(), wire, [tool], "required", parallel=False)
    assert grammar is not None
    state = grammar.start()
    assert fits(small_tokenizer(), state, text)
    assert state.accepting()
    parser = parser_of(wire, [tool], "required")
    events = [*parser.feed(text.encode()), *parser.finish("stop")]
    assert events == [CallEvent(ValidCall("get_weather", arguments))]


def test_references_that_meet_again_and_again_are_followed_once() -> None:
    definitions: dict[str, Json] = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 6} for i in range(25)
    }
    definitions["d25"] = {"type": "number"}
    assert kinds_of({"$ref": "#/$defs/d0"}, {"$defs": definitions}) == {"number", "integer"}
