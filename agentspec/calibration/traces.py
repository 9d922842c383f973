"""Trace files, `trace.v1`: JSON lines, one reply each. What calibrates, reports and trains reads only these.

A line is written in one piece, so that several processes may append to one file. One that is damaged, or of
another version, is an error that names it: nothing is guessed. `schemas/trace.v1.schema.json` is the format
for others; the classes below are what it is made of. It must not know engines or models.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from agentspec.calibration.observe import Observation
from agentspec.calibration.recording import Recording
from agentspec.errors import TraceError
from agentspec.types import FinishReason, Json

__all__ = [
    "ReplyTrace",
    "TraceBlock",
    "TraceRow",
    "append_trace",
    "read_traces",
    "recorded",
    "trace_schema",
]

Probability = Annotated[float, Field(ge=0.0, le=1.0 + 1e-9)]
TokenId = Annotated[int, Field(ge=0)]

_DIGITS = 7  # of a probability: finer than any sample can tell apart


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TraceBlock(_Line):
    """A block that was verified: what is known of its tokens, up to and including the first rejected one."""

    at: int = Field(ge=0, description="Position in the reply of its first token, 0 for the reply's first.")
    proposed: int = Field(ge=0, description="How many tokens it had.")
    accepted: int = Field(ge=0, description="How many of them were accepted.")
    decoded: bool = Field(
        description="Whether it took a target pass; where every token is forced, none is needed."
    )
    tokens: list[TokenId] = Field(description="Those that verification came to.")
    sources: list[str] = Field(description="Who proposed each.")
    places: list[str] = Field(description="The context class of each.")
    confidence: list[Probability] = Field(
        description="The draft's probability of each, or, of a token proposed with certainty, its estimate."
    )
    target_probs: list[Probability] = Field(description="The target's probability of each.")
    alpha: list[Probability] = Field(
        description="Expected acceptance: the sum of min(target_probs, draft_probs), or the target's "
        "probability of a token proposed with certainty."
    )
    forced: list[bool] = Field(description="Whether no other token was legal.")

    @model_validator(mode="after")
    def _columns_match(self) -> Self:
        columns = (
            self.sources,
            self.places,
            self.confidence,
            self.target_probs,
            self.alpha,
            self.forced,
        )
        if any(len(column) != len(self.tokens) for column in columns):
            raise ValueError("its columns are not of one length")
        if len(self.tokens) != min(self.accepted + 1, self.proposed):
            raise ValueError(f"{len(self.tokens)} tokens, {self.accepted} accepted of {self.proposed}")
        return self

    def observations(self) -> Iterator[Observation]:
        """One for each token."""
        columns = zip(
            self.tokens,
            self.sources,
            self.places,
            self.confidence,
            self.target_probs,
            self.alpha,
            self.forced,
            strict=True,
        )
        for index, (token, source, place, confidence, target_prob, alpha, forced) in enumerate(columns):
            accepted = index < self.accepted
            yield Observation(token, source, place, confidence, target_prob, alpha, accepted, forced)


class TraceRow(_Line):
    """The laws at one position, cut to the most likely tokens of each."""

    at: int = Field(ge=0, description="Position in the reply.")
    ids: list[TokenId] = Field(min_length=1, description="The target's most likely first.")
    target_probs: list[Probability]
    draft_probs: list[Probability] | None = Field(
        description="What the token was drawn from. Null where it was proposed with certainty, or none was."
    )
    offers: dict[str, list[Probability]] = Field(
        default_factory=dict,
        description="What sources offered for it, by source, before calibration: laws, not certain tokens.",
    )

    @model_validator(mode="after")
    def _columns_match(self) -> Self:
        columns = [self.target_probs, self.draft_probs or self.ids, *self.offers.values()]
        if any(len(column) != len(self.ids) for column in columns):
            raise ValueError("its columns are not of one length")
        if not all(map(any, self.offers.values())):
            raise ValueError("an offer has no token")
        return self


class ReplyTrace(_Line):
    """One reply: a line of a trace file."""

    version: Literal["trace.v1"] = "trace.v1"
    model: str = Field(description="The target, as it was asked for.")
    draft: str | None = Field(description="The draft model likewise; null for none.")
    vocab: str = Field(description="Fingerprint of the target's vocabulary: ids mean nothing in another.")
    law: str = Field(description="The name of the law.")
    sampling: dict[str, JsonValue] = Field(description="The settings that are not the defaults.")
    draft_temperature: float | None = Field(
        None, description="The temperature that drafts made their laws with; null for that of the law."
    )
    tool_set: str = Field(description="Names what the reply may call; empty where it calls nothing.")
    agent: str = Field(description="The agent it is for; empty where none was named.")
    prompt: list[TokenId]
    reply: list[TokenId] = Field(description="The end token included, where there is one.")
    finish_reason: FinishReason
    blocks: list[TraceBlock]
    top_k: int = Field(0, ge=0, description="Tokens of each law that rows have; 0 for no rows.")
    rows: list[TraceRow] = Field(default_factory=list)

    def observations(self) -> Iterator[Observation]:
        """Of all blocks, in order."""
        for block in self.blocks:
            yield from block.observations()


def recorded(recording: Recording) -> dict[str, object]:
    """The fields of a ReplyTrace that a recording has."""
    blocks = [
        TraceBlock(
            at=block.at,
            proposed=block.proposed,
            decoded=block.decoded,
            accepted=sum(one.accepted for one in block.observations),
            tokens=[one.token for one in block.observations],
            sources=[one.source for one in block.observations],
            places=[one.place for one in block.observations],
            confidence=[_rounded(one.confidence) for one in block.observations],
            target_probs=[_rounded(one.target_prob) for one in block.observations],
            alpha=[_rounded(one.alpha) for one in block.observations],
            forced=[one.forced for one in block.observations],
        )
        for block in recording.blocks
    ]
    rows = [
        TraceRow(
            at=row.at,
            ids=list(row.ids),
            target_probs=[*map(_rounded, row.target_probs)],
            draft_probs=None if row.draft_probs is None else [*map(_rounded, row.draft_probs)],
            offers={name: [*map(_rounded, probs)] for name, probs in row.offers.items()},
        )
        for row in recording.rows
    ]
    return {"reply": recording.tokens, "blocks": blocks, "top_k": recording.top_k, "rows": rows}


def append_trace(path: Path, trace: ReplyTrace) -> None:
    """Adds a line, in one write. Raises TraceError where the file cannot be written."""
    line = trace.model_dump_json(exclude_defaults=False).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # it holds conversations
        try:
            os.write(handle, line)
        finally:
            os.close(handle)
    except OSError as error:
        raise TraceError(f"the trace file {path} cannot be written: {error.strerror or error}") from error


def read_traces(paths: Iterable[Path]) -> Iterator[ReplyTrace]:
    """The replies of trace files, in order, read one at a time.

    Raises TraceError naming the file and the line that is no `trace.v1`, or the file that cannot be read.
    """
    for path in paths:
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield _parsed(line, f"{path}:{number}")
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"the trace file {path} cannot be read: {error}") from error


def _parsed(line: str, where: str) -> ReplyTrace:
    try:
        return ReplyTrace.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise TraceError(
            f"{where} is no line of a trace.v1 file: {at + ': ' if at else ''}{first['msg']}",
            hint="traces are written with trace_path=...; a line that was cut can be deleted",
        ) from error


def _rounded(probability: float) -> float:
    return round(probability, _DIGITS)


def trace_schema() -> Mapping[str, Json]:
    """The JSON Schema of a line."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ReplyTrace.model_json_schema()}
