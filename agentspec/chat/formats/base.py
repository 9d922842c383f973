"""What a wire format is: how one model family writes its tool calls.

A format is data, read by three parties: the grammar (which text is fixed), the parser (which text is a
call) and the template (whether the family's own template shows tools). It must not know how any of them
works.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "LONG_ID",
    "NUMBER",
    "SHORT_ID",
    "SPECIAL",
    "Channels",
    "Hole",
    "JsonId",
    "Parts",
    "Tags",
    "WireFormat",
    "special_names",
]

SPECIAL = re.compile(r"(<[^<>\s]+>|\[/?[A-Z_]+\])")
"""How special tokens are spelled: <tool_call>, [TOOL_CALLS]."""


def special_names(text: str) -> list[str]:
    """What in the text may be special tokens, in order."""
    return SPECIAL.findall(text)


@dataclass(frozen=True, slots=True)
class Hole:
    """Text of a call that is the model's to choose and says nothing, such as an id.

    pattern: a regular expression, the same to Python and to Lark
    example: what stands there where a call is written for the model
    """

    pattern: str
    example: str


SHORT_ID = Hole("[a-zA-Z0-9]{9}", "call00001")  # Mistral's rule
LONG_ID = Hole("[a-zA-Z0-9_-]{1,40}", "call_1")
NUMBER = Hole("[0-9]{1,3}", "0")

Parts: TypeAlias = tuple[str | Hole, ...]


@dataclass(frozen=True, slots=True)
class JsonId:
    """A key of the call's object that holds an id: the first or the last of its keys."""

    key: str
    value: Hole
    first: bool


@dataclass(frozen=True, slots=True)
class Tags:
    """Arguments one by one: `begin key after_key value end`, then `close`.

    A string is written as it is, every other value as JSON.

    after_json_key: instead of `after_key`, where the value is no string; None where the two are equal
    """

    begin: str
    after_key: str
    end: str
    close: str
    after_json_key: str | None = None


@dataclass(frozen=True, slots=True)
class Channels:
    """A reply in messages, each with a header that says which channel it is in and whom it is for.

    The first message begins with its header, since the prompt ends with what begins one; each further one
    begins with `start`. A call is a message to a tool, its arguments the message; the reply ends with it.

    start:     begins a message
    channel:   in front of the channel's name
    message:   between header and message
    end:       behind a message that is followed by another one
    recipient: in front of the tool that a message is for
    typed:     how the header of a call says that it is JSON, which it may leave out
    thoughts, calls, answers: the names of the channels
    """

    start: str
    channel: str
    message: str
    end: str
    recipient: str
    typed: tuple[str, ...]
    thoughts: str
    calls: str
    answers: str


@dataclass(frozen=True, slots=True)
class WireFormat:
    """A family that writes a call as one JSON object, or as a name followed by its arguments.

    A reply with calls is `opening begin call end (between begin call end)* closing`. Without `after_name`, a
    call is the object `{"<name_key>": "<tool>", "<arguments_key>": {...}}` with the separators `", "` and
    `": "`; with it, a call is `before_name tool after_name arguments`, the arguments as an object or in tags.

    Spellings of special tokens in any of these texts (such as `<tool_call>`) are that token where the
    vocabulary has it, else text.

    name:          the format's name, as in `wire_format="hermes"`
    opening, closing: text around all calls of a reply
    begin, end:    text around each call
    between:       text between two calls
    marker:        under tool_choice "auto", the reply is a call from here on; a prefix of `opening begin`, or
                   "" where the family has none
    before_name, after_name: text between `begin`, the tool's name and its arguments
    json_id:       a further key of the call's object
    tags:          how arguments are written that are no object; None where they are one
    channels:      how a reply is made of messages; None where it is not
    bare_objects:  whether models of this family also write a bare or fenced JSON object for a call
    instructions:  system text that explains tools, with `{tools}` where the JSON schemas go (`[{tools}]` for
                   one JSON array of them), for models whose own template ignores tools; "" where no such text
                   is known
    signs:         texts that, all found in a template's source, say that its model is of this family, also
                   where the template renders no calls
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
    opening: str = ""
    closing: str = ""
    before_name: Parts = ()
    after_name: Parts = ()
    json_id: JsonId | None = None
    tags: Tags | None = None
    channels: Channels | None = None
    signs: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All that is fixed in it, in no order: special tokens are spelled somewhere in there."""
        tags = self.tags
        parts = [self.opening, self.begin, self.end, self.between, self.closing, self.marker]
        parts += [part for part in (*self.before_name, *self.after_name) if isinstance(part, str)]
        if tags is not None:
            parts += [tags.begin, tags.after_key, tags.end, tags.close, tags.after_json_key or ""]
        if (channels := self.channels) is not None:
            parts += [channels.start, channels.channel, channels.message, channels.end, *channels.typed]
        return tuple(parts)
