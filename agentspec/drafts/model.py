"""The model draft: a small GGUF of the same vocabulary.

Each token is drawn from the draft's own law, masked and tempered like the target's, and that law is
recorded. The draft's KV cache catches up lazily: spans that others proposed, or that the target replaced,
are decoded in the same batch as the next step, so forced runs cost it no step of their own.

It must not know the target's rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.config import SamplingOptions
from agentspec.drafts.base import DraftRequest
from agentspec.errors import CacheError
from agentspec.law import probabilities
from agentspec.prefix import common_prefix, take_prefix
from agentspec.types import Legal, LogitsArray, Session, Span

__all__ = ["ModelDraft"]

_WORTH_A_SEARCH = 32
"""Missing tokens from which on other slots are searched for the prefix."""


class ModelDraft:
    """Draws proposals from a draft model's session, many sequences a batch.

    n_vocab:  the target's vocabulary size; ids beyond it are not proposed
    sampling: the settings it draws with; None takes those of the target's law
    """

    def __init__(self, session: Session, *, n_vocab: int, sampling: SamplingOptions | None = None) -> None:
        self._session = session
        self._n_ids = min(n_vocab, session.n_vocab)
        self._sampling = sampling

    @property
    def name(self) -> str:
        return "model"

    @property
    def cheap(self) -> bool:
        return False

    def propose(self, requests: Sequence[DraftRequest]) -> None:
        """Raises DecodeError or CacheError when the draft model fails."""
        busy = {request.slot for request in requests}
        active = [request for request in requests if self._wants_more(request)]
        while active:
            rows = self._step(active, busy)
            for request, row in zip(active, rows, strict=True):
                self._draw(request, row)
            active = [request for request in active if self._wants_more(request)]

    def release(self, slot: int) -> None:
        """Keeps the slot's KV: the next turn of the same conversation begins with it."""

    def _wants_more(self, request: DraftRequest) -> bool:
        """Whether to draw once more: decided on what stands, before anything is drawn."""
        if not request.room or len(request.prefix) >= self._session.n_ctx:
            return False
        if max(request.prefix) >= self._session.n_vocab:
            return False  # the draft cannot read it
        matcher = request.matcher
        if matcher is None:
            return True
        if matcher.forced():
            return False
        legal = matcher.legal()
        return legal is None or int(legal[0]) < self._n_ids

    def _draw(self, request: DraftRequest, row: LogitsArray) -> None:
        matcher = request.matcher
        legal = None if matcher is None else self._known(matcher.legal())
        sampling = self._sampling or request.sampling
        request.draw(probabilities(row[: self._n_ids], legal, sampling, request.prefix))

    def _known(self, legal: Legal) -> Legal:
        """The legal tokens that the draft's vocabulary has."""
        return None if legal is None else legal[legal < self._n_ids]

    def _step(self, active: Sequence[DraftRequest], busy: set[int]) -> list[LogitsArray]:
        """Brings each sequence's KV up to date and returns the row that follows its last token."""
        missing = []
        for request in active:
            prefix = list(request.prefix)
            missing.append((request.slot, prefix[self._hold(request.slot, prefix) :]))
        self._make_room(sum(len(tokens) for _, tokens in missing), busy)
        return self._decode(missing)

    def _hold(self, slot: int, prefix: list[int]) -> int:
        """Cuts the slot to what it shares with the prefix, less the last token; returns how much that is.

        A prefix that is mostly missing, as in a conversation's first block, may lie in another slot.
        """
        held = min(common_prefix(self._session.tokens(slot), prefix), len(prefix) - 1)
        if len(prefix) - held > _WORTH_A_SEARCH:
            return take_prefix(self._session, slot, prefix)
        try:
            self._session.truncate(slot, held)
        except CacheError:  # recurrent memory cannot go back: start afresh
            self._session.truncate(slot, 0)
        return len(self._session.tokens(slot))

    def _decode(self, missing: list[tuple[int, list[int]]]) -> list[LogitsArray]:
        """Decodes the missing tokens, all but the last few in chunks, and one row for each sequence."""
        n_batch = self._session.n_batch
        group = min(n_batch, self._session.n_outputs)
        rows: list[LogitsArray] = []
        for start in range(0, len(missing), group):
            some = missing[start : start + group]
            share = n_batch // len(some)
            tails = []
            for slot, tokens in some:
                rest = tokens
                while len(rest) > share:
                    size = min(n_batch, len(rest) - 1)
                    self._session.decode([Span(slot, rest[:size], ())])
                    rest = rest[size:]
                tails.append(Span(slot, rest, (len(rest) - 1,)))
            rows += self._session.decode(tails)
        return rows

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
