"""OpenAI's gpt-oss: a reply is made of messages in channels, and a call is a message to a function.

Follows the "OpenAI harmony response format" (https://developers.openai.com/cookbook/articles/openai-harmony).
"""

from __future__ import annotations

from agentspec.chat.formats.base import Channels, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["HARMONY"]

# one call a turn: behind it stands <|call|>, which ends the reply
HARMONY = explained(
    WireFormat(
        name="harmony",
        begin="<|channel|>commentary to=functions.",
        end="",
        between="",
        marker="<|channel|>commentary to=functions.",
        after_name=(" <|constrain|>json<|message|>",),
        bare_objects=False,
        channels=Channels(
            start="<|start|>assistant",
            channel="<|channel|>",
            message="<|message|>",
            end="<|end|>",
            recipient=" to=functions.",
            typed=(" <|constrain|>json", "<|constrain|>json", " json"),
            thoughts="analysis",
            calls="commentary",
            answers="final",
        ),
        signs=("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    )
)
