"""The history draft: what this agent wrote the last times, as predictions of what it writes now.

An agent calls the same few tools, and much of what it writes it has written before. The draft counts which
token followed which context in earlier replies, per tool set, and predicts from every context of the present
one that it has seen. Two kinds of context are counted:

recent tokens: the last 1, 2, 4, 8 and 16 tokens of the reply; nearer its start, all of them and the start
place:         what stands so far in this value under this key of this tool (`agentspec.places`)

Longer matches in a record of past output are the idea of SuffixDecoding (Oliaro et al. 2024,
arXiv:2411.04975), which proposes from a suffix tree. Here the counts of all contexts are blended into one
distribution by the weights of Witten and Bell (1991, doi:10.1109/18.87000; method C of PPM): a context seen n
times with d different tokens after it is trusted n / (n + d), and what is left goes to the next shorter one.
The blend's tokens sum to less than 1; the rest is the chance of a token that none of the contexts knows.

It stores what the model wrote, in memory and, given a store, on disk. It must not know the engine or any
grammar, and it draws nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from agentspec.drafts.base import Draft, DraftRequest, EndedReply, Offer
from agentspec.drafts.history_store import HistoryStore
from agentspec.places import TEXT, Place, PlaceScanner
from agentspec.types import Distribution, Legal

__all__ = ["FollowerCounts", "HistoryDraft"]

Context: TypeAlias = tuple[object, ...]
"""A tool set and what stands before a token: recent tokens, or the parts of a place."""

_ORDERS: Final = (1, 2, 4, 8, 16)
_START: Final = -1  # stands for the start of the reply among its tokens
_LONGEST_VALUE: Final = 64
"""Bytes of a value up to which its place is a context: far into a long text, recent tokens say more."""

_FADE: Final = 0.9
_FORGOTTEN: Final = 0.05

_WORTH: Final = 0.2
"""The least chance that a run is right for it to be offered, or to go on."""
_CLEAR: Final = 0.8
"""A token's share of what is known from which on it is proposed for certain although the target samples."""
_KNOWN: Final = 0.4
"""The least chance that the next token is known for a distribution of known tokens to be offered."""
_MAX_TOOL_SETS: Final = 256
"""Tool sets remembered to have been read from the store."""


class FollowerCounts:
    """Which tokens followed each context, how often and how lately.

    A context's counts fade by a tenth with each token that follows it, so that a new habit outweighs an old
    one after seven times, however long the old one lasted; what has faded to a twentieth is forgotten.

    limit: contexts kept at most. They are in two generations: what is seen again joins the younger, and when
           that has half the limit, the older is dropped, as are the contexts not seen since before it.
    """

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._young: dict[Context, dict[int, float]] = {}
        self._old: dict[Context, dict[int, float]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def after(self, context: Context) -> Mapping[int, float]:
        """Faded counts of the tokens that followed; empty for a context that is not known."""
        return self._young.get(context) or self._old.get(context) or {}

    def add(self, context: Context, token: int) -> None:
        """Counts a token that followed a context."""
        counts = self._young.get(context)
        if counts is None:
            counts = self._old.pop(context, {})
            if len(self._young) == self._half:
                self._old, self._young = self._young, {}
            self._young[context] = counts
        for other, count in list(counts.items()):
            if count * _FADE < _FORGOTTEN:
                del counts[other]
            else:
                counts[other] = count * _FADE
        counts[token] = counts.get(token, 0.0) + 1.0


class HistoryDraft(Draft):
    """Proposes what followed the same contexts in earlier replies to the same tool set.

    Greedy replies, and tokens that have hardly a rival, get a run of tokens; others get the blended
    distribution of the next one. A run goes on from recent tokens alone: the place past its first token is
    known once it is in the block, and the draft is asked again then.

    Offers depend on the request and on the complete replies that have ended, in this process or, where there
    is a store, in earlier ones. A confidence is the blended probability.

    token_bytes:  the bytes that a token stands for in the reply, b"" for control tokens
    store:        keeps replies across runs; None forgets them with the process
    max_contexts: contexts kept, of all tool sets together, least recently seen first out; each takes about
                  half a kilobyte
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        store: HistoryStore | None = None,
        *,
        max_contexts: int = 100_000,
    ) -> None:
        self._token_bytes = token_bytes
        self._store = store
        self._counts = FollowerCounts(max_contexts)
        self._recalled: dict[str, None] = {}  # tool sets, in the order in which they were read

    @property
    def name(self) -> str:
        return "history"

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        return [self._offer(request) for request in requests]

    def ended(self, reply: EndedReply) -> None:
        """Learns from a complete reply, and stores it."""
        tokens = reply.tokens[reply.n_prompt :]
        if not reply.complete or not tokens:
            return
        self._recall(reply.tool_set)
        self._learn(reply.tool_set, tokens)
        if self._store is not None:
            self._store.add(reply.tool_set, tokens)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _offer(self, request: DraftRequest) -> Offer | None:
        self._recall(request.tool_set)
        recent = _recent(request.prefix, request.n_prompt, len(request.prefix))
        probs = self._predict(_contexts(request.tool_set, recent, request.place))
        if not probs:
            return None
        matcher = request.matcher
        if matcher is not None:
            probs = _given_legal(probs, matcher.legal())
        share = 0.0 if request.sampling.temperature == 0.0 else _CLEAR
        run = self._run(request.tool_set, recent, probs, share=share, room=request.room)
        if run is None and share and sum(probs.values()) >= _KNOWN:
            return Offer(draft_probs=_normalised(probs))
        return run

    def _run(
        self, tool_set: str, recent: tuple[int, ...], probs: dict[int, float], *, share: float, room: int
    ) -> Offer | None:
        """The likeliest token again and again, while all of them may be right and each has its share of what
        is known."""
        tokens: list[int] = []
        confidence: list[float] = []
        all_right = 1.0
        while probs and len(tokens) < room:
            token = max(probs, key=probs.__getitem__)
            all_right *= probs[token]
            if all_right < _WORTH or probs[token] < share * sum(probs.values()):
                break
            tokens.append(token)
            confidence.append(probs[token])
            recent = (*recent, token)[-_ORDERS[-1] :]
            probs = self._predict(_contexts(tool_set, recent, TEXT))
        return Offer(tokens, confidence) if tokens else None

    def _predict(self, contexts: Sequence[Context]) -> dict[int, float]:
        """The blended probability of each token that a context knows; contexts from general to special."""
        blend: dict[int, float] = {}
        for context in contexts:
            counts = self._counts.after(context)
            if not counts:
                continue
            total = sum(counts.values()) + len(counts)
            for token in blend:
                blend[token] *= len(counts) / total
            for token, count in counts.items():
                blend[token] = blend.get(token, 0.0) + count / total
        return blend

    def _learn(self, tool_set: str, reply: Sequence[int]) -> None:
        scanner = PlaceScanner()
        for index, token in enumerate(reply):
            for context in _contexts(tool_set, _recent(reply, 0, index), scanner.place):
                self._counts.add(context, token)
            scanner.advance(self._token_bytes(token))

    def _recall(self, tool_set: str) -> None:
        """Learns what is stored of a tool set, the first time that it is met."""
        if self._store is None or tool_set in self._recalled:
            return
        if len(self._recalled) == _MAX_TOOL_SETS:
            del self._recalled[next(iter(self._recalled))]
        self._recalled[tool_set] = None
        for reply in self._store.load(tool_set):
            self._learn(tool_set, reply)


def _recent(tokens: Sequence[int], start: int, end: int) -> tuple[int, ...]:
    """The last tokens before `end` of a reply that begins at `start`, as many as the longest context has;
    nearer the start all of them, with `_START` in front."""
    first = end - _ORDERS[-1]
    return (_START, *tokens[start:end]) if first < start else tuple(tokens[first:end])


def _contexts(tool_set: str, recent: tuple[int, ...], place: Place) -> list[Context]:
    """What the next token may be predicted from, general contexts first, each once.

    The place ranks above two tokens, which seldom reach back to the key and the tool, and below four.
    """
    contexts: list[Context] = [
        (tool_set, *recent[-order:])
        for shorter, order in itertools.pairwise((0, *_ORDERS))
        if len(recent) > shorter
    ]
    if place.kind != "text" and len(place.value) <= _LONGEST_VALUE:
        # brackets and separators leave no value behind that tells them apart
        last = recent[-1] if place.kind == "structure" else None
        contexts.insert(2, (tool_set, *place, last))
    return contexts


def _given_legal(probs: dict[int, float], legal: Legal) -> dict[int, float]:
    """The probabilities of the legal tokens, given that the next token is legal."""
    if legal is None:
        return probs
    tokens = np.fromiter(probs, dtype=np.int64)
    at = np.searchsorted(legal, tokens)
    is_legal = at < len(legal)
    is_legal[is_legal] = legal[at[is_legal]] == tokens[is_legal]
    kept = tokens[is_legal].tolist()
    unknown = 1.0 - sum(probs.values())
    mass = unknown + sum(probs[token] for token in kept)
    return {token: probs[token] / mass for token in kept}


def _normalised(probs: Mapping[int, float]) -> Distribution:
    ids = np.array(sorted(probs), dtype=np.int64)
    weights = np.array([probs[token] for token in ids.tolist()], dtype=np.float64)
    return Distribution(ids, weights / weights.sum())
