"""Structured output: an object of the schema, or an error. Never part of one."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.runnables import RunnableBinding, RunnableSequence
from pydantic import BaseModel
from pydantic.v1 import BaseModel as BaseModelV1
from typing_extensions import TypedDict

from agentspec.errors import ConfigError, SchemaError
from agentspec.langchain.structured import Method
from agentspec.testing import TrieMatcher
from agentspec.types import NamedTool
from tests.langchain_fakes import Reply, call_text, fake_model, runtime_of


class Joke(BaseModel):
    """A joke."""

    setup: str
    stars: int


class JokeV1(BaseModelV1):
    """A joke."""

    setup: str
    stars: int


class JokeDict(TypedDict):
    """A joke."""

    setup: str
    stars: int


JOKE_SCHEMA = {
    "title": "Joke",
    "description": "A joke.",
    "type": "object",
    "properties": {"setup": {"type": "string"}, "stars": {"type": "integer"}},
    "required": ["setup", "stars"],
}
OBJECT: dict[str, Any] = {"setup": "knock", "stars": 5}
TEXT = '{"setup": "knock", "stars": 5}'
METHODS: list[Method] = ["function_calling", "json_schema", "json_mode"]

methods = pytest.mark.parametrize("method", METHODS)


def reply(method: Method, arguments: str, name: str = "Joke") -> str:
    return call_text(name, arguments) if method == "function_calling" else arguments


@methods
@pytest.mark.parametrize("schema", [Joke, JokeV1, JokeDict, JOKE_SCHEMA], ids=["v2", "v1", "typed", "json"])
def test_each_schema_under_each_method(schema: Any, method: Method) -> None:
    name = schema["title"] if isinstance(schema, dict) else schema.__name__
    model = fake_model(*[reply(method, TEXT, name)] * 2)
    structured = model.with_structured_output(schema, method=method)
    answer = structured.invoke("x")
    expected = OBJECT if schema in (JokeDict, JOKE_SCHEMA) else schema(**OBJECT)
    assert answer == expected
    assert list(structured.stream("x")) == [expected]


def test_function_calling_forces_the_one_call() -> None:
    model = fake_model(reply("function_calling", TEXT))
    model.with_structured_output(Joke).invoke("x")
    assert runtime_of(model).asked == [(("Joke",), NamedTool("Joke"), False)]


def test_json_schema_is_enforced_and_shown() -> None:
    model = fake_model(TEXT)
    model.with_structured_output(Joke, method="json_schema").invoke("x")
    (schema,) = runtime_of(model).schemas
    assert schema["title"] == "Joke"
    assert schema["required"] == ["setup", "stars"]
    assert '"required": ["setup", "stars"]' in runtime_of(model).prompt


def test_json_mode_is_enforced_and_not_shown() -> None:
    model = fake_model(TEXT)
    model.with_structured_output(Joke, method="json_mode").invoke("x")
    (schema,) = runtime_of(model).schemas
    assert schema["required"] == ["setup", "stars"]
    assert "setup" not in runtime_of(model).prompt


def test_a_json_object_without_a_schema_is_any_object() -> None:
    model = fake_model(TEXT)
    model.invoke("x", response_format={"type": "json_object"})
    assert runtime_of(model).schemas == [{"type": "object"}]


@methods
def test_a_cut_reply_is_an_error(method: Method) -> None:
    text = reply(method, TEXT)[: 20 if method != "function_calling" else 60]
    cut = Reply(text, "length", complete=False)
    with pytest.raises(OutputParserException) as caught:
        fake_model(cut).with_structured_output(Joke, method=method).invoke("x")
    assert caught.value.llm_output
    with pytest.raises(OutputParserException):
        list(fake_model(cut).with_structured_output(Joke, method=method).stream("x"))


@methods
def test_a_whole_object_in_a_reply_that_was_cut_is_an_error_only_where_it_may_not_be_whole(
    method: Method,
) -> None:
    cut = Reply(reply(method, TEXT), "length", complete=method == "function_calling")
    structured = fake_model(cut).with_structured_output(Joke, method=method)
    if method == "function_calling":  # a closed call is whole, whatever came after it
        assert structured.invoke("x") == Joke(**OBJECT)
    else:
        with pytest.raises(OutputParserException):
            structured.invoke("x")


@methods
@pytest.mark.parametrize("arguments", ['{"setup": "knock"}', '{"setup": "knock", "stars": "many"}'])
def test_a_reply_that_does_not_fit_is_an_error(method: Method, arguments: str) -> None:
    with pytest.raises(OutputParserException, match="stars"):
        fake_model(reply(method, arguments)).with_structured_output(Joke, method=method).invoke("x")


@methods
def test_text_instead_of_an_object_is_an_error(method: Method) -> None:
    with pytest.raises(OutputParserException) as caught:
        fake_model("sorry").with_structured_output(Joke, method=method).invoke("x")
    assert caught.value.llm_output == "sorry"


@methods
async def test_include_raw(method: Method) -> None:
    model = fake_model(reply(method, TEXT), "sorry")
    structured = model.with_structured_output(Joke, method=method, include_raw=True)
    good = structured.invoke("x")
    assert good["parsed"] == Joke(**OBJECT)
    assert good["parsing_error"] is None
    bad = await structured.ainvoke("x")
    assert bad["parsed"] is None
    assert isinstance(bad["parsing_error"], OutputParserException)
    assert bad["raw"].text == "sorry"


@methods
def test_tracers_are_told_the_schema(method: Method) -> None:
    structured = fake_model().with_structured_output(Joke, method=method)
    assert isinstance(structured, RunnableSequence)
    llm = structured.first
    assert isinstance(llm, RunnableBinding)
    noted = llm.kwargs["ls_structured_output_format"]
    assert noted == {"kwargs": {"method": method, "strict": None}, "schema": Joke}


def test_bad_arguments() -> None:
    model = fake_model()
    with pytest.raises(ConfigError, match="unknown option 'methd'; did you mean"):
        model.with_structured_output(Joke, methd="json_schema")
    with pytest.raises(ConfigError, match="yaml"):
        model.with_structured_output(Joke, method="yaml")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="'Bad'"):
        model.with_structured_output({"title": "Bad", "type": "object", "properties": {"a": {"type": "x"}}})
    with pytest.raises(ConfigError):
        model.with_structured_output({"type": "object", "properties": {}})


def test_response_format_of_langchains_agents() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "Joke", "schema": JOKE_SCHEMA}}
    model = fake_model(TEXT)
    assert model.bind_tools([], response_format=wanted).invoke("x").text == TEXT
    assert runtime_of(model).schemas == [JOKE_SCHEMA]


def weather(city: str) -> str:
    """Look up the weather."""
    return city


WANTED = {"type": "json_schema", "json_schema": {"name": "Joke", "schema": JOKE_SCHEMA}}


def test_response_format_beside_tools_is_calls_or_the_document() -> None:
    called = call_text("weather", '{"city": "Oslo"}')
    model = fake_model(called, TEXT)
    bound = model.bind_tools([weather], response_format=WANTED)
    reply = bound.invoke("x")
    assert [call["name"] for call in reply.tool_calls] == ["weather"]
    reply = bound.invoke("x")
    assert (reply.text, reply.tool_calls) == (TEXT, [])
    runtime = runtime_of(model)
    assert (runtime.answers, runtime.schemas) == ([JOKE_SCHEMA] * 2, [])
    assert "Once you need no further tool call, answer with one JSON document" in runtime.prompt


def test_a_reply_that_has_to_call_is_no_document() -> None:
    model = fake_model(call_text("weather", '{"city": "Oslo"}'))
    model.bind_tools([weather], tool_choice="any", response_format=WANTED).invoke("x")
    assert runtime_of(model).answers == [None]
    assert "JSON document" not in runtime_of(model).prompt


def test_a_reply_that_may_not_call_is_the_document() -> None:
    model = fake_model(TEXT)
    model.bind_tools([weather], tool_choice="none", response_format=WANTED).invoke("x")
    assert (runtime_of(model).answers, runtime_of(model).schemas) == ([], [JOKE_SCHEMA])


def test_a_document_that_does_not_fit_is_thrown_away_and_so_is_a_call() -> None:
    unfit, fits = '{"setup": "a"}', call_text("weather", '{"city": "Oslo"}')
    model = fake_model(unfit, call_text("weather", "{}"), fits, temperature=1.0)
    runtime_of(model).matcher = TrieMatcher([[0]])
    reply = model.bind_tools([weather], response_format=WANTED).invoke("x")
    assert [call["args"] for call in reply.tool_calls] == [{"city": "Oslo"}]
    assert reply.response_metadata["agentspec"]["resampled"] == 2


def test_what_is_no_response_format() -> None:
    with pytest.raises(ConfigError, match="not understood"):
        fake_model(TEXT).invoke("x", response_format={"type": "xml"})
