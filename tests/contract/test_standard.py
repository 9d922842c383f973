"""LangChain's own conformance suite for chat models, whole: nothing overridden, nothing expected to fail."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_tests.unit_tests import ChatModelUnitTests

from agentspec import ChatAgentSpec


class TestChatAgentSpec(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAgentSpec

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {"model": "smollm2-135m-instruct"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        name = "smollm2-135m-instruct"
        return {"AGENTSPEC_MODEL": name}, {"draft": None}, {"model": name, "draft": None}
