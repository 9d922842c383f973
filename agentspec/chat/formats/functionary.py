"""MeetKai's Functionary: 3.1 in tags that Llama 3.1 was taught too, 3.2 by the recipient of each part."""

from __future__ import annotations

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["FUNCTIONARY_V31", "FUNCTIONARY_V32"]

FUNCTIONARY_V31 = explained(
    WireFormat(
        name="functionary-v3.1",
        begin="<function=",
        end="</function>",
        between="",
        marker="<function=",
        after_name=(">",),
        bare_objects=False,
    )
)

# The first ">>>" is the prompt's. Text is a part with the recipient "all", so nothing marks a first call.
FUNCTIONARY_V32 = explained(
    WireFormat(
        name="functionary-v3.2",
        begin="",
        end="",
        between=">>>",
        marker="",
        after_name=("\n",),
        bare_objects=False,
    )
)
