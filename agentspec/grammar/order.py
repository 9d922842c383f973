"""Schemas with their properties in the order in which a model writes them.

A grammar takes the keys of an object in the order of its schema, so this is how it follows another one. It
must not know how orders are learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from agentspec.types import Json

__all__ = ["Orders", "in_order"]

Orders: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Keys as objects were written with them, each under the first string of the value that the object was in (of
a call, the tool's name); the latest last."""


def in_order(schema: Mapping[str, Json], keys: Sequence[tuple[str, ...]]) -> dict[str, Json]:
    """The schema with the properties of each object in the order in which they were written.

    keys: of objects that were written, the latest last. One that has keys which a schema does not name says
          nothing about it; properties that it has not stay behind the one that they were behind.
    """
    copy = {name: _part_in_order(part, keys) for name, part in schema.items()}
    properties = copy.get("properties")
    if isinstance(properties, dict):
        for written in keys:
            properties = _ordered(properties, written)
        copy["properties"] = properties
    return copy


def _part_in_order(part: Json, keys: Sequence[tuple[str, ...]]) -> Json:
    if isinstance(part, Mapping):
        return in_order(part, keys)
    if isinstance(part, Sequence) and not isinstance(part, str):
        return [_part_in_order(item, keys) for item in part]
    return part


def _ordered(properties: dict[str, Json], keys: tuple[str, ...]) -> dict[str, Json]:
    if not properties.keys() >= {*keys}:
        return properties
    first: list[str] = []
    behind: dict[str, list[str]] = {key: [key] for key in keys}
    place = first
    for name in properties:
        if name in behind:
            place = behind[name]
        else:
            place.append(name)
    names = [*first, *(name for key in keys for name in behind[key])]
    return {name: properties[name] for name in names}
