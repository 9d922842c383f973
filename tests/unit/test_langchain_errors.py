"""Errors of calls are LangChain's too, so that its middleware knows which are worth another try."""

from __future__ import annotations

import pytest
from langchain_core import exceptions as langchain

from agentspec import ChatAgentSpec, errors
from agentspec.langchain.errors import translated
from tests.langchain_fakes import fake_model

CASES: list[tuple[errors.AgentSpecError, type[langchain.ModelError]]] = [
    (errors.ConfigError("a", hint="b"), langchain.ModelInvalidRequestError),
    (errors.SchemaError("a", tool="f", pointer="/x", keyword="type"), langchain.ModelInvalidRequestError),
    (errors.TemplateError("a"), langchain.ModelInvalidRequestError),
    (errors.ModelNotFoundError("a", hint="b"), langchain.ModelNotFoundError),
    (errors.QueueFullError("a"), langchain.ModelRateLimitError),
    (errors.DeadlineExceededError("a"), langchain.ModelTimeoutError),
    (errors.ContextLengthError("a", prompt_tokens=9, n_ctx=4), langchain.ContextOverflowError),
]


@pytest.mark.parametrize(("error", "known"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_an_error_is_of_both_trees_and_keeps_what_it_says(
    error: errors.AgentSpecError, known: type[langchain.ModelError]
) -> None:
    with pytest.raises(type(error)) as caught, translated():
        raise error
    assert isinstance(caught.value, known)
    assert caught.value.__cause__ is error
    assert (str(caught.value), vars(caught.value)) == (str(error), vars(error))


@pytest.mark.parametrize("error", [errors.BackendError("a"), errors.DecodeError("a"), ValueError("a")])
def test_others_are_as_they_were(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, translated():
        raise error
    assert caught.value is error


def test_what_is_wrong_with_a_call_is_not_worth_another_try() -> None:
    with pytest.raises(langchain.ModelInvalidRequestError, match="unknown option 'temprature'") as caught:
        fake_model("x").invoke("x", temprature=1.0)
    assert isinstance(caught.value, errors.ConfigError)
    assert not caught.value.is_retryable
    with pytest.raises(langchain.ModelNotFoundError):
        ChatAgentSpec(model="nowhere.gguf").invoke("x")
