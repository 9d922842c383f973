"""LangChain's integration suite on the default pair: nothing overridden, nothing expected to fail."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from typing_extensions import override

from agentspec import ChatAgentSpec

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is in beta"),
    pytest.mark.filterwarnings("ignore:.*deprecated"),  # the suite calls pydantic v1's methods
    pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"),  # it is for recorded traffic
]

OPTIONS: dict[str, Any] = {"n_ctx": 4096, "max_tokens": 256}


@pytest.fixture(scope="module", autouse=True)
def _one_runtime(target_model: Path, draft_model: Path, small_model: Path) -> Iterator[None]:  # noqa: ARG001 - they must be there
    """Each test makes its own model; this one keeps what they share alive."""
    model = ChatAgentSpec(**OPTIONS)
    model._runtime()
    yield
    model.close()


class TestChatAgentSpec(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAgentSpec

    @property
    def chat_model_params(self) -> dict[str, object]:
        return OPTIONS

    @property
    def standard_chat_model_params(self) -> dict[str, object]:
        return {}  # the suite's own cap of 100 tokens is for services that charge

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "smollm2-135m-instruct"

    @property
    def enable_vcr_tests(self) -> bool:
        return True  # one test, of a stream's pace; there is no traffic to record

    @property
    def supported_usage_metadata_details(self) -> Any:
        return {"invoke": ["cache_read_input"], "stream": ["cache_read_input"]}

    @override
    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        model = ChatAgentSpec(**OPTIONS)
        asked = "Name three rivers of Norway."
        model.invoke(asked)
        message: AIMessage = reduce(add, model.stream(asked)) if stream else model.invoke(asked)
        assert message.usage_metadata is not None
        assert message.usage_metadata["input_token_details"]["cache_read"] > 0
        return message
