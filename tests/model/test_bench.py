"""The bench's own way to real models."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentspec.bench.chat import open_chat
from agentspec.bench.drafts import Ask
from agentspec.bench.figures import Reply
from agentspec.bench.stages import ConfidentWrong, Setup
from agentspec.bench.workload import load_workload
from agentspec.config import RuntimeOptions

pytestmark = pytest.mark.model

NAME = "confident_wrong"


def test_where_costs_are_ignored_a_source_that_always_fails_goes_on(small_model: Path) -> None:
    setup = Setup(None, ((NAME, lambda _: ConfidentWrong()),))
    with open_chat(setup, model=str(small_model), options=RuntimeOptions(), ignore_costs=True) as answer:
        outcome = answer(Ask(load_workload().prose[0], (NAME,), "", 0.0, 0, 48))
    reply = Reply.of(outcome.text, outcome.stats, wall=1.0)
    proposed, accepted = reply.sources[NAME]
    assert proposed > 6 * reply.target_passes  # eight at a time, as far as the reply has room
    assert accepted < reply.target_passes
