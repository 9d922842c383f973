"""Every call that is recorded here, cut at every byte, in every form: what was cut is never a call.

Not by the parser, and not in the message that LangChain gets: there it is an invalid call, with the text as
the model wrote it. Calls that were whole before stay.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from agentspec.bench.workload import load_workload
from agentspec.chat.detect import detect
from agentspec.chat.formats import HERMES, LLAMA3, WireFormat, render_call, render_calls
from agentspec.chat.parser import CallEvent, ReplyEvent, ReplyParser
from agentspec.engine.request import Result
from agentspec.langchain.reply import ReplyBuilder, raw_of
from agentspec.trace import Trace
from agentspec.types import BoundTool, FinishReason, InvalidCall, ValidCall
from tests.unit.example_tools import TOOL_FILES, Call, bound, calls_of
from tests.unit.small_templates import ARRAY, XML
from tests.unit.test_chat_parser import REPLIES
from tests.unit.test_chat_parser import TOOLS as WEATHER_TOOLS

End = tuple[FinishReason, bool]
"""How a reply ended, and whether its grammar would have let it."""

CUTS: Sequence[End] = (("length", False), ("cancelled", False), ("stop", False))
DERIVED = (detect(ARRAY, eos="</s>"), detect(XML, ends=["<|im_end|>"]))
WIRES = {"hermes": HERMES, "llama3": LLAMA3, "array": DERIVED[0], "tags": DERIVED[1]}

every_form = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)


class Recorded(NamedTuple):
    """Calls of one reply, and the tools that they are of."""

    calls: list[Call]
    tools: Sequence[BoundTool]


def golden() -> Iterator[Recorded]:
    """The calls of the golden replies."""
    for text in REPLIES.values():
        parser = ReplyParser(HERMES, WEATHER_TOOLS, "auto")
        events = [*parser.feed(text.encode()), *parser.finish("stop")]
        calls = [(call.name, dict(call.arguments)) for call in valid(events)]
        if calls:
            yield Recorded(calls, WEATHER_TOOLS)


def examples() -> Iterator[Recorded]:
    """The calls of the example tools: of each file two in one reply, the others one by one."""
    for path in TOOL_FILES:
        tools, calls = bound(path), calls_of(path)
        for some in [calls[:2], *([call] for call in calls[2:])]:
            yield Recorded(some, [tools[name] for name in {name: None for name, _ in some}])


def worked() -> Iterator[Recorded]:
    """The calls of the agents in the benchmarks' conversations."""
    for turn in load_workload().calls:
        assert turn.call is not None
        name, arguments = turn.call
        yield Recorded([(name, dict(arguments))], [tool for tool in turn.tools if tool.name == name])


def valid(events: Sequence[ReplyEvent]) -> list[ValidCall]:
    return [
        event.call for event in events if isinstance(event, CallEvent) and isinstance(event.call, ValidCall)
    ]


def invalid(events: Sequence[ReplyEvent]) -> list[InvalidCall]:
    return [
        event.call for event in events if isinstance(event, CallEvent) and isinstance(event.call, InvalidCall)
    ]


class Cut(NamedTuple):
    """A reply that ended after some of its bytes.

    parser: has taken them, and is the caller's to finish
    whole:  how many calls were whole before
    raw:    what there is of the one that was cut, without its marker; None if none was
    """

    parser: ReplyParser
    whole: int
    raw: str | None


def cuts(wire: WireFormat, recorded: Recorded, *, copies: int = 1) -> Iterator[list[Cut]]:
    """Several copies of the reply cut at each byte; checks that no call came before it was whole."""
    text = render_calls(wire, recorded.calls)
    spans = [*call_spans(wire, recorded.calls)]
    parser = ReplyParser(wire, recorded.tools, "required")
    shared = {id(one): one for one in (wire, *recorded.tools)}
    found: list[ValidCall] = []
    data = text.encode()
    for size in range(len(data)):
        whole = sum(end <= size for _, end in spans)
        assert len(found) <= whole
        assert [(call.name, call.arguments) for call in found] == recorded.calls[: len(found)]
        within = next((start for start, end in spans if start < size < end), None)
        raw = None
        if within is not None:
            written = data[within:size].decode(errors="replace")
            raw = written.removeprefix(wire.marker).strip()
        yield [Cut(copy.deepcopy(parser, {**shared}), len(found), raw) for _ in range(copies)]
        found += valid(parser.feed(data[size : size + 1]))
    assert len(found) + len(valid(parser.finish("stop"))) == len(recorded.calls)


def call_spans(wire: WireFormat, calls: list[Call]) -> Iterator[tuple[int, int]]:
    """Where in a reply the calls are, in bytes: all as one where the family's marker is before them all."""
    if wire.opening:
        yield 0, len(render_calls(wire, calls).encode())
        return
    at = 0
    for name, arguments in calls:
        size = len(render_call(wire, name, arguments).encode())
        yield at, at + size
        at += size + len(wire.between.encode())


# -------------------------------------------------------------------------------------------------- tests


@every_form
def test_a_call_that_was_cut_at_any_byte_is_invalid_however_the_reply_ended(wire: WireFormat) -> None:
    for recorded in golden():
        for copies in cuts(wire, recorded, copies=len(CUTS)):
            for cut, end in zip(copies, CUTS, strict=True):
                check(cut, end)


@every_form
def test_so_are_the_calls_of_the_example_tools(wire: WireFormat) -> None:
    """From here on each cut has another end, in turn."""
    for recorded in examples():
        for (cut,), end in zip(cuts(wire, recorded), itertools.cycle(CUTS)):
            check(cut, end)


def test_so_are_the_calls_of_the_agents_that_are_measured() -> None:
    """Each in another form, in turn."""
    for recorded, wire in zip(worked(), itertools.cycle(WIRES.values())):
        for (cut,), end in zip(cuts(wire, recorded), itertools.cycle(CUTS)):
            check(cut, end)


def check(cut: Cut, end: End) -> None:
    events = cut.parser.finish(*end)
    assert valid(events) == []
    assert [call.raw.strip() for call in invalid(events)] == ([] if cut.raw is None else [cut.raw])
    assert all("cut: " in call.error for call in invalid(events))


@every_form
def test_in_the_message_it_is_an_invalid_call_with_the_text_as_it_was_written(wire: WireFormat) -> None:
    for recorded in itertools.islice(examples(), 0, None, 4):
        for (cut,), end in zip(cuts(wire, recorded), itertools.cycle(CUTS)):
            builder = ReplyBuilder(cut.parser, model_name="fake", prompt_tokens=1)
            *_, last = builder.finish(Result(*end, Trace(law="plain")))
            message = builder.message()
            assert message.tool_calls == last.tool_calls == []
            written = [raw_of(call["args"] or "").strip() for call in message.invalid_tool_calls]
            assert written == ([] if cut.raw is None else [cut.raw])
            assert [call["args"] for call in last.invalid_tool_calls] == [
                call["args"] for call in message.invalid_tool_calls
            ]
            assert all("cut: " in (call["error"] or "") for call in message.invalid_tool_calls)
            assert message.response_metadata["finish_reason"] == end[0]
