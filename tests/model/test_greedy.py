"""Greedy replies with drafts equal greedy replies without, token for token, on the default pair.

llama.cpp computes a token alone with other kernels than several at once, and the KV it leaves differs too: on
this pair the same logit moves by up to half a unit. So two tokens of almost equal logits can change places.
Where a reply differs, the test proves such a near-tie, without the engine (agentspec.proof.near_tie). Else it
fails. Several replies share a pass, with and without drafts, as they do in use. Forty prompts with `--full`
(`make proofs`), every fourth of them else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agentspec.config import RuntimeOptions
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.llama import Context, Model
from agentspec.proof.near_tie import first_difference, measure
from tests.model.toolset import PROMPTS, Reply, Requests, every_draft, run_all

pytestmark = [pytest.mark.model, pytest.mark.slow]

AT_ONCE = 8  # replies that share a pass
CONFIGS = {"grammar": ("grammar",), "all": ("grammar", "lookup", "history", "model")}


class Pair:
    """Target and draft, and a core on them that runs on the test's own thread."""

    def __init__(self, target: Model, draft: Model, prompts: Sequence[str] = PROMPTS) -> None:
        self.prompts = prompts
        options = RuntimeOptions()
        self.context = Context(target, 6144, n_slots=AT_ONCE, options=options)
        draft_context = Context(draft, 6144, n_slots=AT_ONCE, options=options)
        self.core = Core(self.context, target.vocab, every_draft(target, draft_context), costs=Costs.free())
        self.requests = Requests(target)

    def replies(self, sources: tuple[str, ...]) -> dict[str, Reply]:
        requests = [self.requests.make(prompt, sources=sources) for prompt in self.prompts]
        first = run_all(self.core, requests[:1])  # alone: the others share the prompt that it leaves
        return dict(zip(self.prompts, first + run_all(self.core, requests[1:]), strict=True))

    def assert_near_tie(self, prompt: str, plain: Reply, drafted: Reply) -> None:
        """Fails unless the first difference is between tokens whose order the pass's size decides."""
        at = first_difference(plain.tokens, drafted.tokens)
        assert at is not None
        assert at < min(len(plain.tokens), len(drafted.tokens)), f"{prompt!r}: one reply goes on"
        start = self.requests.make(prompt, sources=()).prompt
        found = measure(self.context, start, plain.tokens[:at], plain.tokens[at], drafted.tokens[at])
        assert found.near_tie, f"{prompt!r} differs, and it is no near-tie: {found}"
        print(f"near-tie in {prompt!r}: {found}")


@pytest.fixture(scope="module")
def pair(target_model: Path, draft_model: Path, full_size: bool) -> Iterator[Pair]:
    with Model.load(target_model) as target, Model.load(draft_model) as draft:
        yield Pair(target, draft, PROMPTS if full_size else PROMPTS[::4])


@pytest.fixture(scope="module")
def plain(pair: Pair) -> dict[str, Reply]:
    """The replies without drafts, one token of each a pass."""
    return pair.replies(())


def test_the_prompts_are_what_they_should_be(plain: dict[str, Reply]) -> None:
    """Each is answered with a complete call: the comparison is about something."""
    assert len(set(PROMPTS)) == 40
    assert len(plain) in (10, 40)
    assert all(reply.complete for reply in plain.values())
    assert all(reply.text.startswith('<tool_call>\n{"name": "') for reply in plain.values())


@pytest.mark.parametrize("config", CONFIGS)
def test_drafts_do_not_change_a_greedy_reply(pair: Pair, plain: dict[str, Reply], config: str) -> None:
    for prompt, reply in pair.replies(CONFIGS[config]).items():
        if reply.tokens != plain[prompt].tokens:
            pair.assert_near_tie(prompt, plain[prompt], reply)
