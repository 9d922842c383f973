"""Words that tell a model of its tools, where its makers give none: they show a call as it is written.

It must not know templates.
"""

from __future__ import annotations

from dataclasses import replace

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.formats.render import render_calls

__all__ = ["explained"]

_INSTRUCTIONS = """\
# Tools

You may call one or more functions to assist with the user query. These are their JSON Schemas:
{tools}

To call a function, write the call in exactly this form:
"""
_EXAMPLE = ("function-name", {"argument-name": "argument-value"})


def explained(wire_format: WireFormat) -> WireFormat:
    """The format with these instructions."""
    return replace(wire_format, instructions=_INSTRUCTIONS + render_calls(wire_format, [_EXAMPLE]).strip())
