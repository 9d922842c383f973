"""What a reply says of itself: its usage, its statistics, its tokens' log-probabilities.

It must not know whether the reply is a message or a text.
"""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages.ai import UsageMetadata

from agentspec.engine.request import Result
from agentspec.types import Json

__all__ = ["PROVIDER", "logprob_entries", "statistics_of", "usage_of"]

PROVIDER = "agentspec"


def usage_of(result: Result, prompt_tokens: int) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=prompt_tokens,
        output_tokens=result.trace.tokens,
        total_tokens=prompt_tokens + result.trace.tokens,
        input_token_details={"cache_read": result.trace.prefill_reused},
    )


def statistics_of(result: Result, resampled: int) -> dict[str, Json]:
    """What goes under the provider's name. resampled: how many replies were thrown away before this one"""
    statistics: dict[str, Json] = dict(result.trace.as_json())
    if resampled:
        statistics["resampled"] = resampled
    return statistics


def logprob_entries(pieces: Sequence[bytes], logprobs: Sequence[float]) -> list[dict[str, object]]:
    """The log-probabilities of tokens, one entry each, in OpenAI's form."""
    return [
        {"token": piece.decode(errors="replace"), "bytes": list(piece), "logprob": logprob}
        for piece, logprob in zip(pieces, logprobs, strict=True)
    ]
