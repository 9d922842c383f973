"""Runs a chat template that came out of a model file: sandboxed, bounded, with Hugging Face's helpers.

The dialect is that of `transformers`' `apply_chat_template`: Jinja2 with `trim_blocks`, `lstrip_blocks`,
loop controls, `{% generation %}`, `raise_exception`, `strftime_now` and a `tojson` that does not escape for
HTML. Templates are data from the network, so what they may do is bounded: no attribute tricks (Jinja's
sandbox), no endless loops, no runaway strings. This module must not know turns, tools or formats.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from agentspec.errors import TemplateError
from agentspec.types import Json

__all__ = ["MAX_CHARS", "MAX_STEPS", "PromptTemplate"]

MAX_CHARS = 8_000_000
"""Most characters of a prompt, and of any string or list that a template builds on the way."""

MAX_STEPS = 500_000
"""Most loop rounds and macro calls of one rendering."""

_TICK, _JOIN = "_agentspec_tick", "_agentspec_join"

# What a template may do to a list: a call of these adds one item at most.
_QUEUE = frozenset({"append", "pop"})

# What an expression of a template can raise, Jinja's own errors aside. Anything else is a fault of ours.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Refusal(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _Runaway(jinja2.TemplateError):
    """The template went over a bound."""


class PromptTemplate:
    """One compiled template. Immutable, and safe to render from several threads."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        """Raises TemplateError if `source` is not a template of this dialect."""
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            tree = _ENVIRONMENT.parse(source)
            _Bounds().visit(tree)
            code = _ENVIRONMENT.compile(tree)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template does not parse: {error.message} (line {error.lineno})", hint=_OTHER
            ) from error
        except (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError, ValueError) as error:
            raise TemplateError(f"the chat template does not compile: {error}", hint=_OTHER) from error
        self._template = jinja2.Template.from_code(_ENVIRONMENT, code, _ENVIRONMENT.make_globals(None))

    def render(self, variables: Mapping[str, Json]) -> str:
        """The prompt. `variables` are those of `apply_chat_template`: messages, tools, and so on.

        Raises TemplateError with the template's own message.
        """
        bounds: dict[str, Callable[..., object]] = {_TICK: _Ticker(), _JOIN: _join}
        older = _older(variables) if "functions" in self.source else {}
        if any(name in self.source for name in _QUEUE):
            variables = copy.deepcopy(dict(variables))
        pieces: list[str] = []
        left = MAX_CHARS
        try:
            for piece in self._template.generate({**self._tokens, **older, **variables, **bounds}):
                left -= len(piece)
                if left < 0:
                    raise _Runaway(f"the prompt is over {MAX_CHARS:,} characters")
                pieces.append(piece)
        except _Refusal as error:
            raise TemplateError(f"the chat template refused the conversation: {error.message}") from error
        except _FAULTS as error:
            reason = str(error) or type(error).__name__
            raise TemplateError(f"the chat template failed: {reason}", hint=_OTHER) from error
        return "".join(pieces)


def _older(variables: Mapping[str, Json]) -> dict[str, Json]:
    """Names under which some older templates (Firefunction's) look for tools, and the date."""
    functions = json.dumps(variables.get("tools") or [], indent=4, ensure_ascii=False)
    return {"functions": functions, "datetime": _strftime_now("%Y-%m-%d")}


_OTHER = "pass chat_template= with a corrected template, or a built-in one by name ('chatml')"


# ------------------------------------------------------------------------------------------- bounds


class _Bounds(NodeTransformer):
    """Puts a tick into every loop and macro, and routes `~` through a join that is bounded."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, _tick(node.lineno))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, _tick(node.lineno))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self.generic_visit(node)
        node.body.insert(0, _tick(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_JOIN, "load"), node.nodes, [], None, None).set_lineno(node.lineno)


def _tick(line: int) -> nodes.Node:
    call = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
    return nodes.ExprStmt(call).set_lineno(line)


class _Ticker:
    def __init__(self) -> None:
        self._left = MAX_STEPS

    def __call__(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _Runaway(f"the template loops: over {MAX_STEPS:,} rounds")


def _join(*parts: object) -> str:
    pieces = [str(part) for part in parts]
    _check_size(sum(map(len, pieces)))
    return "".join(pieces)


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise _Runaway(f"the template builds a value of over {MAX_CHARS:,} parts")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**"})

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        # a template may keep a queue in a list of its own; what it was given, it gets as a copy
        if isinstance(obj, list) and attr in _QUEUE:
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "**":
            raise _Runaway("the template computes a power")  # no template needs one; 9**9**9 never ends
        sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
        if operator == "+":
            _check_size(sum(sizes))
        elif sizes:
            factor = next((side for side in (left, right) if isinstance(side, int)), 0)
            _check_size(sizes[0] * factor)
        return super().call_binop(context, operator, left, right)


# ------------------------------------------------------------------------------------------ helpers


class _Generation(Extension):
    """`{% generation %}` marks what training learns from; for a prompt it is only a block."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: object) -> list[object]:
    """What a filter such as `map` yields, for `tojson`."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _environment()
