"""Text that stands where a call may stand, to a valid call, an invalid one, or none.

It must not know where in the reply the text was, nor how it arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.jsonscan import CallScan
from agentspec.chat.strictjson import parse_json_strict, write_json
from agentspec.chat.validate import argument_fault, compile_tool, unknown_tool
from agentspec.types import BoundTool, InvalidCall, Json, NamedTool, ToolChoice, ValidCall

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
        self._only = choice.name if isinstance(choice, NamedTool) else None
        self._parallel = parallel
        # beside the family's own keys those of the other families: small models mix them up
        self._name_keys = {wire_format.name_key, "name"}
        self._argument_keys = {wire_format.arguments_key, "arguments", "parameters"}

    def scan(self, *, any_tool: bool = True) -> CallScan:
        """What follows an object that may be a call; of any tool, or of one that may be called."""
        names = [name for name in self._tools if self._only in (None, name)]
        return CallScan(self._name_keys, self._argument_keys, None if any_tool else names)

    def marked(self, raw: str, fault: str) -> ValidCall | InvalidCall:
        """The call that markers enclosed. `fault`: what is wrong with the text as a whole, or ""."""
        if fault:
            return self._counted(InvalidCall(None, raw, fault))
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

    def unfinished(self, raw: str, name: str | None, cut: str) -> InvalidCall:
        """The call that the end of the reply fell into. Never valid, also where its text happens to be."""
        self.count += 1
        return InvalidCall(name, raw, cut or "the reply ended within the call")

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
        if fault is None and name not in self._tools:
            fault = unknown_tool(name, self._tools)
        if fault is None and self._only not in (None, name):
            fault = f"tool_choice asks for {self._only!r}, not for {name!r}"
        if fault is None:
            fault = argument_fault(self._tools[name], arguments)
        return ValidCall(name, arguments) if fault is None else InvalidCall(name or None, raw, fault)

    def _parts(self, value: Mapping[str, Json]) -> tuple[str, Mapping[str, Json], str | None]:
        """Name, arguments, and what is wrong with the object around them."""
        names = [key for key in value if key in self._name_keys]
        arguments = [key for key in value if key in self._argument_keys]
        name = value[names[0]] if names else None
        if not isinstance(name, str) or not name:
            return "", {}, "the call names no tool"
        if len(names) > 1 or len(arguments) > 1:
            return name, {}, f"the call says twice what it is: {', '.join(names + arguments)}"
        others = value.keys() - {*names, *arguments, "type"}
        if others or value.get("type", "function") != "function":
            return name, {}, f"unexpected {min(others, default='type')!r} beside name and arguments"
        # some models leave out the arguments of a call that has none; the schema decides
        given = value[arguments[0]] if arguments else {}
        if not isinstance(given, Mapping):
            return name, {}, f"{arguments[0]}: expected an object"
        return name, given, None
