"""The one place that writes a call as text: history, tests and benchmarks all use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from agentspec.chat.formats.base import Hole, Parts, Tags, WireFormat
from agentspec.chat.strictjson import write_json
from agentspec.types import Json

__all__ = ["filled", "render_call", "render_calls", "written_as"]


def render_call(wire_format: WireFormat, name: str, arguments: Mapping[str, Json]) -> str:
    """The call as a model of this family writes it, its own markers included, keys in the order given."""
    return wire_format.begin + _body(wire_format, name, arguments) + wire_format.end


def render_calls(wire_format: WireFormat, calls: Iterable[tuple[str, Mapping[str, Json]]]) -> str:
    """Several (name, arguments) in one reply, with all that is around them."""
    written = wire_format.between.join(render_call(wire_format, name, arguments) for name, arguments in calls)
    return wire_format.opening + written + wire_format.closing


def written_as(wire_format: WireFormat, name: str, arguments: Mapping[str, Json]) -> re.Pattern[str]:
    """What the call looks like in a reply, whatever ids it has."""
    holes: list[Hole] = []

    def marked(hole: Hole) -> Hole:
        holes.append(hole)
        return replace(hole, example=f"\ue000{len(holes) - 1}\ue001")

    def all_marked(parts: Parts) -> Parts:
        return tuple(part if isinstance(part, str) else marked(part) for part in parts)

    own = wire_format.json_id
    known = replace(
        wire_format,
        before_name=all_marked(wire_format.before_name),
        after_name=all_marked(wire_format.after_name),
        json_id=None if own is None else replace(own, value=marked(own.value)),
    )
    text = re.escape(render_calls(known, [(name, arguments)]).strip())
    return re.compile(re.sub("\ue000(\\d+)\ue001", lambda found: f"(?:{holes[int(found[1])].pattern})", text))


def filled(parts: Parts) -> str:
    """The parts of a call with an example in each hole."""
    return "".join(part if isinstance(part, str) else part.example for part in parts)


def _body(wire_format: WireFormat, name: str, arguments: Mapping[str, Json]) -> str:
    if wire_format.after_name:
        head = filled(wire_format.before_name) + name + filled(wire_format.after_name)
        return head + (
            write_json(arguments) if wire_format.tags is None else _tagged(wire_format.tags, arguments)
        )
    body: dict[str, Json] = {wire_format.name_key: name, wire_format.arguments_key: arguments}
    if (own := wire_format.json_id) is not None:
        shown: dict[str, Json] = {own.key: own.value.example}
        body = {**shown, **body} if own.first else {**body, **shown}
    return write_json(body)


def _tagged(tags: Tags, arguments: Mapping[str, Json]) -> str:
    written = []
    for key, value in arguments.items():
        after = tags.after_key
        if not isinstance(value, str) and tags.after_json_key is not None:
            after = tags.after_json_key
        text = value if isinstance(value, str) else write_json(value)
        written.append(f"{tags.begin}{key}{after}{text}{tags.end}")
    return "".join(written) + tags.close
