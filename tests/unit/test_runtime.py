"""A runtime: what it does for a model whose chat template does not work, and the grammars it keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from agentspec.chat.template import ChatTemplate
from agentspec.engine.engine import Engine
from agentspec.engine.loading import _chat_template
from agentspec.engine.runtime import Runtime
from agentspec.errors import ConfigError, TemplateError
from agentspec.grammar.matcher import CompiledGrammar
from agentspec.grammar.text import Pattern, compile_pattern, matches
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.llama import Model
from tests.unit.grammars import small_tokenizer, spell

MUTE = TemplateError("the model file holds no chat template", hint="pass one")


def made(template: ChatTemplate | TemplateError = MUTE) -> Runtime:
    return Runtime(
        name="toy",
        engine=cast(Engine, None),
        vocab=small_tokenizer().vocab,
        template=template,
        wire_format=None,
        n_ctx=100,
    )


def test_a_model_without_a_template_completes_and_does_not_chat() -> None:
    runtime = made()
    assert runtime.tokenize_prompt("a<tool_call>") == tuple(spell(small_tokenizer(), "a<tool_call>"))
    assert runtime.document_matcher({"type": "integer"}, spelling="canonical").legal() is not None
    for ask in (lambda: runtime.template, lambda: runtime.format):
        with pytest.raises(TemplateError, match="no chat template") as caught:
            ask()
        assert caught.value.hint == "pass one"


@pytest.mark.parametrize("source", [None, "{% if %}"])
def test_a_template_that_is_missing_or_broken_is_no_reason_not_to_open_a_model(source: str | None) -> None:
    vocab = SimpleNamespace(bos_id=None, eos_id=None, end_ids=frozenset())
    model = cast(Model, SimpleNamespace(vocab=vocab, chat_template=source))
    assert isinstance(_chat_template(model, None, None), TemplateError)
    chosen = _chat_template(model, "chatml", None)
    assert isinstance(chosen, ChatTemplate)
    assert made(chosen).format is chosen.wire_format
    with pytest.raises(ConfigError, match="neither a built-in name"):
        _chat_template(model, "chatnl", None)


def test_the_grammars_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.engine.runtime._GRAMMARS_KEPT", 2)
    compiled: list[str] = []

    def counted(tokenizer: GrammarTokenizer, pattern: Pattern, *, spelling: str) -> CompiledGrammar:
        compiled.append(pattern.text)
        return compile_pattern(tokenizer, pattern, spelling=spelling)

    monkeypatch.setattr("agentspec.engine.runtime.compile_pattern", counted)
    runtime = made()
    for text in ("a", "b", "a", "c", "a", "d", "a"):
        runtime.pattern_matcher(Pattern("regex", text), spelling="any")
    assert compiled == ["a", "b", "c", "d"]


def test_patterns_are_kept_apart_by_kind_text_and_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = made()
    tokens = spell(small_tokenizer(), "start")
    regex, lark = Pattern("regex", "start"), Pattern("lark", 'start: "start" "!"')
    for _ in range(2):
        assert matches(runtime.pattern_matcher(regex, spelling="any"), tokens)
        assert not matches(runtime.pattern_matcher(lark, spelling="any"), tokens)
        assert runtime.pattern_follower(regex).legal() is None
    assert runtime.pattern_matcher(regex, spelling="canonical").forced()
    monkeypatch.setattr("agentspec.engine.runtime.compile_pattern", None)  # nothing is compiled twice
    assert not runtime.pattern_matcher(regex, spelling="any").forced()
