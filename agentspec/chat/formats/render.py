"""The one place that writes a call as text: history, tests and benchmarks all use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.strictjson import write_json
from agentspec.types import Json

__all__ = ["render_call", "render_calls"]


def render_call(wire_format: WireFormat, name: str, arguments: Mapping[str, Json]) -> str:
    """The call as a model of this family writes it, markers included, keys in the order given."""
    body = write_json({wire_format.name_key: name, wire_format.arguments_key: arguments})
    return wire_format.begin + body + wire_format.end


def render_calls(wire_format: WireFormat, calls: Iterable[tuple[str, Mapping[str, Json]]]) -> str:
    """Several (name, arguments) in one reply."""
    return wire_format.between.join(render_call(wire_format, name, arguments) for name, arguments in calls)
