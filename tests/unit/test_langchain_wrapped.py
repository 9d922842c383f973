"""What LangChain wraps around the chat model: bindings, configured fields, alternatives, copies."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, cast

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ConfigurableField, RunnableBinding
from langchain_core.tools import tool
from pydantic import BaseModel

from agentspec import ChatAgentSpec
from agentspec.errors import ConfigError
from agentspec.langchain.tools import OpenAITool
from tests.langchain_fakes import call_text, fake_model, runtime_of


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


class Person(BaseModel):
    """A person."""

    name: str


CALL = call_text("add", '{"a": 1, "b": 2}')
ANN = call_text("Person", '{"name": "Ann"}')


class Started(BaseCallbackHandler):
    """What a handler is told when a call starts."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], **kwargs: Any
    ) -> None:
        self.told = {"serialized": serialized, "messages": messages, **kwargs}


# -- configuration


def test_configured_fields_settle_the_call_and_keep_the_models() -> None:
    model = fake_model("x", "x")
    configurable = model.configurable_fields(
        temperature=ConfigurableField(id="heat"), max_tokens=ConfigurableField(id="length")
    )
    configurable.with_config(configurable={"heat": 0.5, "length": 7}).invoke("x")
    configurable.invoke("x", config={"configurable": {"heat": 0.25}})
    first, second = runtime_of(model).engine.requests  # made anew for each call, but for what was loaded
    assert (first.sampling.temperature, first.generation.max_tokens) == (0.5, 7)
    assert (second.sampling.temperature, second.generation.max_tokens) == (0.25, 1024)


def test_configured_fields_settle_calls_with_tools() -> None:
    model = fake_model(CALL)
    configurable = model.configurable_fields(temperature=ConfigurableField(id="heat"))
    bound = cast(ChatAgentSpec, configurable).bind_tools([add], tool_choice="any")
    assert bound.with_config(configurable={"heat": 0.5}).invoke("x").tool_calls
    assert runtime_of(model).engine.requests[0].sampling.temperature == 0.5
    assert runtime_of(model).asked == [(("add",), "required", False)]


def test_a_bad_value_of_a_configured_field_is_named() -> None:
    model = fake_model("x").configurable_fields(temperature=ConfigurableField(id="heat"))
    with pytest.raises(ConfigError, match="option 'temperature'"):
        model.invoke("x", config={"configurable": {"heat": -1}})
    with pytest.raises(ValueError, match="quality"):
        fake_model("x").configurable_fields(quality=ConfigurableField(id="quality"))


def test_alternatives() -> None:
    model = fake_model("one").configurable_alternatives(
        ConfigurableField(id="which"), default_key="one", two=fake_model("two")
    )
    assert model.invoke("x", config={"configurable": {"which": "two"}}).text == "two"
    assert model.invoke("x").text == "one"


def test_what_is_bound_stays_when_more_is_bound() -> None:
    model = fake_model(CALL, ANN, "x")
    bound = model.bind(temperature=0.5, seed=3)
    bound.bind_tools([add]).invoke("x")
    assert bound.with_structured_output(Person).invoke("x") == Person(name="Ann")
    bound.bind(temperature=0.25).bind(stop=["a"]).invoke("x")
    requests = runtime_of(model).engine.requests
    assert [request.sampling.temperature for request in requests] == [0.5, 0.5, 0.25]
    assert [request.generation.seed for request in requests] == [3, 3, 3]
    assert requests[2].generation.stop == ("a",)


def test_tools_that_are_bound_again_replace_the_first_and_the_choice_among_them() -> None:
    @tool
    def subtract(a: int, b: int) -> int:
        """Subtracts."""
        return a - b

    model = fake_model("x")
    first = cast(ChatAgentSpec, model.bind_tools([add], tool_choice="add", temperature=0.5))
    first.bind_tools([subtract]).invoke("x")
    assert runtime_of(model).asked == [(("subtract",), "auto", False)]
    assert runtime_of(model).engine.requests[0].sampling.temperature == 0.5


def test_an_object_is_not_asked_of_a_model_with_tools() -> None:
    bound = cast(ChatAgentSpec, fake_model().bind_tools([add]))
    with pytest.raises(ConfigError, match="create_agent"):
        bound.with_structured_output(Person)


def test_a_structured_output_keeps_tags_and_the_model_of_a_binding() -> None:
    started = Started()
    bound = cast(ChatAgentSpec, fake_model(ANN).bind(model="fake-model").with_config(tags=["mine"]))
    bound.with_structured_output(Person).invoke("x", config={"callbacks": [started]})
    assert "mine" in started.told["tags"]
    assert started.told["invocation_params"]["model"] == "fake-model"


# -- copies


@pytest.mark.parametrize(("given", "kept"), [(Person, True), (add, False)])
def test_a_binding_can_be_pickled(given: Any, kept: bool) -> None:
    """Its check comes along where another process could import the class that it asks."""
    bound = ChatAgentSpec(temperature=0.5).bind_tools([given], tool_choice="any")
    copied = pickle.loads(pickle.dumps(bound))
    assert copied.bound.temperature == 0.5
    assert copied.kwargs == cast(RunnableBinding[Any, Any], bound).kwargs
    (copied_tool,) = cast(Sequence[OpenAITool], copied.kwargs["tools"])
    assert (copied_tool.bound.check is not None) == kept


def test_a_copy_with_a_bad_value_says_so_when_called() -> None:
    with pytest.raises(ConfigError, match="option 'temperature'"):
        fake_model("x").model_copy(update={"temperature": -1.0}).invoke("x")


def test_what_wraps_the_model_has_langchains_own_id() -> None:
    assert type(fake_model().bind(seed=1)).lc_id() == RunnableBinding.lc_id()
    assert isinstance(fake_model().with_config(tags=["a"]), RunnableBinding)
