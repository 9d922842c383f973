"""The model draft: a small GGUF of the same vocabulary.

Each token is drawn from the draft's own law, masked and tempered like the target's, and that law is
recorded. The draft's KV cache catches up lazily: spans that others proposed, or that the target replaced,
are decoded in the same batch as the next step, so forced runs cost it no step of their own.

It must not know the target's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentspec.drafts.base import DraftRequest
from agentspec.law import probabilities
from agentspec.types import Distribution, Legal, LogitsArray, Proposal, Session, Span

__all__ = ["ModelDraft", "common_prefix"]


@dataclass(slots=True)
class _Run:
    """A proposal in the making."""

    request: DraftRequest
    tokens: list[int] = field(default_factory=list)
    dists: list[Distribution] = field(default_factory=list)


class ModelDraft:
    """Draws proposals from a draft model's session, many sequences a batch.

    n_vocab: the target's vocabulary size; ids beyond it are not proposed
    end_ids: the target's end-of-generation ids: nothing is proposed after one
    """

    def __init__(self, session: Session, *, n_vocab: int, end_ids: frozenset[int]) -> None:
        self._session = session
        self._n_ids = min(n_vocab, session.n_vocab)
        self._end_ids = end_ids

    @property
    def name(self) -> str:
        return "model"

    def propose(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """Raises DecodeError or CacheError when the draft model fails."""
        runs = [_Run(request) for request in requests]
        busy = {request.slot for request in requests}
        active = [run for run in runs if self._wants_more(run)]
        while active:
            rows = self._step(active, busy)
            for run, row in zip(active, rows, strict=True):
                self._draw(run, row)
            active = [run for run in active if self._wants_more(run)]
        return [Proposal(tuple(run.tokens), tuple(run.dists), self.name) for run in runs]

    def release(self, slot: int) -> None:
        """Keeps the slot's KV: the next turn of the same conversation begins with it."""

    def _wants_more(self, run: _Run) -> bool:
        """Whether to draw once more: decided on what stands, before anything is drawn."""
        request = run.request
        if len(run.tokens) >= request.limit:
            return False
        if run.tokens and run.tokens[-1] in self._end_ids:
            return False
        if len(request.prefix) + len(run.tokens) >= self._session.n_ctx:
            return False
        matcher = request.matcher
        if matcher is None:
            return True
        if matcher.done() or matcher.forced():
            return False
        legal = matcher.legal()
        return legal is None or int(legal[0]) < self._n_ids

    def _draw(self, run: _Run, row: LogitsArray) -> None:
        matcher = run.request.matcher
        legal = self._known(matcher.legal()) if matcher is not None else None
        dist = probabilities(row[: self._n_ids], legal, run.request.sampling)
        token = run.request.chance.draw(dist)
        run.tokens.append(token)
        run.dists.append(dist)
        if matcher is not None and token not in self._end_ids:
            matcher.advance(token)

    def _known(self, legal: Legal) -> Legal:
        """The legal tokens that the draft's vocabulary has."""
        return None if legal is None else legal[legal < self._n_ids]

    def _step(self, active: Sequence[_Run], busy: set[int]) -> list[LogitsArray]:
        """Brings each run's KV up to date and returns the row that follows its last token."""
        spans = []
        for run in active:
            prefix = [*run.request.prefix, *run.tokens]
            slot = run.request.slot
            held = min(common_prefix(self._session.tokens(slot), prefix), len(prefix) - 1)
            if held < len(self._session.tokens(slot)):
                self._session.truncate(slot, held)
            spans.append((slot, prefix[held:]))
        self._make_room(sum(len(missing) for _, missing in spans), busy)
        return self._decode(spans)

    def _decode(self, missing: list[tuple[int, list[int]]]) -> list[LogitsArray]:
        """Decodes the missing tokens, long ones in chunks first, and one row for each sequence."""
        n_batch = self._session.n_batch
        share = max(1, n_batch // len(missing))
        tails = []
        for slot, tokens in missing:
            start = 0
            while len(tokens) - start > share:
                chunk = tokens[start : min(start + n_batch, len(tokens) - 1)]
                self._session.decode([Span(slot, chunk, ())])
                start += len(chunk)
            tails.append(Span(slot, tokens[start:], (len(tokens) - start - 1,)))
        return self._session.decode(tails)

    def _make_room(self, needed: int, busy: set[int]) -> None:
        """Drops the KV of sequences that are not drafting now, if the rest does not fit."""
        held = {slot: len(self._session.tokens(slot)) for slot in range(self._session.n_slots)}
        free = self._session.n_ctx - sum(held.values())
        for slot, count in held.items():
            if free >= needed:
                return
            if slot not in busy and count:
                self._session.truncate(slot, 0)
                free += count


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix of two token sequences."""
    length = min(len(left), len(right))
    if list(left[:length]) == list(right[:length]):
        return length
    low, high = 0, length  # left[:low] == right[:low]; they differ before `high`
    while high - low > 1:
        middle = (low + high) // 2
        if list(left[low:middle]) == list(right[low:middle]):
            low = middle
        else:
            high = middle
    return low
