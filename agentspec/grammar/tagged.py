"""Arguments that are written in tags, one by one, as rules of a Lark grammar.

Strings are written as they are there, so of a string's schema the grammar holds values that are listed, and
the length; whatever else it says is checked after the reply. Other values are JSON, held to their schema.

It must not know tools or replies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentspec.chat.formats.base import Tags
from agentspec.chat.keywords import target
from agentspec.chat.typing import kinds_of, schema_of
from agentspec.types import Json

__all__ = ["tagged_rules"]

_MOST = 1 << 16  # characters of a string of which a repetition is written out
_ANY_KEY = r"/[A-Za-z0-9_.\-]{1,64}/"
_ROOT = "agentspec-arguments"  # a definition: the whole schema, for references to it


def tagged_rules(name: str, schema: Mapping[str, Json], tags: Tags, terms: Callable[[str], str]) -> list[str]:
    """The rules of the arguments of one call; the first is called `name`, the others begin with it.

    schema: of the arguments, in a form that the grammar engine takes
    terms:  text as Lark terms
    """
    writer = _Writer(schema, tags, terms)
    keys, needed, others = _keys(schema)
    parts: list[str] = []
    rules: list[str] = []
    for index, key in enumerate(keys):
        rule = f"{name}_{index}"
        parts.append(rule if key in needed else f"{rule}?")
        rules += writer.argument(rule, terms(key), schema_of(key, schema, schema))
    if others is not False:
        rule = f"{name}_more"
        parts.append(f"{rule}*")
        rules += writer.argument(rule, _ANY_KEY, [others])
    return [f"{name}: {' '.join(parts)} {terms(tags.close)}", *rules]


def _keys(schema: Mapping[str, Json]) -> tuple[list[str], set[str], Json]:
    """The keys that an object may have in their order, those that it must have, and what others may be."""
    keys: dict[str, None] = {}
    needed: set[str] = set()
    others: Json = True
    waiting: list[Json] = [schema]
    seen: set[str] = set()
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, Mapping):
            continue
        reference, every = part.get("$ref"), part.get("allOf")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            waiting.append(target(reference, schema))
        waiting += every if isinstance(every, list) else []
        properties, required = part.get("properties"), part.get("required")
        keys |= dict.fromkeys(properties if isinstance(properties, Mapping) else ())
        needed |= {str(key) for key in required} if isinstance(required, list) else set()
        if part.get("additionalProperties", True) is not True and "patternProperties" not in part:
            others = part["additionalProperties"]
    keys |= dict.fromkeys(sorted(needed - keys.keys()))
    return list(keys), needed, others


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the rules of single arguments. root: the schema of them all"""

    root: Mapping[str, Json]
    tags: Tags
    terms: Callable[[str], str]

    def argument(self, rule: str, key: str, schemas: list[Json]) -> list[str]:
        """schemas: all that is asked of the value"""
        tags, terms = self.tags, self.terms
        schema: Json = schemas[0] if len(schemas) == 1 else {"allOf": schemas} if schemas else True
        kinds = kinds_of(schema, self.root)
        begin = f"{terms(tags.begin)} {key}"
        choices: list[str] = []
        rules: list[str] = []
        if "string" in kinds:
            value, *rules = self._text(schema, f"{rule}_text")
            choices.append(f"{terms(tags.after_key)} {value}")
            kinds -= {"string"}
            if kinds and tags.after_json_key is not None:  # what else it may be, each in the widest sense
                schema = {"anyOf": [{"type": kind} for kind in sorted(kinds)]}
        if kinds and (not choices or tags.after_json_key is not None):
            after = tags.after_key if tags.after_json_key is None else tags.after_json_key
            choices.append(f"{terms(after)} {rule}_json {terms(tags.end)}")
            rules = [*rules, f"{rule}_json: %json {self._document(schema)}"]
        return [f"{rule}: {begin} ({' | '.join(choices)})", *rules]

    def _document(self, schema: Json) -> str:
        form = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
        document = dict(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}
        if '"$ref"' in json.dumps(document):
            whole = {_ROOT: _moved(self.root)}
            document = {**_moved(document), "$defs": whole}
        return json.dumps({**document, "x-guidance": form})

    def _text(self, schema: Json, rule: str) -> list[str]:
        """A string and the text behind it; then the rules that this takes."""
        given = schema if isinstance(schema, Mapping) else {}
        end = self.tags.end
        listed = [given["const"]] if "const" in given else given.get("enum")
        if isinstance(listed, list):
            texts = [value for value in listed if isinstance(value, str) or self.tags.after_json_key is None]
            return [f"({' | '.join(json.dumps(_shown(value)) for value in texts)}) {self.terms(end)}"]
        # as the parser reads it: up to the end itself, the white space in front of it included
        stop = end.lstrip()
        following = self.terms(stop)
        expression = f"/(?s:.){_size(given, len(end) - len(stop))}/"
        if following.startswith("<["):  # a special token; its spelling is no text of a value either
            spelled = re.escape(stop.split(">")[0] + ">").replace("/", r"\/")
            return [
                f"{rule.upper()} {following}",
                f"{rule.upper()}: {expression} & ~/(?s:.*){spelled}(?s:.*)/",
            ]
        core = stop.rstrip()
        return [
            f"{rule} {self.terms(stop[len(core) :])}",
            f"{rule}[suffix={json.dumps(core)}]: {expression}",
        ]


def _size(schema: Mapping[str, Json], space: int) -> str:
    """How many characters. space: of those that the end of the tag begins with, which come on top"""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    low = min(int(least), _MOST) if isinstance(least, int | float) else 0
    if not isinstance(most, int | float) or most > _MOST - space:
        return f"{{{low},}}" if low else "*"
    return f"{{{min(low, int(most))},{int(most) + space}}}"


def _moved(part: Json) -> dict[str, Json]:
    moved = _references_moved(part)
    return moved if isinstance(moved, dict) else {}


def _references_moved(part: Json) -> Json:
    """With references to the document as references to the definition that it is now."""
    if isinstance(part, Mapping):
        return {
            key: f"#/$defs/{_ROOT}{value[1:]}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _references_moved(value)
            for key, value in part.items()
        }
    return [_references_moved(one) for one in part] if isinstance(part, list) else part


def _shown(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
