"""What `agentspec bench drafts` measures: which turns, on which models, under which configurations.

This module must not know how a reply is made or timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agentspec.bench.options import BenchOptions
from agentspec.bench.workload import Turn, Workload, spread
from agentspec.drafts.base import Draft, DraftRequest, Offer
from agentspec.drafts.plugins import DraftPlugin

__all__ = ["CASES", "CONFIGS", "ConfidentWrong", "Setup", "Stage", "plan"]

CONFIGS: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "grammar": ("grammar",),
    "lookup": ("grammar", "lookup"),
    "history": ("grammar", "history"),
    "all_without_model": ("grammar", "lookup", "history"),
    "model": ("grammar", "model"),
    "all": ("grammar", "lookup", "history", "model"),
}
"""The draft sources of each configuration."""

_SAMPLED: Final = ("none", "grammar", "all_without_model", "all")
"""Those that are compared at a temperature too."""

CASES: Final = ("free_text", "confident_wrong", "random_draft", "hot")
"""Where drafts have little to offer."""

_CALL_TOKENS, _PROSE_TOKENS = 256, 96  # most tokens of a reply
_HOT = 1.5
_CASE_TURNS = 14  # of the workload's turns, those that a case takes


@dataclass(frozen=True, slots=True)
class Setup:
    """What runs beside the target.

    draft:   the draft model, by name or path; None for none
    plugins: sources besides the runtime's own, by name
    """

    draft: str | None
    plugins: tuple[tuple[str, DraftPlugin], ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Turns to be answered under each of some configurations.

    second_pass: the configuration whose first agent does all its work a second time; None for none
    """

    name: str
    turns: tuple[Turn, ...]
    configs: Mapping[str, tuple[str, ...]]
    temperature: float = 0.0
    max_tokens: int = _CALL_TOKENS
    second_pass: str | None = None

    def replies(self, rounds: int) -> int:
        """How many replies it takes."""
        each = 1 + rounds * len(self.configs) + (self.second_pass is not None)
        return each * len(self.turns)


def plan(
    workload: Workload,
    options: BenchOptions,
    *,
    draft: str | None,
    random_draft: str | None,
) -> list[tuple[Setup, list[Stage]]]:
    """What is to be measured on which models, in order.

    draft:        the draft model; without one, the configurations that need it are left out
    random_draft: a draft model with random weights; without one, its case is left out
    """
    if options.subset is not None:
        workload = workload.subset(options.subset)
    configs = {name: sources for name, sources in CONFIGS.items() if draft or "model" not in sources}
    best = configs.get("all", configs["all_without_model"])
    few = spread(workload.calls, _CASE_TURNS)
    stages = []
    if options.measures("greedy"):
        stages.append(Stage("greedy", workload.calls, configs, second_pass="history"))
    if options.measures("sampled"):
        fewer = {name: sources for name, sources in configs.items() if name in _SAMPLED}
        stages.append(Stage("sampled", workload.calls, fewer, options.temperature))
    if not options.measures("never-slower"):
        return [(Setup(draft), stages)]
    stages.append(Stage("free_text", workload.prose, _against(best), max_tokens=_PROSE_TOKENS))
    stages.append(Stage("hot", few, _against(best), _HOT, max_tokens=_PROSE_TOKENS))
    planned = [(Setup(draft), stages)]
    wrong = "confident_wrong"
    planned.append(
        (Setup(None, ((wrong, lambda _: ConfidentWrong()),)), [Stage(wrong, few, _against((wrong,)))])
    )
    if random_draft is not None:
        planned.append((Setup(random_draft), [Stage("random_draft", few, _against(("model",)))]))
    return planned


class ConfidentWrong(Draft):
    """Proposes eight wrong tokens wherever it is asked, and is sure of each: the worst a cheap source can do.

    The token is from the middle of the legal ones, which in a vocabulary ordered by frequency is a rare one.
    It cannot be wrong where only one token is legal, and says nothing there.
    """

    _RUN: Final = 8

    @property
    def name(self) -> str:
        return "confident_wrong"

    def offer(self, requests: Sequence[DraftRequest]) -> Sequence[Offer | None]:
        return [self._offer(request) for request in requests]

    def _offer(self, request: DraftRequest) -> Offer | None:
        legal = None if request.matcher is None else request.matcher.legal()
        if legal is None:
            token = request.prefix[-1]  # hardly any text repeats a token eight times
        elif len(legal) > 1:
            token = int(legal[len(legal) // 2])
        else:
            return None
        return Offer((token,) * self._RUN, (1.0,) * self._RUN)


def _against(sources: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {"none": (), "drafts": sources}
