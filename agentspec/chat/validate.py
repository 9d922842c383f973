"""Decides whether a call may run: the tool exists, the JSON is sound, the schema and the tool's check agree.

This is asked of every call, also of one that a grammar has shaped: grammar engines let some things through
(repeated keys, dates that do not exist), and a reply may not have been under a grammar at all. Nothing is
repaired. It must not know how a call was found in a reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from typing import Any, TypeAlias

import jsonschema
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.jsonschema import Schema

from agentspec.chat.keywords import LISTS, MAPS, ONE, upgraded
from agentspec.chat.schema import (
    check_document,
    check_parameters,
    check_tool,
    closed_document,
    closed_schema,
    title_of,
)
from agentspec.chat.strictjson import parse_json_strict, write_json
from agentspec.errors import SchemaError
from agentspec.types import BoundTool, InvalidCall, Json, ValidCall

__all__ = [
    "argument_fault",
    "check_tool",
    "compile_tool",
    "document_fault",
    "parse_json_strict",
    "unknown_tool",
    "validate_call",
]

_LIMIT = 300  # characters of a reason: it goes back to the model


def validate_call(tools: Mapping[str, BoundTool], name: str, raw_arguments: str) -> ValidCall | InvalidCall:
    """The call of `name` with the arguments that `raw_arguments` spells.

    Raises SchemaError if the tool's own schema is broken (see `check_tool`).
    """
    tool = tools.get(name)
    if tool is None:
        return InvalidCall(name, raw_arguments, unknown_tool(name, tools))
    try:
        arguments = parse_json_strict(raw_arguments)
    except ValueError as error:
        return InvalidCall(name, raw_arguments, f"arguments: {error}")
    if not isinstance(arguments, dict):
        return InvalidCall(name, raw_arguments, f"arguments: expected an object, got {_kind(arguments)}")
    fault = argument_fault(tool, arguments)
    return ValidCall(name, arguments) if fault is None else InvalidCall(name, raw_arguments, fault)


def argument_fault(tool: BoundTool, arguments: Mapping[str, Json]) -> str | None:
    """Why these arguments do not fit the tool; None if they do.

    Raises SchemaError if the tool's own schema is broken.
    """
    fault = _fault(_validators(tool), arguments, "arguments")
    if fault is not None:
        return fault
    if tool.check is None:
        return None
    try:
        tool.check(arguments)
    except ValueError as error:
        return _short(f"arguments: {error}")
    return None


def document_fault(schema: Mapping[str, Json], text: str) -> str | None:
    """Why a text is not one JSON document of this schema; None if it is.

    Raises SchemaError, whose tool is the schema's title, if the schema is broken.
    """
    try:
        value = parse_json_strict(text)
    except ValueError as error:
        return _short(f"document: {error}")
    return _fault(_compile(title_of(schema), write_json(schema), document=True), value, "document")


def compile_tool(tool: BoundTool) -> None:
    """Makes the tool's validator now, so that a broken schema is found before a reply is generated.

    Raises SchemaError.
    """
    _validators(tool)


def unknown_tool(name: str, tools: Iterable[str]) -> str:
    """The reason for a call of a tool that is not bound."""
    return _short(f"unknown tool {name!r}; the tools are: {', '.join(tools) or 'none'}")


# ---------------------------------------------------------------------------------------- validators

_Validators: TypeAlias = tuple[jsonschema.Draft202012Validator, ...]


def _fault(validators: _Validators, value: Json, root: str) -> str | None:
    """Why a value does not fit every schema; it is called `root`."""
    try:
        for validator in validators:
            error = best_match(validator.iter_errors(value))
            if error is not None:
                return _explain(error, root)
    except RecursionError:
        return f"{root}: nested too deeply"
    except ArithmeticError:
        return f"{root}: a number is out of range"
    return None


def _validators(tool: BoundTool) -> _Validators:
    try:
        text = write_json(tool.parameters)
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaError(f"its schema is not JSON: {error}", tool=tool.name) from None
    return _compile(tool.name, text)


@lru_cache(maxsize=512)
def _compile(name: str, text: str, *, document: bool = False) -> _Validators:
    # by text: a tool holds a mapping, so it cannot be hashed, and its id may come back for another
    given = json.loads(text)
    if document:
        check_document(name, given)
    else:
        check_parameters(name, given)
    given = upgraded(given)
    given.pop("$schema", None)
    closed = closed_document(given) if document else closed_schema(given)
    # the schema as given too: inside `oneOf`, closing can make valid what was not
    return tuple(_validator(schema) for schema in ((closed,) if closed == given else (closed, given)))


def _validator(schema: Mapping[str, Json]) -> jsonschema.Draft202012Validator:
    # a registry of its own has no way to fetch: a remote reference fails
    registry: Registry[Schema] = Registry()
    given = _for_python(schema)
    return jsonschema.Draft202012Validator(given, format_checker=_FORMATS, registry=registry)


def _for_python(schema: Mapping[str, Json]) -> dict[str, Json]:
    """The schema with patterns in Python's words, without what would choose another validator inside it."""
    copy: dict[str, Json] = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            copy[key] = _ended(value)
        elif key in MAPS and isinstance(value, Mapping):
            named = _ended if key == "patternProperties" else str
            copy[key] = {named(name): _part_for_python(one) for name, one in value.items()}
        elif key in ONE or key in LISTS:
            copy[key] = _part_for_python(value)
        elif key != "$schema":
            copy[key] = value
    return copy


def _part_for_python(value: Json) -> Json:
    if isinstance(value, Mapping):
        return _for_python(value)
    return [_part_for_python(one) for one in value] if isinstance(value, list) else value


def _ended(pattern: str) -> str:
    """A pattern whose `$` is the end of the text, as in ECMA 262; Python's fits before a line break, too."""
    ended = _DOLLAR.sub(lambda found: _END if found[0] == "$" else found[0], pattern)
    try:
        re.compile(ended)
    except re.error:
        return pattern
    return ended


_END = r"\Z"
_DOLLAR = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\$", re.DOTALL)  # or where it is a character

_FORMATS = jsonschema.FormatChecker(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)

_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_TIME_PATTERN = re.compile(_TIME, re.ASCII)
_DATE_TIME_PATTERN = re.compile(r"(\d{4}-\d{2}-\d{2})[tT]" + _TIME, re.ASCII)


@_FORMATS.checks("time")
def _is_time(value: object) -> bool:
    """RFC 3339 full-time. jsonschema checks this and date-time only with packages we do without."""
    return not isinstance(value, str) or _TIME_PATTERN.fullmatch(value) is not None


@_FORMATS.checks("date-time", raises=ValueError)
def _is_date_time(value: object) -> bool:
    """RFC 3339 date-time. Raises ValueError for a day that does not exist."""
    if not isinstance(value, str):
        return True
    match = _DATE_TIME_PATTERN.fullmatch(value)
    return match is not None and bool(date.fromisoformat(match[1]))


# ------------------------------------------------------------------------------------------- reasons


def _explain(error: jsonschema.ValidationError, root: str) -> str:
    place = root + error.json_path.removeprefix("$")
    wanted: Any = error.validator_value  # its kind is the keyword's
    value: Any = error.instance
    match error.validator:
        case "type":
            kinds = [wanted] if isinstance(wanted, str) else list(wanted)
            reason = f"expected {' or '.join(kinds)}, got {_kind(value)}"
        case "enum":
            reason = f"expected one of {write_json(wanted)}, got {_shown(value)}"
        case "const":
            reason = f"expected {_shown(wanted)}, got {_shown(value)}"
        case "required":
            reason = error.message.replace("is a required property", "is missing")
        case "additionalProperties" if isinstance(error.schema, Mapping) and isinstance(value, Mapping):
            known = error.schema.get("properties", {})
            extra = ", ".join(repr(name) for name in value if name not in known)
            reason = f"unexpected {extra}; the keys are: {', '.join(known) or 'none'}"
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" as keyword:
            reason = f"expected {keyword} {wanted}, got {_shown(value)}"
        case "format" | "pattern" as keyword:
            reason = f"expected {keyword} {wanted.replace(_END, '$')!r}, got {_shown(value)}"
        case _:
            reason = error.message
    return _short(f"{place}: {reason}")


def _kind(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"


def _shown(value: Json) -> str:
    return _short(write_json(value), 60)


def _short(text: str, limit: int = _LIMIT) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
