"""The real chat templates and vocabularies that llama.cpp comes with: what their families write is found.

`make test` downloads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from agentspec.chat.capabilities import probe
from agentspec.chat.channels import parser_of
from agentspec.chat.derive import derive
from agentspec.chat.detect import detect
from agentspec.chat.formats import FORMATS, HERMES, WireFormat
from agentspec.chat.formats.render import render_calls
from agentspec.chat.parser import CallEvent, TextDelta
from agentspec.chat.sandbox import PromptTemplate
from agentspec.chat.template import ChatTemplate
from agentspec.config import RuntimeOptions, cache_dir
from agentspec.grammar.reply import compile_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.llama import Model
from agentspec.types import (
    AssistantTurn,
    BoundTool,
    Json,
    Legal,
    SystemTurn,
    ToolTurn,
    Turn,
    UserTurn,
    ValidCall,
)
from tests.unit.grammars import fits, small_tokenizer
from tools.llama_sources import sources_folder

SOURCES = sources_folder(cache_dir())
TEMPLATES = sorted(SOURCES.glob("templates/*.jinja"))
VOCABULARIES = sorted(path for path in SOURCES.glob("ggml-vocab-*.gguf") if "bert" not in path.stem)

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not TEMPLATES, reason="llama.cpp's templates are not there: make test fetches them"),
]

WEATHER = BoundTool(
    "get_weather",
    "The weather of a city.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name."},
            "days": {"type": "integer", "description": "How many."},
            "hourly": {"type": "boolean", "description": "Whether by the hour."},
            "unit": {"enum": ["c", "f"], "description": "Celsius or not."},
            "tags": {"type": "array", "items": {"type": "string"}, "description": "For later."},
        },
        "required": ["city", "days"],
    },
)
NOW = BoundTool("now", "The time.", {"type": "object", "properties": {}})
TOOLS = (WEATHER, NOW)

Call = tuple[str, dict[str, Json]]
CALLS: tuple[Call, ...] = (
    ("get_weather", {"city": 'Os\nlo {"x"} </b>', "days": 3, "unit": "c"}),
    ("get_weather", {"city": "Zürich 🌦", "days": -1, "hourly": True, "tags": ["a", 'b"']}),
    ("now", {}),
)

UNKNOWN = {
    "Kimi-K3": "a tag says the type of its value",
    "LFM2.5-8B-A1B": "calls are written in Python",
    "MiniMax-M3": "a tag that closes says the key again",
    "google-gemma-4-31B-it": "arguments are in a notation of its own",
    "google-gemma-4-31B-it-interleaved": "arguments are in a notation of its own",
    "muse-glimmer": "the name is written twice",
}
"""Families whose calls are written in a way that is not known here: they are shown Hermes' in the prompt."""

SILENT = {
    "HuggingFaceTB-SmolLM3-3B": "hermes",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "hermes",
    "google-gemma-2-2b-it": "hermes",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "llama-cpp-rwkv-world": "hermes",
    "microsoft-Phi-3.5-mini-instruct": "hermes",
}
"""Templates that render no calls, and the format that they are taken for: their family's where they spell its
markers, else Hermes'. They are told of it in the prompt."""

NAMED_ALIKE = {
    "Bielik-11B-v3.0-Instruct": "hermes",
    "StepFun3.5-Flash": "qwen3-coder",
    "inclusionai-ling-3.0-flash": "glm-4",
    "poolside-Laguna-XS.2": "glm-4",
}
"""Templates of other families that write as one that has a name, but for white space around calls."""

UNSEEN = {"phi-4-mini"}
"""Formats that none of the templates writes."""


def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def derived(path: Path) -> WireFormat | None:
    template = PromptTemplate(source(path), bos="<s>", eos="</s>")
    return derive(template, probe(template), ends=["</s>"])


def parsed(wire: WireFormat, text: str, *, reason: str = "stop") -> list[object]:
    parser = parser_of(wire, TOOLS, "required")
    events = [*parser.feed(text.encode()), *parser.finish("stop" if reason == "stop" else "length")]
    return [
        (event.call.name, dict(event.call.arguments))
        if isinstance(event, CallEvent) and isinstance(event.call, ValidCall)
        else event
        for event in events
        if not isinstance(event, TextDelta) or event.text.strip()
    ]


FOUND = [path for path in TEMPLATES if path.stem not in {*UNKNOWN, *SILENT}]


def test_all_templates_are_accounted_for() -> None:
    assert {path.stem for path in TEMPLATES} >= {*UNKNOWN, *SILENT}
    assert len(UNKNOWN) <= 8
    assert {path.stem for path in TEMPLATES if derived(path) is None} == {*UNKNOWN, *SILENT}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_conversation_with_calls_is_rendered(path: Path) -> None:
    template = ChatTemplate(source(path), bos="<s>", eos="</s>")
    turns: list[Turn] = [
        SystemTurn("Be brief, says zq."),
        UserTurn("How is it in Oslo?"),
        AssistantTurn("", (("call_1", "get_weather", {"city": "Oslo, says zq", "days": 3}),)),
        ToolTurn("Sunny, says zq.", "call_1", "get_weather"),
        AssistantTurn("It is sunny, says zq."),
        UserTurn("And now?"),
    ]
    prompt = template.render(turns, TOOLS)
    shown = ["Be brief, says zq.", "Oslo, says zq", "Sunny, says zq.", "It is sunny, says zq.", "And now?"]
    places = [prompt.rfind(text) for text in shown]
    assert min(places) >= 0, dict(zip(shown, places, strict=True))
    assert "get_weather" in prompt
    assert "Whether by the hour." in prompt


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_a_call_as_the_template_writes_it_is_read_back(path: Path, call: Call) -> None:
    """In the template's own words, not in ours."""
    wire = detect(source(path), bos="<s>", eos="</s>")
    template = ChatTemplate(source(path), bos="<s>", eos="</s>")
    assert template.wire_format == wire
    assert template.shows_tools or not probe(PromptTemplate(source(path))).tools
    asked = UserTurn("zq_asked")
    called = AssistantTurn("", (("call_1", *call),))
    told = ToolTurn("zq_told", "call_1", call[0])
    prompt = template.render([asked, called, told, AssistantTurn("zq_said"), UserTurn("zq")], TOOLS)
    written = prompt.rpartition("zq_asked")[2].partition("zq_told")[0]
    parser = parser_of(wire, TOOLS, "auto" if wire.marker else "required")
    name = written.index(call[0])
    start = name if wire.after_name else written.index("{")
    if wire.channels is not None:  # the first header follows the prompt, and <|call|> spells nothing
        begin = wire.channels.start
        start, written = written.rindex(begin, 0, name) + len(begin), written.partition("<|call|>")[0]
    elif wire.marker:
        start = written.rindex(wire.marker, 0, name)
    events = [*parser.feed(written[start:].encode()), *parser.finish("stop")]
    calls = [event.call for event in events if isinstance(event, CallEvent)]
    assert calls[:1] == [ValidCall(*call)]


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_is_written_is_read_and_nothing_that_is_cut_is_a_call(path: Path) -> None:
    wire = derived(path)
    assert wire is not None
    several = probe(PromptTemplate(source(path))).several
    for calls in [[call] for call in CALLS] + ([list(CALLS[1:])] if several else []):
        text = render_calls(wire, calls)
        assert parsed(wire, text) == calls
        for cut in range(len(text)):
            valid = [one for one in parsed(wire, text[:cut], reason="length") if isinstance(one, tuple)]
            assert len(valid) < len(calls), text[:cut]


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_the_grammar_takes_what_the_family_writes_and_no_near_miss(path: Path) -> None:
    wire, tokenizer = derived(path), small_tokenizer()
    assert wire is not None
    several = probe(PromptTemplate(source(path))).several
    grammar = compile_reply(tokenizer, wire, TOOLS, "required", parallel=several)
    assert grammar is not None
    for calls in [[call] for call in CALLS] + ([list(CALLS[1:])] if several else []):
        text = render_calls(wire, calls)
        state = grammar.start()
        assert fits(tokenizer, state, text), text
        assert state.accepting()
        for wrong in (
            text.replace("get_weather", "get_wether").replace("now", "nov"),
            text.replace("days", "dayz").replace("now", "nov"),
            text.replace("3", "three").replace("-1", "one").replace("now", "nov"),
        ):
            assert not fits(tokenizer, grammar.start(), wrong), wrong


@pytest.mark.parametrize("path", VOCABULARIES, ids=lambda path: path.stem.removeprefix("ggml-vocab-"))
def test_every_vocabulary_can_write_a_call_token_by_token(path: Path) -> None:
    """In Hermes' form, as an array, and in tags."""
    names = ("mistralai-Mistral-Nemo-Instruct-2407", "Qwen3-Coder")
    formats = [HERMES, *(derived(SOURCES / "templates" / f"{name}.jinja") for name in names)]
    with Model.load(path, RuntimeOptions(), vocab_only=True) as model:
        tokenizer = GrammarTokenizer(model.vocab)
        known = {model.vocab.token_bytes(token): token for token in range(model.vocab.n_tokens)}
        for wire in formats:
            assert wire is not None
            grammar = compile_reply(tokenizer, wire, TOOLS, "required", parallel=False)
            assert grammar is not None
            state, wanted, written = grammar.start(), render_calls(wire, CALLS[1:2]).encode(), b""
            while len(written) < len(wanted):
                rest = wanted[len(written) :]
                for token in state.forced() or [_fitting(model, known, state.legal(), rest)]:
                    written += model.vocab.token_bytes(token) or model.vocab.token_text(token)
                    state.advance(token)
                assert wanted.startswith(written) or written.startswith(wanted)
            assert state.accepting()


def _fitting(model: Model, known: Mapping[bytes, int], legal: Legal, rest: bytes) -> int:
    """The longest legal token that goes on with the text."""
    assert legal is not None
    allowed: set[int] = {int(token) for token in legal}
    for size in range(min(len(rest), 32), 0, -1):
        token = known.get(rest[:size], -1)
        if token in allowed:
            return token
    return next(token for token in allowed if rest.startswith(model.vocab.token_text(token) or b"\0"))


@cache
def found_in(path: Path) -> str:
    return detect(source(path), bos="<s>", eos="</s>").name


def test_every_named_format_is_found_in_a_template_that_writes_it() -> None:
    assert {*FORMATS} - {found_in(path) for path in TEMPLATES} == UNSEEN


@pytest.mark.parametrize(("name", "wire"), [*SILENT.items(), *NAMED_ALIKE.items()])
def test_a_format_is_found_where_a_template_says_it_in_another_way(name: str, wire: str) -> None:
    assert found_in(SOURCES / "templates" / f"{name}.jinja") == wire


def test_a_named_format_reads_what_the_derived_one_writes_and_the_other_way_round() -> None:
    for path in FOUND:
        own = derived(path)
        assert own is not None
        named = FORMATS.get(found_in(path), own)
        calls = list(CALLS) if probe(PromptTemplate(source(path))).several else [CALLS[0]]
        assert parsed(named, render_calls(own, calls)) == calls, path.stem
        if named.channels is None:  # which are written in more than one way
            assert parsed(own, render_calls(named, calls)) == calls, path.stem
