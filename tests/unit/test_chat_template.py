"""Prompts: the golden renderings, what is done where a template cannot render a turn, and the bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from agentspec.chat.detect import detect
from agentspec.chat.formats import HERMES, LLAMA3, by_name, render_call, render_calls
from agentspec.chat.sandbox import PromptTemplate
from agentspec.chat.template import BUILTIN_TEMPLATES, ChatTemplate, template_source
from agentspec.errors import ConfigError, TemplateError
from agentspec.types import AssistantTurn, BoundTool, Json, SystemTurn, ToolTurn, Turn, UserTurn

GOLDEN = Path(__file__).parents[1] / "golden"

WEATHER = BoundTool(
    "get_weather",
    "The weather of a city, in °C.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "description": "1 to <7>"}},
        "required": ["city"],
    },
)
CLOCK = BoundTool("now", "The time.", {"type": "object", "properties": {}})
CONVERSATION: tuple[Turn, ...] = (
    SystemTurn("You are terse."),
    UserTurn("What's the weather in Köln & when is it?"),
    AssistantTurn("", (("call_1", "get_weather", {"city": "Köln", "days": 2}), ("call_2", "now", {}))),
    ToolTurn('{"temp": 21}', "call_1", "get_weather"),
    ToolTurn("12:00", "call_2"),
    AssistantTurn("21 °C at noon."),
    UserTurn("And tomorrow?"),
)


def golden_template(name: str) -> str:
    return (GOLDEN / "templates" / f"{name}.jinja").read_text(encoding="utf-8")


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


# a template with Llama 2's habits: turns must alternate, and there is no place for a system turn
STRICT = """\
{{ bos_token }}{% for m in messages %}
{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}
[{{ m.role }}]{{ m.content }}[/]{% endfor %}"""


@pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"])
@pytest.mark.parametrize("tools", [(), (WEATHER, CLOCK)], ids=["plain", "tools"])
def test_golden(name: str, tools: Sequence[BoundTool]) -> None:
    prompt = template(golden_template(name)).render(CONVERSATION, tools)
    path = GOLDEN / "prompts" / f"{name}.{'tools' if tools else 'plain'}.txt"
    assert prompt == path.read_text(encoding="utf-8")


def test_only_qwen_shows_tools() -> None:
    assert template(golden_template("qwen2.5-coder-1.5b-instruct")).shows_tools
    assert not template(golden_template("smollm2-135m-instruct")).shows_tools


def test_history_is_written_as_the_format_writes_calls() -> None:
    # else a past call would teach the model a spelling that the grammar forbids
    calls: list[tuple[str, Mapping[str, Json]]] = [("get_weather", {"city": "Köln", "days": 2}), ("now", {})]
    for name in ("qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"):
        prompt = template(golden_template(name)).render(CONVERSATION, [WEATHER, CLOCK])
        assert render_calls(HERMES, calls) in prompt


def test_render_call_keeps_order_and_letters() -> None:
    call = render_call(HERMES, "f", {"b": ["é", None], "a": {"x": 1.5, "w": True}})
    body = '{"name": "f", "arguments": {"b": ["é", null], "a": {"x": 1.5, "w": true}}}'
    assert call == f"<tool_call>\n{body}\n</tool_call>"
    assert render_call(LLAMA3, "f", {}) == '{"name": "f", "parameters": {}}'


def test_no_generation_prompt() -> None:
    prompt = template(golden_template("smollm2-135m-instruct")).render(
        [UserTurn("hi")], add_generation_prompt=False
    )
    assert prompt.endswith("hi<|im_end|>\n")


def test_failed_result_says_so() -> None:
    turns: list[Turn] = [
        *CONVERSATION[:3],
        ToolTurn("no such city", "call_1", failed=True),
        ToolTurn("1", "call_2"),
    ]
    prompt = template(golden_template("qwen2.5-coder-1.5b-instruct")).render(turns, [WEATHER, CLOCK])
    assert "<tool_response>\nError: no such city\n</tool_response>" in prompt


def test_failed_result_that_says_so_is_left_alone() -> None:
    turns: list[Turn] = [
        *CONVERSATION[:3],
        ToolTurn("Error: x", "call_1", failed=True),
        ToolTurn("1", "call_2"),
    ]
    prompt = template(golden_template("qwen2.5-coder-1.5b-instruct")).render(turns, [WEATHER, CLOCK])
    assert "<tool_response>\nError: x\n</tool_response>" in prompt


# ------------------------------------------------------------------- what templates cannot render


def test_system_goes_into_the_first_user_turn() -> None:
    turns: list[Turn] = [
        SystemTurn("Be brief."),
        SystemTurn("Be kind."),
        UserTurn("Hi"),
        AssistantTurn("Hello"),
    ]
    assert template(STRICT).render(turns) == "<s>[user]Be brief.\n\nBe kind.\n\nHi[/][assistant]Hello[/]"


def test_system_alone_becomes_a_user_turn() -> None:
    assert template(STRICT).render([SystemTurn("Be brief.")]) == "<s>[user]Be brief.[/]"


def test_turns_of_one_role_are_joined() -> None:
    turns: list[Turn] = [UserTurn("a"), UserTurn("b"), AssistantTurn("c"), AssistantTurn("d"), UserTurn("e")]
    assert template(STRICT).render(turns) == "<s>[user]a\n\nb[/][assistant]c\n\nd[/][user]e[/]"


def test_late_system_turn_where_only_the_first_may_be_one() -> None:
    source = """\
{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system must be \
first') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"""
    turns: list[Turn] = [
        SystemTurn("a"),
        SystemTurn("b"),
        UserTurn("c"),
        AssistantTurn("d"),
        SystemTurn("e"),
        UserTurn("f"),
    ]
    assert template(source).render(turns) == "[system]a\n\nb[user]c[assistant]d[user]e\n\nf"


def test_tools_and_calls_go_into_the_text_where_the_template_has_no_place() -> None:
    prompt = template(STRICT).render(CONVERSATION, [WEATHER, CLOCK])
    for needed in (
        "You are terse.\n\n# Tools",
        '"name": "get_weather"',
        "°C",
        '"name": "now", "arguments": {}',
        '<tool_response>\n{"temp": 21}\n</tool_response>\n<tool_response>\n12:00\n</tool_response>',
        "And tomorrow?",
    ):
        assert needed in prompt


def test_calls_stay_in_the_history_when_no_tools_are_bound() -> None:
    prompt = template(STRICT).render(CONVERSATION)
    assert "# Tools" not in prompt
    assert render_call(HERMES, "get_weather", {"city": "Köln", "days": 2}) in prompt


def test_calls_made_at_once_are_split_where_a_template_takes_one() -> None:
    source = """\
{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}
{% if m.tool_calls %}
{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{% set call = m.tool_calls[0].function %}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{% else %}
{{ m.content }}{% endif %}
{% endfor %}"""
    prompt = template(source).render(CONVERSATION, [WEATHER, CLOCK])
    first, second = prompt.index('{"name": "get_weather", "p'), prompt.index('{"name": "now", "p')
    assert first < prompt.index('{"temp": 21}') < second < prompt.index("12:00")


def test_arguments_as_text_and_short_ids_where_a_template_asks_for_them() -> None:
    source = """\
{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}
{% for c in m.tool_calls or [] %}
{% if c.id | length != 9 %}{{ raise_exception('ids have length 9') }}{% endif %}
{{ c.id + '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' ~ c.function.arguments }}}
</tool_call>{% endfor %}
{{ (m.tool_call_id or '') + m.content }}{% endfor %}"""
    chat = template(source)
    assert chat.shows_tools
    prompt = chat.render(CONVERSATION, [WEATHER, CLOCK])
    call_id = prompt[prompt.index('{"temp": 21}') - 9 : prompt.index('{"temp": 21}')]
    assert f'{call_id}<tool_call>\n{{"name": "get_weather"' in prompt


def test_a_template_that_needs_a_list_of_tools() -> None:
    source = (
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    )
    turns: list[Turn] = [SystemTurn("a"), UserTurn("b"), UserTurn("c")]
    assert template(source).render(turns) == "[a][b][c]"  # and nothing was folded or joined


def test_a_format_that_the_template_does_not_write_is_explained() -> None:
    source = golden_template("qwen2.5-coder-1.5b-instruct")
    chat = ChatTemplate(source, wire_format=LLAMA3)
    assert not chat.shows_tools
    prompt = chat.render(CONVERSATION, [WEATHER, CLOCK])
    assert "Given the following functions" in prompt
    assert "<tools>" not in prompt
    assert '{"name": "now", "parameters": {}}' in prompt


def test_a_format_with_nothing_to_explain_it_is_an_error() -> None:
    mute = dataclasses.replace(HERMES, name="mute", instructions="")
    with pytest.raises(TemplateError, match="'mute'"):
        ChatTemplate(STRICT, wire_format=mute).render(CONVERSATION, [WEATHER])


# -------------------------------------------------------------------------------------- errors


def test_refusal_carries_the_templates_words_and_the_roles() -> None:
    with pytest.raises(TemplateError, match="roles must alternate") as caught:
        template(STRICT).render([AssistantTurn("hello"), UserTurn("hi")])
    assert "assistant, user" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ x", "{% nonsense %}", "{{ " + "(" * 5000 + ")" * 5000 + " }}"]
)
def test_not_a_template(source: str) -> None:
    with pytest.raises(TemplateError, match="chat template does not"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for a in range(9000) %}{{ 'x' * 9000 }}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ [0] * 10000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{% set n = namespace(s='xxxxxxxx') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s='xxxxxxxx') %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{{ range(10000000) }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ messages.extend(messages) }}",
        "{{ messages.clear() }}",
        "{{ {}.update(a=1) }}",
        "{{ 1 / 0 }}",
        "{{ none + 1 }}",
        "{{ undefined_thing.attribute }}",
    ],
)
def test_a_template_that_runs_wild_or_fails_is_an_error(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.chat.sandbox.MAX_STEPS", 20_000)  # quicker to reach
    with pytest.raises(TemplateError, match="the chat template failed"):
        PromptTemplate(source).render({"messages": []})


def test_a_template_may_keep_a_queue_and_spoils_nothing_that_it_was_given() -> None:
    """Kimi's keeps the ids of calls for the results that follow."""
    queue = "{% set n = namespace(ids=[]) %}{% for m in messages %}{% set _ = n.ids.append(m) %}{% endfor %}"
    messages: list[Json] = ["a", "b"]
    assert PromptTemplate(queue + "{{ n.ids.pop(0) }}{{ n.ids }}").render({"messages": messages}) == "a['b']"
    assert PromptTemplate("{{ messages.pop() }}").render({"messages": messages}) == "b"
    assert messages == ["a", "b"]


def test_a_model_without_template() -> None:
    with pytest.raises(TemplateError, match="no chat template") as caught:
        template_source(None)
    assert "chatml" in caught.value.hint
    assert template_source(None, "chatml") == BUILTIN_TEMPLATES["chatml"]
    assert template_source("own", None) == "own"
    assert template_source("own", "{{ mine }}") == "{{ mine }}"
    with pytest.raises(ConfigError, match="neither a built-in name"):
        template_source("own", "chatmal")


def test_chatml() -> None:
    prompt = template(BUILTIN_TEMPLATES["chatml"]).render([SystemTurn("s"), UserTurn("u")])
    assert prompt == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"


# ------------------------------------------------------------------------------ dialect and extras


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': 'é<&>', 'a': [1, none]} | tojson }}", '{"b": "é<&>", "a": [1, null]}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ {'a': 1} | tojson(separators=(',', ':')) }}", '{"a":1}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ [{'f': 1}, {'f': 2}] | map(attribute='f') | tojson }}", "[1, 2]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{% set n = namespace(x=1) %}{% for i in [5] %}{% set n.x = i %}{% endfor %}{{ n.x }}", "5"),
        ("{{ bos_token + eos_token }}", "<s></s>"),
        ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ 'a' ~ 1 ~ none ~ missing }}", "a1None"),
        ("{{ documents is none }}", "True"),
    ],
)
def test_the_dialect_is_that_of_transformers(source: str, expected: str) -> None:
    assert PromptTemplate(source, bos="<s>", eos="</s>").render({"documents": None}) == expected


def test_extra_reaches_the_template() -> None:
    source = "{% if enable_thinking %}think {% endif %}{{ messages[0].content }}"
    assert template(source).render([UserTurn("a")], extra={"enable_thinking": True}) == "think a"
    assert template(source).render([UserTurn("a")]) == "a"
    with pytest.raises(ConfigError, match="'messages'"):
        template(source).render([UserTurn("a")], extra={"messages": []})


# -------------------------------------------------------------------------------------- formats


def test_detect() -> None:
    assert detect(None) is HERMES
    assert detect(golden_template("qwen2.5-coder-1.5b-instruct")) is HERMES
    assert detect(golden_template("smollm2-135m-instruct")) is HERMES  # by default: it writes no calls
    llama = (
        "{% for m in messages %}{% if m.tool_calls and m.tool_calls|length > 1 %}"
        "{{ raise_exception('one call a turn') }}{% endif %}{% for c in m.tool_calls or [] %}"
        '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
        "{% endfor %}{{ m.content }}{% endfor %}"
    )
    assert detect(llama) is LLAMA3


def test_by_name() -> None:
    assert by_name("llama3") is LLAMA3
    with pytest.raises(ConfigError, match="unknown wire format 'qwen'"):
        by_name("qwen")
