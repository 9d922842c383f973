"""Calibration files, `calibration.v1`: what was learned of the drafts of one target, as one JSON document.

A file is replaced in one step, so whoever reads it, in this process or another, finds a whole one; of two
processes that write, the later one's is kept. It holds counts and means, no text. Tool sets are there as
digests. `schemas/calibration.v1.schema.json` is the format for others; the classes below are what it is made
of. It must not know engines or models.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentspec.calibration.calibrator import Calibrator, Group, Key, Scores
from agentspec.calibration.survival import Cell, Survival
from agentspec.calibration.temper import TEMPERATURES, WEIGHTS
from agentspec.errors import CalibrationError
from agentspec.types import Json

__all__ = [
    "CalibrationFile",
    "CalibrationStore",
    "SourceScores",
    "Survived",
    "calibration_schema",
    "read_calibration",
    "write_calibration",
]

_log = logging.getLogger(__name__)

_SAVED_EACH: Final = 20
"""Replies after which what was learned is saved, besides at the end."""

_DIGITS: Final = 6

_Count = Annotated[float, Field(ge=0.0)]
_Mean = Annotated[float, Field(ge=0.0, le=1.0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceScores(_Part):
    """Mean expected acceptance of a source's laws, or of the mixture of two sources', by what is done to
    them."""

    tool_set: str = Field(description="A digest; empty for all tool sets together.")
    made_at: float | None = Field(
        None, gt=0.0, description="The draft_temperature of its replies; null where none was set."
    )
    source: str = Field(description="Its name; of a mixture, both with a plus between them.")
    place: str = Field(description="The context class.")
    heat: int = Field(ge=0, le=3, description="Of the target's law: 0 for greedy, up to 3.")
    of: Literal["temperatures", "weights"] = Field(description="Which list the means are of.")
    count: _Count = Field(description="Verified positions, those long ago for less.")
    alpha: list[_Mean] = Field(description="Sum of min(target_probs, draft_probs), in the mean.")


class Survived(_Part):
    """How often proposals were accepted."""

    source: str
    place: str
    level: int | None = Field(description="The bin of the source's confidence; null for all of them.")
    heat: int = Field(ge=0, le=3)
    accepted: _Count
    count: _Count


class CalibrationFile(_Part):
    """Everything about the drafts of one target."""

    version: Literal["calibration.v1"] = "calibration.v1"
    model: str = Field(description="The target, as it was asked for.")
    draft: str | None = Field(description="The draft model likewise; null for none.")
    vocab: str = Field(description="Fingerprint of the target's vocabulary.")
    made: Literal["online", "offline"] = Field(description="While agents worked, or from traces.")
    temperatures: list[float] = Field(description="Factors of a draft's temperature; 0 is its best token.")
    weights: list[float] = Field(description="Shares of the first law in a mixture.")
    scores: list[SourceScores]
    survival: list[Survived]

    @model_validator(mode="after")
    def _lists_match(self) -> Self:
        for one in self.scores:
            if len(one.alpha) != len(self.temperatures if one.of == "temperatures" else self.weights):
                raise ValueError(f"the scores of {one.source!r} are not of the {one.of}")
        if any(one.accepted > one.count for one in self.survival):
            raise ValueError("more proposals were accepted than there were")
        return self

    @classmethod
    def of(
        cls,
        calibrator: Calibrator,
        *,
        model: str,
        draft: str | None,
        vocab: str,
        made: Literal["online", "offline"],
    ) -> Self:
        """What a calibrator has learned."""
        scores = [
            SourceScores(
                tool_set=group.tool_set,
                made_at=group.made_at,
                source=key.source,
                place=key.place,
                heat=key.heat,
                of=key.of,
                count=round(one.count, _DIGITS),
                alpha=[min(1.0, round(float(mean), _DIGITS)) for mean in one.means],
            )
            for group, key, one in calibrator.items()
        ]
        survival = [
            Survived(
                source=cell.source,
                place=cell.place,
                level=cell.level,
                heat=cell.heat,
                accepted=round(accepted, _DIGITS),
                count=round(count, _DIGITS),
            )
            for cell, (accepted, count) in calibrator.survival.items()
        ]
        return cls(
            model=model,
            draft=draft,
            vocab=vocab,
            made=made,
            temperatures=[*TEMPERATURES],
            weights=[*WEIGHTS],
            scores=scores,
            survival=survival,
        )

    def calibrator(self, *, adapts: bool) -> Calibrator:
        """One that begins with what is in the file."""
        survival = Survival()
        for one in self.survival:
            survival.put(Cell(one.source, one.place, one.level, one.heat), (one.accepted, one.count))
        made = Calibrator(adapts=adapts, survival=survival)
        for score in self.scores:
            sums = np.array(score.alpha) * score.count
            key = Key(score.of, score.source, score.place, score.heat)
            made.put(Group(score.tool_set, score.made_at), key, Scores(score.count, sums))
        return made


def read_calibration(path: Path, *, vocab: str | None = None) -> CalibrationFile:
    """Reads a file.

    vocab: fingerprint of the vocabulary that it has to be for; None takes any

    Raises CalibrationError naming the file that cannot be read, is damaged, or is of another vocabulary or
    version.
    """
    try:
        found = CalibrationFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CalibrationError(f"the calibration {path} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise CalibrationError(
            f"{path} is no calibration.v1 file: {at + ': ' if at else ''}{first['msg']}",
            hint="agentspec calibrate writes one",
        ) from error
    if (*found.temperatures,) != TEMPERATURES or (*found.weights,) != WEIGHTS:
        raise CalibrationError(
            f"the temperatures or weights in {path} are not those of this version", hint="calibrate again"
        )
    if vocab is not None and found.vocab != vocab:
        raise CalibrationError(
            f"the calibration {path} is for {found.model} and its vocabulary {found.vocab}, and the target's "
            f"is {vocab}",
            hint="calibrate this target's drafts, or leave calibration at 'online'",
        )
    return found


def write_calibration(path: Path, calibration: CalibrationFile) -> None:
    """Replaces the file, or makes it. Raises CalibrationError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(calibration.model_dump_json() + "\n")
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise CalibrationError(
            f"the calibration {path} cannot be written: {error.strerror or error}"
        ) from error


def calibration_schema() -> Mapping[str, Json]:
    """The JSON Schema of a file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **CalibrationFile.model_json_schema()}


class CalibrationStore:
    """Keeps what is learned online of one target and one draft, across runs.

    folder: where the files are, made when there is something to save
    model, draft, vocab: as those of CalibrationFile: each combination has a file of its own

    Nothing here raises for the sake of a file: one that is damaged is begun again, and where none can be
    written nothing is kept; either is said once, as a warning of `logging`.
    """

    def __init__(self, folder: Path, *, model: str, draft: str | None, vocab: str) -> None:
        self._model, self._draft, self._vocab = model, draft, vocab
        told = (model, draft, vocab, TEMPERATURES, WEIGHTS)  # versions with other lists do without each other
        name = hashlib.sha256(repr(told).encode()).hexdigest()[:16]
        self.path = folder / f"{name}.json"
        self._unsaved = 0
        self._broken = False

    def load(self) -> Calibrator:
        """A calibrator that begins with what is stored."""
        if self.path.exists():
            try:
                return read_calibration(self.path, vocab=self._vocab).calibrator(adapts=True)
            except CalibrationError as error:
                _log.warning("what was learned of drafts is lost: %s", error.message)
        return Calibrator()

    def replied(self, calibrator: Calibrator) -> None:
        """Another reply is over: saves every now and then."""
        self._unsaved += 1
        if self._unsaved >= _SAVED_EACH:
            self.save(calibrator)

    def save(self, calibrator: Calibrator) -> None:
        """Saves what was learned since, if anything was."""
        if not self._unsaved or self._broken:
            return
        self._unsaved = 0
        learned = CalibrationFile.of(
            calibrator, model=self._model, draft=self._draft, vocab=self._vocab, made="online"
        )
        try:
            write_calibration(self.path, learned)
        except CalibrationError as error:
            self._broken = True
            _log.warning("what is learned of drafts is no longer stored: %s", error.message)
