"""LangChain's integration suite on the default pair: nothing overridden, nothing expected to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests

from agentspec import ChatAgentSpec

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is in beta"),
    pytest.mark.filterwarnings("ignore:.*deprecated"),  # the suite calls pydantic v1's methods
]

OPTIONS: dict[str, Any] = {"n_ctx": 4096, "max_tokens": 256}


@pytest.fixture(scope="module", autouse=True)
def _one_runtime(target_model: Path, draft_model: Path) -> Iterator[None]:  # noqa: ARG001 - they must be there
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
