"""A conversation that outgrows the context of the model, and goes on.

    .venv/bin/python examples/long_conversation.py

Before each reply LangChain's middleware counts the conversation, by the model's own tokens. Where too little
of the context is left it has the model note what was said, and puts the notes in its place. They are held to
a class, so that a small model leaves nothing out that is needed later. A prompt that does not fit all the
same raises `PromptTooLongError`, which is also LangChain's `ContextOverflowError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain.agents.middleware.summarization import TokenCounter
from langchain_core.messages import AnyMessage, HumanMessage
from pydantic import BaseModel, Field

from agentspec import ChatAgentSpec

N_CTX = 240
TURNS = [
    "I am Ingrid Dahl, and my order is A-1042: a trail lamp. It is for a hike from hut to hut in Norway, for "
    "five days in September, with a tent in case the huts are full. Name one more thing to take along.",
    "Thank you, I have that already, and I would rather carry less than more, since the huts have almost "
    "everything that one needs. Name one thing to leave at home.",
    "The lamp arrived broken, so I have to write to the shop. What is the number of my order?",
]


class Notes(BaseModel):
    """What is to be known later."""

    customer: str
    order: str = Field(pattern=r"^[A-Z]-\d{4}$")
    item: str


def small_model() -> ChatAgentSpec:
    """The default model, with room for little."""
    return ChatAgentSpec(n_ctx=N_CTX, n_parallel=1, max_tokens=48, draft=None)


def converse(model: ChatAgentSpec) -> Iterator[tuple[AnyMessage, list[AnyMessage]]]:
    """Each answer, and what is kept of the conversation then."""
    writer = model.with_structured_output(Notes, method="json_mode")

    def take_notes(said: list[AnyMessage]) -> str:
        return str(writer.invoke([*said, HumanMessage("Note my name, the number of my order and its item.")]))

    summarize = SummarizationMiddleware(
        model,
        trigger=("tokens", N_CTX // 2),
        keep=("messages", 1),
        token_counter=cast(TokenCounter, model.get_num_tokens_from_messages),
        summarizer=take_notes,
    )
    agent = create_agent(model, [], middleware=[summarize])
    messages: list[AnyMessage] = []
    for turn in TURNS:
        messages = agent.invoke({"messages": [*messages, HumanMessage(turn)]})["messages"]
        yield messages[-1], messages


def main() -> None:
    """Prints the conversation, and how much of it is kept."""
    model = small_model()
    for turn, (answer, kept) in zip(TURNS, converse(model), strict=True):
        print(f"user   {turn}\nagent  {answer.text}")
        print(f"       {model.get_num_tokens_from_messages(kept)} tokens in {len(kept)} messages are kept")


if __name__ == "__main__":
    main()
