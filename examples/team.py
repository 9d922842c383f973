"""A team on one model: agents that work at the same time, and one that gathers what they found.

    .venv/bin/python examples/team.py

The agents are nodes of a LangGraph graph, which runs them in threads. They share the engine of the one model:
their replies are made in the same passes, so that three of them take little longer than one.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.graph import START, StateGraph

from agentspec import ChatAgentSpec

QUESTION = "I travel from Oslo to Bergen tomorrow. What do I have to know?"

NOTES = {
    "weather": "You report the weather. Tomorrow in Bergen: 14 degrees, showers from noon on.",
    "trains": "You report trains. Tomorrow from Oslo to Bergen: at 08:05, arriving at 14:40.",
    "hotels": "You report hotels. In Bergen: a room is free at Hotel Bryggen, 95 euros.",
}


class State(TypedDict):
    """What the team works on."""

    question: str
    findings: Annotated[list[str], operator.add]
    answer: str


def worker(model: BaseChatModel, notes: str) -> Runnable[State, dict[str, Any]]:
    """A node: an agent of its own, which may have tools of its own."""
    agent = create_agent(model, [], system_prompt=f"{notes} Report it in one short sentence.")

    def work(state: State) -> dict[str, Any]:
        messages = agent.invoke({"messages": [HumanMessage(state["question"])]})["messages"]
        return {"findings": [messages[-1].text]}

    return RunnableLambda(work)


def ask(model: BaseChatModel) -> dict[str, Any]:
    """Has the team answer the question."""

    def gather(state: State) -> dict[str, Any]:
        found = "\n".join(state["findings"])
        prompt = f"{state['question']} Sum up these reports in two short sentences:\n{found}"
        return {"answer": model.invoke(prompt).text}

    graph = StateGraph(State)
    graph.add_node("gather", gather)
    for name, notes in NOTES.items():
        graph.add_node(name, worker(model, notes))
        graph.add_edge(START, name)
    graph.add_edge(list(NOTES), "gather")
    return graph.compile().invoke({"question": QUESTION, "findings": [], "answer": ""})


def main() -> None:
    """Prints what each agent found, and the answer."""
    state = ask(ChatAgentSpec(max_tokens=64))
    print(*state["findings"], state["answer"], sep="\n")


if __name__ == "__main__":
    main()
