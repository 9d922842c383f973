"""What passes of a session take: measured before it is in use. It must not know who asks."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentspec.types import Session, Span

__all__ = ["measure"]


def measure(session: Session, sizes: Sequence[int]) -> list[tuple[int, float]]:
    """Seconds of passes of so many tokens, in the order given, sizes that do not fit left out.

    Slot 0 must be empty, and is again. Raises DecodeError where the model fails.
    """
    found = []
    for size in sizes:
        if size > min(session.n_batch, session.n_ctx):
            continue
        tokens = [index % session.n_vocab for index in range(size)]
        started = time.perf_counter()
        session.decode([Span(0, tokens, (size - 1,))])
        found.append((size, time.perf_counter() - started))
        session.truncate(0, 0)
    return found
