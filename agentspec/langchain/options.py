"""The flat names users know, to the closed option classes of `agentspec.config`.

Each option's default and help text stay where they are; this module only knows which class a name belongs
to, and refuses names that belong to none.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import Field

from agentspec.config import (
    ContextOptions,
    DraftOptions,
    GenerationOptions,
    LawOptions,
    Options,
    RuntimeOptions,
    SamplingOptions,
    ToolOptions,
    TraceOptions,
)
from agentspec.errors import ConfigError

__all__ = [
    "CALL_OPTIONS",
    "COMPLETION_OPTIONS",
    "MODEL_OPTIONS",
    "CallOptions",
    "check_names",
    "given",
    "inherit",
    "only",
    "parse",
]

_O = TypeVar("_O", bound=Options)

_FLAT_NAMES: Mapping[type[Options], Mapping[str, str]] = {DraftOptions: {"sources": "draft_sources"}}
"""Where the flat name is not the option's own."""


def inherit(options: type[Options], name: str) -> Any:
    """A model field with the default and the help text of an option."""
    info = options.model_fields[name]
    return Field(default=info.default, description=info.description)


def flat_names(options: type[Options]) -> dict[str, str]:
    """Flat name -> the option's own name."""
    renamed = _FLAT_NAMES.get(options, {})
    return {renamed.get(name, name): name for name in options.model_fields}


MODEL_OPTIONS = frozenset({**flat_names(RuntimeOptions), **flat_names(ContextOptions)})
"""What is settled when a model is loaded."""

CALL_OPTIONS = frozenset(
    name
    for options in (
        SamplingOptions,
        GenerationOptions,
        LawOptions,
        DraftOptions,
        ToolOptions,
        TraceOptions,
    )
    for name in flat_names(options)
)
"""What each call may settle anew."""

COMPLETION_OPTIONS = CALL_OPTIONS - flat_names(ToolOptions).keys()
"""Those of a call that has no tools."""


def parse(options: type[_O], values: Mapping[str, object]) -> _O:
    """The options of one class, from a mapping that may hold others' too. Raises ConfigError."""
    names = flat_names(options)
    try:
        return options.parse({own: values[flat] for flat, own in names.items() if flat in values})
    except ConfigError as error:
        message = error.message
        for flat, own in names.items():
            if flat != own:
                message = message.replace(f"option '{own}", f"option '{flat}")
        raise ConfigError(message, hint=error.hint) from error


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises ConfigError naming the first unknown option, and the nearest known ones."""
    known = sorted(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"unknown option {name!r}{guess}", hint="known options: " + ", ".join(known))


def given(values: Mapping[str, object]) -> dict[str, Any]:
    """Without the Nones that mean "not given", as in LangChain's `max_tokens=None`; for `draft` it is a
    value. `model_name` is another name of `model`."""
    known = {name: value for name, value in values.items() if value is not None or name == "draft"}
    if "model_name" in known:
        known.setdefault("model", known.pop("model_name"))
    return known


def only(values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


@dataclass(frozen=True)
class CallOptions:
    """Everything about one call that is not its conversation or its tools."""

    sampling: SamplingOptions
    generation: GenerationOptions
    law: LawOptions
    draft: DraftOptions
    tools: ToolOptions
    traces: TraceOptions

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Self:
        """From flat names, as `parse`."""
        generation, draft = parse(GenerationOptions, values), parse(DraftOptions, values)
        if draft.verifier == "auto" and generation.seed is not None:
            draft = draft.model_copy(update={"verifier": "seed_invariant"})
        return cls(
            sampling=parse(SamplingOptions, values),
            generation=generation,
            law=parse(LawOptions, values),
            draft=draft,
            tools=parse(ToolOptions, values),
            traces=parse(TraceOptions, values),
        )
