"""Requests to replies: many at once, on the calling thread.

It must not know statistics, nor what the replies are compared for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from agentspec.engine.core import Core
from agentspec.engine.request import Request
from agentspec.engine.stream import Channel, Stream
from agentspec.trace import SourceCount, Trace

__all__ = ["Counts", "OnReply", "Tokens", "generate"]

Tokens: TypeAlias = tuple[int, ...]

OnReply = Callable[[], None]
"""Called after each reply."""


@dataclass(slots=True)
class Counts:
    """What drafts did in a set of replies."""

    tokens: int = 0
    passes: int = 0
    sources: dict[str, SourceCount] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, trace: Trace) -> None:
        self.tokens += trace.tokens
        self.passes += trace.target_passes
        self.failures += trace.draft_failures
        for name, count in trace.sources.items():
            total = self.sources.setdefault(name, SourceCount())
            total.proposed += count.proposed
            total.accepted += count.accepted


def generate(
    core: Core, requests: Iterable[Request], counts: Counts, *, at_once: int, on_reply: OnReply
) -> list[Tokens]:
    """The replies' tokens, in the order of the requests; end tokens included.

    at_once: requests that the core is given at a time. Raises what made a reply fail.
    """
    source = iter(requests)
    running: dict[int, Channel] = {}
    replies: dict[int, Tokens] = {}
    number = 0
    while True:
        for request in islice(source, at_once - len(running)):
            core.check(request)
            running[number] = Channel()
            core.add(request, running[number])
            number += 1
        if not running:
            return [replies[index] for index in range(number)]
        core.step()
        ended = [at for at, channel in running.items() if channel.result or channel.error]
        for index in ended:
            stream = Stream(running.pop(index))
            replies[index] = tuple(token for step in stream for token in step.tokens)
            counts.add(stream.result.trace)
            on_reply()
