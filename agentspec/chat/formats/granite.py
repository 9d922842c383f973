"""IBM's Granite 3: one token, then an array of calls. Granite 4 writes as Hermes."""

from __future__ import annotations

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["GRANITE"]

GRANITE = explained(
    WireFormat(
        name="granite",
        opening="<|tool_call|>[",
        begin="",
        end="",
        between=", ",
        closing="]",
        marker="<|tool_call|>",
        signs=("<|tool_call|>", "<|start_of_role|>available_tools<|end_of_role|>"),
    )
)
