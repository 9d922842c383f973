"""Indexes of what may be copied: token sequences by what they end in, texts by the values that begin in them.

`SuffixIndex` finds where the end of a sequence has occurred in it before. It holds hash chains as LZ77
compressors do (RFC 1951, section 4): a table leads from the last few tokens to where they came last, and a
list from there to the time before. A suffix tree (SuffixDecoding, arXiv 2411.04975) would look at all
occurrences, not only at the latest few; in exchange tokens are appended and taken back in constant time, and
a few numbers a token are all that is held.

`TextIndex` reads a message once and notes where in it a value may begin: quotes, names, numbers, words, and
the members of a JSON result. It holds bytes as JSON spells them, so what it finds can be written as it is.

This module must not know requests or tokenizers, nor how likely anything is.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from agentspec.prefix import common_prefix

__all__ = ["MAX_MATCH", "Match", "Mention", "MentionKind", "SuffixIndex", "TextIndex", "key_words", "stems"]

MAX_MATCH: Final = 32
"""Matches are measured up to this many tokens: a longer tail is of no use to `SuffixIndex.matches`."""

_NONE: Final = -1


class Match(NamedTuple):
    """An earlier occurrence of a tail.

    length: how many tokens of the tail it has in common, counted from the end, up to MAX_MATCH
    end:    where it ends in the sequence: the position of the token that followed
    """

    length: int
    end: int


class SuffixIndex:
    """An index over one sequence that mostly grows.

    grams: lengths of the ends that are looked up, longest first, the last being the shortest match that is
           found. Where a long end has occurred, shorter ones are not looked up: in JSON the last two tokens
           are mostly punctuation, whose latest occurrences say little.
    walk:  how many occurrences of an end a query looks at, the latest first
    """

    def __init__(self, *, grams: Sequence[int] = (4, 2), walk: int = 16) -> None:
        self._grams = tuple(grams)
        self._walk = walk
        self._tokens: list[int] = []
        # for each gram: hash of the tokens that end at a position -> the latest such position. Hashes may
        # collide: what is found is compared.
        self._latest: list[dict[int, int]] = [{} for _ in grams]
        # for each gram and position: the position before it in its chain, or _NONE
        self._previous = [array("i") for _ in grams]

    @property
    def tokens(self) -> Sequence[int]:
        """The indexed sequence. A live view: do not change it."""
        return self._tokens

    @property
    def n_entries(self) -> int:
        """How many numbers it holds: at most 1 + 2 * len(grams) a token."""
        return len(self._tokens) + sum(map(len, self._latest)) + sum(map(len, self._previous))

    def follow(self, tokens: Sequence[int]) -> None:
        """Makes it the index of `tokens`: takes back what differs and appends the rest.

        Takes time for what is taken back and appended, and for a comparison of the two sequences.
        """
        kept = common_prefix(self._tokens, tokens)
        if kept < len(self._tokens):
            self._cut(kept)
        self.append(tokens[kept:])

    def append(self, tokens: Sequence[int]) -> None:
        """Indexes more tokens at the end of the sequence."""
        start = len(self._tokens)
        self._tokens.extend(tokens)
        for gram, latest, previous in zip(self._grams, self._latest, self._previous, strict=True):
            for position in range(start, len(self._tokens)):
                key = self._key(position, gram)
                previous.append(latest.get(key, _NONE))
                latest[key] = position

    def _cut(self, length: int) -> None:
        """Forgets the tokens from `length` on, the last first: each then heads its chain."""
        for gram, latest, previous in zip(self._grams, self._latest, self._previous, strict=True):
            for position in range(len(self._tokens) - 1, length - 1, -1):
                before = previous.pop()
                if before == _NONE:
                    del latest[self._key(position, gram)]
                else:
                    latest[self._key(position, gram)] = before
        del self._tokens[length:]

    def _key(self, position: int, gram: int) -> int:
        return hash(tuple(self._tokens[max(0, position + 1 - gram) : position + 1]))

    def matches(self, tail: Sequence[int]) -> list[Match]:
        """Earlier occurrences of the end of `tail` that a token follows: longest first, of equals the latest.

        tail: the last tokens before the next one; they may run past what is indexed
        """
        for gram, latest, previous in zip(self._grams, self._latest, self._previous, strict=True):
            found = []
            position = latest.get(hash(tuple(tail[-gram:])), _NONE)
            for _ in range(self._walk):
                if position == _NONE:
                    break
                if position + 1 < len(self._tokens) and (length := self._measure(tail, position)) >= gram:
                    found.append(Match(length, position + 1))
                position = previous[position]
            if found:
                return sorted(found, key=lambda match: -match.length)  # stable: the latest of equals is first
        return []

    def _measure(self, tail: Sequence[int], position: int) -> int:
        """How many tokens up to `position` are those at the end of `tail`."""
        most = min(len(tail), position + 1, MAX_MATCH)
        length = 0
        while length < most and self._tokens[position - length] == tail[-1 - length]:
            length += 1
        return length


# --------------------------------------------------------------------------------------------- texts

MentionKind = Literal["quote", "name", "id", "word", "member", "key", "number"]
"""quote: in quotation marks. name: a run of capitalised words. id: a word with digits, "@", "_", "/" or "#".
word: any other. member, key: a string value and a key of a JSON text. number: a number, without separators of
thousands; also true, false and null of a JSON text."""


class Mention(NamedTuple):
    """A place in a text where a value may begin.

    text:  the value, if it ends where the quote, the word or the member ends; as JSON spells it
    start: where it begins in the `data` of its index
    about: in JSON, stems of the key whose value it is, or in whose object it is a key; else empty
    """

    text: bytes
    start: int
    kind: MentionKind
    about: frozenset[str] = frozenset()


_NEAR: Final = 25  # bytes between a key's word and a mention that belongs to it
_OCCURRENCES: Final = 8  # of a key's word, that are looked at
_KEY_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_EMPTY_WORDS: Final = frozenset({"name", "number", "value"})

_MARKS: Final = b".,:;!?'*`"
_ESCAPE: Final = re.compile(rb"\\(?:u[0-9a-f]{4}|.)")
# these are searched for where escapes are blanked, and an escaped quote is a space and a quote
_WORD: Final = re.compile(rb'[^\s"(){}\[\]<>|]+')
_QUOTE: Final = re.compile(
    rb'"(?![\s,.;:!?)])([^"\n]{1,80}) "|(?<![\w\x80-\xff])\'([^\'\n]{1,80})\'(?![\w\x80-\xff])'
    rb"|\xe2\x80\x9c([^\n]{1,80}?)\xe2\x80\x9d|`([^`\n]{1,80})`"
)
_NAME: Final = re.compile(
    rb"(?<![\w\x80-\xff])[A-Z][A-Za-z\x80-\xff'&-]++(?!\w)"
    rb"(?:(?:,? | of | de )[A-Z][A-Za-z\x80-\xff'&-]*+(?!\w))*+"
)
_NUMBER: Final = re.compile(
    # not of a date, a time or an id
    rb"(?<![\w.\x80-\xff-])(?<!\d[:/])-?(?:\d{1,3}(?:,\d{3})++|\d++)(?:\.\d++)?(?![-/:]\d)"
)
_JSON: Final = re.compile(
    r"""[{}\[\]]|("(?:[^"\\]|\\.)*+(?:"|\Z)|'(?:[^'\\]|\\.)*+(?:'|\Z))(\s*:)?"""
    r"|(?<![\w.])(?:-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|True|False|None)\b",
    re.DOTALL,
)
_LITERALS: Final = {"True": b"true", "False": b"false", "None": b"null"}


def key_words(key: str) -> set[str]:
    """The words of a key in snake or camel case, in lower case."""
    return {word.lower() for word in _KEY_WORD.findall(key)}


def stems(key: str) -> frozenset[str]:
    """What keys that speak of the same have in common: a longer word, in the singular, or the whole key."""
    words = {word.rstrip("s") for word in key_words(key)} - _EMPTY_WORDS
    return frozenset({word for word in words if len(word) > 2} | {key.lower()}) if key else frozenset()


class TextIndex:
    """Where values may begin in one text.

    data:     the text as it is spelled in a JSON string; of a JSON text, its strings and numbers, a line each
    numbers:  the mentions of numbers, in order
    striking: the mentions that strike the eye: quotes, names and ids, in order

    A text counts as JSON where it begins with a bracket. It is read leniently: results may be cut off, or
    written as Python writes them.
    """

    def __init__(self, text: str) -> None:
        self._mentions: list[Mention] = []
        if text.lstrip()[:1] in ("{", "["):
            self.data = self._read_json(text)
        else:
            self.data = _spelled(text)
            self._read_words(self.data)
        self._mentions.sort(key=lambda mention: mention.start)
        self._starts = [mention.start for mention in self._mentions]
        self._lower = self.data.lower()
        self._by_first: dict[int, list[Mention]] = defaultdict(list)
        self._by_stem: dict[str, list[Mention]] = defaultdict(list)
        for mention in self._mentions:
            self._by_first[mention.text[0]].append(mention)
            for stem in mention.about:
                self._by_stem[stem].append(mention)
        self.numbers = [mention for mention in self._mentions if mention.kind == "number"]
        self.striking = [mention for mention in self._mentions if mention.kind in ("quote", "name", "id")]

    def begun(self, value: bytes) -> Iterator[Mention]:
        """The mentions where the text reads `value`, of at least one byte, or where their own text does."""
        for mention in self._by_first.get(value[0], ()):
            if mention.text.startswith(value) or self.data.startswith(value, mention.start):
                yield mention

    def of_key(self, key: frozenset[str]) -> Iterator[Mention]:
        """The mentions about one of the key's stems; some may come twice."""
        for stem in sorted(key):  # in an order that no hash seed changes
            yield from self._by_stem.get(stem, ())

    def near(self, key: frozenset[str]) -> Iterator[tuple[Mention, bool]]:
        """The mentions close to a word of the key, with whether they come after it; some may come twice."""
        for stem in sorted(key):
            word = stem.encode(errors="replace")
            at = self._lower.find(word) if len(word) > 2 else _NONE
            for _ in range(_OCCURRENCES):
                if at == _NONE:
                    break
                end = at + len(word)
                before = slice(bisect_left(self._starts, at - _NEAR), bisect_left(self._starts, at))
                behind = slice(bisect_right(self._starts, end), bisect_right(self._starts, end + _NEAR))
                yield from ((mention, False) for mention in self._mentions[before])
                yield from ((mention, True) for mention in self._mentions[behind])
                at = self._lower.find(word, end)

    # ------------------------------------------------------------------------------------------ reading

    def _read_json(self, text: str) -> bytes:
        lines: list[bytes] = []
        start = 0
        key = frozenset[str]()
        around: list[frozenset[str]] = []  # the keys whose objects and arrays are open
        for found in _JSON.finditer(text):
            token, (literal, colon) = found.group(), found.groups()
            if token in "{[":
                around.append(key)
                continue
            if token in "}]":
                key = around.pop() if around else frozenset()
                continue
            string = None if literal is None else _unquoted(literal)
            line = _LITERALS.get(token, token.encode()) if string is None else _spelled(string)
            if colon:
                key = stems(string or "")
                self._note(line, start, "key", around[-1] if around else frozenset())
            elif string is None:
                self._note(line, start, "number", key)
            else:
                self._note(line, start, "member", key)
                self._read_words(line, start, key, {0})
            lines.append(line)
            start += len(line) + 1
        return b"\n".join(lines)

    def _read_words(
        self,
        data: bytes,
        offset: int = 0,
        about: frozenset[str] = frozenset(),
        taken: set[int] | None = None,
    ) -> None:
        """Notes what begins in `data`, which stands at `offset`: at each place the most that can be said.

        about: of the numbers in it
        taken: the places about which something has been said
        """
        places = taken or set[int]()
        plain = _ESCAPE.sub(_blank, data)

        def note(text: bytes, start: int, kind: MentionKind) -> None:
            if start not in places:
                places.add(start)
                self._note(text, offset + start, kind)

        for found in _QUOTE.finditer(plain):
            group = found.lastindex or 0
            note(found.group(group), found.start(group), "quote")
        for found in _NAME.finditer(plain):
            name, start = found.group().rstrip(b"'&-"), found.start()
            if b" " in name or not _begins_sentence(plain, start):
                note(name, start, "name")
            behind = name.find(b" ") + 1
            if behind and name[behind : behind + 1].isupper():  # the first word may not belong to it
                note(name[behind:], start + behind, "name")
        for found in _WORD.finditer(plain):
            if word := found.group().strip(_MARKS):
                kind: MentionKind = "id" if any(byte in b"0123456789@_/#" for byte in word) else "word"
                note(word, plain.index(word, found.start()), kind)
        for found in _NUMBER.finditer(plain):
            self._note(found.group().replace(b",", b""), offset + found.start(), "number", about)

    def _note(self, text: bytes, start: int, kind: MentionKind, about: frozenset[str] = frozenset()) -> None:
        if text:
            self._mentions.append(Mention(text, start, kind, about))


def _spelled(text: str) -> bytes:
    """A text as it is spelled in a JSON string, quotes left out."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode(errors="replace")


def _unquoted(literal: str) -> str:
    """What a string literal of JSON, or of Python, says; as it stands where that cannot be told."""
    if literal[0] == '"' and "\\" in literal:
        try:
            return str(json.loads(literal, strict=False))
        except ValueError:  # cut off, or not quite JSON
            pass
    return literal[1:].removesuffix(literal[0])


def _blank(escape: re.Match[bytes]) -> bytes:
    """What stands for an escape while words are looked for: as many bytes, and none of a word."""
    return b' "' if escape.group() == b'\\"' else b"\n" * len(escape.group())


def _begins_sentence(plain: bytes, start: int) -> bool:
    """Whether a word may be capitalised for its place alone."""
    return start == 0 or plain[start - 1] == ord("\n") or plain[start - 2 : start] in (b". ", b"? ", b"! ")
