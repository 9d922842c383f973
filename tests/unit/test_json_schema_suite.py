"""The JSON-Schema-Test-Suite, draft 2020-12, required tests: nothing that does not fit is taken as valid.

A document is valid here where the grammar lets it through and the check afterwards finds no fault; without a
grammar, the check alone decides. `pytest -s` prints what is enforced whole, in part, or refused, by keyword.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from agentspec.chat.schema import check_document
from agentspec.chat.validate import document_fault
from agentspec.errors import SchemaError
from agentspec.grammar.enforce import enforceable_document
from agentspec.grammar.reply import compile_json
from agentspec.types import Json
from tests.unit.grammars import fits, small_tokenizer

FILES = sorted((Path(__file__).parents[1] / "vendor/json_schema_test_suite/draft2020-12").glob("*.json"))


class Group(NamedTuple):
    """A schema of the suite. tests: (what it is about, the document, whether it fits)"""

    name: str
    schema: Mapping[str, Json]
    tests: list[tuple[str, Json, bool]]


def groups(file: Path) -> Iterator[Group]:
    for group in json.loads(file.read_text(encoding="utf-8")):
        schema = group["schema"]
        if not isinstance(schema, dict):
            schema = {"allOf": [schema]}
        tests = [(test["description"], test["data"], test["valid"]) for test in group["tests"]]
        yield Group(group["description"], schema, tests)


def kind_of(schema: Mapping[str, Json]) -> str:
    try:
        check_document("suite", schema)
        return "superset" if enforceable_document(schema).relaxations else "enforced"
    except SchemaError:
        return "refused"


def written(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def lets_through(schema: Mapping[str, Json], value: Json) -> bool:
    state = compile_json(small_tokenizer(), schema).start()
    return fits(small_tokenizer(), state, written(value)) and state.accepting()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_does_not_fit_is_never_taken_as_valid(file: Path) -> None:
    for group in groups(file):
        if kind_of(group.schema) == "refused":
            continue
        for about, value, fitting in group.tests:
            fault = document_fault(group.schema, written(value))
            assert fitting or fault is not None, (group.name, about)


def test_what_is_enforced_whole_needs_no_check_and_what_fits_is_let_through() -> None:
    """Most of it: a grammar refuses keys that a schema does not name or names in another order, and an
    integer with a point."""
    table: dict[str, Counter[str]] = {}
    outcome: Counter[str] = Counter()
    for file in FILES:
        for group in groups(file):
            kind = kind_of(group.schema)
            table.setdefault(file.stem, Counter())[kind] += 1
            if kind == "refused":
                continue
            for about, value, fitting in group.tests:
                passed = lets_through(group.schema, value)
                outcome[
                    f"{kind}, {'fits' if fitting else 'does not fit'}, {'let through' if passed else 'not'}"
                ] += 1
                assert fitting or not passed or kind == "superset", (group.name, about)
    for name, kinds in table.items():
        print(f"{name:<24}", *(f"{kind} {kinds[kind]:>3}" for kind in ("enforced", "superset", "refused")))
    total = sum(table.values(), Counter())
    print(f"{'in all':<24}", dict(total), dict(outcome))
    passed_on = sum(outcome[f"{kind}, fits, let through"] for kind in ("enforced", "superset"))
    assert total["refused"] < 0.25 * total.total()
    assert passed_on > 0.9 * sum(count for name, count in outcome.items() if ", fits" in name)


def test_the_suite_is_whole() -> None:
    n_tests = sum(len(group.tests) for file in FILES for group in groups(file))
    assert (len(FILES), n_tests) == (46, 1245)
