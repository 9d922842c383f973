"""OpenAI's gpt-oss: a reply is made of messages in channels, and a call is a message to a function.

Follows the "OpenAI harmony response format" (https://developers.openai.com/cookbook/articles/openai-harmony).
"""

from __future__ import annotations

from agentspec.chat.formats.base import Channels, WireFormat

__all__ = ["HARMONY"]

# one call a turn: behind it stands <|call|>, which ends the reply
HARMONY = WireFormat(
    name="harmony",
    begin=" to=functions.",
    end="",
    between="",
    marker="",
    after_name=("<|channel|>commentary json<|message|>",),
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
)
