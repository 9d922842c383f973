"""The output law under real grammars, by enumeration: llguidance's masks, forced runs, guesses, branches
and triggers.

The vocabulary is a handful of tokens with overlapping spellings, so that text has several tokenizations and
the canonical one depends on what follows. The two laws are computed as numbers and may differ by rounding
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from agentspec.chat.reasoning import Marks, Opening, Reasoning
from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.drafts.base import Draft
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.model import ModelDraft
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.request import Request
from agentspec.grammar import bounds
from agentspec.grammar.matcher import CompiledGrammar, Grammar
from agentspec.grammar.repeats import CallsGrammar
from agentspec.grammar.text import Pattern, compile_pattern
from agentspec.grammar.thought import THOUGHT, Gate, thought_rules
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.grammar.triggered import HeadTrigger, MarkerTrigger, TriggeredGrammar
from agentspec.testing import ScriptedChance, TableModel, TableVocab, enumerate_law, random_rows
from tests.exactness.laws import Law, enumerated, generate, target_law, total_variation

BOUND = 1e-12
PROMPT = (0, 1)
WARM = SamplingOptions(temperature=0.9)
ANY = '%llguidance {"no_forcing": true}\n'

LETTERS = TableVocab(["a", "b", "ab", "ba", "c", "<end>"], end_ids=[5])
FEWER = TableVocab(["a", "b", "ab", "c", "<end>"], end_ids=[4])
OBJECTS = TableVocab(['{"f', '"', "}", '{"f"', "<end>"], end_ids=[4])


def compiled(lark: str) -> CompiledGrammar:
    return CompiledGrammar(GrammarTokenizer(LETTERS), lark)


def marked(lark: str) -> Grammar:
    tokenizer = GrammarTokenizer(FEWER)
    return TriggeredGrammar([MarkerTrigger(tokenizer, "ab", CompiledGrammar(tokenizer, lark))])


def bare() -> Grammar:
    """Free text until `{"f"`, which goes on to `{"f"}` or `{"f""}`."""
    tokenizer = GrammarTokenizer(OBJECTS)
    grammar = CompiledGrammar(tokenizer, r'start: "{\"f\"" "\""? "}"')
    return TriggeredGrammar([HeadTrigger(tokenizer, ['{"f"'], bare=grammar, fenced=grammar)])


def calls() -> Grammar:
    """Calls `a` and `b` with `c` between them, of which none follows a repeated one."""
    return CallsGrammar(GrammarTokenizer(FEWER), 'start: ("a" | "b") ("c" ("a" | "b"))*', "c")


def regex(text: str, spelling: str) -> Grammar:
    return compile_pattern(GrammarTokenizer(LETTERS), Pattern("regex", text), spelling=spelling)


def lark(text: str, spelling: str) -> Grammar:
    return compile_pattern(GrammarTokenizer(LETTERS), Pattern("lark", text), spelling=spelling)


def thought(opening: Opening) -> Grammar:
    """Reasoning from `c` to `b`, then `aba`."""
    reasoning = Reasoning(Marks("c", "b"), opening)
    lines = [f'start: {THOUGHT} "a" ("ba" | "c")', *thought_rules(FEWER, reasoning)]
    return CompiledGrammar(GrammarTokenizer(FEWER), "\n".join(lines) + "\n")


def gated() -> Grammar:
    """Free text in which `ab` begins a call, but not between `c` and `b`."""
    tokenizer = GrammarTokenizer(FEWER)
    marked = MarkerTrigger(tokenizer, "ab", CompiledGrammar(tokenizer, 'start: "aba" ("c" | "bb")'))
    return TriggeredGrammar([marked], Gate(tokenizer, Reasoning(Marks("c", "b"), "possible")))


# name: (grammar, vocabulary, length of the replies)
CASES: dict[str, tuple[Callable[[], Grammar], TableVocab, int]] = {
    "forced": (lambda: compiled('start: "aba" ("c" | "b")'), LETTERS, 4),
    "forced, any spelling": (lambda: compiled(ANY + 'start: "aba" ("c" | "b")'), LETTERS, 4),
    "optional": (lambda: compiled('start: "ab" ("a" "b")*'), LETTERS, 4),
    "optional, any spelling": (lambda: compiled(ANY + 'start: "ab" ("a" "b")*'), LETTERS, 4),
    "enum": (lambda: compiled('start: "ab" ("abc" | "abab" | "a")'), LETTERS, 4),
    "enum, any spelling": (lambda: compiled(ANY + 'start: "ab" ("abc" | "abab" | "a")'), LETTERS, 4),
    "regex": (lambda: regex("aba(ba|c)?b*", "canonical"), LETTERS, 4),
    "regex, any spelling": (lambda: regex("aba(ba|c)?b*", "any"), LETTERS, 4),
    "lark": (lambda: lark('start: x ("c" x)*\nx: "ab" | /ba+/', "canonical"), LETTERS, 4),
    "lark, any spelling": (lambda: lark('start: x ("c" x)*\nx: "ab" | /ba+/', "any"), LETTERS, 4),
    "marker": (lambda: marked('start: "aba" ("c" | "bb")'), FEWER, 3),
    "marker, any spelling": (lambda: marked(ANY + 'start: "aba" ("c" | "bb")'), FEWER, 3),
    "bare head": (bare, OBJECTS, 3),
    "repeated calls": (calls, FEWER, 5),
    "a thought, perhaps": (lambda: thought("possible"), FEWER, 4),
    "a thought": (lambda: thought("inside"), FEWER, 3),
    "a thought in free text": (gated, FEWER, 4),
}

DRAFTS = ["none", "grammar", "branches", "soft", "grammar+soft", "branches+soft"]
TEXTS = ("b ab c",)


def soft_draft(vocab: TableVocab) -> ModelDraft:
    session = TableModel(random_rows(vocab.n_tokens, seed=5), n_vocab=vocab.n_tokens)
    return ModelDraft(session, n_vocab=vocab.n_tokens)


def make_drafts(name: str, vocab: TableVocab) -> Sequence[Draft]:
    drafts: dict[str, Callable[[], Draft]] = {
        "grammar": GrammarDraft,
        "branches": lambda: GrammarDraft(vocab.token_bytes),
        "soft": lambda: soft_draft(vocab),
    }
    return [] if name == "none" else [drafts[part]() for part in name.split("+")]


def target(vocab: TableVocab, n_batch: int = 32, n_outputs: int = 32) -> TableModel:
    rows = random_rows(vocab.n_tokens, seed=3)
    return TableModel(rows, n_vocab=vocab.n_tokens, n_batch=n_batch, n_outputs=n_outputs)


def engine_law(
    grammar: Grammar, vocab: TableVocab, length: int, drafts: str, n_batch: int, n_outputs: int
) -> tuple[Law, int]:
    """The law, and the most target passes that a reply was spared: its tokens less its passes."""
    spared = 0

    def run(chance: ScriptedChance) -> tuple[int, ...]:
        nonlocal spared
        core = Core(
            target(vocab, n_batch, n_outputs),
            vocab,
            make_drafts(drafts, vocab),
            rules=enumerated(chance),
            costs=Costs.free(),
        )
        request = Request(
            prompt=PROMPT,
            matcher=grammar.start(),
            sampling=WARM,
            generation=GenerationOptions(max_tokens=length, seed=0),
            draft=DraftOptions(max_block=3, max_model_tokens=2),
            texts=TEXTS,
        )
        tokens, trace = generate(core, request)
        spared = max(spared, len(tokens) - trace.target_passes)
        return tokens

    return enumerate_law(run), spared


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("n_batch", "n_outputs"), [(32, 32), (2, 2)])
def test_the_output_law_is_the_targets(case: str, drafts: str, n_batch: int, n_outputs: int) -> None:
    make_grammar, vocab, length = CASES[case]
    grammar = make_grammar()
    expected = target_law(
        target(vocab),
        PROMPT,
        length=length,
        sampling=WARM,
        matcher=grammar.start(),
        end_ids=vocab.end_ids,
    )
    actual, spared = engine_law(grammar, vocab, length, drafts, n_batch, n_outputs)
    assert len(expected) > 1
    assert total_variation(expected, actual) <= BOUND
    if "soft" in drafts and n_batch > 2:
        assert spared >= 2  # whole blocks were accepted: there was something to verify


@pytest.mark.parametrize("drafts", DRAFTS)
def test_values_that_are_ended_have_the_targets_law(drafts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With bounds that short replies reach: two equal letters close a string, two digits end a number."""
    monkeypatch.setattr(bounds, "LOOP", 2)
    monkeypatch.setattr(bounds, "PIECE", 1)
    monkeypatch.setattr(bounds, "DIGITS", 2)
    vocab = TableVocab(['"', "x", "y", "1", "11", ",", "<end>"], end_ids=[6])
    grammar = CompiledGrammar(GrammarTokenizer(vocab), r'start: "\"" /[xy]+/ "\"" | /1+/ "," ')
    expected = target_law(
        target(vocab), PROMPT, length=4, sampling=WARM, matcher=grammar.start(), end_ids=vocab.end_ids
    )
    actual, _ = engine_law(grammar, vocab, 4, drafts, 32, 32)
    assert total_variation(expected, actual) <= BOUND
    texts = {vocab_text(vocab, reply) for reply in expected}
    assert '"xx"' in texts
    assert not any("xxx" in text or "yyy" in text or "1111" in text for text in texts)


def vocab_text(vocab: TableVocab, reply: Sequence[int]) -> str:
    return b"".join(map(vocab.token_bytes, reply)).decode()
