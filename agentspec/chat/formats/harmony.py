"""OpenAI's gpt-oss: a call is a message to a function, in the channel for commentary."""

from __future__ import annotations

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["HARMONY"]

# One call a turn: behind it stands <|call|>, which ends the reply.
HARMONY = explained(
    WireFormat(
        name="harmony",
        begin="<|channel|>commentary to=functions.",
        end="",
        between="",
        marker="<|channel|>commentary to=functions.",
        after_name=(" <|constrain|>json<|message|>",),
        bare_objects=False,
    )
)
