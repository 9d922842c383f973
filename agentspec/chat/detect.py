"""Which wire format a chat template writes calls in.

It must not know models or tokens.
"""

from __future__ import annotations

from collections.abc import Collection

from agentspec.chat.capabilities import probe
from agentspec.chat.derive import derive
from agentspec.chat.formats import FORMATS, HERMES, WireFormat, writes
from agentspec.chat.sandbox import PromptTemplate

__all__ = ["detect"]


def detect(
    template_source: str | None, *, bos: str = "", eos: str = "", ends: Collection[str] = ()
) -> WireFormat:
    """The format that a chat template writes past calls in: one that is known by name, or else what the
    rendering of some calls shows; Hermes where that shows none.

    bos, eos: spellings of those tokens
    ends:     spellings of the tokens that end a turn

    Raises TemplateError if the source is not a Jinja template.
    """
    if template_source is None:
        return HERMES
    template = PromptTemplate(template_source, bos=bos, eos=eos)
    can = probe(template)
    known = next((known for known in FORMATS.values() if writes(known, can.call_sample)), None)
    if known is not None:
        return known
    return derive(template, can, ends={eos, *ends}) or HERMES
