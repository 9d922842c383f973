"""Mistral, by versions of its tokenizer: 3 (Nemo, Large 2), 11 (Small 3.2), 13 (Devstral, Ministral 3)."""

from __future__ import annotations

from agentspec.chat.formats.base import SHORT_ID, JsonId, WireFormat
from agentspec.chat.formats.explain import explained

__all__ = ["MISTRAL_V3", "MISTRAL_V11", "MISTRAL_V13"]

_MARKER = "[TOOL_CALLS]"

MISTRAL_V3 = explained(
    WireFormat(
        name="mistral-v3",
        opening=f"{_MARKER}[",
        begin="",
        end="",
        between=", ",
        closing="]",
        marker=_MARKER,
        json_id=JsonId("id", SHORT_ID, first=False),
    )
)

MISTRAL_V11 = explained(
    WireFormat(
        name="mistral-v11",
        begin=_MARKER,
        end="",
        between="",
        marker=_MARKER,
        after_name=("[CALL_ID]", SHORT_ID, "[ARGS]"),
        bare_objects=False,
    )
)

MISTRAL_V13 = explained(
    WireFormat(
        name="mistral-v13",
        begin=_MARKER,
        end="",
        between="",
        marker=_MARKER,
        after_name=("[ARGS]",),
        bare_objects=False,
    )
)
