"""What a prompt has in common with other conversations: instructions and tools, and no word of a user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from agentspec.chat.formats import HERMES
from agentspec.chat.template import BUILTIN_TEMPLATES, ChatTemplate
from agentspec.engine.engine import Engine
from agentspec.engine.runtime import Runtime
from agentspec.types import AssistantTurn, BoundTool, SystemTurn, Turn, UserTurn, Vocabulary
from tests.langchain_fakes import Bytes

TOOL = BoundTool("get_weather", "Current weather.", {"type": "object", "properties": {}})
SYSTEM = SystemTurn("You are a clerk.")


def made(template: str = BUILTIN_TEMPLATES["chatml"]) -> Runtime:
    return Runtime(
        name="toy",
        engine=cast(Engine, None),
        vocab=cast(Vocabulary, Bytes()),
        template=ChatTemplate(template, wire_format=HERMES),
        wire_format=HERMES,
        n_ctx=10_000,
    )


def stable(runtime: Runtime, turns: Sequence[Turn], tools: Sequence[BoundTool] = ()) -> str:
    prompt = runtime.tokenize_prompt(runtime.template.render(turns, tools))
    return bytes(prompt[: runtime.stable_prefix(turns, tools, prompt)]).decode()


@pytest.mark.parametrize("tools", [(), (TOOL,)])
@pytest.mark.parametrize("rest", [(), (AssistantTurn("Hello."), UserTurn("And now?"))])
def test_it_ends_before_the_users_words(tools: Sequence[BoundTool], rest: Sequence[Turn]) -> None:
    found = stable(made(), [SYSTEM, UserTurn("What is new?"), *rest], tools)
    assert SYSTEM.text in found
    assert found.endswith("<|im_start|>user\n")
    assert ("get_weather" in found) == bool(tools)


def test_tools_and_instructions_are_told_apart() -> None:
    runtime = made()
    other = BoundTool("get_time", "Current time.", TOOL.parameters)
    for tool in (TOOL, other, TOOL):
        assert tool.name in stable(runtime, [UserTurn("Hello")], [tool])
    described = BoundTool("get_time", "The time on the clock.", TOOL.parameters)
    assert described.description in stable(runtime, [UserTurn("Hello")], [described])
    assert "a cook" in stable(runtime, [SystemTurn("You are a cook."), UserTurn("Hello")])


def test_there_is_none_where_there_is_nothing_to_share() -> None:
    assert stable(made(), [UserTurn("Hello")]) == ""


def test_a_template_that_refuses_the_question_gives_none() -> None:
    picky = "{% if 'Hello' not in messages[-1].content %}{{ raise_exception('no') }}{% endif %}text"
    assert stable(made(picky), [SYSTEM, UserTurn("Hello")]) == ""
