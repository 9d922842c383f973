"""An agent that is stopped in the middle of its work, goes on later, and remembers.

    .venv/bin/python examples/resume.py

A checkpointer of LangGraph keeps each step under the name of a thread. Here the first agent is stopped before
its tool runs; another one, made anew over the same checkpoints, goes on from there. `InMemorySaver` keeps
them in this process; the savers for SQLite and Postgres are used the same way and outlive it.
"""

from __future__ import annotations

from typing import Annotated, Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from agentspec import ChatAgentSpec

THREAD: RunnableConfig = {"configurable": {"thread_id": "ingrid"}}


def find_order(customer: str) -> str:
    """Look up a customer's order: its number, and when it leaves."""
    return "order A-1042 leaves on 2026-03-12" if customer == "Ingrid Dahl" else f"{customer} has no order"


class Answer(TypedDict):
    """Answer the customer."""

    text: Annotated[str, "in a few words"]


def build_agent(
    model: BaseChatModel, saver: BaseCheckpointSaver[Any], *, stop: bool
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """An agent over these checkpoints, which stops before each tool or does not."""
    before = ["tools"] if stop else None
    return create_agent(
        model, [find_order], response_format=Answer, checkpointer=saver, interrupt_before=before
    )


def start(model: BaseChatModel, saver: BaseCheckpointSaver[Any]) -> list[AnyMessage]:
    """The first run, which stops before the tool."""
    question = HumanMessage("I am Ingrid Dahl. Look up my order: when does it leave?")
    agent = build_agent(model, saver, stop=True)
    return list(agent.invoke({"messages": [question]}, THREAD)["messages"])


def resume(model: BaseChatModel, saver: BaseCheckpointSaver[Any]) -> tuple[Answer, Answer]:
    """The second run: goes on where the first one stopped, then asks for what was said in it."""
    agent = build_agent(model, saver, stop=False)
    first = agent.invoke(None, THREAD)["structured_response"]
    question = HumanMessage("Thank you. And what is my full name?")
    return first, agent.invoke({"messages": [question]}, THREAD)["structured_response"]


def main() -> None:
    """Prints what there is after each run."""
    model, saver = ChatAgentSpec(), InMemorySaver()
    print("stopped before", start(model, saver)[-1])
    for answer in resume(model, saver):
        print("resumed:", answer["text"])


if __name__ == "__main__":
    main()
