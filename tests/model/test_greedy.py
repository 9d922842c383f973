"""Greedy replies with drafts equal greedy replies without, token for token, on the default pair.

A logit computed in a batch may differ in its last bits from the same one computed alone, so two tokens of
almost equal logits can change places. Where a reply differs, the test proves such a near-tie: it computes
the row at the first difference in passes of several sizes, and demands that the gap between the two
tokens is no larger than what the size of the pass does to the row. Else it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentspec.config import RuntimeOptions
from agentspec.drafts.base import Draft
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.llama import Context, Model
from agentspec.types import Span
from tests.model.toolset import PROMPTS, Reply, Requests, run

pytestmark = [pytest.mark.model, pytest.mark.slow]

CONFIGS = {"grammar": ("grammar",), "grammar+model": ("grammar", "model")}
SHAPES = (1, 2, 4, 8, 16)


class Pair:
    """Target and draft, and a core on them that runs on the test's own thread."""

    def __init__(self, target: Model, draft: Model) -> None:
        options = RuntimeOptions()
        self.context = Context(target, 2048, n_slots=1, options=options)
        draft_context = Context(draft, 2048, n_slots=1, options=options)
        vocab = target.vocab
        drafts: list[Draft] = [
            GrammarDraft(),
            ModelDraft(draft_context, n_vocab=vocab.n_tokens, end_ids=vocab.end_ids),
        ]
        self.core = Core(self.context, vocab, drafts)
        self.requests = Requests(target)

    def reply(self, prompt: str, sources: tuple[str, ...]) -> Reply:
        return run(self.core, self.requests.make(prompt, sources=sources))

    def assert_near_tie(self, prompt: str, plain: Reply, drafted: Reply) -> None:
        """Fails unless the first difference is between tokens whose order the pass's size decides."""
        pairs = enumerate(zip(plain.tokens, drafted.tokens, strict=False))
        at, (left, right) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
        prefix = [*self.requests.make(prompt, sources=()).prompt, *plain.tokens[:at]]
        rows = [self._row(prefix, shape) for shape in SHAPES]
        gap = min(abs(float(row[left] - row[right])) for row in rows)
        spread = np.ptp(np.stack([[row[left], row[right]] for row in rows]), axis=0).max()
        assert gap <= spread, (
            f"{prompt!r} differs at token {at} ({left} or {right}), and it is no near-tie: "
            f"the logits are {gap:.4f} apart, and the size of the pass moves them by {spread:.4f}"
        )

    def _row(self, prefix: list[int], shape: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """The row after `prefix`, its last `shape` tokens decoded in one pass."""
        self.context.truncate(0, 0)
        head, tail = prefix[:-shape], prefix[-shape:]
        for start in range(0, len(head), self.context.n_batch):
            self.context.decode([Span(0, head[start : start + self.context.n_batch], ())])
        (row,) = self.context.decode([Span(0, tail, (shape - 1,))])
        return row


@pytest.fixture(scope="module")
def pair(target_model: Path, draft_model: Path) -> Iterator[Pair]:
    with Model.load(target_model) as target, Model.load(draft_model) as draft:
        yield Pair(target, draft)


@pytest.fixture(scope="module")
def plain(pair: Pair) -> dict[str, Reply]:
    """The replies without drafts, one token a pass."""
    return {prompt: pair.reply(prompt, ()) for prompt in PROMPTS}


def test_the_prompts_are_what_they_should_be(plain: dict[str, Reply]) -> None:
    """Forty prompts, each answered with a complete call: the comparison is about something."""
    assert len(set(PROMPTS)) == 40
    assert all(reply.complete for reply in plain.values())
    assert all(reply.text.startswith('<tool_call>\n{"name": "') for reply in plain.values())


@pytest.mark.parametrize("config", CONFIGS)
def test_drafts_do_not_change_a_greedy_reply(pair: Pair, plain: dict[str, Reply], config: str) -> None:
    for prompt, expected in plain.items():
        reply = pair.reply(prompt, CONFIGS[config])
        if reply.tokens != expected.tokens:
            pair.assert_near_tie(prompt, expected, reply)
