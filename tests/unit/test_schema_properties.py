"""Random schemas and random values: the grammar, the check after the reply and jsonschema agree.

Where a grammar takes less than its schema allows, or more, the test that meets it says so.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from agentspec.chat.schema import closed_schema
from agentspec.chat.strictjson import write_json
from agentspec.chat.validate import argument_fault, compile_tool, validate_call
from agentspec.errors import SchemaError
from agentspec.grammar.enforce import enforceable_tool
from agentspec.grammar.relax import Relaxation
from agentspec.grammar.reply import compile_arguments
from agentspec.types import BoundTool, InvalidCall, Json, Matcher, ValidCall
from tests.unit.grammars import END, fits, small_tokenizer
from tests.unit.random_schemas import (
    Schema,
    arguments_schemas,
    fitting,
    jsonschema_says,
    mutated,
    repeatable,
    sound,
    values_of,
)

seeds = st.integers(0, 2**32 - 1)


def tool_of(schema: Schema) -> BoundTool:
    return BoundTool("tool", "", schema)


def usable(schema: Schema) -> bool:
    """Whether the tool can be bound."""
    try:
        enforceable_tool(tool_of(schema))
    except SchemaError:
        return False
    return True


def test_a_schema_is_enforced_whole_or_in_part_or_refused_with_its_place() -> None:
    outcome: Counter[str] = Counter()

    @repeatable(120)
    @given(arguments_schemas())
    def holds(schema: Schema) -> None:
        tool = tool_of(schema)
        refused: SchemaError | None = None
        relaxations: Sequence[Relaxation] = ()
        try:
            compile_tool(tool)
            relaxations = enforceable_tool(tool).relaxations
            compile_arguments(small_tokenizer(), tool)
        except SchemaError as error:
            refused = error
        outcome["refused" if refused else "in part" if relaxations else "whole"] += 1
        places = [one.pointer for one in relaxations] if refused is None else [refused.pointer]
        assert all(is_place(schema, place) for place in places)
        assert refused is None or refused.tool == "tool"

    holds()
    assert min(outcome[kind] for kind in ("whole", "in part")) > 20, outcome
    assert outcome["refused"] > 2


def is_place(schema: Json, pointer: str) -> bool:
    """Whether there is something at a JSON pointer."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping) and part in schema:
            schema = schema[part]
        elif isinstance(schema, list) and part.isdigit() and int(part) < len(schema):
            schema = schema[int(part)]
        else:
            return False
    return True


# -------------------------------------------------------------------------------------------------- walks


def walk(state: Matcher, chance: random.Random, n_free: int) -> str | None:
    """A text that the grammar lets through, of legal tokens at random; None where it finds no end.

    n_free: tokens after which it makes for the end
    """
    vocab = small_tokenizer().vocab
    closing = {token for token in range(END) if vocab.token_bytes(token) in (b'"', b"}", b"]", b'"}', b"}}")}
    text = b""
    for n_tokens in range(n_free + 300):
        found = None if state.done() else state.legal()
        legal = [token for token in found.tolist() if token != END] if found is not None else []
        if not legal or (state.accepting() and (n_tokens > n_free or chance.random() < 0.3)):
            return text.decode()
        if n_tokens > n_free:
            legal = [token for token in legal if token in closing] or legal
        token = chance.choice(legal)
        state.advance(token)
        text += vocab.token_bytes(token)
    return None


def test_whatever_a_grammar_lets_through_fits_its_schema_or_is_found_out() -> None:
    """A schema that is enforced whole lets through what fits, with exceptions that jsonschema or the reader
    of JSON finds: repeated keys, numbers beyond what a float holds, and days that no calendar has.
    """
    outcome: Counter[tuple[str, bool]] = Counter()

    @repeatable(120)
    @given(arguments_schemas().filter(usable), seeds, st.integers(3, 40))
    def holds(schema: Schema, seed: int, n_free: int) -> None:
        tool = tool_of(schema)
        text = walk(compile_arguments(small_tokenizer(), tool).start(), random.Random(seed), n_free)
        assume(text is not None)
        assert text is not None
        found = validate_call({"tool": tool}, "tool", text)
        if isinstance(found, InvalidCall) and found.error.endswith(("appears twice", "is out of range")):
            return
        value = json.loads(text)
        fits_it = fitting(schema, value)
        assert isinstance(found, ValidCall) == fits_it
        if not enforceable_tool(tool).relaxations:
            assert all(jsonschema_says(one, value, formats=False) for one in (schema, closed_schema(schema)))
            outcome["whole", fits_it] += 1
        else:
            outcome["in part", fits_it] += 1

    holds()
    assert outcome["whole", True] > 30, outcome
    assert min(outcome["in part", fits_it] for fits_it in (False, True)) > 10, outcome


# ------------------------------------------------------------------------------------------------- values


def test_the_check_after_the_reply_says_what_jsonschema_says() -> None:
    outcome: Counter[bool] = Counter()

    @repeatable(120)
    @given(st.data(), arguments_schemas().filter(sound))
    def holds(data: st.DataObject, schema: Schema) -> None:
        tool = tool_of(schema)
        value = data.draw(values_of(closed_schema(schema)))
        for arguments in (value, data.draw(mutated(value))):
            if isinstance(arguments, dict):
                fits_it = fitting(schema, arguments)
                assert (argument_fault(tool, arguments) is None) == fits_it
                outcome[fits_it] += 1
            else:
                assert isinstance(validate_call({"tool": tool}, "tool", json.dumps(arguments)), InvalidCall)

    holds()
    assert min(outcome[fits_it] for fits_it in (False, True)) > 50, outcome


def test_what_fits_a_schema_is_let_through_by_its_grammar() -> None:
    """In the grammar's own spelling: `, ` and `: ` between the parts, keys in the order of the schema, those
    that it does not declare behind them, no escape but where a character needs one (DEL does), and numbers
    without an exponent or a fraction that is zero."""
    outcome: Counter[str] = Counter()

    @repeatable(120)
    @given(st.data(), arguments_schemas().filter(usable))
    def holds(data: st.DataObject, schema: Schema) -> None:
        tool = tool_of(schema)
        arguments = rounded(data.draw(values_of(closed_schema(schema))))
        assume(isinstance(arguments, dict) and fitting(schema, arguments))
        state = compile_arguments(small_tokenizer(), tool).start()
        assert fits(small_tokenizer(), state, write_json(arguments).replace("\x7f", r"\u007f"))
        assert state.accepting()
        outcome["in part" if enforceable_tool(tool).relaxations else "whole"] += 1

    holds()
    assert min(outcome[kind] for kind in ("whole", "in part")) > 20, outcome


def rounded(value: Json) -> Json:
    """With numbers of two decimal places at most, whole ones as integers."""
    match value:
        case float():
            return int(value) if value.is_integer() else round(value, 2)
        case list():
            return [rounded(one) for one in value]
        case dict():
            return {key: rounded(one) for key, one in value.items()}
        case _:
            return value
