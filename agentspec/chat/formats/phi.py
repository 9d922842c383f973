"""Microsoft's Phi-4-mini: an array of calls between two tokens."""

from __future__ import annotations

from agentspec.chat.formats.base import WireFormat

__all__ = ["PHI_4_MINI"]

PHI_4_MINI = WireFormat(
    name="phi-4-mini",
    opening="<|tool_call|>[",
    begin="",
    end="",
    between=", ",
    closing="]<|/tool_call|>",
    marker="<|tool_call|>",
    # its own template takes tools from a key of the system message, and shows them so
    instructions="You have access to some tools.<|tool|>[{tools}]<|/tool|>",
    signs=("<|tool|>", "<|/tool|>"),
)
