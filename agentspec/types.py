"""The values that cross layers: distributions, proposals, sessions, vocabularies, turns and calls.

Everything here is frozen or a Protocol; nothing here computes. It must not know llama.cpp, llguidance or
LangChain.

Words: a *token* is an id of the target's vocabulary. A *law* is the distribution a token is to have.
A *block* is what one target pass verifies. A *slot* is a sequence's place in a context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "AssistantTurn",
    "BoundTool",
    "Distribution",
    "FinishReason",
    "FloatArray",
    "IdArray",
    "InvalidCall",
    "Json",
    "Legal",
    "LogitsArray",
    "Matcher",
    "NamedTool",
    "NamedTools",
    "Noise",
    "Proposal",
    "Randomness",
    "Session",
    "Span",
    "SystemTurn",
    "ToolChoice",
    "ToolTurn",
    "Turn",
    "UserTurn",
    "ValidCall",
    "Vocabulary",
]

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A JSON value."""

FloatArray: TypeAlias = npt.NDArray[np.float64]
"""Probabilities or log-probabilities, shape (n,)."""

LogitsArray: TypeAlias = npt.NDArray[np.float32]
"""One row of logits, shape (n_vocab,)."""

IdArray: TypeAlias = npt.NDArray[np.int64]
"""Token ids, ascending and distinct, shape (n,)."""

Legal: TypeAlias = "IdArray | None"
"""The tokens a grammar allows at one position; None where it allows every token."""

FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "cancelled"]
"""stop: the model ended its reply, or a stop string came. length: max_tokens or the context ran out."""


# ------------------------------------------------------------------------------------------ sampling


class Distribution(NamedTuple):
    """A probability distribution over few or many tokens.

    ids:   token ids, ascending and distinct, shape (k,)
    probs: their probabilities, shape (k,), none negative, summing to 1

    Tokens that are not listed have probability 0.
    """

    ids: IdArray
    probs: FloatArray


class Randomness(Protocol):
    """The only source of chance in a request.

    Every random decision of drafting and verifying goes through one of these two methods (or through
    `Noise`), so a test can replace chance by enumeration and compute the law of the output exactly.
    """

    def accept(self, probability: float) -> bool:
        """True with the given probability (0 to 1)."""
        ...

    def draw(self, distribution: Distribution) -> int:
        """A token drawn from `distribution`."""
        ...


class Noise(Protocol):
    """Chance that is a function of the position, in place of `Randomness`, for replies that a seed fixes."""

    def draw(self, distribution: Distribution, position: int) -> int:
        """The token of `distribution` at a position of the reply: the same whenever it is asked for."""
        ...


class Proposal(NamedTuple):
    """One token that a draft source proposes.

    draft_probs: the distribution that the token was **actually drawn from**, after masking, calibration and
                 truncation; None where the draft proposed it with certainty (a point mass)
    source:      the draft's name, as it appears in statistics and traces
    """

    token: int
    draft_probs: Distribution | None
    source: str


class Matcher(Protocol):
    """A grammar's state after the tokens of a reply so far. Implemented in `agentspec.grammar`."""

    def legal(self) -> Legal:
        """The tokens allowed next: never empty while `done()` is False; None means every token."""
        ...

    def forced(self) -> tuple[int, ...]:
        """The run of next tokens that the grammar fixes; () at a free position.

        Each is the only legal one, but for a grammar that binds nobody and only proposes.
        """
        ...

    def guess(self) -> tuple[int, ...]:
        """The canonical spelling of text that is fixed from here on, where its tokens are not all forced.

        Each token is legal in its turn; the last one may yet turn out to be a longer one.
        """
        ...

    def advance(self, token: int) -> None:
        """Moves over one token that `legal()` allows. Raises GrammarError where its text cannot follow."""
        ...

    def fork(self) -> Matcher:
        """An independent copy of the state. To look ahead is to advance a copy and forget it."""
        ...

    def done(self) -> bool:
        """True when the reply is complete and nothing may follow."""
        ...

    def accepting(self) -> bool:
        """True when the reply would be complete if it ended here."""
        ...


# ------------------------------------------------------------------------------------------- runtime


class Span(NamedTuple):
    """Tokens to append to one slot in a decode.

    rows: offsets into `tokens`, ascending; row i asks for the logits that follow tokens[rows[i]].
    """

    slot: int
    tokens: Sequence[int]
    rows: Sequence[int]


State: TypeAlias = bytes | bytearray | memoryview
"""The KV of a prefix as a runtime gives it: megabytes, and so never copied without need."""


class Session(Protocol):
    """A model's context: tokens and KV cache, kept together.

    `agentspec.llama.Context` runs a GGUF; `agentspec.testing.TableModel` is a toy given by a table.
    """

    @property
    def n_vocab(self) -> int:
        """Size of a row of logits."""
        ...

    @property
    def n_ctx(self) -> int:
        """Tokens that all slots together can hold; a prefix that slots share by `copy_prefix` counts once."""
        ...

    @property
    def n_free(self) -> int:
        """Tokens that there is still room for."""
        ...

    def n_cells(self, prefixes: Iterable[tuple[int, int]]) -> int:
        """How much of n_ctx prefixes take together, each given by its slot and its length."""
        ...

    @property
    def n_batch(self) -> int:
        """Tokens that one decode can take."""
        ...

    @property
    def n_outputs(self) -> int:
        """Rows of logits that one decode can return."""
        ...

    @property
    def n_slots(self) -> int:
        """How many sequences can be held at once."""
        ...

    def tokens(self, slot: int) -> Sequence[int]:
        """The tokens whose KV the slot holds."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Keeps the first `length` tokens of a slot. Raises CacheError if the cache cannot do it."""
        ...

    @property
    def can_rewind(self) -> bool:
        """Whether a part of a sequence can be removed; False for recurrent memory."""
        ...

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Makes `target` hold the first `length` tokens of `source`, at no computing and no memory.

        Raises CacheError where the memory cannot share a part of a sequence.
        """
        ...

    @property
    def can_snapshot(self) -> bool:
        """Whether a prefix's state can be taken out and put back."""
        ...

    def state(self, slot: int, length: int) -> State:
        """The KV of a slot's first `length` tokens, for `restore` of a session made alike.

        Raises CacheError where it cannot be had; ValueError if the slot does not hold that many.
        """
        ...

    def restore(self, slot: int, tokens: Sequence[int], state: State) -> None:
        """Makes a slot hold `tokens`, whose state this is, in place of what it held.

        Raises CacheError, leaving the slot empty, where the state is not taken; DecodeError where the context
        does not leave room. A state of other tokens or of other settings is not noticed.
        """
        ...

    @property
    def decode_seconds(self) -> float:
        """Seconds spent in the runtime's own decode calls so far."""
        ...

    def decode(self, spans: Sequence[Span]) -> list[LogitsArray]:
        """Appends the spans in one pass and returns the rows asked for, in order, as copies.

        Raises DecodeError, leaving the session as it was, when llama.cpp refuses or the context is full;
        ValueError on arguments that make no sense, such as more than n_batch tokens.
        """
        ...


class Vocabulary(Protocol):
    """What a model's tokens spell. Implemented in `agentspec.llama`."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def end_ids(self) -> frozenset[int]:
        """The end-of-generation ids."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for in the reply; b"" for control tokens."""
        ...

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        """Token ids of `text`. With `special`, spellings of control tokens become those tokens."""
        ...

    def pieces(self) -> Sequence[bytes]:
        """Every token's bytes, control tokens as they are spelled, shape (n_tokens,)."""
        ...

    def is_special(self, token: int) -> bool:
        """True for tokens that ordinary text never becomes: control and user-defined ones."""
        ...

    def special_id(self, spelling: str) -> int | None:
        """The id of the single special token spelled so (such as "<tool_call>"), if there is one."""
        ...


# ---------------------------------------------------------------------------------------------- chat


@dataclass(frozen=True, slots=True)
class NamedTool:
    """tool_choice: this tool must be called."""

    name: str


@dataclass(frozen=True, slots=True)
class NamedTools:
    """tool_choice: one of these tools must be called, and no other may."""

    names: tuple[str, ...]


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool | NamedTools
"""auto: the model decides. none: no call. required: at least one call. NamedTool: that one. NamedTools: at
least one call, of these alone."""


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool as the model is shown it and as its calls are checked.

    parameters: JSON Schema (draft 2020-12) of the arguments object, with its $defs
    check:      a further check of arguments that fit the schema (pydantic, where the tool has a model);
                raises ValueError with the reason
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    check: Callable[[Mapping[str, Json]], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ValidCall:
    """A call whose tool exists and whose arguments fit the tool's schema and its check."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class InvalidCall:
    """A call that must not run. `raw` is the text as the model wrote it; `error` says what is wrong."""

    name: str | None
    raw: str
    error: str


@dataclass(frozen=True, slots=True)
class SystemTurn:
    text: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    text: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """calls: (id, name, arguments) of each earlier call. reasoning: what the model thought before them."""

    text: str
    calls: tuple[tuple[str, str, Mapping[str, Json]], ...] = ()
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """A tool's answer to the call `call_id`."""

    text: str
    call_id: str
    name: str | None = None
    failed: bool = False


Turn: TypeAlias = SystemTurn | UserTurn | AssistantTurn | ToolTurn
