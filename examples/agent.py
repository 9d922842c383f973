"""A support agent that replaces a broken item, on local models only.

    make setup
    .venv/bin/python examples/agent.py

Each tool needs what an earlier one answered, so the agent has to work in steps. With a `response_format`
LangChain's agent makes every reply a tool call, the last one being the answer; agentspec holds each to its
tool's schema while it is written, which is what makes a model of 1.5 billion parameters reliable here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, Field
from rich.console import Console

from agentspec import ChatAgentSpec

SYSTEM = (
    "You are the support agent of a small shop. Broken items are replaced: look up the order, check the "
    "stock, get a shipping quote, book the replacement. Take every argument from the conversation."
)
QUESTION = (
    "Hello, this is Ingrid Dahl. My trail lamp arrived broken. Please send me a new one. "
    "When will it be here?"
)

ORDERS = {
    "Ingrid Dahl": "order A-1042: item LAMP-7 (trail lamp, 39.90 EUR), sent to Bergen",
    "Nils Berg": "order A-1043: item BOTTLE-2 (water bottle, 9.00 EUR), sent to Malmo",
}
STOCK = {"LAMP-7": "in stock in Oslo, sold out in Hamburg", "BOTTLE-2": "in stock in Hamburg"}
QUOTES = {
    ("Oslo", "Bergen"): "quote Q-318: 4.50 EUR, arrives 2026-03-12",
    ("Hamburg", "Malmo"): "quote Q-522: 6.20 EUR, arrives 2026-03-14",
}


def find_order(customer: Annotated[str, "the customer's full name"]) -> str:
    """Look up a customer's order: its number, its item and its city."""
    return ORDERS.get(customer, f"{customer} has no order")


def check_stock(item: Annotated[str, "the item's code, from the order"]) -> str:
    """Say which warehouse has an item in stock."""
    return f"{item}: {STOCK[item]}" if item in STOCK else f"there is no item {item}"


def quote_shipping(
    warehouse: Annotated[Literal["Hamburg", "Oslo"], "one that has the item in stock"],
    city: Annotated[str, "where it goes"],
) -> str:
    """Get a quote for shipping: its number, its price and the arrival date."""
    return QUOTES.get((warehouse, city), f"nothing ships from {warehouse} to {city}")


def book_replacement(
    order: Annotated[str, "the order's number"],
    quote: Annotated[str, "the number of the shipping quote"],
) -> str:
    """Book a free replacement."""
    known = any(order in text for text in ORDERS.values()) and any(quote in text for text in QUOTES.values())
    return f"booked: replacement R-{order[2:]}" if known else "not booked: there is no such order or quote"


class Answer(BaseModel):
    """Answer the customer, once the replacement is booked."""

    message: str = Field(description="what was booked and when it arrives, in one sentence")


TOOLS: list[Callable[..., str]] = [find_order, check_stock, quote_shipping, book_replacement]

console = Console(highlight=False, soft_wrap=True)


def build_agent(model: BaseChatModel) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The agent: LangChain's own loop over the model and the tools."""
    return create_agent(model, TOOLS, system_prompt=SYSTEM, response_format=Answer)


def run(model: BaseChatModel) -> list[AnyMessage]:
    """Answers QUESTION, printing each step; returns the whole conversation."""
    seen: list[AnyMessage] = []
    question = {"messages": [HumanMessage(QUESTION)]}
    for state in build_agent(model).stream(question, stream_mode="values"):
        for message in state["messages"][len(seen) :]:
            show(message)
        seen = state["messages"]
    return seen


def show(message: AnyMessage) -> None:
    """Prints one step."""
    match message:
        case HumanMessage():
            console.print(f"[bold]customer[/]  {message.text}")
        case AIMessage():
            for call in message.tool_calls:
                arguments = ", ".join(f"{name}={value!r}" for name, value in call["args"].items())
                console.print(f"[cyan]call[/]      {call['name']}({arguments})  [dim]{pace(message)}[/]")
            if message.text:
                console.print(f"[cyan]text[/]      {message.text}  [dim]{pace(message)}[/]")
        case ToolMessage(name="Answer"):
            pass  # LangChain's receipt for the answer
        case ToolMessage():
            console.print(f"[yellow]result[/]    {message.text}")


def pace(message: AIMessage) -> str:
    """How the reply was made, from the statistics that come with it."""
    facts = message.response_metadata.get("agentspec")
    return f"{facts['tokens']} tokens in {facts['target_passes']} target passes" if facts else ""


def main() -> None:
    """Runs the agent on the default pair of models, which is downloaded the first time."""
    run(ChatAgentSpec())


if __name__ == "__main__":
    main()
