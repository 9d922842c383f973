"""What a wire format is: how one model family writes its tool calls.

A format is data, read by three parties: the grammar (which text is fixed), the parser (which text is a
call) and the template (whether the family's own template shows tools). It must not know how any of them
works.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WireFormat"]


@dataclass(frozen=True, slots=True)
class WireFormat:
    """A family that writes each call as one JSON object between two markers.

    A reply with calls is `begin object end (between begin object end)*`, where the object is
    `{"<name_key>": "<tool>", "<arguments_key>": {...}}` with the separators `", "` and `": "`.

    name:          the format's name, as in `wire_format="hermes"`
    begin, end:    text around each call. Spellings of special tokens in it (such as `<tool_call>`) are
                   that token where the vocabulary has it, else text
    between:       text between two calls
    marker:        under tool_choice "auto", the reply is a call from here on; a prefix of `begin`, or ""
                   where the family has none
    bare_objects:  whether models of this family also write a bare or fenced JSON object for a call
    instructions:  system text that explains tools, with `{tools}` where the JSON schemas go, for models
                   whose own template ignores tools; "" where no such text is known
    """

    name: str
    begin: str
    end: str
    between: str
    marker: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    bare_objects: bool = True
    instructions: str = ""
