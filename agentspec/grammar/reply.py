"""Tools and a choice to the grammar of a whole reply, envelope included.

    begin object end (between begin object end)*

where the object names a tool and gives arguments that fit its schema. The separators are `", "` and `": "`:
what chat templates show in earlier calls, so what models write, and tighter than "any whitespace", so that
more is forced.

`compile_` makes grammars that bind the reply, `follow_` grammars that go along with it, in whatever style it
is written, and only propose.

It must not know how a mask is computed, nor how a reply is parsed.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agentspec.chat.formats.base import SPECIAL, Channels, Hole, WireFormat
from agentspec.chat.reasoning import NO_THOUGHT, Reasoning
from agentspec.chat.schema import title_of
from agentspec.errors import GrammarError
from agentspec.grammar.channels import RecipientTrigger, answer_rules, call_rules
from agentspec.grammar.enforce import enforceable_document, enforceable_tool, schema_error
from agentspec.grammar.following import FollowingGrammar
from agentspec.grammar.habits import Habits, Lesson
from agentspec.grammar.loose import LooseGrammar
from agentspec.grammar.matcher import CompiledGrammar, Grammar
from agentspec.grammar.order import Orders, in_order
from agentspec.grammar.repeats import CallsGrammar
from agentspec.grammar.tagged import tagged_rules
from agentspec.grammar.thought import THOUGHT, Gate, thought_rules
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.grammar.triggered import BracketTrigger, HeadTrigger, MarkerTrigger, Trigger, TriggeredGrammar
from agentspec.types import BoundTool, Json, NamedTool, NamedTools, ToolChoice

__all__ = ["compile_arguments", "compile_json", "compile_reply", "follow_json", "follow_reply"]

_TIGHT = (", ", ": ")
_COMPACT = (",", ":")
_FENCE = "\n```"  # what closes a fenced block


def compile_reply(
    tokenizer: GrammarTokenizer,
    wire: WireFormat,
    tools: Sequence[BoundTool],
    choice: ToolChoice,
    *,
    spelling: str = "canonical",
    parallel: bool = True,
    reasoning: Reasoning = NO_THOUGHT,
) -> Grammar | None:
    """The grammar of a reply; None where every text is legal.

    parallel:  whether one reply may hold several calls; one that repeats an earlier one is the last. A named
               tool is called once in any case.
    reasoning: what the reply may begin with
    A schema that the engine does not take whole is enforced as far as can be (`agentspec.grammar.superset`).
    Raises SchemaError naming the tool whose schema it takes in no form.
    """
    if choice == "none" or not tools:
        return None
    writer = _Writer(tokenizer, wire, tools, choice, parallel=parallel, spelling=spelling)
    with writer.blaming():
        if choice != "auto":
            return writer.compiled(writer.reply(reasoning=reasoning))
        triggers: list[Trigger] = []
        if wire.channels is not None:
            named = CompiledGrammar(tokenizer, writer.named())
            triggers.append(RecipientTrigger(tokenizer, wire.channels, named))
        elif wire.marker:
            marked = writer.compiled(writer.reply())
            triggers.append(MarkerTrigger(tokenizer, wire.marker, marked))
        if wire.bare_objects:
            bare, fenced = writer.compiled(writer.bare()), writer.compiled(writer.fenced())
            triggers.append(HeadTrigger(tokenizer, writer.heads(), bare=bare, fenced=fenced))
    return TriggeredGrammar(triggers, Gate(tokenizer, reasoning)) if triggers else None


def compile_arguments(tokenizer: GrammarTokenizer, tool: BoundTool) -> CompiledGrammar:
    """The grammar of one tool's arguments. Raises SchemaError naming the tool."""
    rule = _json_rule(enforceable_tool(tool).schema, _TIGHT)
    try:
        return CompiledGrammar(tokenizer, f"start: {rule}\n")
    except GrammarError as error:
        raise schema_error(tool.name, error) from error


def follow_reply(
    tokenizer: GrammarTokenizer,
    wire: WireFormat,
    tools: Sequence[BoundTool],
    choice: ToolChoice,
    *,
    end: int | None,
    parallel: bool = True,
    reasoning: Reasoning = NO_THOUGHT,
) -> FollowingGrammar | None:
    """The grammar that follows a reply; None where there is nothing to call.

    A reply may leave the grammar, and does where it has more calls than it should. It is followed again
    wherever a call begins that the parser would see: the marker, or a bracket.

    end: the token that ends a turn, as for `FollowingGrammar`
    Raises SchemaError as `compile_reply`.
    """
    if choice == "none" or not tools:
        return None
    tight, compact = (
        _Writer(tokenizer, wire, tools, choice, parallel=parallel, separators=separators)
        for separators in (_TIGHT, _COMPACT)
    )
    habits = Habits()
    with tight.blaming():
        reply = LooseGrammar(tokenizer, tight.reply, compact.reply, habits)
        triggers: list[Trigger] = []
        if wire.channels is not None:
            named = LooseGrammar(tokenizer, tight.named, compact.named, habits)
            triggers.append(RecipientTrigger(tokenizer, wire.channels, named))
        elif wire.marker:
            triggers.append(MarkerTrigger(tokenizer, wire.marker, reply))
        if wire.bare_objects:
            bare = LooseGrammar(tokenizer, tight.bare, compact.bare, habits)
            fenced = LooseGrammar(tokenizer, tight.fenced, compact.fenced, habits)
            triggers.append(BracketTrigger(tokenizer, bare=bare, fenced=fenced))
    lesson = functools.partial(Lesson, habits, tokenizer.vocab.token_bytes)
    begins = choice != "auto" and reasoning.opening != "inside"
    return FollowingGrammar(reply if begins else None, triggers, end=end, lesson=lesson)


def compile_json(
    tokenizer: GrammarTokenizer,
    schema: Mapping[str, Json],
    *,
    spelling: str = "canonical",
    reasoning: Reasoning = NO_THOUGHT,
    channels: Channels | None = None,
) -> CompiledGrammar:
    """The grammar of a reply that is one JSON document fitting the schema.

    reasoning: what the reply may begin with
    channels:  those of the family, if its replies are made of messages
    Raises SchemaError (its tool is the schema's title) when the grammar engine cannot take it.
    """
    with _blaming_document(schema):
        document = _document(schema, "", _TIGHT)
        thought = thought_rules(tokenizer.vocab, reasoning)
        if channels is not None:
            rules = answer_rules(channels, functools.partial(_text, tokenizer))
            document = "\n".join([*rules, document.partition("\n")[2]])
        elif thought:
            document = document.replace("start: ", f"start: {THOUGHT} ", 1) + "\n".join(thought) + "\n"
        return CompiledGrammar(tokenizer, _options(spelling) + document)


def follow_json(
    tokenizer: GrammarTokenizer,
    schema: Mapping[str, Json],
    *,
    end: int | None,
    reasoning: Reasoning = NO_THOUGHT,
) -> FollowingGrammar:
    """The grammar that follows a reply that is to be one JSON document fitting the schema.

    It takes the document up again where its bracket begins a line or a fenced block. Parameters and errors
    as for `follow_reply` and `compile_json`.
    """
    habits = Habits()
    with _blaming_document(schema):
        bare, fenced = (
            LooseGrammar(
                tokenizer,
                functools.partial(_document, schema, then, _TIGHT),
                functools.partial(_document, schema, then, _COMPACT),
                habits,
            )
            for then in ("", _FENCE)
        )
    lesson = functools.partial(Lesson, habits, tokenizer.vocab.token_bytes)
    trigger = BracketTrigger(tokenizer, bare=bare, fenced=fenced)
    opening = None if reasoning.opening == "inside" else bare
    return FollowingGrammar(opening, [trigger], end=end, lesson=lesson)


class _Writer:
    """Writes the Lark grammars of one tool set.

    separators: between items, and between a key and its value
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
        separators: tuple[str, str] = _TIGHT,
    ) -> None:
        if isinstance(choice, NamedTool):
            tools = [tool for tool in tools if tool.name == choice.name]
            parallel = False
        elif isinstance(choice, NamedTools):
            tools = [tool for tool in tools if tool.name in choice.names]
        self._tokenizer = tokenizer
        self._wire = wire
        self._tools = tools
        self._parallel = parallel
        self._spelling = spelling
        self._separators = separators

    def reply(self, orders: Orders = (), reasoning: Reasoning = NO_THOUGHT) -> str:
        """A reply in the family's envelope. orders: of the arguments' keys, where not the schema's."""
        wire = self._wire
        if wire.channels is not None:
            return self._in_channels(wire.channels, orders, whole=True)
        first, last = wire.opening + wire.begin, wire.end + wire.closing
        thought = thought_rules(self._tokenizer.vocab, reasoning)
        if thought:  # which takes the white space behind it
            first = first.lstrip()
        calls = self._several(first, wire.end, wire.begin, last)
        return self._lark([f"start: {THOUGHT if thought else ''} {calls}", *thought], orders)

    def named(self, orders: Orders = ()) -> str:
        """In a format of channels, a call from its tool's name on."""
        assert self._wire.channels is not None
        return self._in_channels(self._wire.channels, orders, whole=False)

    def bare(self, orders: Orders = ()) -> str:
        """A reply of bare objects."""
        return self._lark([f"start: {self._several()}"], orders)

    def fenced(self, orders: Orders = ()) -> str:
        """A reply of bare objects in a fence, which it closes."""
        return self._lark([f"start: {self._several(last=_FENCE)}"], orders)

    def compiled(self, lark: str) -> CompiledGrammar:
        """The grammar of a reply of calls."""
        if not self._parallel:
            return CompiledGrammar(self._tokenizer, lark)
        return CallsGrammar(self._tokenizer, lark, self._wire.between)

    def heads(self) -> list[str]:
        """Each tool's object up to its name."""
        return [self._head(tool) for tool in self._tools]

    @contextlib.contextmanager
    def blaming(self) -> Iterator[None]:
        """Makes of a GrammarError the SchemaError of the first tool that does not compile by itself."""
        try:
            yield
        except GrammarError:
            for tool in self._tools:
                compile_arguments(self._tokenizer, tool)
            raise

    def _around(self, tool: BoundTool, arguments: str) -> str:
        """A call of a tool, given the name of its arguments' rule."""
        wire, (comma, colon) = self._wire, self._separators
        if wire.after_name:
            named = [*wire.before_name, tool.name, *wire.after_name]
            return " ".join([*(self._part(part) for part in named), arguments])
        head = f"{self._head(tool)[1:]}{comma}{json.dumps(wire.arguments_key)}{colon}"
        before, after = [_quote("{" + head)], [_quote("}")]
        if (own := wire.json_id) is not None:
            key, hole = f'{json.dumps(own.key)}{colon}"', self._part(own.value)
            if own.first:
                before = [_quote("{" + key), hole, _quote('"' + comma + head)]
            else:
                after = [_quote(comma + key), hole, _quote('"}')]
        return " ".join([*before, arguments, *after])

    def _part(self, part: str | Hole) -> str:
        return _text(self._tokenizer, part) if isinstance(part, str) else f"/{part.pattern}/"

    def _head(self, tool: BoundTool) -> str:
        head = {self._wire.name_key: tool.name}
        return json.dumps(head, ensure_ascii=False, separators=self._separators)[:-1]

    def _several(self, first: str = "", end: str = "", begin: str = "", last: str = "") -> str:
        """One call or more, with the text around all of them and around each."""
        # what stands between two is one text: the engine's lexer does not go back within one
        between = _text(self._tokenizer, end + self._wire.between + begin)
        more = f"({between} object)*" if self._parallel else ""
        return f"{_text(self._tokenizer, first)} object {more} {_text(self._tokenizer, last)}"

    def _in_channels(self, channels: Channels, orders: Orders, *, whole: bool) -> str:
        terms = functools.partial(_text, self._tokenizer)
        rules = call_rules(channels, [tool.name for tool in self._tools], terms, whole=whole)
        return self._with_arguments(rules, orders)

    def _lark(self, rules: list[str], orders: Orders) -> str:
        rules.append("object: " + " | ".join(f"tool_{index}" for index in range(len(self._tools))))
        for index, tool in enumerate(self._tools):
            rules.append(f"tool_{index}: {self._around(tool, f'args_{index}')}")
        return self._with_arguments(rules, orders)

    def _with_arguments(self, rules: list[str], orders: Orders) -> str:
        """The grammar of rules that refer to each tool's arguments."""
        for index, tool in enumerate(self._tools):
            keys = [order for name, order in orders if name == tool.name]
            schema = enforceable_tool(tool).schema
            if self._wire.tags is None:
                rules.append(f"args_{index}: {_json_rule(schema, self._separators, keys)}")
            else:
                terms = functools.partial(_text, self._tokenizer)
                rules += tagged_rules(f"args_{index}", in_order(schema, keys), self._wire.tags, terms)
        return _options(self._spelling) + "\n".join(rules) + "\n"


def _options(spelling: str) -> str:
    return '%llguidance {"no_forcing": true}\n' if spelling == "any" else ""


def _document(schema: Mapping[str, Json], then: str, separators: tuple[str, str], orders: Orders = ()) -> str:
    rule = _json_rule(enforceable_document(schema).schema, separators, [order for _, order in orders])
    return f"start: document {_quote(then) if then else ''}\ndocument: {rule}\n"


def _json_rule(
    closed: Mapping[str, Json], separators: tuple[str, str], keys: Sequence[tuple[str, ...]] = ()
) -> str:
    comma, colon = separators
    form = {"item_separator": comma, "key_separator": colon, "whitespace_flexible": False}
    return "%json " + json.dumps({**in_order(closed, keys), "x-guidance": form}, ensure_ascii=True)


@contextlib.contextmanager
def _blaming_document(schema: Mapping[str, Json]) -> Iterator[None]:
    """Makes of a GrammarError the SchemaError of the document."""
    try:
        yield
    except GrammarError as error:
        raise schema_error(title_of(schema), error) from error


def _text(tokenizer: GrammarTokenizer, text: str) -> str:
    """Text as Lark terms: special tokens where the vocabulary has them, quoted text elsewhere."""
    return " ".join(_terms(tokenizer, text))


def _terms(tokenizer: GrammarTokenizer, text: str) -> Iterable[str]:
    quoted = ""  # in one piece: see `_Writer._several`
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
