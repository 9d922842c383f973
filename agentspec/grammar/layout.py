"""The gaps of a JSON text: where white space means nothing.

`Layout` follows a reply byte by byte. It tells the white space between the parts of a JSON value from that
within strings and in the text around the value, leaves it out, and knows which gap the reply stands in. It
never fails: what is not JSON after all is text.

It must not know grammars, tokens, nor what is usual in a gap.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ["SPACE", "Gap", "GapKind", "Layout"]

GapKind = Literal["open", "close", "empty", "before comma", "after comma", "before colon", "after colon"]
"""open: between a bracket and what it holds. close: between that and the closing bracket. empty: between the
brackets of nothing."""

SPACE: Final = b" \t\r\n"

_MAX_DEPTH: Final = 64
_QUOTE, _BACKSLASH = b'"\\'
_SCALARS: Final = b"+-.0123456789eEtrufalsn"
_CLOSING: Final = {ord("{"): ord("}"), ord("["): ord("]")}

# what a gap lies between: marks and the quotes of keys as they are, any other part as the first of these
_VALUE: Final = 0
_SCALAR: Final = 1  # a value without quotes or brackets, which the next byte may go on with
_OBJECT, _ARRAY, _COMMA, _COLON = b"{[,:"

_KINDS: Final[dict[tuple[int, int, int], GapKind]] = {
    (_OBJECT, _OBJECT, _QUOTE): "open",
    (_OBJECT, _OBJECT, _CLOSING[_OBJECT]): "empty",
    (_OBJECT, _VALUE, _COLON): "before colon",
    (_OBJECT, _COLON, _VALUE): "after colon",
    (_OBJECT, _VALUE, _COMMA): "before comma",
    (_OBJECT, _COMMA, _QUOTE): "after comma",
    (_OBJECT, _VALUE, _CLOSING[_OBJECT]): "close",
    (_ARRAY, _ARRAY, _VALUE): "open",
    (_ARRAY, _ARRAY, _CLOSING[_ARRAY]): "empty",
    (_ARRAY, _VALUE, _COMMA): "before comma",
    (_ARRAY, _COMMA, _VALUE): "after comma",
    (_ARRAY, _VALUE, _CLOSING[_ARRAY]): "close",
}
"""By container, and what is on either side."""

_CANDIDATES: Final = b'"{[1t,:}]'


class Gap(NamedTuple):
    """A place for white space.

    container: the bracket that it is in, the code of `{` or `[`
    depth:     how many brackets are open around it
    """

    kind: GapKind
    container: int
    depth: int

    @property
    def level(self) -> int:
        """How many levels what follows is indented, where it begins a line."""
        return self.depth - 1 if self.kind == "close" else self.depth


class Layout:
    """Follows a reply. Cheap to fork.

    seen:      what was in the gaps that are over; None where it was not always the same
    space:     what is already there of the gap that the reply stands in
    in_string: whether it stands between two quotes
    in_word:   whether something of the string is already there
    """

    __slots__ = ("_after", "_escaped", "_stack", "in_string", "in_word", "seen", "space")

    def __init__(self) -> None:
        self.seen: dict[Gap, bytes | None] = {}
        self._leave()

    @property
    def depth(self) -> int:
        """How many brackets are open; 0 outside JSON."""
        return len(self._stack)

    def advance(self, data: bytes) -> bytes:
        """Moves over bytes of the reply and returns them without the white space that means nothing."""
        kept = bytearray()
        at = 0
        while at < len(data):
            if self.in_string:
                end = self._through_string(data, at)
                kept += data[at:end]
                at = end
                continue
            byte = data[at]
            at += 1
            if not self._stack:
                kept.append(byte)
                if byte in _CLOSING:
                    self._open(byte)
            elif byte in SPACE:
                self.space += data[at - 1 : at]
            else:
                kept.append(byte)
                self._step(byte)
        return bytes(kept)

    def fork(self) -> Layout:
        copy = Layout.__new__(Layout)
        copy._stack, copy._after = bytearray(self._stack), self._after
        copy.seen, copy.space = dict(self.seen), self.space
        copy.in_string, copy._escaped, copy.in_word = self.in_string, self._escaped, self.in_word
        return copy

    def gap(self, byte: int) -> Gap | None:
        """The gap that would be over if `byte` came next; None where it would end none that JSON has."""
        if not self._stack or self.in_string or self._goes_on(byte):
            return None
        container, after = self._stack[-1], _VALUE if self._after == _SCALAR else self._after
        is_value = byte == _QUOTE or byte in _CLOSING or byte in _SCALARS
        wants_key = container == _OBJECT and after != _COLON
        kind = _KINDS.get((container, after, _VALUE if is_value and not wants_key else byte))
        return None if kind is None else Gap(kind, container, len(self._stack))

    def ends(self) -> list[tuple[int, Gap]]:
        """What may end the gap, a byte for each mark and each kind of value, and which gap it then is."""
        if not self._stack or self.in_string:
            return []
        return [(byte, gap) for byte in _CANDIDATES if (gap := self.gap(byte))]

    def _goes_on(self, byte: int) -> bool:
        """Whether the byte belongs to the number or word before it."""
        return self._after == _SCALAR and not self.space and byte in _SCALARS

    def _leave(self) -> None:
        self._stack = bytearray()  # open brackets
        self._after = _VALUE
        self.space = b""
        self.in_string = self._escaped = self.in_word = False

    def _open(self, byte: int) -> None:
        if len(self._stack) == _MAX_DEPTH:
            self._leave()
            return
        self._stack.append(byte)
        self._after = byte

    def _step(self, byte: int) -> None:
        """Moves over a byte of JSON that is neither in a string nor white space."""
        if self._goes_on(byte):
            return
        gap = self.gap(byte)
        if gap is None:
            self._leave()  # not JSON after all
            return
        self._end_gap(gap, byte)
        if byte == _QUOTE:
            self.in_string = True
        elif byte in _CLOSING:
            self._open(byte)
        elif byte in _CLOSING.values():
            self._close()
        else:
            self._after = byte if byte in (_COMMA, _COLON) else _SCALAR

    def _end_gap(self, gap: Gap, byte: int) -> None:  # noqa: ARG002 - for who learns from gaps
        self.seen[gap] = self.space if self.seen.get(gap, self.space) == self.space else None
        self.space = b""

    def _close(self) -> None:
        self._stack.pop()
        self._after = _VALUE
        if not self._stack:
            self._leave()

    def _through_string(self, data: bytes, at: int) -> int:
        """Moves through a string from `at` on; returns where in the data it ends, or the data do."""
        while at < len(data):
            byte = data[at]
            at += 1
            if self._escaped:
                self._escaped = False
            elif byte == _BACKSLASH:
                self._escaped = True
            elif byte == _QUOTE:
                self.in_string = self.in_word = False
                self._after = _VALUE
                return at
            self.in_word = True
        return at
