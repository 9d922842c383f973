"""The model draft: a small GGUF, of the target's vocabulary or of one that is mapped to it.

It offers the law of its next token, masked and tempered like the target's. Its KV cache catches up lazily:
spans that others proposed, or that the target replaced, are decoded in the same batch as the next step, so
forced runs cost it no step of their own. Prefixes are the draft's own tokens here, laws those of the target.

It must not know the target's rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from agentspec.config import SamplingOptions
from agentspec.drafts.base import Draft, DraftRequest, EndedReply, Offer
from agentspec.drafts.vocab_map import Reader, SameVocab, VocabMap
from agentspec.errors import CacheError
from agentspec.law import probabilities, probability_of
from agentspec.prefix import StateStore, common_prefix, keep_prefix, take_prefix
from agentspec.timing import measure
from agentspec.types import Legal, LogitsArray, Session, Span

__all__ = ["ModelDraft"]

_WORTH_A_SEARCH = 32
"""Missing tokens from which on other slots are searched for the prefix."""

_TOP_K = 64
"""Most tokens that an offer lists: what is further down is not proposed, and lists are short."""

_MEASURED = (1, 1, 4, 16)
"""Sizes of the passes that are timed at the start; the first one also touches the memory."""


class _Behind(NamedTuple):
    """A sequence whose KV is to catch up: its slot now holds the first `held` tokens of `prefix`."""

    slot: int
    prefix: list[int]
    held: int


class ModelDraft(Draft):
    """Offers the law of a draft model's next token, many sequences a pass.

    n_vocab:   the target's vocabulary size
    sampling:  the settings it draws with; None takes those of the target's law
    vocab_map: between the target's ids and the draft's; None where they are the same
    snapshots: stored states of prompt prefixes, of the session's fingerprint; None keeps none
    """

    name = "model"
    cheap = False

    def __init__(
        self,
        session: Session,
        *,
        n_vocab: int,
        sampling: SamplingOptions | None = None,
        vocab_map: VocabMap | None = None,
        snapshots: StateStore | None = None,
    ) -> None:
        self._session = session
        self._snapshots = snapshots
        self._sampling = sampling
        self._map = vocab_map or SameVocab(n_target=n_vocab, n_draft=session.n_vocab)
        self._readers: defaultdict[int, Reader] = defaultdict(self._map.reader)  # by slot

    @property
    def model_seconds(self) -> float:
        return self._session.decode_seconds

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        """Raises DecodeError or CacheError when the draft model fails."""
        able: dict[int, tuple[DraftRequest, Legal]] = {}
        behind: list[_Behind] = []
        for index, request in enumerate(requests):
            prefix, legal = self._read(request), _legal(request)
            if self._can_answer(prefix, legal):
                one = _Behind(request.slot, prefix, self._hold(request.slot, prefix))
                if self._fit([*behind, one]):
                    able[index] = (request, self._map.known(legal))
                    behind.append(one)
        rows = self._catch_up(behind)
        offers: list[Offer | None] = [None] * len(requests)
        for (index, (request, legal)), row in zip(able.items(), rows, strict=True):
            offers[index] = self._answer(request, legal, row)
        return offers

    def missing(self, request: DraftRequest) -> int:
        """Tokens of its next pass for this sequence; 0 where it cannot answer."""
        prefix = self._read(request)
        if not self._can_answer(prefix, _legal(request)):
            return 0
        return len(prefix) - min(common_prefix(self._session.tokens(request.slot), prefix), len(prefix) - 1)

    def ended(self, reply: EndedReply) -> None:
        """Stores the state of what other conversations share with the prompt, if it was read at all."""
        if self._snapshots is not None and reply.n_stable:
            shared = self._map.reader()(reply.tokens[: reply.n_stable])
            held = common_prefix(self._session.tokens(reply.slot), shared)
            if held == len(shared):
                keep_prefix(self._session, reply.slot, held, self._snapshots)

    def measure(self) -> list[tuple[int, float]]:
        """Times a few passes in slot 0 and forgets them."""
        return measure(self._session, _MEASURED)[1:]

    def _read(self, request: DraftRequest) -> list[int]:
        """The prefix in the draft's tokens."""
        return self._readers[request.slot](request.prefix)

    def _can_answer(self, prefix: Sequence[int], legal: Legal) -> bool:
        return 0 < len(prefix) < self._session.n_ctx and self._map.reaches(legal)

    def _answer(self, request: DraftRequest, legal: Legal, row: LogitsArray) -> Offer:
        scores = self._map.row(row)
        sampling = self._sampling or request.sampling
        if sampling.temperature == 0.0:
            return _greedy(scores, legal, sampling, request.prefix)
        fewer = sampling.model_copy(update={"top_k": min(sampling.top_k or _TOP_K, _TOP_K)})
        return Offer(draft_probs=probabilities(scores, legal, fewer, request.prefix))

    def _fit(self, behind: Sequence[_Behind]) -> bool:
        """Whether the context has room for these prefixes, all at once."""
        most = self._session.n_ctx
        if sum(len(one.prefix) for one in behind) <= most:
            return True  # even if they shared nothing
        cells = self._session.n_cells((one.slot, one.held) for one in behind)
        return cells + sum(len(one.prefix) - one.held for one in behind) <= most

    def _catch_up(self, behind: Sequence[_Behind]) -> list[LogitsArray]:
        """Brings each slot's KV up to date with its prefix and returns the row that follows it."""
        missing = [(one.slot, one.prefix[one.held :]) for one in behind]
        self._make_room(sum(len(tokens) for _, tokens in missing), {one.slot for one in behind})
        return self._decode(missing)

    def _hold(self, slot: int, prefix: list[int]) -> int:
        """Cuts the slot to what it shares with the prefix, less the last token; returns how much that is.

        A prefix that is mostly missing, as in a conversation's first block, may lie in another slot.
        """
        held = min(common_prefix(self._session.tokens(slot), prefix), len(prefix) - 1)
        if len(prefix) - held > _WORTH_A_SEARCH:
            return take_prefix(self._session, slot, prefix, self._snapshots)
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
        for slot in range(self._session.n_slots):
            if self._session.n_free >= needed:
                return
            if slot not in busy:
                self._session.truncate(slot, 0)


def _legal(request: DraftRequest) -> Legal:
    matcher = request.matcher
    return None if matcher is None else matcher.legal()


def _greedy(row: LogitsArray, legal: Legal, sampling: SamplingOptions, before: Sequence[int]) -> Offer:
    """The token that greedy decoding takes, with the probability that it has at temperature 1."""
    warm = sampling.model_copy(update={"temperature": 1.0})
    law = probabilities(row, legal, warm, before)
    token = int(probabilities(row, legal, sampling, before).ids[0])
    return Offer([token], [max(probability_of(law, token), float(np.finfo(float).tiny))])
