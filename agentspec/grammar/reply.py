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
from collections.abc import Iterator, Mapping, Sequence

from agentspec.chat.formats.base import Channels, WireFormat
from agentspec.chat.reasoning import NO_THOUGHT, Reasoning
from agentspec.chat.schema import title_of
from agentspec.errors import GrammarError
from agentspec.grammar.channels import RecipientTrigger
from agentspec.grammar.enforce import enforceable_tool, schema_error
from agentspec.grammar.following import FollowingGrammar
from agentspec.grammar.habits import Habits, Lesson
from agentspec.grammar.loose import LooseGrammar
from agentspec.grammar.matcher import CompiledGrammar, Grammar
from agentspec.grammar.thought import Gate
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.grammar.triggered import BracketTrigger, HeadTrigger, MarkerTrigger, Trigger, TriggeredGrammar
from agentspec.grammar.write import (
    COMPACT,
    FENCE,
    TIGHT,
    ReplyWriter,
    document_rules,
    json_rule,
    options,
    required_document,
)
from agentspec.types import BoundTool, Json, ToolChoice

__all__ = ["compile_arguments", "compile_json", "compile_reply", "follow_json", "follow_reply"]


def compile_reply(
    tokenizer: GrammarTokenizer,
    wire: WireFormat,
    tools: Sequence[BoundTool],
    choice: ToolChoice,
    *,
    spelling: str = "canonical",
    parallel: bool = True,
    reasoning: Reasoning = NO_THOUGHT,
    answer: Mapping[str, Json] | None = None,
) -> Grammar | None:
    """The grammar of a reply; None where every text is legal.

    parallel:  whether one reply may hold several calls; one that repeats an earlier one is the last. A named
               tool is called once in any case.
    reasoning: what the reply may begin with
    answer:    under "auto", the schema of the document that a reply without calls has to be
    A schema that the engine does not take whole is enforced as far as can be (`agentspec.grammar.superset`).
    Raises SchemaError naming the tool whose schema it takes in no form.
    """
    if choice == "none" or not tools:
        return None
    answer = answer if choice == "auto" else None
    writer = ReplyWriter(tokenizer, wire, tools, choice, parallel=parallel, spelling=spelling, answer=answer)
    with _blaming(tokenizer, writer.tools, answer):
        if answer is not None and not (wire.marker or wire.bare_objects or wire.channels):
            return compile_json(tokenizer, answer, spelling=spelling, reasoning=reasoning)  # no call is seen
        if choice != "auto" or answer is not None:
            return writer.compiled(writer.required(reasoning), reasoning)
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
    gate = None if reasoning.opening == "over" else Gate(tokenizer, reasoning)
    return TriggeredGrammar(triggers, gate) if triggers else None


def compile_arguments(tokenizer: GrammarTokenizer, tool: BoundTool) -> CompiledGrammar:
    """The grammar of one tool's arguments. Raises SchemaError naming the tool."""
    rule = json_rule(enforceable_tool(tool).schema, TIGHT)
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
    answer: Mapping[str, Json] | None = None,
) -> FollowingGrammar | None:
    """The grammar that follows a reply; None where there is nothing to call.

    A reply may leave the grammar, and does where it has more calls than it should. It is followed again
    wherever a call begins that the parser would see: the marker, or a bracket.

    end: the token that ends a turn, as for `FollowingGrammar`
    The others, and what it raises, as for `compile_reply`.
    """
    if choice == "none" or not tools:
        return None
    answer = answer if choice == "auto" else None
    tight, compact = (
        ReplyWriter(tokenizer, wire, tools, choice, parallel=parallel, separators=separators, answer=answer)
        for separators in (TIGHT, COMPACT)
    )
    habits = Habits()
    with _blaming(tokenizer, tight.tools, answer):
        reply = LooseGrammar(tokenizer, tight.reply, compact.reply, habits)
        triggers: list[Trigger] = []
        if wire.channels is not None:
            named = LooseGrammar(tokenizer, tight.named, compact.named, habits)
            triggers.append(RecipientTrigger(tokenizer, wire.channels, named))
        elif wire.marker:
            triggers.append(MarkerTrigger(tokenizer, wire.marker, reply))
        if wire.bare_objects or answer is not None:
            bare = LooseGrammar(tokenizer, tight.bare, compact.bare, habits)
            fenced = LooseGrammar(tokenizer, tight.fenced, compact.fenced, habits)
            triggers.append(BracketTrigger(tokenizer, bare=bare, fenced=fenced))
    lesson = functools.partial(Lesson, habits, tokenizer.vocab.token_bytes)
    begins = (choice != "auto" or answer is not None) and reasoning.opening != "inside"
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
        document = required_document(tokenizer, schema, reasoning, channels)
        return CompiledGrammar(tokenizer, options(spelling) + document)


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
                functools.partial(document_rules, schema, then, TIGHT),
                functools.partial(document_rules, schema, then, COMPACT),
                habits,
            )
            for then in ("", FENCE)
        )
    lesson = functools.partial(Lesson, habits, tokenizer.vocab.token_bytes)
    trigger = BracketTrigger(tokenizer, bare=bare, fenced=fenced)
    opening = None if reasoning.opening == "inside" else bare
    return FollowingGrammar(opening, [trigger], end=end, lesson=lesson)


@contextlib.contextmanager
def _blaming(
    tokenizer: GrammarTokenizer, tools: Sequence[BoundTool], answer: Mapping[str, Json] | None
) -> Iterator[None]:
    """Makes of a GrammarError the SchemaError of the first tool that does not compile by itself, or of the
    answer."""
    try:
        yield
    except GrammarError:
        for tool in tools:
            compile_arguments(tokenizer, tool)
        if answer is not None:
            compile_json(tokenizer, answer)
        raise


@contextlib.contextmanager
def _blaming_document(schema: Mapping[str, Json]) -> Iterator[None]:
    """Makes of a GrammarError the SchemaError of the document."""
    try:
        yield
    except GrammarError as error:
        raise schema_error(title_of(schema), error) from error
