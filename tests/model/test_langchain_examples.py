"""The examples do what they say, on the default pair."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from agentspec import ChatAgentSpec
from agentspec.engine.cost import Costs
from examples import agent, structured_output

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
