"""Zhipu's GLM: each argument is a pair of tags, on lines of their own up to 4.6."""

from __future__ import annotations

from agentspec.chat.formats.base import Tags, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["GLM_4", "GLM_47"]

GLM_4 = explained(
    WireFormat(
        name="glm-4",
        begin="<tool_call>",
        end="",
        between="\n",
        marker="<tool_call>",
        after_name=("",),
        tags=Tags("\n<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "\n</tool_call>"),
        bare_objects=False,
    )
)

GLM_47 = explained(
    WireFormat(
        name="glm-4.7",
        begin="<tool_call>",
        end="",
        between="",
        marker="<tool_call>",
        after_name=("",),
        tags=Tags("<arg_key>", "</arg_key><arg_value>", "</arg_value>", "</tool_call>"),
        bare_objects=False,
    )
)
