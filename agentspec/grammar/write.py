"""Writes replies as Lark grammars: the envelope, each tool's arguments, a document.

It must not know when a grammar applies, nor what it is compiled to.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from agentspec.chat.formats.base import SPECIAL, Channels, Hole, WireFormat
from agentspec.chat.reasoning import NO_THOUGHT, Reasoning
from agentspec.grammar.channels import DOCUMENT, answer_rules, call_rules
from agentspec.grammar.enforce import enforceable_document, enforceable_tool
from agentspec.grammar.matcher import CompiledGrammar
from agentspec.grammar.order import Orders, in_order
from agentspec.grammar.repeats import CallsGrammar
from agentspec.grammar.tagged import tagged_rules
from agentspec.grammar.thought import THOUGHT, thought_rules
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.types import BoundTool, Json, NamedTool, NamedTools, ToolChoice

__all__ = [
    "COMPACT",
    "FENCE",
    "TIGHT",
    "ReplyWriter",
    "document_rules",
    "json_rule",
    "options",
    "required_document",
    "text_terms",
]

TIGHT = (", ", ": ")
COMPACT = (",", ":")
FENCE = "\n```"  # what closes a fenced block

_LEXEMES = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]|[^"{}]+')  # of fixed JSON, as the grammar of a schema has them


class ReplyWriter:
    """Writes the Lark grammars of one tool set.

    separators: between items, and between a key and its value
    answer:     the schema of the document that a reply may be instead of calls; None where it has to call

    `tools` are those that may be called.
    """

    def __init__(
        self,
        tokenizer: GrammarTokenizer,
        wire: WireFormat,
        tools: Sequence[BoundTool],
        choice: ToolChoice,
        *,
        parallel: bool,
        spelling: str = "canonical",
        separators: tuple[str, str] = TIGHT,
        answer: Mapping[str, Json] | None = None,
    ) -> None:
        if isinstance(choice, NamedTool):
            tools = [tool for tool in tools if tool.name == choice.name]
            parallel = False
        elif isinstance(choice, NamedTools):
            tools = [tool for tool in tools if tool.name in choice.names]
        self._tokenizer = tokenizer
        self._wire = wire
        self.tools = tools
        self._parallel = parallel
        self._spelling = spelling
        self._separators = separators
        self._answer = answer

    def reply(self, orders: Orders = ()) -> str:
        """A reply in the family's envelope. orders: of the arguments' keys, where not the schema's."""
        if self._wire.channels is not None:
            return self._in_channels(self._wire.channels, orders, whole=True)
        return self._lark([f"start: {self._or_answer(self._envelope())}"], orders)

    def required(self, reasoning: Reasoning) -> str:
        """A reply that has to call or to be the answer, from its first token on.

        Where it may call several times, or be the answer, it may call in any form that the parser reads:
        small models that are held to an envelope they were hardly taught leave it after one call, or call
        nothing.
        """
        wire = self._wire
        if wire.channels is not None:
            return self._in_channels(wire.channels, (), whole=True)
        thought = thought_rules(self._tokenizer.vocab, reasoning)
        forms = [self._envelope(strip=bool(thought))]
        rules = list(thought)
        if (self._parallel or self._answer is not None) and wire.bare_objects and not wire.after_name:
            forms.append(f"OPEN {self._blocks}")
            rules += [r"OPEN: /```(json)?\n/", *self._fences()]
            if wire.opening or wire.begin:
                forms.append(self._several(space=self._space))
        calls = self._or_answer(" | ".join(forms))
        return self._lark([f"start: {THOUGHT if thought else ''} ({calls})", *rules], ())

    def named(self, orders: Orders = ()) -> str:
        """In a format of channels, a call from its tool's name on."""
        assert self._wire.channels is not None
        return self._in_channels(self._wire.channels, orders, whole=False)

    def bare(self, orders: Orders = ()) -> str:
        """A reply of bare objects."""
        return self._lark([f"start: {self._or_answer(self._several(space=self._space))}"], orders)

    def fenced(self, orders: Orders = ()) -> str:
        """A reply of bare objects in a fence, which it closes; further fences may follow."""
        return self._lark([f"start: {self._or_answer(self._blocks, then=FENCE)}", *self._fences()], orders)

    def _or_answer(self, calls: str, *, then: str = "") -> str:
        """Calls, or the answer and the text `then`."""
        return calls if self._answer is None else f"{calls} | {DOCUMENT} {_quote(then) if then else ''}"

    @property
    def _blocks(self) -> str:
        """Fenced calls behind the first fence."""
        return "block (FENCE block)*" if self._parallel else "block"

    def _fences(self) -> list[str]:
        return [f"block: {self._several(last=FENCE)}", r"FENCE: /\n{1,3}```(json)?\n/"]

    def _envelope(self, *, strip: bool = False) -> str:
        """Calls with all that is around them. strip: without the white space in front"""
        wire = self._wire
        first = wire.opening + wire.begin
        return self._several(
            first.lstrip() if strip else first, wire.end, wire.begin, wire.end + wire.closing, self._space
        )

    @property
    def _space(self) -> str:
        """The white space that follows a call where another one follows it."""
        between = self._wire.between
        return between[: len(between) - len(between.lstrip())]

    def compiled(self, lark: str, reasoning: Reasoning = NO_THOUGHT) -> CompiledGrammar:
        """The grammar of a reply of calls. reasoning: what it may begin with"""
        if not self._parallel:
            return CompiledGrammar(self._tokenizer, lark)
        end = "" if reasoning.marks is None else reasoning.marks.end
        return CallsGrammar(self._tokenizer, lark, self._wire.between, end)

    def heads(self) -> list[str]:
        """Each tool's object up to its name."""
        return [self._head(tool) for tool in self.tools]

    def _around(self, tool: BoundTool, arguments: str) -> str:
        """A call of a tool, given the name of its arguments' rule."""
        wire, (comma, colon) = self._wire, self._separators
        if wire.after_name:
            named = [*wire.before_name, tool.name, *wire.after_name]
            return " ".join([*(self._part(part) for part in named), arguments])
        head = f"{self._head(tool)[1:]}{comma}{json.dumps(wire.arguments_key)}{colon}"
        before, after = self._fixed("{" + head), [_quote("}")]
        if (own := wire.json_id) is not None:
            key, value = f"{json.dumps(own.key)}{colon}", f'/"{own.value.pattern}"/'
            if own.first:
                before = [*self._fixed("{" + key), value, *self._fixed(comma + head)]
            else:
                after = [*self._fixed(comma + key), value, _quote("}")]
        return " ".join([*before, arguments, *after])

    def _fixed(self, text: str) -> list[str]:
        """Fixed text of an object. Beside an answer, which may begin likewise, it is cut as an answer's is:
        the engine's lexer does not go back within one piece."""
        return [_quote(part) for part in (_LEXEMES.findall(text) if self._answer is not None else [text])]

    def _part(self, part: str | Hole) -> str:
        return text_terms(self._tokenizer, part) if isinstance(part, str) else f"/{part.pattern}/"

    def _head(self, tool: BoundTool) -> str:
        head = {self._wire.name_key: tool.name}
        return json.dumps(head, ensure_ascii=False, separators=self._separators)[:-1]

    def _several(
        self, first: str = "", end: str = "", begin: str = "", last: str = "", space: str = ""
    ) -> str:
        """One call or more, with the text around all of them and around each. space: may follow the last"""
        terms = functools.partial(text_terms, self._tokenizer)
        if not self._parallel:
            return f"{terms(first)} object {terms(last)}"
        # what stands between two is one text: the engine's lexer does not go back within one
        between = terms(end + self._wire.between + begin)
        tail = terms(last)
        if space and not self._wire.closing:
            # models write the line break behind a call, and only then decide whether another one follows
            tail = f"({tail} | {terms(last + space)})" if tail else f"{terms(space)}?"
        return f"{terms(first)} object ({between} object)* {tail}"

    def _in_channels(self, channels: Channels, orders: Orders, *, whole: bool) -> str:
        terms = functools.partial(text_terms, self._tokenizer)
        names = [tool.name for tool in self.tools]
        answers = whole and self._answer is not None
        rules = call_rules(channels, names, terms, whole=whole, answers=answers)
        return self._with_arguments(rules, orders)

    def _lark(self, rules: list[str], orders: Orders) -> str:
        rules.append("object: " + " | ".join(f"tool_{index}" for index in range(len(self.tools))))
        for index, tool in enumerate(self.tools):
            rules.append(f"tool_{index}: {self._around(tool, f'args_{index}')}")
        return self._with_arguments(rules, orders)

    def _with_arguments(self, rules: list[str], orders: Orders) -> str:
        """The grammar of rules that refer to each tool's arguments."""
        for index, tool in enumerate(self.tools):
            keys = [order for name, order in orders if name == tool.name]
            schema = enforceable_tool(tool).schema
            if self._wire.tags is None:
                rules.append(f"args_{index}: {json_rule(schema, self._separators, keys)}")
            else:
                terms = functools.partial(text_terms, self._tokenizer)
                rules += tagged_rules(f"args_{index}", in_order(schema, keys), self._wire.tags, terms)
        if self._answer is not None:
            answer = enforceable_document(self._answer).schema
            rules.append(f"{DOCUMENT}: {json_rule(answer, self._separators)}")
        return options(self._spelling) + "\n".join(rules) + "\n"


def options(spelling: str) -> str:
    """What a grammar begins with. spelling: whether text that is fixed has to be in its canonical tokens"""
    return '%llguidance {"no_forcing": true}\n' if spelling == "any" else ""


def document_rules(
    schema: Mapping[str, Json], then: str, separators: tuple[str, str], orders: Orders = ()
) -> str:
    """A document, and the text `then`. separators and orders as for `ReplyWriter`. Raises SchemaError."""
    rule = json_rule(enforceable_document(schema).schema, separators, [order for _, order in orders])
    return f"start: {DOCUMENT} {_quote(then) if then else ''}\n{DOCUMENT}: {rule}\n"


def required_document(
    tokenizer: GrammarTokenizer, schema: Mapping[str, Json], reasoning: Reasoning, channels: Channels | None
) -> str:
    """A reply that is one document, from its first token on. Raises SchemaError."""
    if channels is not None:
        rules = answer_rules(channels, functools.partial(text_terms, tokenizer))
    else:
        thought = thought_rules(tokenizer.vocab, reasoning)
        rules = [f"start: {THOUGHT if thought else ''} {DOCUMENT}", *thought]
    rule = json_rule(enforceable_document(schema).schema, TIGHT)
    return "\n".join([*rules, f"{DOCUMENT}: {rule}"]) + "\n"


def json_rule(
    closed: Mapping[str, Json], separators: tuple[str, str], keys: Sequence[tuple[str, ...]] = ()
) -> str:
    """The right side of a rule: JSON that fits a schema, its keys in one of the orders given."""
    comma, colon = separators
    form = {"item_separator": comma, "key_separator": colon, "whitespace_flexible": False}
    return "%json " + json.dumps({**in_order(closed, keys), "x-guidance": form}, ensure_ascii=True)


def text_terms(tokenizer: GrammarTokenizer, text: str) -> str:
    """Text as Lark terms: special tokens where the vocabulary has them, quoted text elsewhere."""
    return " ".join(_terms(tokenizer, text))


def _terms(tokenizer: GrammarTokenizer, text: str) -> Iterable[str]:
    quoted = ""  # in one piece: see `ReplyWriter._several`
    for index, part in enumerate(SPECIAL.split(text)):
        token = tokenizer.vocab.special_id(part) if index % 2 else None
        if token is None:
            quoted += part
            continue
        if quoted:
            yield _quote(quoted)
        quoted = ""
        yield f"<[{token}]>"
    if quoted:
        yield _quote(quoted)


def _quote(text: str) -> str:
    """A Lark string literal; its escapes are JSON's."""
    return json.dumps(text, ensure_ascii=True)
