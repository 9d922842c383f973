"""Llama 3.1 to 3.3: a call is a bare JSON object, with no marker around it."""

from __future__ import annotations

from agentspec.chat.formats.base import WireFormat

__all__ = ["LLAMA3"]

# the text that Llama 3.1's own template uses
_INSTRUCTIONS = """\
Given the following functions, please respond with a JSON for a function call with its proper arguments \
that best answers the given prompt.

Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}. \
Do not use variables.

{tools}"""

LLAMA3 = WireFormat(
    name="llama3",
    begin="",
    end="",
    between="; ",
    marker="",
    arguments_key="parameters",
    instructions=_INSTRUCTIONS,
)
