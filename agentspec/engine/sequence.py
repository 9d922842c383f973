"""One reply while it is generated: its tokens, its grammar state, its limits and where its steps go.

It decides nothing: `engine.core` moves it. It must not know sessions or drafts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentspec.calibration.recording import Recording
from agentspec.engine.request import Request, Result, Step
from agentspec.engine.rules import Rule
from agentspec.engine.stops import StopScanner
from agentspec.engine.stream import Channel
from agentspec.places import PlaceScanner
from agentspec.trace import Trace
from agentspec.types import FinishReason, Matcher, Vocabulary

__all__ = ["RunningSequence"]


class RunningSequence:
    """A request under way.

    tokens:    prompt and reply
    rule:      its chance, and how its blocks are verified
    scanner:   where the reply stands in its JSON
    max_reply: most tokens of the reply, the context's room taken into account
    slot:      its place in the sessions, -1 while it waits
    """

    def __init__(self, request: Request, channel: Channel, rule: Rule, *, seed: int, max_reply: int) -> None:
        self.request = request
        self.channel = channel
        self.rule = rule
        self.max_reply = max_reply
        self.slot = -1
        self.tokens = list(request.prompt)
        self.matcher: Matcher | None = None if request.matcher is None else request.matcher.fork()
        self.scanner = PlaceScanner()
        self.trace = Trace(law=request.law, seed=seed)
        self.recording = None if request.recorded is None else Recording(request.recorded)
        self._stops = StopScanner(request.generation.stop)

    @property
    def n_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def n_reply(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def reserved(self) -> int:
        """KV cells it may come to need."""
        return self.n_prompt + self.max_reply

    @property
    def overdue(self) -> bool:
        """Whether its timeout has passed since it was submitted."""
        timeout = self.request.generation.timeout
        return timeout is not None and time.perf_counter() - self.channel.created > timeout

    def admitted(self, slot: int, reused: int) -> None:
        self.slot = slot
        self.trace.prefill_reused = reused
        self.trace.add_seconds("queue", time.perf_counter() - self.channel.created)

    def decoded(self, start: int, end: int, seconds: float, inside: float) -> None:
        """Notes a pass that computed the KV of positions start to end (exclusive).

        inside: how many of its seconds the model's runtime took
        """
        prompt = max(0, min(self.n_prompt, end) - start)
        self.trace.prefill_computed += prompt
        phase = "prefill" if prompt > 1 else "target"
        self.trace.add_seconds(phase, seconds)
        self.trace.add_seconds(f"{phase}_decode", inside)

    def emit(
        self, tokens: Sequence[int], logprobs: Sequence[float], vocab: Vocabulary
    ) -> tuple[int, FinishReason | None]:
        """Takes tokens that are settled, with their log-probabilities where those were asked for.

        Returns how many are part of the reply and, if it ends, why.
        """
        data = b""
        taken = 0
        reason: FinishReason | None = None
        for token in tokens:
            taken += 1
            if token in vocab.end_ids:
                reason = "stop"
                break
            self.tokens.append(token)
            if self.matcher is not None:
                self.matcher.advance(token)
            spelled = vocab.token_bytes(token)
            self.scanner.advance(spelled)
            if token in self.request.shown:
                spelled = vocab.pieces()[token]
            data += self._stops.feed(spelled)
            if self._stops.stopped or (self.matcher is not None and self.matcher.done()):
                reason = "stop"
                break
            if self.n_reply >= self.max_reply:
                reason = "length"
                break
        if reason is not None:
            data += self._stops.flush()
        self.channel.put(Step(tuple(tokens[:taken]), data, tuple(logprobs[:taken])))
        return taken, reason

    def complete(self, reason: FinishReason) -> bool:
        """Whether a reply that ends so is whole: what its grammar, if any, is satisfied with."""
        return reason == "stop" and (self.matcher is None or self.matcher.accepting())

    def finish(self, reason: FinishReason) -> None:
        self.channel.finish(Result(reason, self.complete(reason), self.trace, self.recording))
