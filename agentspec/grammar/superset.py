"""What of a JSON Schema the grammar engine can hold a reply to: all of it, or the tightest superset found.

Where the engine does not take a schema, as few of its keywords as possible are relaxed: first all that can
be, then those are taken back which the engine takes after all, by halves (in the manner of delta debugging;
Zeller and Hildebrandt, 2002). What a superset lets through, the validator finds after the reply.

It must not know tools or replies, nor a model's vocabulary.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import llguidance

from agentspec.chat.keywords import Place, pointer
from agentspec.errors import GrammarError
from agentspec.grammar.matcher import fault_of
from agentspec.grammar.relax import Relaxation, possible, relaxed, spelled_out
from agentspec.types import Json

__all__ = ["Enforceable", "UnenforceableError", "enforceable"]

_AT_A_DISTANCE = frozenset({"if", "not", "contains", "unevaluatedItems", "unevaluatedProperties"})
"""What is relaxed where anything is: if less is asked elsewhere, these might ask more."""

_NOTHING_FITS = "Unsatisfiable schema"
_PREFIX = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
_REMEMBERED = 512  # schemas


class UnenforceableError(GrammarError):
    """The engine takes the schema in no form. `pointer` says where the fault is, "" for the whole."""

    def __init__(self, message: str, *, pointer: str) -> None:
        super().__init__(message)
        self.pointer = pointer


@dataclass(frozen=True, slots=True)
class Enforceable:
    """A schema that the engine takes.

    relaxations: what it does not ask for, and the schema that was given does
    """

    schema: Mapping[str, Json]
    relaxations: tuple[Relaxation, ...] = ()


def enforceable(schema: Mapping[str, Json]) -> Enforceable:
    """The schema, or a superset of it, with keys in the same order.

    Raises UnenforceableError with the engine's reason.
    """
    return _enforceable(json.dumps(schema))


@functools.lru_cache(maxsize=_REMEMBERED)
def _enforceable(text: str) -> Enforceable:
    given: dict[str, Json] = json.loads(text)
    fault = _fault(given)
    if fault is None:
        return Enforceable(given)
    given = spelled_out(given)
    if _fault(given) is None:
        return Enforceable(given)
    made = possible(given)
    if _NOTHING_FITS in fault or _fault(relaxed(given, made)) is not None:
        raise UnenforceableError(fault, pointer=pointer(_place_of_fault(given)))
    made = _fewer(given, made, [one for one in made if one.keyword not in _AT_A_DISTANCE])
    return Enforceable(relaxed(given, made), tuple(made))


def _fewer(
    schema: Mapping[str, Json], made: list[Relaxation], doubtful: Sequence[Relaxation]
) -> list[Relaxation]:
    """The relaxations that were made, without those of the doubtful ones that are not needed."""
    if not doubtful:
        return made
    without = [one for one in made if one not in doubtful]
    fault = _fault(relaxed(schema, without))
    if fault is None:
        return without
    if len(doubtful) == 1:
        if _NOTHING_FITS in fault:  # and whatever would be written without it would be refused later
            raise UnenforceableError(fault, pointer=doubtful[0].pointer)
        return made
    half = len(doubtful) // 2
    return _fewer(schema, _fewer(schema, made, doubtful[:half]), doubtful[half:])


def _place_of_fault(schema: Mapping[str, Json]) -> Place:
    """The innermost part without which the engine takes the schema."""
    place: Place = ()
    inner: Json = schema
    while True:
        for steps, part in _parts(inner):
            if _fault(_without(schema, (*place, *steps))) is None:
                place, inner = (*place, *steps), part
                break
        else:
            return place


def _parts(value: Json) -> Iterator[tuple[Place, Json]]:
    """What is directly inside, and what is inside that: `properties` is no schema, but its members are."""
    for step, part in _items(value):
        if isinstance(part, Mapping | list):
            yield (step,), part
            yield from (
                ((step, below), one) for below, one in _items(part) if isinstance(one, Mapping | list)
            )


def _items(value: Json) -> list[tuple[str | int, Json]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _without(part: Json, place: Place) -> Json:
    """With anything allowed at the place."""
    if not place:
        return True
    if isinstance(part, Mapping):
        return {key: _without(one, place[1:]) if key == place[0] else one for key, one in part.items()}
    if isinstance(part, list):
        return [_without(one, place[1:]) if index == place[0] else one for index, one in enumerate(part)]
    return part


@functools.cache
def _bytes() -> llguidance.LLTokenizer:
    """A vocabulary of single bytes: what is taken does not depend on the vocabulary."""
    return llguidance.LLTokenizer("byte")


def _fault(schema: Json) -> str | None:
    """Why the engine does not take a schema; None if it does."""
    fault = fault_of(llguidance.LLMatcher(_bytes(), "start: %json " + json.dumps(schema), log_level=0))
    return None if fault is None else _PREFIX.sub("", fault)
