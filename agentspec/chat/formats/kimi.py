"""Moonshot's Kimi K2: each call has an id of the tool's name and a count."""

from __future__ import annotations

from agentspec.chat.formats.base import NUMBER, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["KIMI_K2"]

KIMI_K2 = explained(
    WireFormat(
        name="kimi-k2",
        opening="<|tool_calls_section_begin|>",
        begin="<|tool_call_begin|>functions.",
        end="<|tool_call_end|>",
        between="",
        closing="<|tool_calls_section_end|>",
        marker="<|tool_calls_section_begin|>",
        after_name=(":", NUMBER, "<|tool_call_argument_begin|>"),
        bare_objects=False,
        signs=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    )
)
