"""What a draft source is, what it is asked and what it answers.

A draft proposes tokens; the target verifies them. Whatever a draft does, the output keeps the target's law
if one promise is kept: whether, what and how much is proposed depends on the past and on the draft's own
distributions *before* a token is drawn from them, never on the value that was drawn. To draw a token, find it
unlikely and leave it out, say, would condition the proposal on a law that is not the recorded one.

The promise is kept by construction: a draft has no chance of its own and draws nothing. It answers with an
`Offer`, a run of tokens it is certain of or a distribution, and the engine, if it takes the distribution,
draws from it into the block in one step. So a source may look at whatever it likes, learn from whatever has
happened, be slow, be wrong or fail: it cannot bias a reply.

This module must not know the engine, nor any particular source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from agentspec.config import SamplingOptions
from agentspec.places import Place
from agentspec.types import Distribution, Matcher

__all__ = ["Draft", "DraftRequest", "EndedReply", "Offer"]


class Offer(NamedTuple):
    """What a source would put next into one block: a run of tokens, or the law of one token.

    tokens:      proposed with certainty, in this order; the engine may take only the first few, and leaves
                 out an illegal one with all after it
    confidence:  of each token, how likely the source thinks it is to be right if those before it are; shape
                 of `tokens`, each in (0, 1]. The engine learns what a source's confidence is worth, so it
                 need not be calibrated; it must tell better proposals from worse.
    draft_probs: in place of a run, the distribution that one token is to be drawn from: the law that the
                 source believes the target to have, masked to what is legal where it can be
    """

    tokens: Sequence[int] = ()
    confidence: Sequence[float] = ()
    draft_probs: Distribution | None = None


class DraftRequest(Protocol):
    """One sequence that wants proposals, at the end of its block so far. For reading only."""

    @property
    def slot(self) -> int:
        """The sequence's place, the same from its first block to its last."""
        ...

    @property
    def prefix(self) -> Sequence[int]:
        """Prompt, reply and the block so far. A live view: it grows with the block; do not change it."""
        ...

    @property
    def n_prompt(self) -> int:
        """How many tokens of the prefix are the prompt; the rest is the reply."""
        ...

    @property
    def n_settled(self) -> int:
        """How many tokens of the prefix are settled; the rest is proposed, and may yet be rejected."""
        ...

    @property
    def matcher(self) -> Matcher | None:
        """The grammar's state at the end of the prefix, as a copy; None where there is no grammar."""
        ...

    @property
    def place(self) -> Place:
        """Where in its JSON the reply stands at the end of the prefix."""
        ...

    @property
    def sampling(self) -> SamplingOptions:
        """What laws of a draft are to be made with: the settings of the target's law, unless the request
        asks for another temperature."""
        ...

    @property
    def tool_set(self) -> str:
        """Names what the reply may call: equal for requests with the same tools; "" where there are none."""
        ...

    @property
    def texts(self) -> Sequence[str]:
        """What values are likely to be copied from: the last user and tool messages, the latest first."""
        ...

    @property
    def room(self) -> int:
        """How many more tokens the block takes, at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class EndedReply:
    """A reply that is over, for sources that learn from earlier ones.

    tokens:   prompt and reply
    complete: False for a reply that was cut, cancelled or failed
    n_stable: how many of the first tokens other conversations are likely to begin with too
    """

    slot: int
    tokens: Sequence[int]
    n_prompt: int
    tool_set: str
    complete: bool
    n_stable: int = 0


class Draft(Protocol):
    """A source of proposals: a subclass needs a name and `offer`.

    `agentspec.testing.DraftContract` tests one.
    """

    @property
    def name(self) -> str:
        """The source's name in options, statistics and traces."""
        ...

    @property
    def cheap(self) -> bool:
        """True where an answer costs no model pass. Others are asked only where that promises to pay."""
        return True

    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        """An offer for each request, in order; None where the source has no idea.

        Takes many sequences at once, because a model batches them. Asked again once its offer, or another
        source's, is in the block. Where it raises, the blocks go on without this source.
        """
        ...

    def missing(self, request: DraftRequest) -> int:  # noqa: ARG002 - for sources that run a model
        """How many tokens the source must read before it can answer, the last one included: the size of its
        model pass. 0 for a source that is cheap."""
        return 0

    def measure(self) -> Sequence[tuple[int, float]]:
        """A few of the source's model passes, made before any reply: (tokens, seconds) of each."""
        return ()

    @property
    def model_seconds(self) -> float:
        """Seconds spent in model passes so far, within the model's runtime alone."""
        return 0.0

    def ended(self, reply: EndedReply) -> None:  # noqa: ARG002 - for sources that learn
        """A reply is over. What is kept for its prefix may be kept: the conversation may go on."""
        return None  # noqa: RET501 - without a body it would be abstract

    def close(self) -> None:
        """The engine is closing: what is to be kept across runs is to be saved now."""
        return None  # noqa: RET501
