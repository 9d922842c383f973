"""The completion model over a real engine, on the small model: its words are poor, its plumbing the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentspec import AgentSpecLLM, ChatAgentSpec
from agentspec.errors import ConfigError, TemplateError
from agentspec.langchain.errors import UnfitReplyError
from examples import completion
from tools.tiny_gguf import tiny_gguf

pytestmark = pytest.mark.model

PROMPTS = ["1, 2, 3, 4,", "10, 20, 30, 40,", "A, B, C, D, E, F, G,"]
"""Whose next tokens are no near-ties: those may go one way alone and the other in company."""


@pytest.fixture(scope="module")
def llm(small_model: Path) -> Iterator[AgentSpecLLM]:
    llm = AgentSpecLLM(model=str(small_model), n_ctx=1024, max_tokens=24)
    yield llm
    llm.close()


def test_it_shares_the_chat_models_runtime(llm: AgentSpecLLM, small_model: Path) -> None:
    assert llm._runtime() is ChatAgentSpec(model=str(small_model), n_ctx=1024)._runtime()


def test_a_batch_gives_what_each_prompt_gives_alone(llm: AgentSpecLLM) -> None:
    alone = [llm.invoke(prompt, max_tokens=6) for prompt in PROMPTS]
    assert llm.batch([*PROMPTS], max_tokens=6) == alone
    assert alone[0].startswith(" 5, 6")


def test_streaming_and_stopping(llm: AgentSpecLLM) -> None:
    llm.invoke("One, two, three,", draft_sources=())
    whole = llm.invoke("One, two, three,", draft_sources=())
    assert "".join(llm.stream("One, two, three,", draft_sources=())) == whole
    stop = whole[6:9]
    cut = llm.invoke("One, two, three,", stop=[stop], draft_sources=())
    assert cut == whole[: whole.index(stop)]


@pytest.mark.parametrize("spelling", ["canonical", "any"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replies_match(llm: AgentSpecLLM, spelling: str, temperature: float) -> None:
    options: dict[str, Any] = {"spelling": spelling, "temperature": temperature, "seed": 1}
    assert re.fullmatch("[0-9]{4}-[0-9]{2}", llm.invoke("The month: ", regex="[0-9]{4}-[0-9]{2}", **options))
    colours = 'start: colour (", " colour)~1..2\ncolour: "red" | "green" | "blue"'
    found = llm.invoke("Some colours: ", lark=colours, **options)
    assert re.fullmatch("(red|green|blue)(, (red|green|blue)){1,2}", found)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    assert json.loads(llm.invoke("As JSON: ", json_schema=schema, **options))["ok"] in (True, False)


def test_forced_text_takes_no_passes_of_its_own(llm: AgentSpecLLM) -> None:
    generation = llm.generate(["Say it: "], regex="(one|two) potato, three potato, four").generations[0][0]
    assert generation.generation_info is not None
    statistics = generation.generation_info["agentspec"]
    assert statistics["target_passes"] < statistics["tokens"] / 2


def test_a_reply_that_is_cut_is_an_error_that_has_it(llm: AgentSpecLLM) -> None:
    with pytest.raises(UnfitReplyError, match="ended early") as caught:
        llm.invoke("Digits: ", regex="[0-9]{50}", max_tokens=5)
    assert re.fullmatch("[0-9]{1,49}", caught.value.text)
    assert caught.value.finish_reason == "length"


def test_a_regex_that_is_too_big_for_the_vocabulary_is_refused(llm: AgentSpecLLM) -> None:
    with pytest.raises(ConfigError, match=r"regex cannot be used: .*too many expressions"):
        llm.invoke("x", regex="(a|b|[a-z ]{1,200}){1,200}(x.{100}y)?")


def test_a_base_model_completes_and_does_not_chat(tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    path.write_bytes(tiny_gguf("llama").replace(b"tokenizer.chat_template", b"tokenizer.some_template"))
    llm = AgentSpecLLM(model=str(path), n_ctx=256, use_extra_bufts=False, history="off", snapshots="off")
    assert re.fullmatch("[a-z]{3}", llm.invoke("ab", regex="[a-z]{3}"))
    with pytest.raises(TemplateError, match="no chat template"):
        ChatAgentSpec.from_runtime(llm._runtime()).invoke("ab")
    llm.close()


def test_the_example(llm: AgentSpecLLM, capsys: pytest.CaptureFixture[str]) -> None:
    completion.main(llm)
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\['1\d{3}', '1\d{3}'\]", lines[-5])
    assert all(re.fullmatch("- [A-Z][a-z]+", line) for line in lines[-4:-1])
    assert re.fullmatch(r"name='.*' legs=[02468]", lines[-1])
