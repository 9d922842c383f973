"""grammar="propose" on the default pair: the replies are those of the model left alone, in fewer passes.

The conversations hold earlier calls, as text: the model then writes its own the same way, on one line and
with nothing around it. Where a reply differs from the plain one it must be a near-tie (see `test_greedy.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentspec import ChatAgentSpec
from agentspec.chat.detect import detect
from agentspec.chat.template import template_source
from agentspec.grammar.reply import follow_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.llama import Model
from agentspec.trace import SourceCount
from agentspec.types import AssistantTurn, Matcher, SystemTurn, Turn, UserTurn
from tests.exactness.laws import generate
from tests.model.test_greedy import Pair
from tests.model.toolset import SYSTEM, TOOLS, Reply, Requests

pytestmark = [pytest.mark.model, pytest.mark.slow]

PROMPTS = [
    "Find me a flight from OSL to LHR on 2026-03-14.",
    "Schedule a dentist appointment on 2026-04-03 at 09:30.",
    "Search for flights CDG to NRT, 2026-11-02, one passenger.",
]
SOURCES = [("grammar",), ("grammar", "model")]


class Conversations(Requests):
    """Each prompt comes after two that were answered with calls; () as sources is the model left alone."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        wire_format = detect(template_source(model.chat_template))
        grammar = follow_reply(
            GrammarTokenizer(model.vocab), wire_format, TOOLS, "auto", end=model.vocab.eot_id, parallel=False
        )
        assert grammar is not None
        self._follow = grammar

    def turns(self, prompt: str) -> list[Turn]:
        weather = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
        pounds = '{"name": "convert_currency", "arguments": {"amount": 3, "from": "GBP", "to": "NOK"}}'
        return [
            SystemTurn(SYSTEM),
            UserTurn("What's the weather in Rome?"),
            AssistantTurn(weather),
            UserTurn("Convert 3 GBP to NOK."),
            AssistantTurn(pounds),
            UserTurn(prompt),
        ]

    def law(self, sources: tuple[str, ...]) -> tuple[str, Matcher | None]:
        return ("propose", self._follow.start()) if sources else ("off", None)


@pytest.fixture(scope="module")
def pair(target_model: Path, draft_model: Path) -> Iterator[Pair]:
    with Model.load(target_model) as target, Model.load(draft_model) as draft:
        pair = Pair(target, draft)
        pair.requests = Conversations(target)
        yield pair


def reply(pair: Pair, prompt: str, sources: tuple[str, ...]) -> tuple[Reply, SourceCount, int]:
    """The reply, what the grammar proposed of it, and the target passes it took."""
    tokens, trace = generate(pair.core, pair.requests.make(prompt, sources=sources))
    text = pair.requests.vocab.detokenize(tokens).decode()
    return Reply(list(tokens), text, True), trace.sources.get("grammar", SourceCount()), trace.target_passes


def test_replies_are_the_plain_ones_and_the_grammar_is_mostly_right(pair: Pair) -> None:
    for prompt in PROMPTS:
        plain, _, plain_passes = reply(pair, prompt, ())
        assert plain.text.strip().startswith('{"name": "')
        assert plain_passes == len(plain.tokens)
        for sources in SOURCES:
            drafted, count, passes = reply(pair, prompt, sources)
            if drafted.tokens != plain.tokens:
                pair.assert_near_tie(prompt, plain, drafted)
            print(f"{prompt!r} {sources}: {passes} passes for {len(drafted.tokens)} tokens, {count}")
            assert passes < 0.8 * len(drafted.tokens)
            if sources == ("grammar",):  # tokens after another source's rejected one count as rejected too
                assert count.accepted > 0.7 * count.proposed


def get_weather(city: str) -> str:
    """Current weather of a city."""
    return f"{city}: sunny"


def test_a_call_is_validated_and_names_its_law(target_model: Path) -> None:
    model = ChatAgentSpec(
        model=str(target_model), draft=None, grammar="propose", n_ctx=1024, n_parallel=1, max_tokens=64
    )
    message = model.bind_tools([get_weather], tool_choice="any").invoke("What's the weather in Oslo?")
    model.close()
    assert [call["args"] for call in message.tool_calls] == [{"city": "Oslo"}]
    statistics = message.response_metadata["agentspec"]
    assert statistics["law"] == "propose"
    assert statistics["sources"]["grammar"]["proposed"] > 0
