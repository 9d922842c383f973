"""Families that write an array of calls between markers of their own and nothing else."""

from __future__ import annotations

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["APRIEL", "FIREFUNCTION_V2", "LFM2", "NEMOTRON_NANO"]

FIREFUNCTION_V2 = explained(
    WireFormat(
        name="firefunction-v2",
        opening="functools[",
        begin="",
        end="",
        between=", ",
        closing="]",
        marker="functools[",
    )
)

# Apriel, and AI21's Jamba
APRIEL = explained(
    WireFormat(
        name="apriel",
        opening="<tool_calls>[",
        begin="",
        end="",
        between=", ",
        closing="]</tool_calls>",
        marker="<tool_calls>",
    )
)

# Python by default; JSON where the system turn asks for it, in these words
LFM2 = WireFormat(
    name="lfm2",
    opening="<|tool_call_start|>[",
    begin="",
    end="",
    between=", ",
    closing="]<|tool_call_end|>",
    marker="<|tool_call_start|>",
    instructions=(
        "List of tools: <|tool_list_start|>[{tools}]<|tool_list_end|>\nOutput function calls as JSON."
    ),
    signs=("<|tool_list_start|>", "<|tool_list_end|>"),
)

NEMOTRON_NANO = explained(
    WireFormat(
        name="nemotron-nano",
        opening="<TOOLCALL>[",
        begin="",
        end="",
        between=", ",
        closing="]</TOOLCALL>",
        marker="<TOOLCALL>",
    )
)
