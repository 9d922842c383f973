"""The lookup draft: what a reply says next is often what the conversation has said before.

It copies in two ways. Tokens: where the end of the prefix has occurred before, what followed then follows
again (prompt lookup; SuffixDecoding, arXiv 2411.04975). Values: inside the quotes of a JSON string a word's
tokens are not those it has in a message (`R`, `ome` for ` Rome`), and before a value there is nothing yet to
match; so there it goes by the text of the last user and tool messages, and weighs what they mention: what
goes on like the value so far, and before it has begun, what is called like its key, or next in turn.

The weights and confidences are few, coarse, and fitted to recorded calls (development samples of BFCL v4 and
tau-bench); what they are worth for an agent is the engine's to learn. No closing quote is proposed: what
follows a value belongs to the grammar. This module must not know grammars, tools or wire formats.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from agentspec.drafts.base import Draft, DraftRequest, EndedReply, Offer
from agentspec.drafts.suffixes import (
    MAX_MATCH,
    Match,
    Mention,
    MentionKind,
    SuffixIndex,
    TextIndex,
    key_words,
    stems,
)
from agentspec.places import Place
from agentspec.types import Legal

__all__ = ["LookupDraft"]

_TEXTS_KEPT: Final = 64
_TRIES: Final = 4  # values looked at for one that is legal
_REPLY_READ: Final = 512  # tokens
_AHEAD: Final = 80  # bytes copied beyond a word
_MATCH_BEFORE_VALUE: Final = 4
"""Tokens that have to match before a value, so that its key is among them and not only quote and colon."""

# Weights of mentions, against 1 for "none of them": (where the value has not begun, where it has).
_WEIGHT: Final[dict[MentionKind, tuple[float, float]]] = {
    "quote": (1.8, 11.0),
    "number": (0.4, 1.7),
    "name": (0.3, 1.6),
    "id": (0.25, 3.7),
    "member": (0.05, 0.7),
    "word": (0.04, 1.5),
    "key": (0.01, 1.7),
}
_SAME_KEY: Final = (6.0, 2.7)
_OTHER_KEY: Final = (0.08, 0.23)
_OLDER: Final = (0.68, 0.87)  # for each later message, of the last few
_OLDEST: Final = 3
# where the value has not begun
_BEHIND_KEY, _BEFORE_KEY = 5.0, 2.8
_USED = 0.35
_LOOKS_RIGHT, _LOOKS_WRONG = 1.8, 0.2
_NEXT_IN_TURN, _FIRST_UNUSED = 4.2, 3.8
# where it has: it may end with the word, unless more than one is copied already
_WORD_ENDED, _WORDS_COPIED = 0.25, 2.0
_LONGER: Final = 0.33  # the power of the value's length that a weight grows with

# Confidence in the tokens behind the first.
_SAME_WORD, _NEXT_WORD = 0.92, 0.55

_CLAUSE: Final = re.compile(rb"(?:[^\\(){}\[\]<>|.;!?\n]|[.;!?](?=[^\s\\]))*+")
_FIRST_WORD: Final = re.compile(rb".?[^\s]*", re.DOTALL)
_WRITTEN: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)"|(-?\d[\d.]*)')
_COLON: Final = re.compile(rb":\s*$")
_ITEM: Final = re.compile(rb"[\[,]\s*$")
_LOOKS: Final = (
    ({"date", "dob", "day", "time"}, re.compile(rb"\d[-/:]\d")),
    ({"email", "mail"}, re.compile(rb"@")),
    ({"url", "link", "website"}, re.compile(rb"://|www")),
    ({"id", "ids", "code", "number"}, re.compile(rb"\d")),
    (
        {"name", "city", "country", "location", "place", "state", "origin", "destination"},
        re.compile(rb"^[A-Z]"),
    ),
)
"""How values of keys with such words look."""


class _Guess(NamedTuple):
    """How a value may go on.

    rest: what is added to it; b"" where it is complete
    unit: how many bytes of `rest` are the mention's own; behind them the text goes on to other words
    """

    weight: float
    rest: bytes
    unit: int


@dataclass(slots=True)
class _Slot:
    """The index of a slot's settled tokens, and the length of the prompt for which it was last compared."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    n_prompt: int | None = None


class LookupDraft(Draft):
    """Offers copies of what the conversation holds.

    token_bytes: what a token spells
    tokenize:    reply text to tokens; may raise ValueError on bytes that it cannot spell

    Holds an index for each slot, linear in the length of its last conversation, and what it read in the last
    few texts. An offer depends on the request and on the tokens settled so far, on nothing else.
    """

    name = "lookup"

    def __init__(self, token_bytes: Callable[[int], bytes], tokenize: Callable[[bytes], list[int]]) -> None:
        self._token_bytes = functools.cache(token_bytes)
        self._tokenize = functools.lru_cache(_TEXTS_KEPT)(tokenize)
        self._read = functools.lru_cache(_TEXTS_KEPT)(TextIndex)
        self._slots: dict[int, _Slot] = {}

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        return [self._offer(request) for request in requests]

    def ended(self, reply: EndedReply) -> None:
        """Keeps the index for the conversation's next turn, to be compared since another may come."""
        if slot := self._slots.get(reply.slot):
            slot.n_prompt = None

    def _offer(self, request: DraftRequest) -> Offer | None:
        place, matcher = request.place, request.matcher
        legal = None if matcher is None else matcher.legal()
        tokens = self._copy_tokens(request, place, legal)
        value = self._copy_value(request, place, legal)
        if tokens is None or value is None:
            return tokens or value
        return _surer(tokens, value)

    # ------------------------------------------------------------------------------------------- tokens

    def _copy_tokens(self, request: DraftRequest, place: Place, legal: Legal) -> Offer | None:
        index = self._index(request)
        before_value = place.kind == "structure" or (place.kind == "string" and not place.value)
        least = _MATCH_BEFORE_VALUE if before_value else 1
        found = [
            match
            for match in index.matches(request.prefix[-MAX_MATCH:])
            if match.length >= least and _allows(legal, index.tokens[match.end])
        ]
        return _followed(index.tokens, found, request.room) if found else None

    def _index(self, request: DraftRequest) -> SuffixIndex:
        """The slot's index, brought up to what is settled."""
        slot = self._slots.setdefault(request.slot, _Slot())
        index, known, settled = slot.index, len(slot.index.tokens), request.n_settled
        if slot.n_prompt == request.n_prompt and known <= settled:
            index.append(request.prefix[known:settled])  # within a reply, settled tokens only come to it
        else:
            index.follow(request.prefix[:settled])
            slot.n_prompt = request.n_prompt
        return index

    # ------------------------------------------------------------------------------------------- values

    def _copy_value(self, request: DraftRequest, place: Place, legal: Legal) -> Offer | None:
        # only a grammar tells that a value which has not begun is a number: by what is legal
        numeric = place.kind == "number" or (legal is not None and self._value_is_next(request, place))
        if not numeric and place.kind != "string":
            return None
        texts = [self._read(text) for text in request.texts]
        if place.value:
            guesses = _continuations(texts, place, numeric)
        else:
            reply = request.prefix[max(request.n_prompt, len(request.prefix) - _REPLY_READ) :]
            guesses = _beginnings(texts, place, numeric, b"".join(map(self._token_bytes, reply)))
        weights: dict[bytes, float] = {}
        latest: dict[bytes, _Guess] = {}
        for guess in guesses:
            unit = guess.rest[: guess.unit]
            weights[unit] = weights.get(unit, 0.0) + guess.weight
            latest.setdefault(unit, guess)
        total = 1.0 + sum(weights.values())
        for unit in sorted(weights, key=lambda unit: -weights[unit])[:_TRIES]:
            if not unit:
                return None  # most likely it is complete
            tokens = self._spell(place.value, latest[unit].rest)[: request.room]
            if tokens and _allows(legal, tokens[0]):
                return Offer(tokens, self._confidence(tokens, weights[unit] / total, len(unit)))
        return None

    def _value_is_next(self, request: DraftRequest, place: Place) -> bool:
        """Whether, between brackets, a value comes next: behind a colon, or as an item of an array."""
        if place.kind != "structure":
            return False
        pattern = _ITEM if place.path[-1] == "[]" else _COLON
        return bool(pattern.search(b"".join(map(self._token_bytes, request.prefix[-4:]))))

    def _spell(self, value: bytes, rest: bytes) -> list[int]:
        """The tokens of `rest` behind `value`: of both as one text, where a token begins between them.

        Else of `rest` alone. A quote is put in front for vocabularies that spell every text with a space in
        front. [] where none of this can be spelled.
        """
        stem = value[value.rfind(b" ") :] if b" " in value else value[-_AHEAD:]
        for lead in dict.fromkeys((stem, b'"' + stem, b"", b'"')):
            try:
                tokens = self._tokenize(lead + rest)
            except ValueError:
                continue
            start, left = len(tokens), len(rest)
            while start and left > 0:
                start -= 1
                left -= len(self._token_bytes(tokens[start]))
            if left == 0:
                return tokens[start:]
        return []

    def _confidence(self, tokens: Sequence[int], first: float, unit: int) -> list[float]:
        """That of a value's first token, and of the others by whether they begin another word."""
        confidence, at = [], 0
        for token in tokens:
            piece = self._token_bytes(token)
            confidence.append(_NEXT_WORD if at >= unit and piece.startswith(b" ") else _SAME_WORD)
            at += len(piece)
        confidence[0] = first
        return confidence


def _followed(tokens: Sequence[int], matches: Sequence[Match], room: int) -> Offer:
    """What followed the first match, as far as there is room.

    A token is the likelier the longer the match before it is, and the more of the matches that are not much
    shorter went on with it too.
    """
    length, end = matches[0]
    voters = [match.end for match in matches if 2 * match.length >= length]
    run = tokens[end : end + room]
    confidence = []
    for step, token in enumerate(run):
        agreeing = [at for at in voters if at + step < len(tokens) and tokens[at + step] == token]
        known = length + step
        confidence.append(len(agreeing) / (len(voters) + 0.5) * known / (known + 2.0))
        voters = agreeing
    return Offer(run, confidence)


def _surer(one: Offer, other: Offer) -> Offer:
    """The more confident offer; as far as the other says the same, it has two witnesses."""
    if one.confidence[0] < other.confidence[0]:
        one, other = other, one
    confidence = list(one.confidence)
    for at, (token, same) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if token != same:
            break
        confidence[at] = 1.0 - (1.0 - confidence[at]) * (1.0 - other.confidence[at])
    return Offer(one.tokens, confidence)


def _continuations(texts: Sequence[TextIndex], place: Place, numeric: bool) -> Iterator[_Guess]:
    """How a value that has begun goes on, if it is one that the texts mention; the latest text first."""
    value, key = place.value, stems(_key(place))
    for age, text in enumerate(texts):
        factor = _OLDER[1] ** min(age, _OLDEST) * len(value) ** _LONGER
        for mention in text.begun(value):
            if numeric == (mention.kind == "number"):
                weight = factor * _WEIGHT[mention.kind][1] * _by_key(mention, key)[1]
                yield _going_on(text, mention, value, weight)


def _going_on(text: TextIndex, mention: Mention, value: bytes, weight: float) -> _Guess:
    """How a value goes on that is copied from a mention: words go on to the words behind them."""
    rest = mention.text[len(value) :]
    own = mention.text.startswith(value)
    if own and mention.kind != "word":
        return _Guess(weight, rest, len(rest))
    clause = _clause(text, mention.start + len(value) + len(rest))
    if own and rest:
        return _Guess(weight, rest + clause, len(rest))
    word = _FIRST_WORD.match(clause)
    return _Guess(weight * (_WORD_ENDED if own else _WORDS_COPIED), clause, word.end() if word else 0)


def _beginnings(texts: Sequence[TextIndex], place: Place, numeric: bool, reply: bytes) -> Iterator[_Guess]:
    """What a value may be, of what the texts mention; the latest text first.

    reply: what is written before it
    """
    name = _key(place)
    key, words = stems(name), key_words(name)
    look = next((look for names, look in _LOOKS if not words.isdisjoint(names)), None)
    written = [string or number for string, number in _WRITTEN.findall(reply)]
    used = set(written)
    for age, text in enumerate(texts):
        near: dict[Mention, float] = {}
        for mention, behind in text.near(key):
            near[mention] = max(near.get(mention, 0.0), _BEHIND_KEY if behind else _BEFORE_KEY)
        turn = _in_turn(text.numbers, written) if numeric else {}
        candidates: Iterable[Mention] = text.numbers
        if not numeric:
            candidates = dict.fromkeys((*text.of_key(key), *text.striking, *near))
        for mention in candidates:
            if numeric != (mention.kind == "number"):
                continue
            weight = _WEIGHT[mention.kind][0] * _by_key(mention, key)[0] * _OLDER[0] ** min(age, _OLDEST)
            weight *= near.get(mention, 1.0) * turn.get(mention, 1.0)
            if mention.text in used:
                weight *= _USED
            if look and not numeric:
                weight *= _LOOKS_RIGHT if look.search(mention.text) else _LOOKS_WRONG
            end = mention.start + len(mention.text)
            more = _clause(text, end) if mention.kind == "word" else b""
            yield _Guess(weight, mention.text + more, len(mention.text))


def _in_turn(numbers: Sequence[Mention], written: Sequence[bytes]) -> dict[Mention, float]:
    """Numbers mostly come in the order in which they are mentioned: factors for those whose turn it is."""
    factors: dict[Mention, float] = {}
    used = set(written)
    last = next((value for value in reversed(written) if value[-1:].isdigit()), None)
    for before, mention in itertools.pairwise(numbers):
        if before.text == last:
            factors[mention] = _NEXT_IN_TURN
    if first := next((mention for mention in numbers if mention.text not in used), None):
        factors[first] = factors.get(first, 1.0) * _FIRST_UNUSED
    return factors


def _by_key(mention: Mention, key: frozenset[str]) -> tuple[float, float]:
    if not mention.about:
        return (1.0, 1.0)
    return _OTHER_KEY if key.isdisjoint(mention.about) else _SAME_KEY


def _key(place: Place) -> str:
    """The key that a value belongs to, through arrays too; "" where there is none."""
    return next((key for key in reversed(place.path[1:]) if key != "[]"), "")


def _clause(text: TextIndex, start: int) -> bytes:
    """The text from `start` to where its sentence, or what can be copied of it, ends."""
    found = _CLAUSE.match(text.data, start, start + _AHEAD)
    return found.group().rstrip(b" ,:'*`") if found else b""


def _allows(legal: Legal, token: int) -> bool:
    if legal is None:
        return True
    at = int(np.searchsorted(legal, token))
    return at < len(legal) and int(legal[at]) == token
