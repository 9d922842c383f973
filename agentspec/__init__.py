"""agentspec: validated tool calls on local models, fast, by exact speculative decoding.

Importing this package imports nothing heavy: each public name is loaded on first use (PEP 562), and no
model is read before the first call that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentspec.langchain.chat_model import ChatAgentSpec as ChatAgentSpec
    from agentspec.langchain.llm import AgentSpecLLM as AgentSpecLLM

__version__ = "0.1.0"

_HOMES = {
    "AgentSpecLLM": "agentspec.langchain.llm",
    "ChatAgentSpec": "agentspec.langchain.chat_model",
}

__all__ = ["AgentSpecLLM", "ChatAgentSpec", "__version__"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'agentspec' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
