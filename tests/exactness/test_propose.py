"""grammar="propose": whatever the grammar proposes, the law of a reply is the plain target's, by enumeration.

The replies of a few tokens include some that leave the grammar and are taken up again. The two laws are
computed as numbers and may differ by rounding only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pytest

from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.base import Draft
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.grammar.following import FollowingGrammar
from agentspec.grammar.matcher import CompiledGrammar
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.grammar.triggered import BracketTrigger, MarkerTrigger
from agentspec.testing import ScriptedChance, TableModel, TableVocab, enumerate_law, random_rows
from tests.exactness.laws import Law, enumerated, generate, target_law, total_variation

BOUND = 1e-12
PROMPT = (0, 1)
WARM = SamplingOptions(temperature=0.9)

LETTERS = TableVocab(["a", "b", "ab", "c", "<end>"], end_ids=[4])
MARKED = TableVocab(["<call>", "a", "ab", "b", "<end>"], end_ids=[4], special_ids=[0])
BRACKETS = TableVocab(["{", "ab", "}", "\n", "<end>", "<end of text>"], end_ids=[4, 5])


def letters() -> FollowingGrammar:
    """From the first token on `abab` or `abac`, in any of several spellings, and again from each `ab`."""
    tokenizer = GrammarTokenizer(LETTERS)
    grammar = CompiledGrammar(tokenizer, 'start: "aba" ("b" | "c")')
    return FollowingGrammar(grammar, [MarkerTrigger(tokenizer, "ab", grammar)], end=4)


def marked() -> FollowingGrammar:
    """Free text until a marker that is one token; the call after it is fixed, and more may follow."""
    tokenizer = GrammarTokenizer(MARKED)
    grammar = CompiledGrammar(tokenizer, 'start: call (call)*\ncall: <[0]> "ab"')
    return FollowingGrammar(None, [MarkerTrigger(tokenizer, "<call>", grammar)], end=4)


def document() -> FollowingGrammar:
    """`{ab}` from the first token on, or from where a line begins with its bracket."""
    tokenizer = GrammarTokenizer(BRACKETS)
    grammar = CompiledGrammar(tokenizer, 'start: "{ab}"')
    return FollowingGrammar(grammar, [BracketTrigger(tokenizer, bare=grammar, fenced=grammar)], end=4)


# name: (grammar, vocabulary, length of the replies)
CASES: dict[str, tuple[Callable[[], FollowingGrammar], TableVocab, int]] = {
    "letters": (letters, LETTERS, 4),
    "marker": (marked, MARKED, 4),
    "document": (document, BRACKETS, 4),
}


@dataclass
class Seen:
    """What happened in the replies of an enumeration."""

    proposed: int = 0
    accepted: int = 0
    spared: int = 0  # the most target passes that a reply was spared: its tokens less its passes
    sources: set[str] = field(default_factory=set)


def target(vocab: TableVocab) -> TableModel:
    return TableModel(random_rows(vocab.n_tokens, seed=3), n_vocab=vocab.n_tokens)


def engine_law(
    grammar: FollowingGrammar, vocab: TableVocab, length: int, *, soft: bool, verifier: str
) -> tuple[Law, Seen]:
    seen = Seen()

    def run(chance: ScriptedChance) -> tuple[int, ...]:
        drafts: list[Draft] = [GrammarDraft()]
        if soft:
            session = TableModel(random_rows(vocab.n_tokens, seed=5), n_vocab=vocab.n_tokens)
            drafts.append(ModelDraft(session, n_vocab=vocab.n_tokens))
        core = Core(target(vocab), vocab, drafts, rules=enumerated(chance), costs=Costs.free())
        request = Request(
            prompt=PROMPT,
            matcher=grammar.start(),
            law="propose",
            sampling=WARM,
            generation=GenerationOptions(max_tokens=length, seed=0),
            draft=DraftOptions.parse({"max_block": 3, "max_model_tokens": 1, "verifier": verifier}),
        )
        tokens, trace = generate(core, request)
        count = trace.sources.get("grammar")
        if count is not None:
            seen.proposed += count.proposed
            seen.accepted += count.accepted
        seen.sources.update(trace.sources)
        seen.spared = max(seen.spared, len(tokens) - trace.target_passes)
        return tokens

    return enumerate_law(run), seen


def comes_back(grammar: FollowingGrammar, reply: tuple[int, ...]) -> bool:
    """Whether a reply leaves the grammar and is taken up again."""
    state = grammar.start()
    followed = [state.following]
    for token in reply:
        state.advance(token)
        followed.append(state.following)
    return [inside for inside, _ in groupby(followed)].count(True) > 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("drafts", "verifier", "shorter"),
    [
        ("grammar", "block", 0),
        ("grammar", "seed_invariant", 0),
        ("grammar+model", "block", 0),
        ("grammar+model", "token_wise", 1),
        ("grammar+model", "seed_invariant", 1),
    ],
)
def test_the_output_law_is_the_plain_targets(case: str, drafts: str, verifier: str, shorter: int) -> None:
    make_grammar, vocab, length = CASES[case]
    grammar, length = make_grammar(), length - shorter
    expected = target_law(target(vocab), PROMPT, length=length, sampling=WARM, end_ids=vocab.end_ids)
    actual, seen = engine_law(grammar, vocab, length, soft="model" in drafts, verifier=verifier)
    assert total_variation(expected, actual) <= BOUND
    assert any(comes_back(grammar, reply) for reply in actual)
    assert 0 < seen.accepted < seen.proposed
    assert "+".join(sorted(seen.sources)) == drafts
    assert seen.spared >= 1


def test_the_end_of_the_turn_is_proposed_too() -> None:
    """A reply that is what the grammar says takes one pass, its end included."""
    reply = (0, 1, 2, 4)

    def rows(prefix: Sequence[int]) -> list[float]:
        return [9.0 * (token == reply[len(prefix) - len(PROMPT)]) for token in range(BRACKETS.n_tokens)]

    model = TableModel(rows, n_vocab=BRACKETS.n_tokens)
    core = Core(model, BRACKETS, [GrammarDraft()], costs=Costs.free())
    tokens, trace = generate(core, Request(prompt=PROMPT, matcher=document().start(), law="propose"))
    assert tokens == reply
    assert trace.target_passes == 1
    assert trace.sources["grammar"].accepted == len(reply)
