"""What the grammar tests share: a vocabulary of bytes, a few merges and two special tokens, and two tools."""

from __future__ import annotations

import json
from functools import cache

from agentspec.chat.formats import HERMES
from agentspec.grammar.reply import compile_reply
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.testing import TableVocab
from agentspec.types import BoundTool, Json, Matcher, ToolChoice

MERGES = ['{"', '":', ' "', '",', '"}', "}}"]
MERGES += ["name", "arguments", "get_", "weather", "time", "city", "Os", "lo"]
SPECIAL = ["<tool_call>", "</tool_call>", "<end>"]
PIECES: list[bytes | str] = [*(bytes([byte]) for byte in range(256)), *MERGES, *SPECIAL]
OPEN, CLOSE, END = (len(PIECES) - 3, len(PIECES) - 2, len(PIECES) - 1)

WEATHER = BoundTool(
    "get_weather",
    "",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
)
TIME = BoundTool("get_time", "", {"type": "object", "properties": {}})


@cache
def small_tokenizer() -> GrammarTokenizer:
    return GrammarTokenizer(TableVocab(PIECES, end_ids=[END], special_ids=[OPEN, CLOSE]))


def matcher(
    tokenizer: GrammarTokenizer,
    choice: ToolChoice = "required",
    tools: tuple[BoundTool, ...] = (WEATHER, TIME),
    *,
    spelling: str = "canonical",
    parallel: bool = True,
) -> Matcher:
    grammar = compile_reply(tokenizer, HERMES, tools, choice, spelling=spelling, parallel=parallel)
    assert grammar is not None
    return grammar.start()


def spell(tokenizer: GrammarTokenizer, text: str) -> list[int]:
    return tokenizer.vocab.tokenize(text.encode(), special=True)


def fits(tokenizer: GrammarTokenizer, state: Matcher, text: str) -> bool:
    """Whether the mask allows the text token by token, in its canonical spelling."""
    for token in spell(tokenizer, text):
        legal = state.legal()
        if legal is not None and token not in legal:
            return False
        state.advance(token)
    return True


def call(name: str, arguments: Json) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


IMPOSSIBLE: dict[str, Json] = {"type": "integer", "minimum": 5, "maximum": 3}
"""What no value fits."""


def closed(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def view(state: Matcher) -> tuple[list[int] | None, tuple[int, ...]]:
    legal = state.legal()
    return (None if legal is None else legal.tolist()), state.forced()
