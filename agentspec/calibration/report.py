"""What trace files show of drafts: the figures of `agentspec report`, in one pass over the replies.

    target pass      a block that the target decoded; one in which every token is forced needs none
    accepted length  tokens that a pass gave, the verifier's own included
    expected         what passes would have given on average: each verified proposal counts by its expected
                     acceptance (alpha) in place of whether it was kept. Achieved less expected is luck, and
                     what verifying blocks whole, or by a seed, makes of the same proposals
    bound            what the same passes would have given with every proposal accepted: what a draft that is
                     always right could reach with blocks of this length

It must not know files, figures or pages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agentspec.calibration.measure import Measure, measure
from agentspec.calibration.observe import Observation
from agentspec.calibration.traces import ReplyTrace, TraceBlock
from agentspec.errors import TraceError
from agentspec.types import Json

__all__ = ["Origin", "ReportData", "Setting", "gather"]


@dataclass(slots=True)
class Origin:
    """Tokens of the replies by who wrote them.

    forced:  the only legal ones at their positions
    sources: proposed by a source, and accepted
    target:  the verifier's own
    """

    forced: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    target: int = 0


@dataclass(slots=True)
class Setting:
    """Replies by what they were made with.

    models:    by target and draft model
    laws:      by the name of the law
    samplings: by the settings that are not the defaults, as JSON
    tool_sets: by what they may call; "" where they call nothing
    agents:    by agent; "" where none was named
    """

    models: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    laws: Counter[str] = field(default_factory=Counter)
    samplings: Counter[str] = field(default_factory=Counter)
    tool_sets: Counter[str] = field(default_factory=Counter)
    agents: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class ReportData:
    """Sums over replies; ratios are made of them when asked for.

    proposed:        tokens in all blocks, those behind a rejected one included
    lengths:         passes by accepted length
    expected_tokens: see above
    bound_tokens:    see above
    measures:        by (source, place), and of each source in all places by (source, ""); without forced
                     tokens
    """

    replies: int = 0
    tokens: int = 0
    passes: int = 0
    proposed: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    expected_tokens: float = 0.0
    bound_tokens: int = 0
    origin: Origin = field(default_factory=Origin)
    setting: Setting = field(default_factory=Setting)
    measures: Mapping[tuple[str, str], Measure] = field(default_factory=dict)

    @property
    def achieved(self) -> float:
        """Tokens per target pass, and so the speed-up in passes over plain decoding, which gives one each."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def expected(self) -> float:
        return self.expected_tokens / self.passes if self.passes else 0.0

    @property
    def bound(self) -> float:
        return self.bound_tokens / self.passes if self.passes else 0.0

    @property
    def sources(self) -> Mapping[str, Measure]:
        """Each source in all places, the busiest first."""
        totals = {source: one for (source, place), one in self.measures.items() if not place}
        return dict(sorted(totals.items(), key=lambda item: (-item[1].count, item[0])))

    def places(self, source: str) -> Mapping[str, Measure]:
        """One source by place, the busiest first."""
        found = {place: one for (name, place), one in self.measures.items() if name == source and place}
        return dict(sorted(found.items(), key=lambda item: (-item[1].count, item[0])))

    def as_json(self) -> dict[str, Json]:
        setting = self.setting
        return {
            "replies": self.replies,
            "tokens": self.tokens,
            "proposed": self.proposed,
            "target_passes": self.passes,
            "tokens_per_pass": {
                "plain": 1.0,
                "achieved": round(self.achieved, 6),
                "expected": round(self.expected, 6),
                "bound": round(self.bound, 6),
            },
            "accepted_lengths": {str(length): self.lengths[length] for length in sorted(self.lengths)},
            "tokens_from": {
                "forced": self.origin.forced,
                "sources": dict(self.origin.sources.most_common()),
                "target": self.origin.target,
            },
            "sources": {
                source: {
                    **total.as_json(),
                    "places": {place: one.as_json() for place, one in self.places(source).items()},
                }
                for source, total in self.sources.items()
            },
            "models": [
                {"model": model, "draft": draft, "replies": count}
                for (model, draft), count in setting.models.most_common()
            ],
            "laws": dict(setting.laws.most_common()),
            "samplings": [
                {"sampling": json.loads(sampling), "replies": count}
                for sampling, count in setting.samplings.most_common()
            ],
            "tool_sets": dict(setting.tool_sets.most_common()),
            "agents": dict(setting.agents.most_common()),
        }


def gather(replies: Iterable[ReplyTrace]) -> ReportData:
    """The figures of replies, which are read one at a time.

    Raises TraceError where there is no reply, where nothing was proposed in any, and for blocks that do not
    make up their reply.
    """
    data = ReportData()
    data.measures = measure(_observations(replies, data))
    if not data.replies:
        raise TraceError(
            "the traces hold no reply", hint="a chat model writes one for each reply with trace_path='FILE'"
        )
    if not data.proposed:
        raise TraceError(
            f"nothing was proposed in any of the {data.replies} replies: there is nothing to report on",
            hint="replies are drafted where draft_sources is not empty, and where a draft pays",
        )
    return data


def _observations(replies: Iterable[ReplyTrace], data: ReportData) -> Iterator[Observation]:
    """All proposals that were verified; everything else goes into `data` on the way."""
    for reply in replies:
        _add(reply, data)
        yield from reply.observations()


def _add(reply: ReplyTrace, data: ReportData) -> None:
    data.replies += 1
    setting = data.setting
    setting.models[reply.model, reply.draft] += 1
    setting.laws[reply.law] += 1
    setting.samplings[json.dumps(reply.sampling, sort_keys=True)] += 1
    setting.tool_sets[reply.tool_set] += 1
    setting.agents[reply.agent] += 1
    ends = [*(block.at for block in reply.blocks[1:]), len(reply.reply)]
    for block, end in zip(reply.blocks, ends, strict=True):
        given = end - block.at
        if not 0 <= given <= block.accepted + 1:
            raise TraceError(
                f"reply {data.replies} of the traces is not what its blocks make up: the one at {block.at} "
                f"had {block.accepted} tokens accepted, and what follows it is at {end}"
            )
        _add_block(block, given, data)


def _add_block(block: TraceBlock, given: int, data: ReportData) -> None:
    """given: how many tokens of the reply it made; fewer than were accepted where the reply ended in it"""
    seen = list(block.observations())[:given]
    own = max(0, given - block.accepted)
    data.tokens += given
    data.proposed += block.proposed
    data.origin.target += own
    for one in seen[: given - own]:
        if one.forced:
            data.origin.forced += 1
        else:
            data.origin.sources[one.source] += 1
    data.expected_tokens += own + sum(one.alpha for one in seen)
    rejected = own and block.accepted < block.proposed
    data.bound_tokens += block.proposed + 1 if rejected else given
    if block.decoded:
        data.passes += 1
        data.lengths[given] += 1
