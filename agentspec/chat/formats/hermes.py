"""Hermes: Qwen2.5, Qwen3, Hermes 2 and 3, and most models that were never given a format of their own."""

from __future__ import annotations

from agentspec.chat.formats.base import WireFormat

__all__ = ["HERMES"]

# the text that Qwen2.5's own template uses
_INSTRUCTIONS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

HERMES = WireFormat(
    name="hermes",
    begin="<tool_call>\n",
    end="\n</tool_call>",
    between="\n",
    marker="<tool_call>",
    instructions=_INSTRUCTIONS,
)
