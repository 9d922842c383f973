"""One tool call, checked against its schema, on local models."""

from agentspec import ChatAgentSpec


def get_weather(city: str, unit: str = "celsius") -> str:
    """Get the weather of a city now."""
    return f"17 degrees {unit} in {city}"


model = ChatAgentSpec().bind_tools([get_weather], tool_choice="any")
for call in model.invoke("What is the weather in Oslo, in fahrenheit?").tool_calls:
    print(call["name"], call["args"], "->", get_weather(**call["args"]))
