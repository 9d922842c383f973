"""Arguments that are written in tags, one by one, as rules of a Lark grammar.

Strings are written as they are there, so of a string's schema the grammar holds values that are listed, and
the length; whatever else it says is checked after the reply. Other values are JSON, held to their schema.

It must not know tools or replies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from agentspec.chat.formats.base import Tags
from agentspec.chat.typing import kinds_of
from agentspec.types import Json

__all__ = ["tagged_rules"]

_MOST = 1 << 16  # characters of a string that names no bound: more than any context holds
_ANY_KEY = r"[A-Za-z0-9_.\-]{1,64}"


def tagged_rules(name: str, schema: Mapping[str, Json], tags: Tags, terms: Callable[[str], str]) -> list[str]:
    """The rules of the arguments of one call; the first is called `name`, the others begin with it.

    schema: of the arguments, in a form that the grammar engine takes
    terms:  text as Lark terms
    """
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        properties = {}
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    rules: list[str] = []
    parts: list[str] = []
    for index, (key, given) in enumerate(properties.items()):
        rule = f"{name}_{index}"
        parts.append(rule if key in needed else f"{rule}?")
        rules += _argument(rule, terms(key), given, schema, tags, terms)
    if schema.get("additionalProperties", True) is not False:
        rule = f"{name}_more"
        parts.append(f"{rule}*")
        rules += _argument(rule, f"/{_ANY_KEY}/", True, schema, tags, terms)
    return [f"{name}: {' '.join(parts)} {terms(tags.close)}", *rules]


def _argument(
    rule: str,
    key: str,
    schema: Json,
    root: Mapping[str, Json],
    tags: Tags,
    terms: Callable[[str], str],
) -> list[str]:
    begin = f"{terms(tags.begin)} {key}"
    if not isinstance(schema, Mapping) or "string" in kinds_of(schema, root):
        value = _text(schema if isinstance(schema, Mapping) else {}, tags.end, f"{rule}_text", terms)
        return [f"{rule}: {begin} {terms(tags.after_key)} {value[0]}", *value[1:]]
    after = tags.after_key if tags.after_json_key is None else tags.after_json_key
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    form = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    document = json.dumps({**schema, **definitions, "x-guidance": form})
    return [
        f"{rule}: {begin} {terms(after)} {rule}_json {terms(tags.end)}",
        f"{rule}_json: %json {document}",
    ]


def _text(schema: Mapping[str, Json], end: str, rule: str, terms: Callable[[str], str]) -> list[str]:
    """A string and the text behind it; then the rules that this takes."""
    listed = schema.get("enum")
    if listed is None and "const" in schema:
        listed = [schema["const"]]
    if isinstance(listed, list):
        choices = " | ".join(json.dumps(_shown(value)) for value in listed)
        return [f"({choices}) {terms(end)}"]
    least, most = schema.get("minLength", 0), schema.get("maxLength", _MOST)
    size = (
        f"{{{least if isinstance(least, int) else 0},{min(most, _MOST) if isinstance(most, int) else _MOST}}}"
    )
    expression = "/(?s:.)*/" if size == f"{{0,{_MOST}}}" else f"/(?s:.){size}/"
    following = terms(end)
    if following.startswith("<"):  # a special token, which no text can be
        return [f"{rule} {following}", f"{rule}: {expression}"]
    return [rule, f"{rule}[suffix={json.dumps(end)}]: {expression}"]


def _shown(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
