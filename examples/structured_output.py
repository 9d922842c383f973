"""Text in, an object of a class out: the grammar holds the reply to the schema."""

from typing import Literal

from pydantic import BaseModel, Field

from agentspec import ChatAgentSpec


class Ticket(BaseModel):
    """A support ticket."""

    customer: str = Field(description="the customer's name")
    topic: Literal["delivery", "payment", "damage", "other"]
    order_id: str | None = Field(description="such as A-1042, if one is named")
    urgent: bool


MAIL = "Hello, this is Ingrid Dahl. The lamp of order A-1042 arrived broken, and I leave on a hike tomorrow!"


def main() -> None:
    """Prints the ticket that the mail becomes."""
    model = ChatAgentSpec().with_structured_output(Ticket)
    print(model.invoke(f"File a ticket for this mail:\n{MAIL}"))


if __name__ == "__main__":
    main()
