"""MiniMax: M1 in JSON, M2 in tags."""

from __future__ import annotations

from agentspec.chat.formats.base import Tags, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["MINIMAX_M1", "MINIMAX_M2"]

MINIMAX_M1 = explained(
    WireFormat(
        name="minimax-m1",
        opening="<tool_calls>",
        begin="\n",
        end="",
        between="",
        closing="\n</tool_calls>",
        marker="<tool_calls>",
    )
)

MINIMAX_M2 = explained(
    WireFormat(
        name="minimax-m2",
        opening="<minimax:tool_call>",
        begin='\n<invoke name="',
        end="",
        between="",
        closing="\n</minimax:tool_call>",
        marker="<minimax:tool_call>",
        after_name=('">',),
        tags=Tags('\n<parameter name="', '">', "</parameter>", "\n</invoke>"),
        bare_objects=False,
    )
)
