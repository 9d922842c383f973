"""The examples do what they say, on the default pair."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from agentspec import ChatAgentSpec
from agentspec.engine.cost import Costs
from agentspec.langchain.errors import PromptTooLongError
from examples import agent, approval, long_conversation, resume, structured_agent, structured_output, team

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(target_model: Path, draft_model: Path) -> Iterator[ChatAgentSpec]:  # noqa: ARG001 - must be there
    model = ChatAgentSpec()
    model._runtime()  # held, so that the examples' own models share it
    yield model
    model.close()


def test_agent(model: ChatAgentSpec) -> None:
    messages = agent.run(model)
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    assert [call["name"] for call in calls] == [*(tool.__name__ for tool in agent.TOOLS), "Answer"]
    assert not any(message.invalid_tool_calls for message in messages if isinstance(message, AIMessage))
    assert all(message.status == "success" for message in messages if isinstance(message, ToolMessage))
    answer = calls[-1]["args"]["message"]
    for fact in ("R-1042", "2026-03-12"):
        assert fact in answer


@pytest.mark.usefixtures("model")
def test_tool_call(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path("examples/tool_call.py")
    assert capsys.readouterr().out.splitlines()[-1].endswith("-> 17 degrees fahrenheit in Oslo")


@pytest.mark.usefixtures("model")
def test_structured_output(capsys: pytest.CaptureFixture[str]) -> None:
    structured_output.main()
    printed = capsys.readouterr().out
    for fact in ("customer='Ingrid Dahl'", "topic='damage'", "order_id='A-1042'", "urgent=True"):
        assert fact in printed


@pytest.mark.usefixtures("target_model", "draft_model")
def test_own_draft(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.engine.core.Costs", Costs.free)  # else what is proposed hangs on the clock
    runpy.run_path("examples/own_draft.py")
    arguments, sources = map(ast.literal_eval, capsys.readouterr().out.splitlines()[-2:])
    assert arguments == {"city": "Canberra", "country": "Australia"}
    assert sources["countries"]["accepted"] == sources["countries"]["proposed"] > 0


def test_structured_agent(model: ChatAgentSpec) -> None:
    answer = structured_agent.ask(model, ToolStrategy(structured_agent.Answer))
    assert (answer.order, answer.leaves) == ("A-1042", "2026-03-12")


def test_structured_agent_by_a_document(model: ChatAgentSpec) -> None:
    answer = structured_agent.ask(model, ProviderStrategy(structured_agent.Answer))
    assert (answer.order, answer.leaves) == ("A-1042", "2026-03-12")


@pytest.mark.usefixtures("target_model")
def test_long_conversation() -> None:
    small = long_conversation.small_model()
    try:
        answers, kept = zip(*long_conversation.converse(small), strict=True)
        lengths = [len(messages) for messages in kept]
        assert lengths[-1] <= lengths[-2]  # a summary took the place of what was said
        assert "A-1042" in kept[-1][0].text
        assert "A-1042" in answers[-1].text
        spoken = [HumanMessage(turn) for turn in long_conversation.TURNS]
        said = [message for pair in zip(spoken, answers, strict=True) for message in pair]
        with pytest.raises(PromptTooLongError):
            small.invoke(
                [
                    *said,
                    HumanMessage(
                        "Thank you. Now sum up all that we spoke about, with every name and number."
                    ),
                ]
            )
    finally:
        small.close()


def test_resume(model: ChatAgentSpec) -> None:
    saver = InMemorySaver()
    *_, last = resume.start(model, saver)
    assert isinstance(last, AIMessage)
    assert [call["name"] for call in last.tool_calls] == ["find_order"]
    first, second = resume.resume(model, saver)
    assert "2026-03-12" in first["text"]
    assert "Ingrid Dahl" in second["text"]


def test_approval(model: ChatAgentSpec) -> None:
    asked, told = zip(*approval.try_decisions(model.model_copy(update={"max_tokens": 64})), strict=True)
    assert [(one["name"], one["args"]) for one in asked] == [("refund", {"order": "A-1042", "euros": 40})] * 3
    for message, part in zip(told, ("refunded 40 euros", "refunded 25 euros", "never paid for"), strict=True):
        assert part in message.text


def test_team(model: ChatAgentSpec) -> None:
    state = team.ask(model)
    for fact in ("14", "08:05", "95"):
        assert fact in " ".join(state["findings"])
    assert state["answer"]
