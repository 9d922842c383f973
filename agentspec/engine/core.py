"""The loop's body: admission, one target pass for a set of sequences, verification, commit.

Single-threaded: `engine.engine` runs it on the worker thread, tests run it directly. It is the only place
that commits or rolls back: target KV, matcher, drafts and trace move together in `_commit`. It must not
know tools, text or LangChain.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentspec.calibration.calibrator import Calibrator
from agentspec.calibration.files import CalibrationStore
from agentspec.config import BUILT_IN_SOURCES, DraftOptions
from agentspec.drafts.base import Draft, EndedReply
from agentspec.engine.block import Block
from agentspec.engine.cost import Costs
from agentspec.engine.offers import BlockPlan
from agentspec.engine.planner import Planner
from agentspec.engine.request import Request
from agentspec.engine.rules import Rule, make_rule
from agentspec.engine.scheduler import Part, Scheduler
from agentspec.engine.sequence import RunningSequence
from agentspec.engine.stream import Channel
from agentspec.errors import (
    AgentSpecError,
    CacheError,
    ConfigError,
    ContextLengthError,
    DeadlineExceededError,
    EngineError,
)
from agentspec.law import point_mass, probabilities, probability_of
from agentspec.prefix import StateStore
from agentspec.timing import measure
from agentspec.types import Distribution, FinishReason, LogitsArray, Session, Span, Vocabulary
from agentspec.verify import Verdict

__all__ = ["Core"]

_log = logging.getLogger(__name__)

_MEASURED = (1, 1, 4, 8, 16)
"""Sizes of the passes that are timed at the start; the first one also touches the memory."""

_FAST = 0.5
"""Seconds of a single pass from which on it is left to the work itself to measure larger ones."""


@dataclass(slots=True)
class _Entry:
    """A sequence's part of one pass: `missing` tokens that its KV lacks, then its block, or, while a long
    prompt is loaded in chunks, a chunk and no block."""

    sequence: RunningSequence
    missing: list[int]
    block: Block | None
    plan: BlockPlan | None = None


class Core:
    """Generates replies for a set of sequences, one target pass at a time.

    target: the target's session; its slots are this object's alone
    drafts: sources; of offers that promise the same, that of the first is taken
    rules:  makes a request's chance and rule of acceptance from its options and its seed
    costs:  what passes take; measured before the first one, where they are not given
    snapshots: stored states of prompt prefixes, of the target's fingerprint; None keeps none
    calibrator: what is known of the sources; None begins with nothing, and learns
    calibration_store: keeps that across runs; None forgets it with the process

    Raises ConfigError for two sources of one name.
    """

    def __init__(
        self,
        target: Session,
        vocab: Vocabulary,
        drafts: Sequence[Draft] = (),
        *,
        rules: Callable[[DraftOptions, int], Rule] = make_rule,
        costs: Costs | None = None,
        snapshots: StateStore | None = None,
        calibrator: Calibrator | None = None,
        calibration_store: CalibrationStore | None = None,
    ) -> None:
        self._target = target
        self._vocab = vocab
        self._costs = Costs() if costs is None else costs
        self._scheduler = Scheduler(target, self._costs.target, snapshots)
        self._drafts = tuple(drafts)
        self._planner = Planner(drafts, self._costs, calibrator, calibration_store)
        self._rules = rules
        names = [draft.name for draft in drafts]
        if len(set(names)) < len(names):
            raise ConfigError(f"two draft sources have one name: {', '.join(names)}")
        if drafts and not target.can_rewind:
            _log.warning("the target's memory cannot go back (recurrent or hybrid): drafting is off")

    # ------------------------------------------------------------------------------------- requests

    def check(self, request: Request) -> None:
        """Refuses what cannot be generated.

        Raises ContextLengthError when the prompt leaves no room for a reply; ConfigError when an option
        names a token that the vocabulary has not; ValueError when the prompt is empty or has such a token.
        """
        if not request.prompt:
            raise ValueError("the prompt is empty")
        if not 0 <= min(request.prompt) <= max(request.prompt) < self._target.n_vocab:
            raise ValueError(f"the prompt has ids outside the vocabulary of {self._target.n_vocab}")
        unknown = set(request.draft.sources) - self._planner.names - set(BUILT_IN_SOURCES)
        if unknown:
            raise ConfigError(
                f"there is no draft source named {min(unknown)!r}",
                hint=f"known names: {', '.join(sorted(self._planner.names | set(BUILT_IN_SOURCES)))}",
            )
        for token in request.sampling.logit_bias:
            if token >= self._target.n_vocab:
                raise ConfigError(
                    f"logit_bias names token {token}, and the vocabulary has {self._target.n_vocab} tokens",
                    hint="ids are the target's own; get_token_ids(text) gives them",
                )
        if len(request.prompt) >= self._target.n_ctx:
            raise ContextLengthError(
                f"the prompt has {len(request.prompt)} tokens, and the context holds {self._target.n_ctx}",
                prompt_tokens=len(request.prompt),
                n_ctx=self._target.n_ctx,
                hint="raise n_ctx, or shorten the conversation",
            )

    def add(self, request: Request, channel: Channel) -> None:
        """Queues a request that passed `check`. Its steps, its result or its error go to `channel`."""
        seed = request.generation.seed
        if seed is None:
            seed = secrets.randbits(63)
        room = self._target.n_ctx - len(request.prompt)
        max_reply = min(request.generation.max_tokens, room)
        rule = self._rules(request.draft, seed)
        sequence = RunningSequence(request, channel, rule, seed=seed, max_reply=max_reply)
        if sequence.matcher is not None and sequence.matcher.done():
            sequence.finish("stop")  # a grammar of nothing but the empty reply
        else:
            self._scheduler.add(sequence)

    def close(self) -> None:
        """Lets the draft sources save what they keep. No reply may be under way."""
        self._planner.close()

    @property
    def n_waiting(self) -> int:
        """Requests that have no slot yet. Any thread may read it."""
        return self._scheduler.n_waiting

    def busy(self) -> bool:
        return self._scheduler.busy

    def fail_all(self, error: AgentSpecError) -> None:
        """Ends every request with an error."""
        for sequence in self._scheduler:
            self._leave(sequence, complete=False)
            sequence.channel.fail(error)

    # ---------------------------------------------------------------------------------------- a pass

    def step(self) -> None:
        """Admits what can be admitted and makes one target pass."""
        if self._drafts and self._target.can_rewind and not self._costs.target.known:
            self._measure()
        self._drop_ended()
        self._scheduler.admit()
        entries = [self._entry(part) for part in self._scheduler.divide(self._wanted)]
        if not entries:
            return
        self._compose(entries)
        entries = self._drop_failed(entries)
        try:
            rows = self._decode(entries)
        except AgentSpecError as error:
            for entry in entries:
                self._fail(entry.sequence, error)
            return
        for entry, entry_rows in zip(entries, rows, strict=True):
            if entry.block is not None:
                self._settle(entry, entry.block, entry_rows)

    def _drop_ended(self) -> None:
        """Ends what was cancelled, or has taken too long, waiting or running."""
        for sequence in self._scheduler:
            if sequence.channel.cancelled:
                self._end(sequence, "cancelled")
            elif sequence.overdue:
                self._leave(sequence, complete=False)
                sequence.channel.fail(_late(sequence))

    def _entry(self, part: Part) -> _Entry:
        sequence, missing, room = part
        return _Entry(sequence, missing, None if room is None else self._block(sequence, room))

    def _block(self, sequence: RunningSequence, limit: int) -> Block:
        start = sequence.n_reply

        def draw(distribution: Distribution, position: int) -> int:
            return sequence.rule.draw(distribution, start + position)

        return Block(
            sequence.tokens,
            sequence.matcher,
            self._vocab.end_ids,
            n_vocab=self._target.n_vocab,
            limit=limit,
            draw=draw,
            scanner=sequence.scanner,
            token_bytes=self._vocab.token_bytes,
        )

    def _wanted(self, sequence: RunningSequence) -> int:
        """Most tokens that the sequence's block may have."""
        if not self._target.can_rewind:
            return 0  # a rejected token could not be taken back
        if not self._planner.drafts_for(sequence.request.draft):
            return 0  # room kept for a block would keep other sequences out of the pass
        return min(sequence.request.draft.max_block, sequence.max_reply - sequence.n_reply - 1)

    def _compose(self, entries: Sequence[_Entry]) -> None:
        started, model_seconds = time.perf_counter(), self._planner.model_seconds()
        plans = []
        for entry in entries:
            if entry.block is not None:
                entry.plan = _plan(entry.sequence, entry.block)
                plans.append(entry.plan)
        drafting = [plan for plan in plans if plan.room]
        if drafting:
            others = len(plans) - len(drafting)
            n_base = sum(len(entry.missing) for entry in entries)
            self._planner.compose(drafting, n_base, others)
        seconds = time.perf_counter() - started
        model_seconds = self._planner.model_seconds() - model_seconds
        for plan in plans:
            plan.trace.add_seconds("draft", seconds)
            plan.trace.add_seconds("draft_decode", model_seconds)

    def _measure(self) -> None:
        """Times a few passes of every model. Slots are still empty."""
        try:
            timed = measure(self._target, _MEASURED[:2])
            if timed[-1][1] < _FAST:
                timed += measure(self._target, _MEASURED[2:])
        except AgentSpecError as error:
            self.fail_all(error)
            return
        for n, seconds in timed[1:]:
            self._costs.record(n, seconds)
        self._planner.measure()

    def _drop_failed(self, entries: list[_Entry]) -> list[_Entry]:
        """Ends the sequences whose grammar failed while their block was built."""
        sound = []
        for entry in entries:
            if entry.block is not None and entry.block.error is not None:
                self._fail(entry.sequence, entry.block.error)
            else:
                sound.append(entry)
        return sound

    def _decode(self, entries: Sequence[_Entry]) -> list[dict[int, LogitsArray]]:
        """One target pass. Returns, for each entry, the rows by block position.

        A span ends at the last row that is needed, and nothing at all is decoded for a block of which every
        token is forced.
        """
        spans: list[Span] = []
        wanted: list[list[int]] = []
        for entry in entries:
            skip_forced = entry.sequence.request.draft.skips_forced
            positions = [] if entry.block is None else entry.block.rows(skip_forced=skip_forced)
            wanted.append(positions)
            if entry.block is None:
                spans.append(Span(entry.sequence.slot, entry.missing, ()))
            elif positions:
                first = len(entry.missing) - 1  # the token whose row is position 0
                tokens = [*entry.missing, *entry.block.tokens][: first + positions[-1] + 1]
                rows = [first + position for position in positions]
                spans.append(Span(entry.sequence.slot, tokens, rows))
        held = [len(self._target.tokens(entry.sequence.slot)) for entry in entries]
        started, inside = time.perf_counter(), self._target.decode_seconds
        flat = iter(self._target.decode(spans) if spans else [])
        seconds = time.perf_counter() - started
        inside = self._target.decode_seconds - inside
        if spans:
            n_tokens = sum(len(span.tokens) for span in spans)
            self._costs.record(n_tokens, seconds)
        n_drafting = sum(entry.plan is not None and self._wanted(entry.sequence) > 0 for entry in entries)
        if n_drafting and self._costs.target.known:
            # what they would take undrafted: prompts and other replies earn no time for probes
            self._planner.passed(self._costs.target.seconds(n_drafting))
        for entry, before in zip(entries, held, strict=True):
            after = len(self._target.tokens(entry.sequence.slot))
            if after > before:
                entry.sequence.decoded(before, after, seconds, inside)
        return [{position: next(flat) for position in positions} for positions in wanted]

    # --------------------------------------------------------------------------------------- commit

    def _settle(self, entry: _Entry, block: Block, rows: dict[int, LogitsArray]) -> None:
        """Verifies and commits one block; a failure ends only this sequence."""
        sequence = entry.sequence
        started = time.perf_counter()
        try:
            laws = _BlockLaws(sequence, block, rows)
            verdict = sequence.rule.verify(block.proposals, laws, sequence.n_reply)
            sequence.trace.add_seconds("verify", time.perf_counter() - started)
            if entry.plan is not None:
                self._planner.learn(entry.plan, verdict.accepted, laws)
                if sequence.recording is not None:
                    notes, at = entry.plan.notes, sequence.n_reply
                    sequence.recording.add(
                        at, block.proposals, notes, laws, verdict.accepted, decoded=bool(rows)
                    )
            self._commit(sequence, block, laws, verdict, passes=1 if rows else 0)
        except AgentSpecError as error:
            self._fail(sequence, error)
        except ValueError as error:
            bias = "logit_bias may rule out every token that is legal here"
            hint = bias if sequence.request.sampling.logit_bias else ""
            self._fail(sequence, EngineError(f"a block could not be verified: {error}", hint=hint))

    def _commit(
        self, sequence: RunningSequence, block: Block, laws: _BlockLaws, verdict: Verdict, *, passes: int
    ) -> None:
        """Keeps what was accepted, everywhere: KV, tokens, grammar, trace, stream."""
        keep = len(sequence.tokens) + verdict.accepted
        if len(self._target.tokens(sequence.slot)) > keep:
            self._target.truncate(sequence.slot, keep)
        emitted = block.tokens[: verdict.accepted]
        if verdict.token is not None:
            emitted.append(verdict.token)
        logprobs: list[float] = []
        if sequence.request.generation.logprobs:
            logprobs = [_log_prob(laws[index], token) for index, token in enumerate(emitted)]
        taken, reason = sequence.emit(emitted, logprobs, self._vocab)
        if sequence.recording is not None:
            sequence.recording.tokens += emitted[:taken]
        sources = [proposal.source for proposal in block.proposals]
        sequence.trace.record(sources, verdict.accepted, taken, passes=passes)
        if reason is not None:
            self._end(sequence, reason)

    def _end(self, sequence: RunningSequence, reason: FinishReason) -> None:
        if sequence.slot >= 0:
            self._keep(sequence)
        self._leave(sequence, complete=sequence.complete(reason))
        sequence.finish(reason)

    def _keep(self, sequence: RunningSequence) -> None:
        """Stores the part of the prompt that other conversations share, where its KV is all there."""
        try:
            self._scheduler.keep(sequence)
        except CacheError as error:
            _log.warning("no snapshot of a prompt was stored: %s", error)

    def _fail(self, sequence: RunningSequence, error: AgentSpecError) -> None:
        self._leave(sequence, complete=False)
        self._target.truncate(sequence.slot, 0)  # do not build on what a failure left
        sequence.channel.fail(error)

    def _leave(self, sequence: RunningSequence, *, complete: bool) -> None:
        self._scheduler.remove(sequence)
        if sequence.slot < 0:
            return  # it had no part in anything
        request = sequence.request
        reply = EndedReply(
            sequence.slot,
            tuple(sequence.tokens),
            sequence.n_prompt,
            request.tool_set,
            complete=complete,
            n_stable=request.n_stable,
        )
        self._planner.ended(reply, request.draft)


class _BlockLaws:
    """The target's laws over a block, each computed once, when first asked for: agentspec.verify.Laws."""

    def __init__(self, sequence: RunningSequence, block: Block, rows: dict[int, LogitsArray]) -> None:
        self._sampling = sequence.request.sampling
        self._start = len(sequence.tokens)
        self._tokens = block.prefix
        self._legal = block.legal
        self._rows = rows
        self._known: dict[int, Distribution] = {}

    def __len__(self) -> int:
        return len(self._legal)

    def __getitem__(self, index: int) -> Distribution:
        if index not in self._known:
            self._known[index] = self._law(index)
        return self._known[index]

    def _law(self, index: int) -> Distribution:
        legal = self._legal[index]
        if legal is not None and len(legal) == 1:
            return point_mass(int(legal[0]))
        before = self._tokens[: self._start + index]
        return probabilities(self._rows[index], legal, self._sampling, before)


def _late(sequence: RunningSequence) -> DeadlineExceededError:
    timeout = sequence.request.generation.timeout
    where = f"after {sequence.n_reply} tokens" if sequence.slot >= 0 else "while the request was waiting"
    return DeadlineExceededError(
        f"the reply was not done within timeout={timeout:g} seconds: stopped {where}"
    )


def _log_prob(law: Distribution, token: int) -> float:
    return math.log(probability_of(law, token))


def _plan(sequence: RunningSequence, block: Block) -> BlockPlan:
    request = sequence.request
    return BlockPlan(
        slot=sequence.slot,
        block=block,
        n_prompt=sequence.n_prompt,
        law_sampling=request.sampling,
        draft=request.draft,
        trace=sequence.trace,
        tool_set=request.tool_set,
        texts=request.texts,
    )
