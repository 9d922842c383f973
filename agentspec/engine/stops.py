"""Stop strings: finds them in the reply's bytes and holds back what may become one.

It sees only what is already decided, so stopping cannot bias what comes before. It must not know tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopScanner"]


class StopScanner:
    """Passes bytes through until a stop string is complete.

    The held-back tail is never longer than the longest stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop.encode() for stop in stops if stop]
        self._held = b""
        self.stopped = False

    def feed(self, data: bytes) -> bytes:
        """The bytes that are now certain to be part of the reply. After a stop string: none."""
        if self.stopped:
            return b""
        text = self._held + data
        found = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = b""
            return text[: min(found)]
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :] if keep else b""
        return text[: len(text) - keep]

    def flush(self) -> bytes:
        """What was held back, at the end of a reply that no stop string ended."""
        held, self._held = self._held, b""
        return held

    @staticmethod
    def _overlap(text: bytes, stop: bytes) -> int:
        """How many of the last bytes of `text` may begin `stop`."""
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                return size
        return 0
