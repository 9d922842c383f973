"""Text that stands where a call may stand, to a valid call, an invalid one, or none.

It must not know where in the reply the text was, nor how it arrived.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from agentspec.chat.formats.base import Parts, WireFormat
from agentspec.chat.jsonscan import CallScan, NamedScan
from agentspec.chat.marked import MarkedCall, Scan
from agentspec.chat.schema import closed_schema
from agentspec.chat.strictjson import parse_json_strict, write_json
from agentspec.chat.tagscan import TaggedScan, TaggedValue
from agentspec.chat.typing import kinds_of, read_value, schema_of
from agentspec.chat.validate import argument_fault, compile_tool, unknown_tool
from agentspec.types import BoundTool, InvalidCall, Json, NamedTool, NamedTools, ToolChoice, ValidCall

__all__ = ["CallReader"]


class CallReader:
    """Reads the calls of one reply.

    count: calls read so far, invalid ones included
    """

    def __init__(
        self, wire_format: WireFormat, tools: Sequence[BoundTool], choice: ToolChoice, *, parallel: bool
    ) -> None:
        """Raises SchemaError for a tool whose schema is broken."""
        self.count = 0
        self._tools = {tool.name: tool for tool in tools}
        for tool in tools:
            compile_tool(tool)
        self._only: tuple[str, ...] | None = None  # the tools that may be called, where not all
        match choice:
            case NamedTool(name):
                self._only = (name,)
            case NamedTools(names):
                self._only = names
        self._parallel = parallel
        self._head = _head(wire_format) if wire_format.after_name else None
        self._tags = wire_format.tags
        # beside the family's own keys those of the other families: small models mix them up
        self._name_keys = {wire_format.name_key, "name"}
        self._argument_keys = {wire_format.arguments_key, "arguments", "parameters"}
        own = wire_format.json_id
        self._id_keys = {"id"} if own is None else {"id", own.key}
        self._other_keys = {"type"} if own is None else {"type", own.key}

    def scan(self, *, any_tool: bool = True) -> CallScan:
        """What follows an object that may be a call; of any tool, or of one that may be called."""
        names = [name for name in self._tools if self._only is None or name in self._only]
        return CallScan(self._name_keys, self._argument_keys, self._id_keys, None if any_tool else names)

    def marked_scan(self) -> Scan:
        """What follows a call behind a marker."""
        if self._head is None:
            return self.scan()
        return NamedScan(self._head) if self._tags is None else TaggedScan(self._head, self._tags)

    def so_far(self, call: MarkedCall) -> tuple[str, str] | None:
        """Name and arguments (JSON, or what there is of it) of a call that may be under way; None where there
        is nothing to say yet, or the call cannot be valid."""
        tool = self._tools.get(call.name or "")
        if tool is None or (self._only is not None and tool.name not in self._only):
            return None
        if call.values is None:
            return (tool.name, call.written) if call.written else None
        schema = closed_schema(tool.parameters)
        pairs = [f"{write_json(one.key)}: {write_json(_value(one, schema))}" for one in call.values]
        if not pairs and not call.whole:
            return None
        return tool.name, "{" + ", ".join(pairs) + ("}" if call.whole else "")

    def faulty(self, raw: str, fault: str) -> InvalidCall:
        """What stood behind a marker and is no call."""
        self.count += 1
        return InvalidCall(None, raw, fault)

    def marked(self, call: MarkedCall) -> ValidCall | InvalidCall:
        """A call behind a marker."""
        raw = call.raw
        if call.values is not None:
            return self._counted(self._tagged(call, call.values))
        if call.arguments:
            return self._counted(self._named(call))
        try:
            value = parse_json_strict(raw)
        except ValueError as error:
            return self._counted(InvalidCall(None, raw, str(error)))
        return self._counted(self._call(value, raw))

    def bare(self, raw: str, *, keep_invalid: bool) -> list[ValidCall | InvalidCall]:
        """The calls of a bare object or array; none if it is text, which it is unless every one fits.

        keep_invalid: what does not fit is an invalid call, not text
        """
        try:
            value = parse_json_strict(raw)
        except ValueError as error:
            return [self._counted(InvalidCall(None, raw, str(error)))] if keep_invalid else []
        items = value if isinstance(value, list) else [value]
        calls = [self._call(item, raw) for item in items]
        if not keep_invalid and not all(isinstance(call, ValidCall) for call in calls):
            return []
        return [self._counted(call) for call in calls]

    def unfinished(self, raw: str, name: str | None, fault: str) -> InvalidCall:
        """The call that the end of the reply fell into. Never valid, also where its text happens to be."""
        self.count += 1
        return InvalidCall(name, raw, fault or "the reply ended within the call")

    def _counted(self, call: ValidCall | InvalidCall) -> ValidCall | InvalidCall:
        self.count += 1
        if self.count > 1 and not self._parallel:
            raw = call.raw if isinstance(call, InvalidCall) else write_json(call.arguments)
            return InvalidCall(call.name, raw, "only one call a reply was allowed, and this is a further one")
        return call

    def _call(self, value: Json, raw: str) -> ValidCall | InvalidCall:
        if not isinstance(value, Mapping):
            return InvalidCall(None, raw, "a call must be a JSON object")
        name, arguments, fault = self._parts(value)
        if fault is not None:
            return InvalidCall(name or None, raw, fault)
        return self._checked(name, arguments, raw)

    def _checked(self, name: str, arguments: Mapping[str, Json], raw: str) -> ValidCall | InvalidCall:
        if name not in self._tools:
            return InvalidCall(name or None, raw, unknown_tool(name, self._tools))
        if self._only is not None and name not in self._only:
            wanted = " or ".join(map(repr, self._only))
            return InvalidCall(name, raw, f"tool_choice asks for {wanted}, not for {name!r}")
        fault = argument_fault(self._tools[name], arguments)
        return ValidCall(name, arguments) if fault is None else InvalidCall(name, raw, fault)

    def _named(self, call: MarkedCall) -> ValidCall | InvalidCall:
        try:
            arguments = parse_json_strict(call.arguments)
        except ValueError as error:
            return InvalidCall(call.name, call.raw, f"arguments: {error}")
        if not isinstance(arguments, Mapping):
            return InvalidCall(call.name, call.raw, "arguments: expected an object")
        return self._checked(call.name or "", arguments, call.raw)

    def _tagged(self, call: MarkedCall, values: Sequence[TaggedValue]) -> ValidCall | InvalidCall:
        name = call.name or ""
        tool = self._tools.get(name)
        schema = {} if tool is None else closed_schema(tool.parameters)
        arguments: dict[str, Json] = {}
        for value in values:
            if value.key in arguments:
                return InvalidCall(name, call.raw, f"arguments: {value.key!r} is given twice")
            arguments[value.key] = _value(value, schema)
        return self._checked(name, arguments, call.raw)

    def _parts(self, value: Mapping[str, Json]) -> tuple[str, Mapping[str, Json], str | None]:
        """Name, arguments, and what is wrong with the object around them."""
        names = [key for key in value if key in self._name_keys]
        arguments = [key for key in value if key in self._argument_keys]
        name = value[names[0]] if names else None
        if not isinstance(name, str) or not name:
            return "", {}, "the call names no tool"
        if len(names) > 1 or len(arguments) > 1:
            return name, {}, f"the call says twice what it is: {', '.join(names + arguments)}"
        others = value.keys() - {*names, *arguments, *self._other_keys}
        if isinstance(value.get("id"), str):
            others -= {"id"}  # some families give their calls one; it is of no use here
        if others or value.get("type", "function") != "function":
            return name, {}, f"unexpected {min(others, default='type')!r} beside name and arguments"
        # some models leave out the arguments of a call that has none; the schema decides
        given = value[arguments[0]] if arguments else {}
        if not isinstance(given, Mapping):
            return name, {}, f"{arguments[0]}: expected an object"
        return name, given, None


def _value(value: TaggedValue, schema: Mapping[str, Json]) -> Json:
    """What a tagged text is, by the schema of its key."""
    if value.is_text:
        return value.text
    kinds = kinds_of({"allOf": schema_of(value.key, schema, schema)}, schema)
    return read_value(value.text, kinds - {"string"} if value.is_text is False else kinds)


def _head(wire_format: WireFormat) -> re.Pattern[str]:
    """What stands before the arguments, the name included, with white space anywhere between its parts."""
    before, after = _loose(wire_format.before_name), _loose(wire_format.after_name)
    return re.compile(rf"{before}\s*(?P<name>\S+?)\s*{after}")


def _loose(parts: Parts) -> str:
    """An expression for the parts, with any white space between their words."""
    written = []
    for part in parts:
        words = (
            [re.escape(word) for word in part.split()] if isinstance(part, str) else [f"(?:{part.pattern})"]
        )
        written += words
    return "".join(rf"{word}\s*" for word in written)
