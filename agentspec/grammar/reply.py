"""Tools and a choice to the grammar of a whole reply, envelope included.

    begin object end (between begin object end)*

where the object names a tool and gives arguments that fit its schema. The separators are `", "` and `": "`:
what chat templates show in earlier calls, so what models write, and tighter than "any whitespace", so that
more is forced.

It must not know how a mask is computed, nor how a reply is parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from agentspec.chat.formats.base import WireFormat
from agentspec.chat.schema import closed_document, closed_schema
from agentspec.errors import GrammarError, SchemaError
from agentspec.grammar.matcher import CompiledGrammar, Grammar
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.grammar.triggered import HeadTrigger, MarkerTrigger, Trigger, TriggeredGrammar
from agentspec.types import BoundTool, Json, NamedTool, ToolChoice

__all__ = ["compile_json", "compile_reply"]

_SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_KEYWORD = re.compile(r"""["']([A-Za-z$]+)["']""")


def compile_reply(
    tokenizer: GrammarTokenizer,
    wire: WireFormat,
    tools: Sequence[BoundTool],
    choice: ToolChoice,
    *,
    spelling: str = "canonical",
    parallel: bool = True,
) -> Grammar | None:
    """The grammar of a reply; None where every text is legal.

    parallel: whether one reply may hold several calls; a named tool is called once in any case.
    Raises SchemaError naming the tool whose schema the grammar engine cannot take.
    """
    if choice == "none" or not tools:
        return None
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool.name == choice.name]
        parallel = False
    writer = _Writer(tokenizer, wire, tools, parallel=parallel, spelling=spelling)
    try:
        if choice != "auto":
            return CompiledGrammar(tokenizer, writer.reply())
        triggers: list[Trigger] = []
        if wire.marker:
            marked = CompiledGrammar(tokenizer, writer.reply())
            triggers.append(MarkerTrigger(tokenizer, wire.marker, marked))
        if wire.bare_objects:
            bare = CompiledGrammar(tokenizer, writer.bare())
            fenced = CompiledGrammar(tokenizer, writer.bare(end="\n```"))
            heads = [writer.name_part(tool) for tool in tools]
            triggers.append(HeadTrigger(tokenizer, heads, bare=bare, fenced=fenced))
    except GrammarError:
        _blame(tokenizer, tools)
        raise
    return TriggeredGrammar(triggers) if triggers else None


def compile_json(
    tokenizer: GrammarTokenizer, schema: Mapping[str, Json], *, spelling: str = "canonical"
) -> CompiledGrammar:
    """The grammar of a reply that is one JSON document fitting the schema.

    Raises SchemaError (its tool is the schema's title) when the grammar engine cannot take it.
    """
    name = schema.get("title")
    try:
        return CompiledGrammar(tokenizer, _head(spelling) + f"start: {_json_rule(closed_document(schema))}\n")
    except GrammarError as error:
        raise _schema_error(str(name or "response"), error) from error


class _Writer:
    """Writes the Lark grammars of one tool set."""

    def __init__(
        self,
        tokenizer: GrammarTokenizer,
        wire: WireFormat,
        tools: Sequence[BoundTool],
        *,
        parallel: bool,
        spelling: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._wire = wire
        self._tools = tools
        self._parallel = parallel
        self._spelling = spelling

    def reply(self) -> str:
        """A reply in the family's envelope."""
        begin, end = _text(self._tokenizer, self._wire.begin), _text(self._tokenizer, self._wire.end)
        return self._lark([f"start: {self._several('call')}", f"call: {begin} object {end}"])

    def bare(self, end: str = "") -> str:
        """A reply of bare objects, then `end`."""
        return self._lark([f"start: {self._several('object')} {_quote(end) if end else ''}"])

    def name_part(self, tool: BoundTool) -> str:
        """The object's text up to the tool's name."""
        return json.dumps({self._wire.name_key: tool.name}, ensure_ascii=False)[:-1]

    def _several(self, rule: str) -> str:
        between = _text(self._tokenizer, self._wire.between)
        return f"{rule} ({between} {rule})*" if self._parallel else rule

    def _lark(self, rules: list[str]) -> str:
        rules.append("object: " + " | ".join(f"tool_{index}" for index in range(len(self._tools))))
        for index, tool in enumerate(self._tools):
            head = f"{self.name_part(tool)}, {json.dumps(self._wire.arguments_key)}: "
            rules.append(f'tool_{index}: {_quote(head)} args_{index} "}}"')
            rules.append(f"args_{index}: {_json_rule(closed_schema(tool.parameters))}")
        return _head(self._spelling) + "\n".join(rules) + "\n"


def _head(spelling: str) -> str:
    return '%llguidance {"no_forcing": true}\n' if spelling == "any" else ""


def _json_rule(closed: Mapping[str, Json]) -> str:
    return "%json " + json.dumps({**closed, "x-guidance": _SEPARATORS}, ensure_ascii=True)


def _text(tokenizer: GrammarTokenizer, text: str) -> str:
    """Text as Lark terms: special tokens where the vocabulary has them, quoted text elsewhere."""
    return " ".join(_terms(tokenizer, text))


def _terms(tokenizer: GrammarTokenizer, text: str) -> Iterable[str]:
    for index, part in enumerate(re.split(r"(<[^<>\s]+>)", text)):
        if not part:
            continue
        if index % 2 and (token := tokenizer.vocab.special_id(part)) is not None:
            yield f"<[{token}]>"
        else:
            yield _quote(part)


def _quote(text: str) -> str:
    """A Lark string literal; its escapes are JSON's."""
    return json.dumps(text, ensure_ascii=True)


def _blame(tokenizer: GrammarTokenizer, tools: Sequence[BoundTool]) -> None:
    """Raises the SchemaError of the first tool that does not compile by itself."""
    for tool in tools:
        try:
            CompiledGrammar(tokenizer, f"start: {_json_rule(closed_schema(tool.parameters))}\n")
        except GrammarError as error:
            raise _schema_error(tool.name, error) from error


def _schema_error(name: str, error: GrammarError) -> SchemaError:
    words = _KEYWORD.findall(error.message)
    return SchemaError(
        f"its JSON Schema cannot be enforced: {error.message}",
        tool=name,
        keyword=words[0] if words else "",
        hint="rewrite that part of the schema, or bind the model without this tool",
    )
