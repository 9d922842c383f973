"""Text completed: freely, and held to a regular expression, a grammar and a schema."""

from typing import Literal

from pydantic import BaseModel

from agentspec import AgentSpecLLM

LIST = r"""
start: line line line
line: "- " /[A-Z][a-z]{2,15}/ "\n"
"""


class Animal(BaseModel):
    name: str
    legs: Literal[0, 2, 4, 6, 8]


def main(llm: AgentSpecLLM | None = None) -> None:
    """Prints what the model writes."""
    llm = llm or AgentSpecLLM()
    print(llm.invoke("The capital of Norway is", stop=[".", "\n"], max_tokens=16))
    years = llm.bind(regex="1[0-9]{3}")  # the prompts of a batch share target passes
    print(years.batch(["The French Revolution began in ", "Men first walked on the moon in "]))
    print(llm.invoke("Three rivers of Europe:\n", lark=LIST), end="")
    text = llm.invoke("A spider, as JSON: ", json_schema=Animal)
    print(Animal.model_validate_json(text))


if __name__ == "__main__":
    main()
