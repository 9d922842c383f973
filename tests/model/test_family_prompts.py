"""What real templates make of past calls and their results, which `tests/golden/families` has from documents.

`make test` downloads the templates.
"""

from __future__ import annotations

import pytest

from agentspec.chat.formats import FORMATS
from agentspec.chat.template import ChatTemplate
from agentspec.config import cache_dir
from agentspec.types import AssistantTurn, ToolTurn, Turn, UserTurn
from tests.golden.families import FAMILIES, Family, Prompt
from tools.llama_sources import sources_folder

TEMPLATES = sources_folder(cache_dir()) / "templates"

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        not TEMPLATES.exists(), reason="llama.cpp's templates are not there: make test fetches them"
    ),
]

SHOWN = [pytest.param(family, family.prompt, id=family.name) for family in FAMILIES if family.prompt]


@pytest.mark.parametrize(("family", "prompt"), SHOWN)
def test_past_calls_and_their_results_are_shown_as_documented(family: Family, prompt: Prompt) -> None:
    source = (TEMPLATES / f"{prompt.template}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, bos="<s>", eos="</s>")
    assert template.wire_format is FORMATS[family.name]
    calls = family.replies[0].calls
    ids = prompt.ids or [f"call_{index}" for index in range(len(calls))]
    given = [(call_id, *call) for call_id, call in zip(ids, calls, strict=True)]
    turns: list[Turn] = [UserTurn("What is it?"), AssistantTurn("", tuple(given))]
    for call_id, (name, _), result in zip(ids, calls, prompt.results, strict=True):
        turns.append(ToolTurn(result, call_id, name))
    assert prompt.text in template.render(turns, family.tools)
