"""How a model writes JSON: the white space it puts into each gap, and the order of its keys.

A `Style` is what is in the gaps of replies that look alike; a gap that was never seen is filled like the
nearest one that was. Models have more than one style: they indent a call, say, until the conversation has one
on a single line. So `Habits` keeps a few. What a reply has shown of its style chooses among them; before it
has shown anything, the latest is taken. A `Lesson` teaches what one reply shows. Who follows the same tools
shares one `Habits`, so what one reply taught is known from the first byte of the next.

It must not know grammars, nor what is proposed of all this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from agentspec.grammar.layout import Gap, GapKind, Layout
from agentspec.grammar.order import Orders

__all__ = ["Habits", "Lesson", "Style"]

_TIGHT: Final[dict[GapKind, bytes]] = {"after comma": b" ", "after colon": b" "}
"""What is in the gaps of text as chat templates write it; nothing is in all others."""

_BREAKS: Final = ("open", "after comma", "close")
"""The gaps where a line may begin."""

_FORMS_KEPT: Final = 3
_STYLES_KEPT: Final = 4
_ORDERS_KEPT: Final = 32
_LONGEST: Final = 256  # bytes of white space that are a habit

_QUOTE: Final = ord('"')


class Style:
    """What is in the gaps of replies that look alike."""

    def __init__(self, seen: Mapping[Gap, bytes | None] | None = None) -> None:
        # A form is the white space; where it begins a line, without the indent, which depends on the level.
        self._forms: dict[Gap, tuple[bytes, ...]] = {}  # the latest first
        self._indents: dict[int, bytes] = {}  # by level
        self._odd: set[Gap] = set()
        for gap, space in (seen or {}).items():
            if space is not None:
                self.learn(gap, space)

    @property
    def tight(self) -> bool:
        """Whether all gaps are as chat templates write them, as far as they are known."""
        return not self._odd

    def agrees(self, seen: Mapping[Gap, bytes | None]) -> bool:
        """Whether it may be the style of a reply with this in its gaps; None stands for anything."""
        for gap, space in seen.items():
            forms = self._forms.get(gap)
            known = self._indented(forms[0], gap) if forms else None
            if known is not None and space is not None and known != space:
                return False
        return True

    def learn(self, gap: Gap, space: bytes) -> None:
        """A reply in this style had `space` in a gap."""
        if len(space) > _LONGEST:
            return
        form = space
        if gap.kind in _BREAKS and b"\n" in space:
            form = space[: space.rindex(b"\n") + 1]
            self._indents[gap.level] = space[len(form) :]
        earlier = self._forms.pop(gap, ())
        self._forms[gap] = (form, *(other for other in earlier if other != form))[:_FORMS_KEPT]
        (self._odd.discard if form == _TIGHT.get(gap.kind, b"") else self._odd.add)(gap)

    def space(self, gap: Gap, written: bytes = b"") -> bytes | None:
        """What is likely to be in a gap that begins with `written`; None if nothing is known."""
        for form in self._likely(gap):
            space = self._indented(form, gap)
            if not written or (space is not None and space.startswith(written)):
                return space
        return None

    def _likely(self, gap: Gap) -> Iterator[bytes]:
        """Forms for the gap, the likeliest first."""
        yield from self._forms.get(gap, ())
        latest = [(other, forms[0]) for other, forms in reversed(self._forms.items())]
        latest.sort(key=lambda known: (abs(known[0].depth - gap.depth), known[0].kind != gap.kind))
        same = (form for other, form in latest if other.kind == gap.kind)
        if gap.kind in _BREAKS:
            usual = next((form for form in same if not _breaks(form)), self._default(gap))
            for other, form in latest:
                if other.kind in _BREAKS:
                    yield form if _breaks(form) else usual
            yield usual
        else:
            yield next(same, self._default(gap))

    def _default(self, gap: Gap) -> bytes:
        if gap.kind == "after comma":  # who saves the space after colons saves this one too
            colons = (forms[0] for other, forms in self._forms.items() if other.kind == "after colon")
            return b"" if b"" in colons else b" "
        return _TIGHT.get(gap.kind, b"")

    def _indented(self, form: bytes, gap: Gap) -> bytes | None:
        """A form as white space; None where it is not known how far the line is indented."""
        if gap.kind not in _BREAKS or not _breaks(form):
            return form
        indent = self._indent(gap.level)
        return None if indent is None else form + indent

    def _indent(self, level: int) -> bytes | None:
        if level in self._indents:
            return self._indents[level]
        near = min(self._indents, key=lambda known: abs(known - level), default=0)
        unit = self._unit(near)
        if unit is None:
            return None
        indent = self._indents[near]
        return indent + unit * (level - near) if level > near else indent[len(unit) * (near - level) :]

    def _unit(self, near: int) -> bytes | None:
        """What one level adds: the difference of two that are known, or an equal part of one; else None."""
        for other, known in self._indents.items():
            if other != near:
                indents = sorted((self._indents[near], known), key=len)
                return indents[1][len(indents[0]) :][
                    : (len(indents[1]) - len(indents[0])) // abs(near - other)
                ]
        return self._indents[near][: len(self._indents[near]) // near] if near else None


class Habits:
    """What one model does.

    orders: of keys; replaced, never changed, so it may be read from any thread. All else is for one thread.
    """

    def __init__(self) -> None:
        self.orders: Orders = ()
        self._styles: list[Style] = []  # the latest first

    def styles(self, seen: Mapping[Gap, bytes | None]) -> list[Style]:
        """What may be the style of a reply that has shown this much of it: at least one, the likeliest first.
        They are not to be changed."""
        return [style for style in self._styles if style.agrees(seen)] or [Style(seen)]

    def learn(self, seen: Mapping[Gap, bytes | None], gap: Gap, space: bytes) -> None:
        """A reply that has shown this much of its style put `space` into a gap."""
        style = self.styles(seen)[0]
        style.learn(gap, space)
        self._styles = [style, *(other for other in self._styles if other is not style)][:_STYLES_KEPT]

    def learn_order(self, head: str, keys: tuple[str, ...]) -> None:
        """The model wrote an object with these keys, in a value whose first string is `head`."""
        others = [(name, other) for name, other in self.orders if name != head or {*other} != {*keys}]
        self.orders = (*others, (head, keys))[-_ORDERS_KEPT:]


class Lesson(Layout):
    """Teaches what one reply shows, token by token, as it is settled.

    A layout, and beside it the keys of each open object. It must see nothing but what the model itself wrote:
    what is proposed and may yet be rejected teaches nothing.
    """

    __slots__ = ("_fits", "_habits", "_head", "_keys", "_token_bytes", "_word")

    def __init__(self, habits: Habits, token_bytes: Callable[[int], bytes]) -> None:
        self._habits = habits
        self._token_bytes = token_bytes
        self._fits = True
        super().__init__()

    def see(self, token: int, *, fits: bool) -> None:
        """Moves over one settled token.

        fits: whether the reply fits its grammar up to here: then that knows the order of the keys
        """
        self._fits = fits
        self.advance(self._token_bytes(token))

    def _leave(self) -> None:
        super()._leave()
        self._head = ""
        self._keys: list[list[str]] = []  # of each open bracket
        self._word: bytearray | None = None  # a string that is a key, or the first value

    def _open(self, byte: int) -> None:
        self._keys.append([])
        super()._open(byte)

    def _end_gap(self, gap: Gap, byte: int) -> None:
        space = self.space
        super()._end_gap(gap, byte)
        self._habits.learn(self.seen, gap, space)
        if byte == _QUOTE and gap.container == ord("{"):
            is_head = not self._head and self._stack.count(gap.container) == 1
            self._word = bytearray() if is_head or gap.kind != "after colon" else None

    def _close(self) -> None:
        keys = tuple(self._keys.pop())
        if not self._fits and len(keys) == len({*keys}) > 1:
            self._habits.learn_order(self._head, keys)
        super()._close()
        if ord("{") not in self._stack:
            self._head = ""

    def _through_string(self, data: bytes, at: int) -> int:
        is_key = self._after != ord(":")
        end = super()._through_string(data, at)
        if self._word is not None:
            self._word += data[at:end]
            if not self.in_string:
                word = self._word[:-1].decode(errors="replace")
                if is_key:
                    self._keys[-1].append(word)
                else:
                    self._head = word
                self._word = None
        return end


def _breaks(form: bytes) -> bool:
    return form.endswith(b"\n")
