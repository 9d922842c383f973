"""Cohere's Command: R7B and A in their own markup, R and R+ in a fenced block."""

from __future__ import annotations

from agentspec.chat.formats.base import NUMBER, JsonId, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["COMMAND_R", "COMMAND_R_PLUS"]

COMMAND_R = explained(
    WireFormat(
        name="command-r",
        opening="<|START_ACTION|>[",
        begin="\n    ",
        end="",
        between=",",
        closing="\n]<|END_ACTION|>",
        marker="<|START_ACTION|>",
        name_key="tool_name",
        arguments_key="parameters",
        json_id=JsonId("tool_call_id", NUMBER, first=True),
    )
)

COMMAND_R_PLUS = explained(
    WireFormat(
        name="command-r-plus",
        opening="Action:\n```json\n[",
        begin="\n    ",
        end="",
        between=",",
        closing="\n]```",
        marker="Action:\n```json\n[",
        name_key="tool_name",
        arguments_key="parameters",
    )
)
