"""Puts a conversation into a form that a template can render, losing nothing.

Pure functions over turns. It must not know Jinja.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from agentspec.chat.capabilities import Capabilities
from agentspec.chat.formats.base import WireFormat
from agentspec.chat.formats.render import render_calls
from agentspec.chat.strictjson import write_json
from agentspec.errors import TemplateError
from agentspec.types import AssistantTurn, Json, SystemTurn, ToolTurn, Turn, UserTurn

__all__ = ["Reshaping"]


@dataclass(frozen=True, slots=True)
class Reshaping:
    """shows_tools, writes_calls: whether the template itself does, past calls in `wire_format`"""

    can: Capabilities
    wire_format: WireFormat
    shows_tools: bool
    writes_calls: bool

    def apply(self, turns: Sequence[Turn], tools: Sequence[Json]) -> list[Turn]:
        """The turns to render. Raises TemplateError where tools cannot be explained to the model."""
        shaped = [_with_failure(turn) for turn in turns]
        if not self.writes_calls:
            shaped = _calls_as_text(shaped, self.wire_format)
        elif not self.can.several:
            shaped = _one_call_a_turn(shaped)
        if tools and not self.shows_tools:
            shaped = self._explain(shaped, tools)
        if self.can.system != "anywhere":
            shaped = _fold_system(shaped, keep_first=self.can.system == "first")
        if not self.can.repeats:
            shaped = _join_repeats(shaped)
        return shaped

    def _explain(self, turns: Sequence[Turn], tools: Sequence[Json]) -> list[Turn]:
        if not self.wire_format.instructions:
            raise TemplateError(
                f"the chat template does not show tools as wire format {self.wire_format.name!r} has them, "
                "and that format has no text of its own to explain them with",
                hint="choose another wire_format=, or none to have it found from the template",
            )
        listing = "\n".join(write_json(tool) for tool in tools)
        text = self.wire_format.instructions.replace("[{tools}]", write_json(tools))
        text = text.replace("{tools}", listing)
        match turns:
            case [SystemTurn(system), *rest]:
                return [SystemTurn(f"{system}\n\n{text}"), *rest]
            case _:
                return [SystemTurn(text), *turns]


def _with_failure(turn: Turn) -> Turn:
    # chat templates have no notion of a failed call: the text must say it
    if isinstance(turn, ToolTurn) and turn.failed and "error" not in turn.text[:80].lower():
        return replace(turn, text=f"Error: {turn.text}")
    return turn


def _calls_as_text(turns: Sequence[Turn], wire_format: WireFormat) -> list[Turn]:
    shaped: list[Turn] = []
    for is_result, group in groupby(turns, lambda turn: isinstance(turn, ToolTurn)):
        if is_result:
            results = [f"<tool_response>\n{turn.text}\n</tool_response>" for turn in group]
            shaped.append(UserTurn("\n".join(results)))
        else:
            shaped.extend(_call_as_text(turn, wire_format) for turn in group)
    return shaped


def _call_as_text(turn: Turn, wire_format: WireFormat) -> Turn:
    if not isinstance(turn, AssistantTurn) or not turn.calls:
        return turn
    written = render_calls(wire_format, ((name, arguments) for _, name, arguments in turn.calls))
    return replace(turn, text=_paragraphs([turn.text, written], "\n"), calls=())


def _one_call_a_turn(turns: Sequence[Turn]) -> list[Turn]:
    """Calls made at once become calls made one after the other, each followed by its result."""
    results = {turn.call_id: turn for turn in turns if isinstance(turn, ToolTurn)}
    shaped: list[Turn] = []
    moved: set[str] = set()
    for turn in turns:
        if isinstance(turn, AssistantTurn) and len(turn.calls) > 1:
            for index, call in enumerate(turn.calls):
                rest = AssistantTurn("", (call,))
                shaped.append(rest if index else replace(turn, calls=(call,)))
                if call[0] in results:
                    shaped.append(results[call[0]])
                    moved.add(call[0])
        elif not (isinstance(turn, ToolTurn) and turn.call_id in moved):
            shaped.append(turn)
    return shaped


def _fold_system(turns: Sequence[Turn], *, keep_first: bool) -> list[Turn]:
    """System turns go into the next user turn; `keep_first` leaves those at the start, as one."""
    start = 0
    while start < len(turns) and isinstance(turns[start], SystemTurn):
        start += 1
    shaped: list[Turn] = []
    waiting = [turn.text for turn in turns[:start] if isinstance(turn, SystemTurn)]
    if keep_first and waiting:
        shaped.append(SystemTurn(_paragraphs(waiting)))
        waiting = []
    for turn in turns[start:]:
        match turn:
            case SystemTurn(text):
                waiting.append(text)
            case UserTurn(text):
                shaped.append(replace(turn, text=_paragraphs([*waiting, text])))
                waiting = []
            case _:
                shaped.append(turn)
    if waiting:  # no user turn follows
        shaped.append(UserTurn(_paragraphs(waiting)))
    return shaped


def _join_repeats(turns: Sequence[Turn]) -> list[Turn]:
    shaped: list[Turn] = []
    for turn in turns:
        match shaped[-1] if shaped else None, turn:
            case SystemTurn(first), SystemTurn(second):
                shaped[-1] = SystemTurn(_paragraphs([first, second]))
            case UserTurn(first, name), UserTurn(second):
                shaped[-1] = UserTurn(_paragraphs([first, second]), name)
            case AssistantTurn(first, (), before), AssistantTurn(second, calls, reasoning):
                thought = _paragraphs([before, reasoning])
                shaped[-1] = AssistantTurn(_paragraphs([first, second]), calls, thought)
            case _:
                shaped.append(turn)
    return shaped


def _paragraphs(texts: Iterable[str], between: str = "\n\n") -> str:
    return between.join(text for text in texts if text)
