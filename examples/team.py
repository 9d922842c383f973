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

TEAM = {
    "weather": ("Bergen, tomorrow: 14 degrees, showers from noon on.", "What will the weather be in Bergen?"),
    "trains": ("Oslo to Bergen, tomorrow: leaves 08:05, arrives 14:40.", "When does the train leave?"),
    "hotels": ("Bergen, tomorrow: Hotel Bryggen has a room for 95 euros.", "What does a hotel room cost?"),
}
"""Who is in it: what each knows, and what it is asked."""


class State(TypedDict):
    """What the team works on."""

    question: str
    findings: Annotated[list[str], operator.add]
    answer: str


def worker(model: BaseChatModel, knows: str, task: str) -> Runnable[State, dict[str, Any]]:
    """A node: an agent of its own, which may have tools of its own."""
    agent = create_agent(model, [], system_prompt=f"{knows} Answer in one short sentence.")

    def work(_: State) -> dict[str, Any]:
        return {"findings": [agent.invoke({"messages": [HumanMessage(task)]})["messages"][-1].text]}

    return RunnableLambda(work)


def ask(model: BaseChatModel) -> dict[str, Any]:
    """Has the team answer the question."""

    def gather(state: State) -> dict[str, Any]:
        found = "\n".join(state["findings"])
        prompt = f"{state['question']}\n{found}\nSum this up in one sentence, with every number."
        return {"answer": model.invoke(prompt).text}

    graph = StateGraph(State)
    graph.add_node("gather", gather)
    for name, (knows, task) in TEAM.items():
        graph.add_node(name, worker(model, knows, task))
        graph.add_edge(START, name)
    graph.add_edge(list(TEAM), "gather")
    return graph.compile().invoke({"question": QUESTION, "findings": [], "answer": ""})


def main() -> None:
    """Prints what each agent found, and the answer."""
    state = ask(ChatAgentSpec(max_tokens=64))
    print(*state["findings"], state["answer"], sep="\n")


if __name__ == "__main__":
    main()
