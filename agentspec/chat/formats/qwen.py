"""Qwen3-Coder and Qwen 3.5: arguments in tags. Qwen 2.5 and 3 write as Hermes."""

from __future__ import annotations

from agentspec.chat.formats.base import Tags, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["QWEN3_CODER"]

QWEN3_CODER = explained(
    WireFormat(
        name="qwen3-coder",
        begin="<tool_call>\n<function=",
        end="",
        between="\n",
        marker="<tool_call>",
        after_name=(">",),
        tags=Tags("\n<parameter=", ">\n", "\n</parameter>", "\n</function>\n</tool_call>"),
        bare_objects=False,
    )
)
