"""ByteDance's Seed-OSS: arguments in tags."""

from __future__ import annotations

from agentspec.chat.formats.base import Tags, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["SEED_OSS"]

SEED_OSS = explained(
    WireFormat(
        name="seed-oss",
        begin="<seed:tool_call>\n<function=",
        end="",
        between="\n",
        marker="<seed:tool_call>",
        after_name=(">",),
        tags=Tags("\n<parameter=", ">", "</parameter>", "\n</function>\n</seed:tool_call>"),
        bare_objects=False,
    )
)
