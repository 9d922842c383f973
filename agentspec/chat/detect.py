"""Which wire format a chat template writes calls in.

It must not know models or tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from agentspec.chat.capabilities import probe
from agentspec.chat.derive import derive
from agentspec.chat.formats import FORMATS, HERMES, WireFormat, render_calls, writes
from agentspec.chat.sandbox import PromptTemplate
from agentspec.types import Json

__all__ = ["detect"]

_CALLS: Sequence[tuple[str, Mapping[str, Json]]] = (
    ("zq_first", {"zq_text": "zq", "zq_count": 701}),
    ("zq_second", {"zq_text": "zq", "zq_count": 702}),
)


def detect(
    template_source: str | None, *, bos: str = "", eos: str = "", ends: Collection[str] = ()
) -> WireFormat:
    """The format that a chat template writes past calls in: one that is known by name, or else what the
    rendering of some calls shows. Where it renders none, the one whose markers it spells, else Hermes.

    bos, eos: spellings of those tokens
    ends:     spellings of the tokens that end a turn

    Cached by what it is given. Raises TemplateError if the source is not a Jinja template.
    """
    return HERMES if template_source is None else _detected(template_source, bos, eos, frozenset(ends))


@lru_cache(maxsize=128)
def _detected(source: str, bos: str, eos: str, ends: frozenset[str]) -> WireFormat:
    template = PromptTemplate(source, bos=bos, eos=eos)
    can = probe(template)
    for known in FORMATS.values():  # channels are more than calls show
        if known.channels is not None and _signed(known, source):
            return known
    found = derive(template, can, ends={eos, *ends})
    if found is not None:
        return _named(found, several=can.several)
    if can.call_shape is None:
        return next((known for known in FORMATS.values() if _signed(known, source)), HERMES)
    return next((known for known in FORMATS.values() if writes(known, can.call_sample)), HERMES)


def _named(found: WireFormat, *, several: bool) -> WireFormat:
    """The known format that writes the same, if need be but for white space around calls, at which the parser
    does not look; else the one found."""
    samples = (_CALLS[:1], _CALLS) if several else (_CALLS[:1],)
    for shown in (str.strip, _tight):
        written = [shown(render_calls(found, calls)) for calls in samples]
        for known in FORMATS.values():
            if [shown(render_calls(known, calls)) for calls in samples] == written:
                return known
    return found


def _tight(text: str) -> str:
    return "".join(text.split())


def _signed(known: WireFormat, source: str) -> bool:
    return bool(known.signs) and all(sign in source for sign in known.signs)
