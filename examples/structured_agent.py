"""An agent that uses a tool and answers with an object, asked for in each of LangChain's two ways.

    .venv/bin/python examples/structured_agent.py

`ToolStrategy` makes the answer one more tool, and every reply a call: of a tool, or of the answer. With
`ProviderStrategy` the model is free to call a tool, and the reply that calls none is the document itself.
The grammar holds the answer to its class either way.
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from pydantic import BaseModel, Field

from agentspec import ChatAgentSpec

QUESTION = "Look up the order of Ingrid Dahl. When does it leave?"


def find_order(customer: str) -> str:
    """Look up a customer's order: its number, and when it leaves."""
    return "order A-1042 leaves on 2026-03-12" if customer == "Ingrid Dahl" else f"{customer} has no order"


class Answer(BaseModel):
    """Answer the question, once the order was looked up."""

    order: str = Field(description="the order's number")
    leaves: str = Field(description="the date, such as 2025-12-31")


def ask(model: BaseChatModel, strategy: ToolStrategy[Answer] | ProviderStrategy[Answer]) -> Answer:
    """Asks for an order."""
    agent = create_agent(model, [find_order], response_format=strategy)
    answer = agent.invoke({"messages": [HumanMessage(QUESTION)]})["structured_response"]
    assert isinstance(answer, Answer)
    return answer


def main() -> None:
    """Prints the answer, asked for in both ways."""
    model = ChatAgentSpec()
    print(repr(ask(model, ToolStrategy(Answer))))
    print(repr(ask(model, ProviderStrategy(Answer))))


if __name__ == "__main__":
    main()
