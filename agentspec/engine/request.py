"""What goes into the engine and what comes out: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentspec.calibration.recording import Recording
from agentspec.config import DraftOptions, GenerationOptions, SamplingOptions
from agentspec.trace import Trace
from agentspec.types import FinishReason, Matcher

__all__ = ["Request", "Result", "Step"]


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to generate.

    prompt:     token ids, at least one
    matcher:    the grammar's state before the reply's first token; None where there is no grammar. The
                engine works on a fork of it.
    law:        the name of the law, as it goes into the trace (design section 4)
    tool_set:   names what the reply may call: what drafts learn from earlier replies is kept by it
    texts:      what values of the reply are likely to be copied from, the latest first
    n_stable:   how many of the prompt's first tokens other conversations are likely to begin with too: its
                instructions and tools. Their state is kept on disk.
    shown:      control tokens that are spelled out in the reply's bytes: its parser looks for them
    recorded:   whether what happens to its blocks is recorded: how many tokens of each law with them, 0 for
                none; None records nothing
    """

    prompt: tuple[int, ...]
    matcher: Matcher | None = None
    law: str = "off"
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    generation: GenerationOptions = field(default_factory=GenerationOptions)
    draft: DraftOptions = field(default_factory=DraftOptions)
    tool_set: str = ""
    texts: tuple[str, ...] = ()
    n_stable: int = 0
    shown: frozenset[int] = frozenset()
    recorded: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens that one target pass settled, and the bytes they add to the reply.

    data:     may end inside a UTF-8 character, and never holds any part of a stop string
    logprobs: the natural logarithm of each token's probability under the law of the reply, whoever proposed
              the token; shape (n,), or () where they were not asked for
    """

    tokens: tuple[int, ...]
    data: bytes
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """How a reply ended.

    complete:  the grammar (if any) was satisfied at the end; False for a reply that was cut
    recording: what happened to its blocks, where that was asked for
    """

    finish_reason: FinishReason
    complete: bool
    trace: Trace
    recording: Recording | None = None
