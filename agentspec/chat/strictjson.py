"""JSON text, read strictly and written one way.

Reading refuses what `json.loads` lets through silently: repeated keys, NaN, numbers beyond float range and
lone surrogates. Writing uses the separators that chat templates use, so that a call in the history, a call
in a test and a call the grammar allows are the same text. It must not know schemas, tools or formats.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

from agentspec.types import Json

__all__ = ["parse_json_strict", "plain", "write_json"]

_MAX_DIGITS = 310  # what a float can hold, and far from where int() refuses


def parse_json_strict(text: str) -> Json:
    """The value that `text` spells (RFC 8259, with unique keys and values that a float and UTF-8 can hold).

    Raises ValueError with a short reason.
    """
    try:
        value: Json = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_constant,
            parse_float=_finite,
            parse_int=_bounded,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if "\\u" in text or not text.isascii():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a string holds half of a surrogate pair") from None
    return value


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    # json.loads keeps the last of repeated keys: a reader that keeps the first would run another call
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} appears twice")
    return result


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:24]} is out of range")
    return value


def _bounded(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"the number {text[:24]}… is out of range")
    return int(text)


def write_json(value: Json) -> str:
    """`value` as one line, with ", " and ": ", non-ASCII as it is, keys in their order.

    Raises ValueError for NaN and infinities.
    """
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def plain(value: Json) -> Json:
    """`value` with every mapping a dict and every sequence a list, as json and Jinja expect; a copy."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    return value
