"""The schemas of tools and of documents as a grammar holds a reply to them, and errors that name the tool.

It must not know how a grammar is written.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping

from agentspec.chat.schema import check_parameters, closed_document, closed_schema, title_of
from agentspec.chat.strictjson import write_json
from agentspec.errors import GrammarError, SchemaError
from agentspec.grammar.superset import Enforceable, UnenforceableError, enforceable
from agentspec.types import BoundTool, Json

__all__ = ["check_enforced", "enforceable_document", "enforceable_tool", "schema_error"]

_KEYWORD = re.compile(r'^Unimplemented keys: \["([^"]+)"')


def enforceable_tool(tool: BoundTool) -> Enforceable:
    """A tool's arguments. Raises SchemaError naming the tool, the pointer and the keyword."""
    try:
        text = write_json(tool.parameters)
    except (RecursionError, TypeError, ValueError) as error:
        raise SchemaError(f"its schema is not JSON: {error}", tool=tool.name) from None
    return _enforceable_arguments(tool.name, text)


@functools.lru_cache(maxsize=512)  # a tool set is asked for when it is bound, and for each of its grammars
def _enforceable_arguments(name: str, text: str) -> Enforceable:
    parameters = json.loads(text)
    check_parameters(name, parameters)
    try:
        return enforceable(closed_schema(parameters))
    except UnenforceableError as error:
        raise schema_error(name, error) from error


def enforceable_document(schema: Mapping[str, Json]) -> Enforceable:
    """A whole reply. Raises SchemaError, whose tool is the schema's title."""
    try:
        return enforceable(closed_document(schema))
    except UnenforceableError as error:
        raise schema_error(title_of(schema), error) from error


def check_enforced(name: str, found: Enforceable) -> None:
    """Raises SchemaError where the grammar asks for less than the schema of `name`."""
    if found.relaxations:
        first, *others = found.relaxations
        more = f" (and {len(others)} more: {', '.join(one.pointer for one in others)})" if others else ""
        raise SchemaError(
            f"{first.pointer}: a grammar cannot enforce this{more}",
            tool=name,
            pointer=first.pointer,
            keyword=first.keyword.split()[0],
            hint='unsupported="superset" enforces the rest, checks every call against the whole schema, and '
            "samples again what does not fit",
        )


def schema_error(name: str, error: GrammarError) -> SchemaError:
    """What the engine said of the schema of `name`."""
    place = error.pointer if isinstance(error, UnenforceableError) else ""
    keyword = _KEYWORD.match(error.message)
    return SchemaError(
        f"{place or 'its schema'} cannot be enforced: {error.message}",
        tool=name,
        pointer=place,
        keyword=keyword[1] if keyword else "",
        hint="rewrite that part of the schema, or bind the model without this tool",
    )
