"""grammar="propose": a grammar that follows, leaves and takes up a reply again, and binds nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable

from agentspec.chat.formats import HERMES, LLAMA3
from agentspec.chat.reasoning import Reasoning
from agentspec.chat.template import BUILTIN_TEMPLATES, ChatTemplate
from agentspec.engine import runtime as runtime_module
from agentspec.engine.engine import Engine
from agentspec.engine.runtime import Runtime
from agentspec.errors import SchemaError
from agentspec.grammar.following import FollowingGrammar, FollowingMatcher
from agentspec.grammar.matcher import CompiledGrammar
from agentspec.grammar.reply import follow_json, follow_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.grammar.triggered import BracketTrigger
from agentspec.langchain.chat_model import ChatAgentSpec
from agentspec.prefix import common_prefix
from agentspec.testing import TableVocab, TrieMatcher
from agentspec.types import BoundTool, Json, Matcher, NamedTool, ToolChoice
from tests.langchain_fakes import FakeRuntime
from tests.unit.grammars import (
    CLOSE,
    END,
    IMPOSSIBLE,
    OPEN,
    PIECES,
    TIME,
    WEATHER,
    call,
    closed,
    matcher,
    small_tokenizer,
    spell,
)
from tests.unit.test_grammar import SpacedVocab

PERSON = closed({"name": {"type": "string"}, "city": {"enum": ["Oslo", "Rome"]}})
BARE = '{"name": "get_time", "arguments": {}}'


@pytest.fixture(scope="module")
def tokenizer() -> GrammarTokenizer:
    return small_tokenizer()


def following(
    tokenizer: GrammarTokenizer, choice: ToolChoice = "required", *, parallel: bool = False
) -> FollowingMatcher:
    grammar = follow_reply(tokenizer, HERMES, [WEATHER, TIME], choice, end=END, parallel=parallel)
    assert grammar is not None
    return grammar.start()


def follows(state: FollowingMatcher) -> bool:
    return state.following


def written(tokenizer: GrammarTokenizer, state: FollowingMatcher, text: str) -> FollowingMatcher:
    """The state after the text."""
    for token in spell(tokenizer, text):
        state.advance(token)
    return state


@pytest.mark.parametrize("parallel", [True, False])
def test_it_says_what_the_binding_grammar_forces_and_guesses(
    tokenizer: GrammarTokenizer, parallel: bool
) -> None:
    state = following(tokenizer, parallel=parallel)
    bound = matcher(tokenizer, parallel=parallel)
    proposed = 0
    for index, token in enumerate(spell(tokenizer, call("get_weather", {"city": "Oslo", "unit": "celsius"}))):
        if index or not parallel:  # which leaves the form to the model, and the envelope is the likeliest
            assert (state.forced(), state.guess()) == (bound.forced(), bound.guess())
        proposed += state.forced()[:1] == (token,)
        state.advance(token)
        bound.advance(token)
    assert proposed > 20
    assert bound.accepting()
    assert state.forced() == (() if parallel else (END,))


def test_it_binds_nothing(tokenizer: GrammarTokenizer) -> None:
    """Every token is legal and the reply may end or go on, within the grammar and outside it."""
    rng = random.Random(0)
    state = following(tokenizer)
    inside = 0
    for token in [*spell(tokenizer, call("get_time", {})), *rng.choices(range(len(PIECES)), k=300)]:
        assert state.legal() is None
        assert state.accepting()
        assert not state.done()
        inside += state.following
        state.advance(token)
    assert 0 < inside < 300


@pytest.mark.parametrize("end", [END, OPEN, None])
def test_a_finished_call_goes_on_to_the_end_of_the_turn(tokenizer: GrammarTokenizer, end: int | None) -> None:
    grammar = follow_reply(tokenizer, HERMES, [TIME], "required", end=end, parallel=False)
    assert grammar is not None
    state = written(tokenizer, grammar.start(), call("get_time", {}))
    assert state.forced() == (() if end is None else (end,))
    assert state.guess() == ()
    state.advance(END)
    assert state.forced() == ()


def test_it_follows_any_spelling(tokenizer: GrammarTokenizer) -> None:
    state = following(tokenizer)
    body = call("get_weather", {"city": "Oslo"})[len("<tool_call>") : -len("</tool_call>")]
    for token in [OPEN, *body.encode(), CLOSE]:
        assert state.following
        state.advance(token)
    assert state.forced() == (END,)


def test_half_a_token_goes_on_with_the_rest_of_its_text(tokenizer: GrammarTokenizer) -> None:
    state = written(tokenizer, following(tokenizer), '<tool_call>\n{"')
    assert PIECES[state.forced()[0]] == "name"
    for byte in b"na":
        state.advance(byte)
    assert [PIECES[token] for token in state.forced()[:3]] == [b"m", b"e", '":']


@pytest.mark.parametrize(
    ("fitting", "rest"),
    [
        ("", "S"),
        ("<tool_call>\n", "\n"),
        ('<tool_call>\n{"name": "get_', "r"),
        ('<tool_call>\n{"name": "get_time", "arguments": {}', ","),
        (call("get_time", {}), "x"),
    ],
)
def test_text_that_does_not_fit_leaves_the_grammar(
    tokenizer: GrammarTokenizer, fitting: str, rest: str
) -> None:
    state = written(tokenizer, following(tokenizer), fitting)
    assert follows(state)
    written(tokenizer, state, rest)
    assert not follows(state)
    assert state.forced() == state.guess() == ()


@pytest.mark.parametrize("before", ["Sure. ", '<tool_call>\n{"name": "get_rain"}', "<tool_call>\n{", "x\n{"])
@pytest.mark.parametrize("choice", ["auto", "required", NamedTool("get_time")])
def test_the_marker_takes_it_up_again(tokenizer: GrammarTokenizer, choice: ToolChoice, before: str) -> None:
    """Also as the very token that leaves the grammar, as in a call that is broken off."""
    state = written(tokenizer, following(tokenizer, choice), before)
    state.advance(OPEN)
    assert state.forced()[0] == ord("\n")
    written(tokenizer, state, call("get_time", {})[len("<tool_call>") :])
    assert state.forced() == (END,)


def test_a_marker_that_is_text_takes_it_up_again() -> None:
    pieces = [*PIECES[:-3], "<to", "ol_call>\n", ">no", "<end>"]
    plain = GrammarTokenizer(TableVocab(pieces, end_ids=[len(pieces) - 1]))
    grammar = follow_reply(plain, HERMES, [TIME], "required", end=len(pieces) - 1, parallel=False)
    assert grammar is not None
    assert plain.vocab.pieces()[grammar.start().forced()[0]] == b"<to"
    assert written(plain, grammar.start(), "ok <tool_call>\n").following
    assert not written(plain, grammar.start(), "ok <tool_call>no").following
    assert written(plain, grammar.start(), "ok " + call("get_time", {})).forced() == (len(pieces) - 1,)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("Let me look.\n", ""),
        ("x" * 80 + "\n" + " " * 80, ""),
        ("```json\n", "\n```"),
        ("Sure:\n\n```\n  ", "\n```"),
        ('{"calls": [], "text": "}"}\n', ""),
        (BARE + "\n", ""),
        (call("get_time", {}) + "\n", ""),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_bracket_where_a_call_may_begin_takes_it_up_again(
    tokenizer: GrammarTokenizer, choice: ToolChoice, before: str, after: str
) -> None:
    state = written(tokenizer, following(tokenizer, choice), before)
    written(tokenizer, state, '{"')
    assert PIECES[state.forced()[0]] == "name"  # before it is known to be a call
    written(tokenizer, state, BARE[2:])
    assert bytes(tokenizer.vocab.pieces()[state.forced()[0]]) == (after[:1].encode() or b"<end>")
    written(tokenizer, state, after)
    assert state.forced() == (END,)


@pytest.mark.parametrize(
    "text", ["word {", "- {", " " * 80 + "x {", "```python\n{", "```json {", "[\n{", '{"calls": [\n{', "\n["]
)
def test_no_other_bracket_does(tokenizer: GrammarTokenizer, text: str) -> None:
    assert not written(tokenizer, following(tokenizer, "auto"), text).following


def test_a_value_that_turns_out_to_be_no_call_leaves_again(tokenizer: GrammarTokenizer) -> None:
    state = written(tokenizer, following(tokenizer, "auto"), 'So:\n{"')
    assert follows(state)
    assert not follows(written(tokenizer, state, "ci"))


def test_auto_begins_with_free_text(tokenizer: GrammarTokenizer) -> None:
    state = following(tokenizer, "auto")
    assert not state.following
    assert state.forced() == state.guess() == ()


def test_a_family_without_markers(tokenizer: GrammarTokenizer) -> None:
    grammar = follow_reply(tokenizer, LLAMA3, [TIME], "required", end=END, parallel=False)
    assert grammar is not None
    assert PIECES[grammar.start().forced()[0]] == '{"'
    state = written(tokenizer, grammar.start(), 'Yes.\n{"name": "get_time", "parameters": {}}')
    assert state.forced() == (END,)


def test_several_calls_are_followed_whether_asked_for_or_not(tokenizer: GrammarTokenizer) -> None:
    two = call("get_time", {}) + "\n" + call("get_weather", {"city": "Oslo"})
    assert written(tokenizer, following(tokenizer), two).forced() == (END,)
    assert written(tokenizer, following(tokenizer, parallel=True), two).following


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<tool_call>\n{"name": "get_', 'time", "arguments": {}}\n</tool_call>'),
        ("So:\n", BARE),
        ("```json\n", BARE + "\n```"),
        ("<tool_call>\n{", "\n" + call("get_time", {})),
    ],
)
def test_forks_are_independent(tokenizer: GrammarTokenizer, before: str, after: str) -> None:
    """Neither sees what the other does, inside the grammar, outside it or on the way back."""
    state, alone = (written(tokenizer, following(tokenizer), before) for _ in range(2))
    for text in (after, after[:7], "no", "<tool_call>"):
        written(tokenizer, state.fork(), text)
    copy = state.fork()
    written(tokenizer, state, "no\n")
    for token in spell(tokenizer, after):
        assert (copy.forced(), copy.guess()) == (alone.forced(), alone.guess())
        copy.advance(token)
        alone.advance(token)
    assert copy.forced() == (END,)
    assert not state.following


# ---------------------------------------------------------------------------------------- documents


@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("Sure.\n", ""), ("```json\n", "\n```"), ('{"name": 1}\n', "")]
)
def test_a_document_is_followed_where_it_begins(tokenizer: GrammarTokenizer, before: str, after: str) -> None:
    state = follow_json(tokenizer, PERSON, end=END).start()
    assert PIECES[state.forced()[0]] == '{"'
    written(tokenizer, state, before + '{"')
    assert PIECES[state.forced()[0]] == "name"
    written(tokenizer, state, 'name": "Ada", "city": "R')
    assert bytes(state.forced()[:3]) == b"ome"
    written(tokenizer, state, 'ome"}' + after)
    assert state.forced() == (END,)


def test_an_array_is_a_document(tokenizer: GrammarTokenizer) -> None:
    schema: dict[str, Json] = {"type": "array", "items": {"const": 17}, "minItems": 2, "maxItems": 2}
    state = written(tokenizer, follow_json(tokenizer, schema, end=END).start(), "Here:\n[")
    assert bytes(state.forced()).startswith(b"17, 17")


# ------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("choice", ["none", "required"])
def test_there_may_be_nothing_to_follow(tokenizer: GrammarTokenizer, choice: ToolChoice) -> None:
    tools = [TIME] if choice == "none" else []
    assert follow_reply(tokenizer, HERMES, tools, choice, end=END) is None


def test_a_schema_that_cannot_be_followed_names_its_tool(tokenizer: GrammarTokenizer) -> None:
    bad = BoundTool("odd", "", closed({"x": IMPOSSIBLE}))
    with pytest.raises(SchemaError, match="'odd'"):
        follow_reply(tokenizer, HERMES, [TIME, bad], "auto", end=END)
    with pytest.raises(SchemaError, match="Person"):
        follow_json(tokenizer, {"title": "Person", **IMPOSSIBLE}, end=END)


def test_a_value_that_only_its_token_can_spell_stays_text() -> None:
    poor = GrammarTokenizer(TableVocab(["x\n{", "a", "}", "<end>"], end_ids=[3]))
    grammar = CompiledGrammar(poor, 'start: "a"')
    state = FollowingGrammar(None, [BracketTrigger(poor, bare=grammar, fenced=grammar)], end=3).start()
    state.advance(0)
    assert not state.following


def test_a_runtime_keeps_both_kinds_of_grammar_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(
        name="toy",
        engine=cast(Engine, None),
        vocab=small_tokenizer().vocab,
        template=ChatTemplate(BUILTIN_TEMPLATES["chatml"], wire_format=HERMES),
        wire_format=HERMES,
        n_ctx=64,
        turn_end_id=END,
    )

    def kinds() -> list[bool]:
        made = [
            runtime.reply_matcher([TIME], "required", spelling="canonical", parallel=False),
            runtime.schema_matcher(PERSON, spelling="canonical"),
            runtime.reply_follower([TIME], "required", parallel=False),
            runtime.schema_follower(PERSON),
        ]
        return [isinstance(state, FollowingMatcher) and state.following for state in made]

    assert kinds() == [False, False, True, True]
    for name in ("compile_reply", "follow_reply", "compile_json", "follow_json"):
        monkeypatch.delattr(runtime_module, name)  # what is kept is not compiled again
    assert kinds() == [False, False, True, True]
    state = runtime.reply_follower([TIME], "required", parallel=False)
    assert isinstance(state, FollowingMatcher)
    assert written(small_tokenizer(), state, call("get_time", {})).forced() == (END,)


# ------------------------------------------------------------------------------------------ the law


class RecordingRuntime(FakeRuntime):
    """Notes which kind of grammar a call asks for, and has none of either."""

    def __init__(self) -> None:
        super().__init__(*["x"] * 9)
        self.kinds: list[str] = []

    def reply_follower(
        self,
        tools: Sequence[BoundTool],  # noqa: ARG002 - the contract's
        choice: ToolChoice,  # noqa: ARG002
        *,
        parallel: bool,
        reasoning: Reasoning,  # noqa: ARG002
        answer: Mapping[str, Json] | None,
    ) -> Matcher:
        self.kinds.append(f"{'parallel calls' if parallel else 'one call'}{' or a document' * bool(answer)}")
        return TrieMatcher([(1,)])

    def schema_follower(
        self,
        schema: Mapping[str, Json],
        *,
        reasoning: Reasoning,  # noqa: ARG002 - the contract's
    ) -> Matcher:
        self.kinds.append(str(schema["title"]))
        return TrieMatcher([(2,)])


def get_time() -> str:
    """Says what time it is."""
    return "noon"


def test_the_law_is_named_by_what_is_asked_for() -> None:
    runtime = RecordingRuntime()
    model = ChatAgentSpec.from_runtime(cast(Runtime, runtime), grammar="propose", spelling="any")

    def law(bound: Runnable[LanguageModelInput, AIMessage], **options: object) -> tuple[str, bool]:
        """The reply's law, and whether a grammar went with the request."""
        statistics = bound.bind(**options).invoke("x").response_metadata["agentspec"]
        return statistics["law"], runtime.engine.requests[-1].matcher is not None

    agent = model.bind_tools([get_time])
    assert law(agent) == ("propose", True)
    assert law(agent, parallel_tool_calls=True) == ("propose", True)
    schema = {"title": "Person", **PERSON}
    wanted = {"type": "json_schema", "json_schema": {"name": "Person", "schema": schema}}
    assert law(model, response_format=wanted) == ("propose", True)
    assert law(agent, response_format=wanted) == ("propose", True)
    assert runtime.kinds == ["one call", "parallel calls", "Person", "one call or a document"]
    # nothing to follow: plainly the plain target
    assert law(model) == ("off", False)
    assert law(agent, tool_choice="none") == ("off", False)
    # nobody to ask it: the law is the same
    assert law(agent, draft_sources=()) == ("propose", False)
    assert law(model, response_format=wanted, draft_sources=("model",)) == ("propose", False)
    assert law(agent, grammar="off") == ("off", False)
    assert len(runtime.kinds) == 4
    assert not runtime.asked  # for a grammar that binds
    assert not runtime.schemas


# ------------------------------------------------------------------------------------------- styles

STYLED: list[bytes | str] = [*PIECES[:-3], "{\n", " {\n", '",\n', '"\n', "}\n", " }", "    ", '":"', '","']
STYLED += ["_weather", "unit", "celsius", "fahrenheit", *PIECES[-3:]]
STYLES: dict[str, Callable[[Json], str]] = {
    "tight": json.dumps,
    "two spaces": lambda value: json.dumps(value, indent=2),
    "four spaces": lambda value: json.dumps(value, indent=4),
    "tabs": lambda value: json.dumps(value, indent="\t"),
    "compact": lambda value: json.dumps(value, separators=(",", ":")),
    "padded": lambda value: json.dumps(value, separators=(" ,  ", "  : ")),
    "half indented": lambda value: json.dumps(value, indent=1).replace("\n  ", " ").replace("\n }", " }"),
}
VOCABULARIES: dict[str, tuple[type[TableVocab], list[bytes | str]]] = {
    "bytes": (TableVocab, [*PIECES[:256], *PIECES[-3:]]),
    "merges across gaps": (TableVocab, STYLED),
    "a space in front": (SpacedVocab, STYLED),
}
OSLO: Json = {"city": "Oslo", "unit": "celsius"}


class Agent:
    """Replies to one request after the other, as an engine would have it: what is right of a proposal is
    settled, and where there is none, or none of it is right, the model writes a token itself."""

    def __init__(
        self,
        tools: Sequence[BoundTool] = (WEATHER, TIME),
        choice: ToolChoice = "required",
        vocabulary: str = "merges across gaps",
    ) -> None:
        kind, pieces = VOCABULARIES[vocabulary]
        self.end = len(pieces) - 1
        self.tokenizer, self.plain = (
            GrammarTokenizer(kind(pieces, end_ids=[self.end], special_ids=[self.end - 2, self.end - 1]))
            for kind in (kind, TableVocab)
        )
        grammar = follow_reply(self.tokenizer, HERMES, tools, choice, end=self.end, parallel=False)
        assert grammar is not None
        self.grammar = grammar

    def start(self) -> FollowingMatcher:
        return self.grammar.start()

    def tokens(self, text: str) -> list[int]:
        return [*spell(self.plain, text), self.end]

    def pieces(self, tokens: Sequence[int]) -> str:
        pieces = [self.tokenizer.vocab.pieces()[token] for token in tokens]
        return "|".join(piece.decode(errors="replace") for piece in pieces)

    def reply(self, text: str) -> tuple[str, int]:
        """What of a reply was not proposed, token by token; and how many proposals were wrong."""
        state = self.start().fork()
        tokens = self.tokens(text)
        own, wrong, at = [], 0, 0
        while at < len(tokens):
            ahead = state.fork()
            run = list(ahead.forced() or ahead.guess())
            for token in run:  # may be rejected, and must teach nothing
                ahead.advance(token)
            right = common_prefix(run, tokens[at:])
            settled = tokens[at : at + right]
            if right < len(run) or not run:
                own += tokens[at + right : at + right + 1]
                settled = tokens[at : at + right + 1]
                wrong += bool(run)
            for token in settled:
                state.advance(token)
            at += len(settled)
        return self.pieces(own), wrong


def styled(style: str, name: str, arguments: Json) -> str:
    return f"<tool_call>\n{STYLES[style]({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("style", STYLES)
def test_a_second_reply_is_proposed_in_the_style_of_the_first(vocabulary: str, style: str) -> None:
    """All of it but the choice of a tool and its values, from the first token to the last."""
    agent = Agent(vocabulary=vocabulary)
    agent.reply(styled(style, "get_weather", OSLO))
    assert agent.reply(styled(style, "get_time", {})) == ("t" if vocabulary == "bytes" else "time", 0)
    own, wrong = agent.reply(styled(style, "get_weather", OSLO))
    assert wrong == 0
    # the end of the city may merge with what comes, and is not known before
    assert own.startswith("w|O|s|l|o|" if vocabulary == "bytes" else "weather|Os|lo|")
    assert own.count("|") <= (7 if vocabulary == "bytes" else 5)


@pytest.mark.parametrize(
    ("style", "own"),
    [
        ("tight", ""),
        ("two spaces", '{\n| | "'),
        ("four spaces", '{\n|    |"'),
        ("tabs", '{\n|\t|"'),
        ("compact", '":"'),
    ],
)
def test_a_first_reply_is_proposed_from_its_second_gap_on(style: str, own: str) -> None:
    assert Agent([TIME]).reply(styled(style, "get_time", {})) == (own, int(bool(own)))


def test_gaps_of_each_kind_are_learned_one_by_one() -> None:
    own, _ = Agent([TIME]).reply(styled("padded", "get_time", {}))
    assert own == '"| | |:|"| |,| | "'  # before the first colon and the first comma, and behind the comma


def test_a_style_that_changes_is_followed_again() -> None:
    agent = Agent([TIME])
    firsts = [agent.reply(styled(style, "get_time", {}))[1] for style in STYLES]
    assert all(firsts[1:])
    for style in STYLES:
        wrong = [agent.reply(styled(style, "get_time", {}))[1] for _ in range(3)]
        assert wrong[1:] == [0, 0]


def test_a_style_that_comes_back_is_known_by_its_first_gap() -> None:
    agent = Agent([TIME])
    for style in ("two spaces", "tight"):
        agent.reply(styled(style, "get_time", {}))
    assert agent.reply(styled("two spaces", "get_time", {})) == ("{\n", 1)
    assert agent.reply(styled("tight", "get_time", {})) == ('{"', 1)
    assert agent.reply(styled("tight", "get_time", {})) == ("", 0)


def test_back_in_the_tight_style_runs_are_forced_again() -> None:
    agent = Agent([TIME])
    tokens = agent.tokens(styled("tight", "get_time", {}))
    assert list(agent.start().forced()) == tokens[:-1]
    agent.reply(styled("two spaces", "get_time", {}))
    assert agent.start().forced() == ()
    assert agent.pieces(agent.start().guess()).startswith('<tool_call>|\n|{\n| | "|name')
    agent.reply(styled("tight", "get_time", {}))
    assert list(agent.start().forced()) == tokens[:-1]


def test_what_is_only_looked_ahead_over_teaches_nothing() -> None:
    agent = Agent([TIME])
    request = agent.start()
    tokens = agent.tokens(styled("two spaces", "get_time", {}))
    running = request.fork()  # replies: a request may be kept, and begun from again
    for ahead in (running.fork(), request.fork().fork()):
        for token in tokens:
            ahead.advance(token)
            ahead = ahead.fork()
    assert request.forced() == request.fork().forced() == agent.start().forced() != ()
    for token in tokens[:6]:
        running.advance(token)
    learned = agent.start().guess()
    assert learned == request.fork().guess() != ()
    assert list(learned) == tokens[: len(learned)]
    request.advance(tokens[0])
    for ahead, from_there in ((running.fork(), 6), (request.fork(), 1)):
        for token in agent.tokens(styled("compact", "get_time", {}))[from_there:]:
            ahead.advance(token)
    assert agent.start().guess() == learned


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    "text", ["See { 1 } and [ 2 ,3 ].", '{ "a" : 1 }', "\n```python\n{ \n1: 2}\n```", 'x [\n  "a",\n  "b"\n]']
)
def test_other_text_is_left_alone_and_teaches_nothing(choice: ToolChoice, text: str) -> None:
    agent = Agent([TIME], choice)
    state = agent.start()
    first, *tokens = agent.tokens("So: " + text)
    state.advance(first)
    for token in tokens:
        assert state.forced() == state.guess() == ()
        state.advance(token)
    tight = styled("tight", "get_time", {})
    assert agent.reply(tight) == ("<tool_call>" if choice == "auto" else "", 0)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("style", ["two spaces", "compact", "padded"])
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("Sure.\n", ""), ("```json\n", "\n```"), ("<tool_call>\n{\n  1", "")]
)
def test_triggers_work_in_every_style(choice: ToolChoice, style: str, before: str, after: str) -> None:
    agent = Agent([TIME], choice)
    body = styled(style, "get_time", {})
    agent.reply(body)
    if not before.startswith("<"):
        body = body.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    state = agent.start()
    for token in spell(agent.plain, before):
        state.advance(token)
    tokens = agent.tokens(body + after)
    state.advance(tokens[0])
    for token in tokens[1:]:
        assert (state.forced() or state.guess())[:1] == (token,)
        state.advance(token)


@pytest.mark.parametrize("style", ["two spaces", "compact", "tight"])
def test_documents_are_followed_in_every_style(style: str) -> None:
    agent = Agent([TIME])
    agent.grammar = follow_json(agent.tokenizer, PERSON, end=agent.end)
    agent.reply(STYLES[style]({"name": "lo", "city": "Oslo"}))
    own, wrong = agent.reply(STYLES[style]({"name": "Os", "city": "Rome"}))
    assert wrong == 0
    assert own.split("|")[0] == "Os"


def test_a_number_is_not_made_up() -> None:
    """The white space before it does not say which one it is, though it can be nothing else."""
    agent = Agent()
    agent.grammar = follow_json(agent.tokenizer, closed({"lo": {"type": "integer"}}), end=agent.end)
    agent.reply('{ "lo": 17 }')
    state = agent.start()
    for token in spell(agent.plain, '{ "lo":'):
        state.advance(token)
    assert state.guess() == ()
    state.advance(ord(" "))
    assert state.guess() == ()
    for token in (ord("1"), ord(" ")):
        state.advance(token)
    assert agent.pieces(state.guess()) == "}"


def test_bytes_of_a_character_are_followed() -> None:
    agent = Agent([WEATHER], vocabulary="bytes")
    text = styled("two spaces", "get_weather", {"city": "Oslo"}).replace("Oslo", "Malmö – 東")
    agent.reply(text)
    own, wrong = agent.reply(text)
    assert wrong == 0
    assert own.count("|") < 20


def test_a_token_that_would_have_merged_with_the_usual_white_space_is_followed_by_something_else() -> None:
    agent = Agent([TIME])
    agent.reply(styled("two spaces", "get_time", {}))
    state = agent.start()
    for token in [agent.end - 2, ord("\n"), ord("{")]:
        state.advance(token)
    for ahead in (state, state.fork()):
        assert not agent.pieces(ahead.guess()).startswith("\n")  # that would be the token "{\n"


def test_a_token_is_not_proposed_where_it_merges_with_whatever_comes_next() -> None:
    """Behind the unit comes a comma or the end, and the quote is one token with either."""
    properties: dict[str, Json] = {"unit": {"const": "lo"}, "city": {"const": "Os"}}
    tool = BoundTool("get", "", {"type": "object", "properties": properties, "required": ["unit"]})
    agent = Agent([tool])
    agent.reply(styled("two spaces", "get", {"unit": "lo", "city": "Os"}))
    state = agent.start()
    for proposal in (
        '<tool_call>|\n|{\n| | "|name|":| "|g|e|t|",\n| | "|arguments|":| {\n|    |"|unit|":| "|lo',
        "",
    ):
        assert agent.pieces(state.guess()) == proposal
        for token in state.guess():
            state.advance(token)
    other = state.fork()
    state.advance(STYLED.index('"\n'))
    assert agent.pieces(state.guess()) == " | }|\n|}\n|</tool_call>"
    other.advance(STYLED.index('",\n'))
    assert agent.pieces(other.guess()) == '    |"|city|":| "|Os|"\n| | }|\n|}\n|</tool_call>'


def test_the_beginning_of_several_words_is_proposed_up_to_where_they_may_part() -> None:
    agent = Agent([BoundTool(name, "", TIME.parameters) for name in ("a_weather", "a_time")])
    agent.reply(styled("two spaces", "a_time", {}))
    assert agent.pieces(agent.start().guess()).endswith('|name|":| "|a')  # "_weather" may be one token


def test_a_proposal_ends_where_the_white_space_is_not_known() -> None:
    """The end of the call has shown that there is a line break, and not how far other lines are indented."""
    agent = Agent([BoundTool("get_time", "", closed({"city": {"const": "lo"}}))])
    agent.reply('<tool_call>\n{"name": "get_time", "arguments": {}\n}\n</tool_call>')
    proposal = agent.pieces(agent.start().guess())
    assert proposal.startswith('<tool_call>|\n|{"|name|')
    assert proposal.endswith('|city|":| "|lo')  # the quote may be one token with what comes


# ---------------------------------------------------------------------------------------- key order

UNIT = closed({"Os": {"const": "lo"}, "lo": {"const": "Os"}})
ORDERED = closed({"city": {"const": "Oslo"}, "name": {"const": "lo"}, "unit": UNIT})


def in_order(*keys: str) -> Json:
    values: dict[str, Json] = {"city": "Oslo", "name": "lo", "unit": {"lo": "Os", "Os": "lo"}}
    return {key: values[key] for key in keys}


@pytest.mark.parametrize("style", ["tight", "two spaces"])
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_keys_are_proposed_in_the_order_in_which_they_were_written(choice: ToolChoice, style: str) -> None:
    agent = Agent([BoundTool("get_time", "", ORDERED)], choice)
    for keys in (("unit", "city", "name"), ("name", "unit", "city"), ("city", "name", "unit")):
        text = styled(style, "get_time", in_order(*keys))
        assert agent.reply(text)[0].count("|") > 10
        agent.reply(text)
        assert agent.reply(text) == ("" if choice == "required" else "<tool_call>", 0)


def test_an_order_is_that_of_one_tool() -> None:
    agent = Agent([BoundTool("get_time", "", ORDERED), BoundTool("get_weather", "", ORDERED)])
    for _ in range(2):
        agent.reply(styled("tight", "get_time", in_order("unit", "name", "city")))
    arguments: Json = {"city": "Oslo", "name": "lo", "unit": {"Os": "lo", "lo": "Os"}}
    assert agent.reply(styled("tight", "get_weather", arguments)) == ("weather", 0)


def test_documents_have_an_order_too() -> None:
    agent = Agent([TIME])
    agent.grammar = follow_json(agent.tokenizer, ORDERED, end=agent.end)
    text = json.dumps(in_order("unit", "name", "city"))
    agent.reply(text)
    agent.reply(text)
    assert agent.reply(text) == ("", 0)
