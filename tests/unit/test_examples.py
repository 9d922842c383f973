"""The examples' graphs, on replies written in advance: what each of LangChain's parts is given, and gives."""

from __future__ import annotations

from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from examples import approval, long_conversation, resume, structured_agent, team
from tests.langchain_fakes import call_text, fake_model, runtime_of

FIND = call_text("find_order", '{"customer": "Ingrid Dahl"}')
ANSWER = '{"order": "A-1042", "leaves": "2026-03-12"}'


def test_structured_agent_by_a_tool() -> None:
    model = fake_model(FIND, call_text("Answer", ANSWER))
    answer = structured_agent.ask(model, ToolStrategy(structured_agent.Answer))
    assert answer == structured_agent.Answer(order="A-1042", leaves="2026-03-12")
    assert "order A-1042 leaves on 2026-03-12" in runtime_of(model).prompt


def test_structured_agent_by_a_document() -> None:
    model = fake_model(FIND, ANSWER)
    answer = structured_agent.ask(model, ProviderStrategy(structured_agent.Answer))
    assert answer == structured_agent.Answer(order="A-1042", leaves="2026-03-12")


def test_long_conversation() -> None:
    notes = '{"customer": "Ingrid Dahl", "order": "A-1042", "item": "lamp"}'
    model = fake_model("a warm jacket", notes, "the tent", notes, "dear shop")
    *_, (answer, kept) = long_conversation.converse(model)
    assert answer.text == "dear shop"
    assert [message.type for message in kept] == ["human", "human", "ai"]
    assert "order='A-1042'" in runtime_of(model).prompt
    assert long_conversation.TURNS[-1] in runtime_of(model).prompt


def test_resume() -> None:
    model = fake_model(
        FIND, call_text("Answer", '{"text": "soon"}'), call_text("Answer", '{"text": "Ingrid"}')
    )
    saver = InMemorySaver()
    *_, last = resume.start(model, saver)
    assert isinstance(last, AIMessage)
    assert last.tool_calls[0]["name"] == "find_order"
    first, second = resume.resume(model, saver)
    assert (first, second) == ({"text": "soon"}, {"text": "Ingrid"})
    assert "I am Ingrid Dahl" in runtime_of(model).prompt


def test_approval() -> None:
    call = call_text("refund", '{"order": "A-1042", "euros": 40}')
    asked, told = zip(*approval.try_decisions(fake_model(call, call, call, "I see.")), strict=True)
    assert [one["args"] for one in asked] == [{"order": "A-1042", "euros": 40}] * 3
    for message, part in zip(told, ("refunded 40 euros", "refunded 25 euros", "never paid for"), strict=True):
        assert part in message.text


def test_team() -> None:
    model = fake_model("one", "two", "three", "all")
    state = team.ask(model)
    assert sorted(state["findings"]) == ["one", "three", "two"]
    assert state["answer"] == "all"
    assert all(finding in runtime_of(model).prompt for finding in state["findings"])
