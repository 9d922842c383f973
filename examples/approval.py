"""A person decides before an agent does what cannot be undone: approve the call, edit it, or reject it.

    .venv/bin/python examples/approval.py

LangChain's middleware stops the agent before a call of `refund`, and a checkpointer keeps where it stood.
The decision comes in with `Command(resume=...)`, from another process if need be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from agentspec import ChatAgentSpec

QUESTION = "Refund order A-1042: 40 euros."

DECISIONS: list[dict[str, Any]] = [
    {"type": "approve"},
    {"type": "edit", "edited_action": {"name": "refund", "args": {"order": "A-1042", "euros": 25}}},
    {"type": "reject", "message": "The order was never paid for."},
]


@tool(return_direct=True)  # what it returns is the agent's answer
def refund(order: str, euros: int) -> str:
    """Refund money for an order."""
    return f"refunded {euros} euros for {order}"


def try_decisions(model: BaseChatModel) -> Iterator[tuple[dict[str, Any], AnyMessage]]:
    """For each decision the call that it was about, and what the agent was told."""
    reviewed = HumanInTheLoopMiddleware({"refund": True})
    agent = create_agent(model, [refund], middleware=[reviewed], checkpointer=InMemorySaver())
    for number, decision in enumerate(DECISIONS):
        thread: RunnableConfig = {"configurable": {"thread_id": str(number)}}
        stopped = agent.invoke({"messages": [HumanMessage(QUESTION)]}, thread)
        (asked,) = stopped["__interrupt__"][0].value["action_requests"]
        resumed = agent.invoke(Command(resume={"decisions": [decision]}), thread)
        yield asked, resumed["messages"][len(stopped["messages"])]


def main() -> None:
    """Prints what each decision leads to."""
    decided = try_decisions(ChatAgentSpec(max_tokens=64))
    for decision, (asked, told) in zip(DECISIONS, decided, strict=True):
        print(f"{decision['type']} {asked['name']}({asked['args']})\n  {told.text}")


if __name__ == "__main__":
    main()
