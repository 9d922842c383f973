"""The wire formats known by name."""

from __future__ import annotations

import importlib

from agentspec.chat.capabilities import SAMPLE_ARGUMENTS, SAMPLE_NAME
from agentspec.chat.formats.arrays import APRIEL, FIREFUNCTION_V2, LFM2, NEMOTRON_NANO
from agentspec.chat.formats.base import SPECIAL, Channels, Hole, JsonId, Tags, WireFormat, special_names
from agentspec.chat.formats.cohere import COMMAND_R, COMMAND_R_PLUS
from agentspec.chat.formats.deepseek import DEEPSEEK_R1, DEEPSEEK_V31, DEEPSEEK_V32
from agentspec.chat.formats.functionary import FUNCTIONARY_V31, FUNCTIONARY_V32
from agentspec.chat.formats.glm import GLM_4, GLM_47
from agentspec.chat.formats.granite import GRANITE
from agentspec.chat.formats.harmony import HARMONY
from agentspec.chat.formats.hermes import HERMES
from agentspec.chat.formats.kimi import KIMI_K2
from agentspec.chat.formats.llama3 import LLAMA3
from agentspec.chat.formats.minimax import MINIMAX_M1, MINIMAX_M2
from agentspec.chat.formats.mistral import MISTRAL_V3, MISTRAL_V11, MISTRAL_V13
from agentspec.chat.formats.phi import PHI_4_MINI
from agentspec.chat.formats.qwen import QWEN3_CODER
from agentspec.chat.formats.render import render_call, render_calls, written_as
from agentspec.chat.formats.seed import SEED_OSS
from agentspec.errors import ConfigError

__all__ = [
    "FORMATS",
    "HARMONY",
    "HERMES",
    "LLAMA3",
    "SPECIAL",
    "Channels",
    "Hole",
    "JsonId",
    "Tags",
    "WireFormat",
    "by_name",
    "render_call",
    "render_calls",
    "special_names",
    "writes",
]

FORMATS: dict[str, WireFormat] = {
    wire_format.name: wire_format
    for wire_format in (
        HERMES,
        LLAMA3,
        FIREFUNCTION_V2,
        APRIEL,
        LFM2,
        NEMOTRON_NANO,
        COMMAND_R,
        COMMAND_R_PLUS,
        DEEPSEEK_R1,
        DEEPSEEK_V31,
        DEEPSEEK_V32,
        FUNCTIONARY_V31,
        FUNCTIONARY_V32,
        GLM_4,
        GLM_47,
        GRANITE,
        HARMONY,
        KIMI_K2,
        MINIMAX_M1,
        MINIMAX_M2,
        MISTRAL_V3,
        MISTRAL_V11,
        MISTRAL_V13,
        PHI_4_MINI,
        QWEN3_CODER,
        SEED_OSS,
    )
}


def by_name(name: str) -> WireFormat:
    """The format of that name, or one of your own: `"package.module:NAME"` is imported.

    Raises ConfigError that lists the names, or says why yours cannot be had.
    """
    module, colon, attribute = name.partition(":")
    if colon:
        return _imported(module, attribute)
    try:
        return FORMATS[name]
    except KeyError:
        raise ConfigError(
            f"unknown wire format {name!r}",
            hint=f"known formats: {', '.join(sorted(FORMATS))}; or 'package.module:NAME' for one of your own",
        ) from None


def _imported(module: str, attribute: str) -> WireFormat:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the wire format {module}:{attribute} cannot be had: {error}") from error
    if not isinstance(found, WireFormat):
        raise ConfigError(
            f"{module}:{attribute} is no wire format",
            hint="make it with agentspec.chat.formats.WireFormat; docs/formats.md shows how",
        )
    return found


def writes(wire_format: WireFormat, call_sample: str) -> bool:
    """Whether `call_sample`, a template's rendering of the sample call, is in this format."""
    return written_as(wire_format, SAMPLE_NAME, SAMPLE_ARGUMENTS).search(call_sample) is not None
