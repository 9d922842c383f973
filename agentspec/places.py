"""Where in its JSON a reply stands: what drafts know about a token before it is there.

How well a draft does depends less on the draft than on the place: a key is nearly always right, the first
word of a string seldom. `PlaceScanner` follows a reply token by token and says which kind of place comes
next, under which keys, and what of a value is already written.

It reads bytes, tolerates any text around the JSON, and never fails: text that is not JSON is "text". It must
not know grammars, tools or wire formats.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ["TEXT", "Place", "PlaceKind", "PlaceScanner"]

PlaceKind = Literal["text", "structure", "key", "string", "number"]
"""text: outside JSON. structure: between values, brackets and separators. key, string: inside their quotes.
number: in a number, true, false or null."""

_SPACE: Final = b" \t\r\n"
_SCALAR: Final = b"+-.0123456789eEtrufalsn"
_MAX_DEPTH: Final = 64
_QUOTE, _BACKSLASH, _COLON, _COMMA = b'"\\:,'
_OPENING: Final = b"{["
_CLOSING: Final = {ord("{"): ord("}"), ord("["): ord("]")}


class Place(NamedTuple):
    """What the next token belongs to.

    kind:  see `PlaceKind`
    path:  where in the outermost value: first the value of its first string member ("" before that is
           written), which in every wire format is the tool's name, then the keys down to here, "[]" for an
           item of an array; () outside JSON
    value: what is already there of the key, string or number, as it is spelled in JSON, quotes left out
    """

    kind: PlaceKind
    path: tuple[str, ...] = ()
    value: bytes = b""


TEXT: Final = Place("text")


class PlaceScanner:
    """Follows a reply. Cheap to fork: it holds a few short lists."""

    __slots__ = ("_escaped", "_head", "_keys", "_kind", "_stack", "_value", "_wants_key")

    def __init__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        self._kind: PlaceKind = "text"
        self._stack: list[int] = []  # open brackets
        self._keys: list[str] = []  # the key that each level is at; "[]" in an array
        self._head = ""
        self._wants_key = False
        self._escaped = False
        self._value = bytearray()

    @property
    def place(self) -> Place:
        """Where the next token goes."""
        if self._kind == "text":
            return TEXT
        keys = self._keys[:-1] if self._kind == "key" else self._keys
        return Place(self._kind, (self._head, *keys), bytes(self._value))

    def advance(self, data: bytes) -> None:
        """Moves over the bytes of a token."""
        for byte in data:
            if self._kind in ("string", "key"):
                self._step_string(byte)
            elif self._kind == "text":
                if byte in _OPENING:
                    self._open(byte)
            else:
                self._step_structure(byte)

    def fork(self) -> PlaceScanner:
        copy = PlaceScanner.__new__(PlaceScanner)
        copy._kind, copy._head = self._kind, self._head
        copy._wants_key, copy._escaped = self._wants_key, self._escaped
        copy._stack, copy._keys, copy._value = list(self._stack), list(self._keys), bytearray(self._value)
        return copy

    def _open(self, byte: int) -> None:
        if len(self._stack) == _MAX_DEPTH:
            self._leave()
            return
        self._stack.append(byte)
        self._keys.append("[]" if byte == _OPENING[1] else "")
        self._wants_key = byte == _OPENING[0]
        self._kind = "structure"
        self._value.clear()

    def _step_string(self, byte: int) -> None:
        if self._escaped:
            self._escaped = False
        elif byte == _BACKSLASH:
            self._escaped = True
        elif byte == _QUOTE:
            text = self._value.decode(errors="replace")
            if self._kind == "key":
                self._keys[-1] = text
            elif not self._head and self._in_outermost_object():
                self._head = text
            self._wants_key = False
            self._kind = "structure"
            self._value.clear()
            return
        self._value.append(byte)

    def _step_structure(self, byte: int) -> None:
        """Between values, or in a number: ends it, or goes on with it."""
        if byte in _SCALAR and not self._wants_key:
            self._kind = "number"
            self._value.append(byte)
            return
        self._kind = "structure"
        self._value.clear()
        if byte == _QUOTE:
            self._kind = "key" if self._wants_key else "string"
        elif byte in _OPENING and not self._wants_key:
            self._open(byte)
        elif byte in _CLOSING.values():
            self._close(byte)
        elif byte == _COMMA:
            self._wants_key = self._stack[-1] == _OPENING[0]
        elif byte != _COLON and byte not in _SPACE:
            self._leave()  # not JSON after all

    def _close(self, byte: int) -> None:
        if _CLOSING[self._stack.pop()] != byte:
            self._leave()
            return
        self._keys.pop()
        self._wants_key = False
        if not self._stack:
            self._leave()

    def _in_outermost_object(self) -> bool:
        return self._stack[-1] == _OPENING[0] and self._stack.count(_OPENING[0]) == 1
