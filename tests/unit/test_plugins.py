"""Draft sources of other packages and of the program itself are found, named, checked and used."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import agentspec
from agentspec.chat.formats import HERMES
from agentspec.chat.template import BUILTIN_TEMPLATES, ChatTemplate
from agentspec.config import BUILT_IN_SOURCES
from agentspec.drafts.base import Draft, DraftRequest, Offer
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.plugins import DraftContext, DraftPlugin, check_sources, plugin_drafts
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.engine import Engine
from agentspec.engine.runtime import Runtime
from agentspec.errors import ConfigError
from agentspec.langchain.chat_model import ChatAgentSpec
from agentspec.testing import TableModel, TableVocab
from tests.unit.grammars import END, PIECES, call, small_tokenizer, spell
from tools.tiny_gguf import tiny_gguf

VOCAB = TableVocab(["a", "b", "<end>"], end_ids={2})
CONTEXT = DraftContext(VOCAB, lambda text: VOCAB.tokenize(text, special=False))

PACKAGE = """
from agentspec.drafts.base import Draft, Offer

class Ones(Draft):
    name = "ones"

    def __init__(self, context):
        self.tokens = context.tokenize(b"b")

    def offer(self, requests):
        return [Offer(self.tokens, [0.5]) for _ in requests]

class Broken(Draft):
    name = "broken"

    def __init__(self, context):
        raise RuntimeError("no licence")
"""

Install = Callable[[str], None]
"""Installs a package whose entry points are these lines."""


class Mine(Draft):
    """A source of this program's own."""

    name = "mine"

    def __init__(self, context: DraftContext) -> None:
        self.context = context

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        return [None for _ in requests]


class OtherOnes(Mine):
    name = "ones"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """What an installer leaves: a module, and its entry points in the metadata beside it."""

    def install(lines: str) -> None:
        metadata = tmp_path / "someones_drafts-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: someones-drafts\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[agentspec.drafts]\n{lines}\n")
        (tmp_path / "someones_drafts.py").write_text(PACKAGE)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()

    yield install
    sys.modules.pop("someones_drafts", None)


# ------------------------------------------------------------------------------- of installed packages


def test_without_plugins_there_are_no_sources_but_the_built_in() -> None:
    assert plugin_drafts(CONTEXT) == []
    check_sources(BUILT_IN_SOURCES)


def test_an_installed_source_is_found_by_its_entry_point(install: Install) -> None:
    install("ones = someones_drafts:Ones")
    (draft,) = plugin_drafts(CONTEXT)
    assert draft.name == "ones"
    assert draft.offer([None]) == [Offer([1], [0.5])]  # type: ignore[list-item]
    check_sources(["grammar", "ones"])
    assert ChatAgentSpec(draft_sources=("grammar", "ones")).draft_sources == ("grammar", "ones")


def test_an_installed_source_is_used_only_where_it_is_named(install: Install) -> None:
    install("ones = someones_drafts:Ones")
    assert ChatAgentSpec().draft_sources == BUILT_IN_SOURCES


def test_a_source_that_there_is_not_is_refused_with_the_nearest_name(install: Install) -> None:
    install("ones = someones_drafts:Ones")
    with pytest.raises(ConfigError, match=r"named 'onse'; did you mean 'ones'\?\n.*history.*, ones"):
        check_sources(["grammar", "onse"])
    with pytest.raises(ConfigError, match="named 'onse'"):
        ChatAgentSpec(draft_sources=("onse",))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("broken = someones_drafts:Broken", r"'broken' \(someones_drafts:Broken\) cannot.*no licence"),
        ("ones = someones_drafts:Missing", r"'ones' \(someones_drafts:Missing\) cannot.*Missing"),
        ("ones = nowhere:Ones", r"cannot be loaded: ModuleNotFoundError"),
        ("twos = someones_drafts:Ones", r"'twos' .* makes a source named 'ones'"),
        ("dict = builtins:repr", r"'dict' .* cannot be loaded: AttributeError"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(install: Install, entry: str, message: str) -> None:
    install(entry)
    with pytest.raises(ConfigError, match=message):
        plugin_drafts(CONTEXT)


# ----------------------------------------------------------------------------------- passed in place


def test_a_source_passed_in_place_is_made_with_the_context() -> None:
    (draft,) = plugin_drafts(CONTEXT, {"mine": Mine})
    assert isinstance(draft, Mine)
    assert draft.context is CONTEXT


def test_a_source_passed_in_place_comes_before_an_installed_one_and_replaces_its_namesake(
    install: Install,
) -> None:
    install("ones = someones_drafts:Ones")
    assert [draft.name for draft in plugin_drafts(CONTEXT, {"zeros": _named("zeros")})] == ["zeros", "ones"]
    (draft,) = plugin_drafts(CONTEXT, {"ones": OtherOnes})
    assert isinstance(draft, OtherOnes)


def test_no_plugin_takes_the_name_of_a_built_in_source() -> None:
    with pytest.raises(ConfigError, match="no built-in source's"):
        plugin_drafts(CONTEXT, {"grammar": _named("grammar")})


def test_a_chat_model_uses_the_sources_it_is_given_unless_told_which() -> None:
    model = ChatAgentSpec(draft_plugins={"mine": Mine})
    assert model.draft_sources == (*BUILT_IN_SOURCES, "mine")
    assert ChatAgentSpec(draft_plugins={"mine": Mine}, draft_sources=("mine",)).draft_sources == ("mine",)
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        ChatAgentSpec(draft_plugins={"mine": Mine}, draft_sources=("mien",))


def test_models_with_the_same_sources_share_an_engine_and_others_do_not() -> None:
    both = {"mine": Mine, "ones": OtherOnes}
    spec = ChatAgentSpec(draft_plugins=both)._spec("x.gguf")
    assert spec == ChatAgentSpec(draft_plugins=dict(reversed(both.items())))._spec("x.gguf")
    assert len({spec, ChatAgentSpec(draft_plugins={"mine": Mine})._spec("x.gguf")}) == 2
    assert dict(spec.plugins) == both


def test_sources_are_no_part_of_what_is_serialised() -> None:
    model = ChatAgentSpec(draft_plugins={"mine": Mine})
    assert "draft_plugins" not in model.model_dump()
    assert "draft_plugins" not in model._identifying_params


@pytest.mark.parametrize("plugins", [{"mine": "my_package:Mine"}, (Mine,), Mine])
def test_what_is_no_dict_of_callables_is_refused(plugins: object) -> None:
    with pytest.raises(ConfigError, match="draft_plugins is"):
        ChatAgentSpec(draft_plugins=plugins)


class Eager(Mine):
    """Proposes the same token always."""

    name = "eager"

    def offer(self, requests: Sequence[DraftRequest]) -> list[Offer | None]:
        return [Offer(self.context.tokenize(b"a"), [0.9]) for _ in requests]


def test_a_chat_model_asks_the_sources_it_is_given(tmp_path: Path) -> None:
    """On a model of llama.cpp's, made here: it writes nonsense, and the source is wrong about it."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf("llama"))
    model = ChatAgentSpec(
        model=str(path),
        draft=None,
        draft_plugins={"eager": Eager},
        chat_template="{{ messages[0].content }}",
        history="off",
        n_ctx=512,
        n_threads=1,
        use_extra_bufts=False,
        max_tokens=4,
    )
    asked, not_asked = model.invoke("hello"), model.invoke("hello", draft_sources=("grammar",))
    model.close()
    assert asked.response_metadata["agentspec"]["sources"].keys() == {"eager"}
    assert not_asked.response_metadata["agentspec"]["sources"] == {}


def _named(name: str) -> DraftPlugin:
    def make(context: DraftContext) -> Draft:
        draft = Mine(context)
        draft.name = name
        return draft

    return make


# ---------------------------------------------------------------------------------------- the example


def toy_runtime(reply: str, plugins: Mapping[str, DraftPlugin]) -> Runtime:
    """A whole engine around a target that writes one reply to whatever it is asked."""
    tokenizer = small_tokenizer()
    vocab = tokenizer.vocab

    def rows(prefix: Sequence[int]) -> Sequence[float]:
        said = b"".join(map(vocab.token_bytes, prefix)).rpartition(b"assistant\n")[2].decode()
        rest = spell(tokenizer, reply.removeprefix(said))
        row = [0.0] * len(PIECES)
        row[rest[0] if rest else END] = 9.0
        return row

    target = TableModel(rows, n_vocab=len(PIECES), n_ctx=4096, n_batch=512)
    context = DraftContext(vocab, tokenizer.tokenize)
    drafts = [GrammarDraft(vocab.token_bytes), *plugin_drafts(context, plugins)]
    return Runtime(
        name="toy",
        engine=Engine(Core(target, vocab, drafts, costs=Costs.free())),
        vocab=vocab,
        template=ChatTemplate(BUILTIN_TEMPLATES["chatml"], wire_format=HERMES),
        wire_format=HERMES,
        n_ctx=4096,
    )


def test_the_example_adds_a_source_and_prints_what_was_accepted_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"city": "Canberra", "country": "Australia"}
    runtimes = []

    def make(*, draft_plugins: Mapping[str, DraftPlugin], history: str) -> ChatAgentSpec:
        runtimes.append(toy_runtime(call("get_time", arguments), draft_plugins))
        return ChatAgentSpec.from_runtime(runtimes[-1], draft_plugins=draft_plugins, history=history)

    monkeypatch.setattr(agentspec, "ChatAgentSpec", make)
    runpy.run_path("examples/own_draft.py")
    runtimes[0].close()
    printed, sources = map(ast.literal_eval, capsys.readouterr().out.splitlines())
    assert printed == arguments
    assert sources["countries"] == {"proposed": 9, "accepted": 9}


def test_the_example_is_short() -> None:
    assert len(Path("examples/own_draft.py").read_text(encoding="utf-8").splitlines()) < 40
