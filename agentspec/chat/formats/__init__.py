"""The wire formats known by name, and which one a chat template writes."""

from __future__ import annotations

from agentspec.chat.capabilities import SAMPLE_ARGUMENTS, SAMPLE_NAME, probe
from agentspec.chat.formats.base import WireFormat
from agentspec.chat.formats.hermes import HERMES
from agentspec.chat.formats.llama3 import LLAMA3
from agentspec.chat.formats.render import render_call, render_calls
from agentspec.chat.sandbox import PromptTemplate
from agentspec.errors import ConfigError

__all__ = [
    "FORMATS",
    "HERMES",
    "LLAMA3",
    "WireFormat",
    "by_name",
    "detect",
    "render_call",
    "render_calls",
    "writes",
]

FORMATS: dict[str, WireFormat] = {wire_format.name: wire_format for wire_format in (HERMES, LLAMA3)}


def by_name(name: str) -> WireFormat:
    """The format of that name. Raises ConfigError that lists the names."""
    try:
        return FORMATS[name]
    except KeyError:
        raise ConfigError(
            f"unknown wire format {name!r}", hint="known formats: " + ", ".join(sorted(FORMATS))
        ) from None


def detect(template_source: str | None) -> WireFormat:
    """The format that a chat template writes past calls in; Hermes where it writes none that is known.

    Raises TemplateError if the source is not a Jinja template.
    """
    if template_source is None:
        return HERMES
    sample = probe(PromptTemplate(template_source)).call_sample
    return next((known for known in FORMATS.values() if writes(known, sample)), HERMES)


def writes(wire_format: WireFormat, call_sample: str) -> bool:
    """Whether `call_sample`, a template's rendering of the sample call, is in this format."""
    return render_call(wire_format, SAMPLE_NAME, SAMPLE_ARGUMENTS).strip() in call_sample
