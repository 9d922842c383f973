"""The history draft: what it learns from replies that have ended, and what it makes of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from agentspec.config import SamplingOptions
from agentspec.drafts.base import EndedReply, Offer
from agentspec.drafts.history import FollowerCounts, HistoryDraft
from agentspec.drafts.history_store import HistoryStore
from agentspec.places import PlaceScanner
from agentspec.testing import Asked, TableVocab, TrieMatcher
from agentspec.types import Matcher

MERGES = ['{"', '": "', '": ', '", "', ', "', '"}}', "name", "arguments", "path"]
PIECES: list[str | bytes] = [
    *(bytes([byte]) for byte in range(256)),
    *MERGES,
    "<tool_call>",
    "</tool_call>",
    "<end>",
]
OPEN, CLOSE, END = (len(PIECES) - 3, len(PIECES) - 2, len(PIECES) - 1)
VOCAB = TableVocab(PIECES, end_ids=[END], special_ids=[OPEN, CLOSE])
PROMPT = [7, 8, 9]
WARM = SamplingOptions(temperature=0.8)
GREEDY = SamplingOptions()


def call(name: str, arguments: Mapping[str, object]) -> list[int]:
    """A reply that is one call, its end included."""
    text = json.dumps({"name": name, "arguments": arguments})
    return [OPEN, *VOCAB.tokenize(text.encode(), special=False), CLOSE, END]


def taught(*replies: Sequence[int], tool_set: str = "tools", max_contexts: int = 100_000) -> HistoryDraft:
    draft = HistoryDraft(VOCAB.token_bytes, max_contexts=max_contexts)
    for reply in replies:
        draft.ended(EndedReply(0, [*PROMPT, *reply], len(PROMPT), tool_set, complete=True))
    return draft


def asked(
    draft: HistoryDraft,
    reply: Sequence[int],
    *,
    tool_set: str = "tools",
    sampling: SamplingOptions = GREEDY,
    matcher: Matcher | None = None,
    room: int = 8,
) -> Offer | None:
    """What it offers after the beginning of a reply, as the engine asks."""
    scanner = PlaceScanner()
    for token in reply:
        scanner.advance(VOCAB.token_bytes(token))
    request = Asked(
        prefix=[*PROMPT, *reply],
        n_prompt=len(PROMPT),
        n_settled=len(PROMPT),
        matcher=matcher,
        place=scanner.place,
        sampling=sampling,
        tool_set=tool_set,
        room=room,
    )
    (offer,) = draft.offer([request])
    return offer


def law(offer: Offer | None) -> dict[int, float]:
    """The distribution of an offer, which must be one."""
    assert offer is not None
    assert not offer.tokens
    assert offer.draft_probs is not None
    ids, probs = offer.draft_probs
    assert ids.dtype == "int64"
    assert probs.dtype == "float64"
    assert ids.tolist() == sorted(set(ids.tolist()))
    assert probs.sum() == pytest.approx(1.0, abs=1e-12)
    return dict(zip(ids.tolist(), probs.tolist(), strict=True))


def run(offer: Offer | None) -> list[int]:
    """The run of an offer, which must be one; [] for none."""
    if offer is None:
        return []
    assert offer.draft_probs is None
    assert 0 < len(offer.tokens) == len(offer.confidence)
    assert all(0.0 < confidence <= 1.0 for confidence in offer.confidence)
    return list(offer.tokens)


WEATHER = call("get_weather", {"city": "Oslo", "unit": "celsius"})


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_a_reply_that_comes_again_is_proposed_whole(sampling: SamplingOptions) -> None:
    draft = taught(WEATHER)
    written: list[int] = []
    offers = 0
    while len(written) < len(WEATHER):
        more = run(asked(draft, written, sampling=sampling))
        assert more == WEATHER[len(written) : len(written) + len(more)]
        assert more
        written += more
        offers += 1
    assert offers < len(WEATHER) / 4
    assert not run(asked(draft, written))


def test_a_reply_that_has_come_often_is_one_run_as_long_as_there_is_room() -> None:
    draft = taught(*[WEATHER] * 10)
    assert run(asked(draft, WEATHER[:4], room=40)) == WEATHER[4:44]
    assert run(asked(draft, WEATHER[:4], room=3)) == WEATHER[4:7]


def test_nothing_is_known_before_a_reply_has_ended() -> None:
    assert asked(HistoryDraft(VOCAB.token_bytes), WEATHER[:4]) is None


def test_another_tool_set_learns_nothing_of_it() -> None:
    draft = taught(WEATHER, tool_set="tools")
    for length in range(len(WEATHER)):
        assert asked(draft, WEATHER[:length], tool_set="others") is None
        assert asked(draft, WEATHER[:length], tool_set="") is None
    assert run(asked(taught(WEATHER, tool_set=""), WEATHER[:4], tool_set=""))


def test_the_prompt_is_not_learned() -> None:
    draft = taught([50, 51])
    assert run(asked(draft, [])) == [50, 51]
    for prefix in ([7], [7, 8], [7, 8, 9]):
        assert asked(draft, prefix) is None


def test_the_start_of_a_reply_is_a_context() -> None:
    """A token that follows the start is not taken for one that follows the same tokens elsewhere."""
    draft = taught([5, 6, 1, 9], [5, 6, 1, 9], [5, 2, 3, 5, 2, 3, 5, 2, 3])
    assert run(asked(draft, [5]))[0] == 6
    assert run(asked(draft, [5, 2, 3, 5]))[0] == 2


def test_replies_that_were_cut_or_are_empty_teach_nothing() -> None:
    draft = taught([])
    draft.ended(EndedReply(0, [*PROMPT, *WEATHER], len(PROMPT), "tools", complete=False))
    assert asked(draft, WEATHER[:4]) is None


def test_values_are_known_by_their_key_and_tool_whatever_was_written_before() -> None:
    """Between the tools, and after an argument that is new, only the place says which value this is."""
    seen = [call("read", {"n": index, "path": "/etc"}) for index in range(3)]
    seen += [call("kill", {"n": index, "path": "9"}) for index in range(3)]
    draft = taught(*seen)

    def value(tool: str) -> str:
        new = json.dumps({"name": tool, "arguments": {"n": 777_777_777_777_777, "path": ""}})[:-3]
        offer = run(asked(draft, [OPEN, *VOCAB.tokenize(new.encode(), special=False)]))
        return b"".join(map(VOCAB.token_bytes, offer[:1])).decode()

    assert value("read") == "/"
    assert value("kill") == "9"


def test_between_values_the_last_token_tells_what_comes() -> None:
    """A comma, a space and the value after it are all said of the same place of an array."""
    seen = [call("on", {"v": [index, True]}) for index in range(3)]
    seen += [call("off", {"v": [index, False]}) for index in range(3)]
    new = call("on", {"v": [7, True]})
    offer = asked(taught(*seen), new[: new.index(ord("t"))])
    assert run(offer)[:4] == VOCAB.tokenize(b"true", special=False)
    assert offer is not None
    assert offer.confidence[0] > 0.6


def test_confidence_grows_with_what_was_seen_and_falls_with_what_differs() -> None:
    """Witten and Bell's n / (n + d) where one context is known, n fading by a tenth each time."""

    def first(*replies: Sequence[int]) -> float:
        offer = asked(taught(*replies), [])
        assert offer is not None
        return offer.confidence[0]

    assert first([1]) == pytest.approx(1 / 2)
    assert first([1], [1]) == pytest.approx(1.9 / 2.9)
    assert first([1], [1], [1]) == pytest.approx(2.71 / 3.71)
    assert first([2], [1], [1]) == pytest.approx(1.9 / 4.71)


def test_longer_contexts_are_believed_first_and_shorter_ones_fill_in() -> None:
    """After the start and 1: that pair, seen once, has half the say, and 1 alone the other half."""
    draft = taught([1, 2], [3, 1, 4], [3, 1, 4])
    expected = {2: 1 / 2 + 1 / 2 * 0.81 / 4.71, 4: 1 / 2 * 1.9 / 4.71}
    total = sum(expected.values())
    assert law(asked(draft, [1], sampling=WARM)) == pytest.approx(
        {token: prob / total for token, prob in expected.items()}
    )


def test_sampled_replies_get_the_distribution_of_what_was_seen() -> None:
    draft = taught([2, 9], [1, 9], [2, 9], [1, 9], [1, 9])
    ones, twos = 0.9**3 + 0.9 + 1, 0.9**4 + 0.9**2
    assert law(asked(draft, [], sampling=WARM)) == pytest.approx(
        {1: ones / (ones + twos), 2: twos / (ones + twos)}
    )
    assert run(asked(draft, [], sampling=GREEDY)) == [1, 9]


def test_a_sampled_run_ends_before_a_token_that_has_rivals() -> None:
    draft = taught(*[[1, 2, index % 2 + 3] for index in range(10)])
    assert run(asked(draft, [], sampling=WARM)) == [1, 2]
    assert set(law(asked(draft, [1, 2], sampling=WARM))) == {3, 4}


def test_too_little_is_known_of_places_where_everything_was_different() -> None:
    draft = taught(*[[index, 99] for index in range(12)])
    assert asked(draft, [], sampling=GREEDY) is None
    assert asked(draft, [], sampling=WARM) is None


def test_only_what_is_legal_is_offered_and_it_gains_what_the_others_lose() -> None:
    draft = taught([3, 9], [1, 9], [2, 9], [1, 9], [2, 9])
    legal = TrieMatcher([(1, 9), (2, 9), (4, 9)])
    assert set(law(asked(draft, [], sampling=WARM, matcher=legal))) == {1, 2}
    greedy = asked(draft, [], matcher=legal)
    assert run(greedy)[0] == 2
    assert greedy is not None
    ones, twos = 0.9**3 + 0.9, 0.9**2 + 1
    assert greedy.confidence[0] == pytest.approx(twos / (ones + twos + 3))
    for sampling in (GREEDY, WARM):
        assert asked(draft, [], sampling=sampling, matcher=TrieMatcher([(8,), (10,)])) is None


def test_many_requests_are_answered_in_order() -> None:
    draft = taught([1, 2], tool_set="a")
    requests = [Asked([0], n_prompt=1, tool_set=name) for name in ("a", "b", "a")]
    offers = draft.offer(requests)
    assert [offer is None for offer in offers] == [False, True, False]
    assert offers[0] == offers[2]


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_a_new_habit_outweighs_an_old_one_after_seven_times(sampling: SamplingOptions) -> None:
    old, new = [1, 9], [2, 9]
    for times, favourite in ((6, 1), (7, 2)):
        offer = asked(taught(*[old] * 500, *[new] * times), [], sampling=sampling)
        if sampling is GREEDY:
            assert run(offer)[0] == favourite
        else:
            probs = law(offer)
            assert max(probs, key=probs.__getitem__) == favourite
    assert set(law(asked(taught(old, *[new] * 2), [], sampling=WARM))) == {1, 2}
    assert run(asked(taught(old, *[new] * 30), [], sampling=WARM)) == new


def test_contexts_are_bounded_and_those_in_use_stay() -> None:
    counts = FollowerCounts(100)
    for index in range(10_000):
        counts.add(("seldom", index), 1)
        counts.add(("often",), 2)
        assert len(counts) <= 100
    assert counts.after(("often",))[2] == pytest.approx(10.0)
    assert not counts.after(("seldom", 0))
    assert counts.after(("seldom", 9_999))


def test_the_tokens_after_a_context_are_bounded() -> None:
    counts = FollowerCounts(10)
    for token in range(1_000):
        counts.add(("context",), token)
    assert len(counts.after(("context",))) < 32


def test_a_draft_that_has_seen_too_much_knows_the_latest() -> None:
    draft = taught(WEATHER, *[[index, 1, index, 2, index] for index in range(256)], max_contexts=400)
    assert asked(draft, WEATHER[:8]) is None
    assert run(asked(draft, [255, 1])) == [255, 2, 255]


def test_long_values_cost_no_more_than_their_tokens() -> None:
    """Far into a text its place is no context: every one of them would hold all of the text before."""
    text = "".join(chr(ord("a") + index * index % 23) for index in range(900))
    long = call("write", {"text": text})
    draft = taught(long)
    assert run(asked(draft, long[:600]))[:2] == long[600:602]
    held = [context for context in draft._counts._young if "string" in context]
    assert 0 < len(held) < 100


# --------------------------------------------------------------------------------------------- on disk


def stored(folder: Path) -> HistoryDraft:
    return HistoryDraft(VOCAB.token_bytes, HistoryStore(folder, "vocabulary"))


def test_the_next_run_knows_what_the_last_one_wrote(tmp_path: Path) -> None:
    first = stored(tmp_path)
    first.ended(EndedReply(0, [*PROMPT, *WEATHER], len(PROMPT), "tools", complete=True))
    first.close()
    second = stored(tmp_path)
    assert asked(second, WEATHER[:4], tool_set="others") is None
    assert asked(second, WEATHER[:4]) == asked(first, WEATHER[:4])
    assert asked(second, WEATHER[:4]) is not None


def test_what_could_not_be_stored_yet_is_stored_when_the_engine_closes(tmp_path: Path) -> None:
    draft = stored(tmp_path)
    with FileLock(tmp_path / ".lock"):
        draft.ended(EndedReply(0, WEATHER, 0, "tools", complete=True))
    assert asked(stored(tmp_path), []) is None
    draft.close()
    assert asked(stored(tmp_path), []) is not None


def test_a_tool_set_is_read_once_and_before_it_is_added_to(tmp_path: Path) -> None:
    """A reply that is counted when it ends is not counted again from the file."""
    stored(tmp_path).ended(EndedReply(0, [1, 9], 0, "tools", complete=True))
    draft = stored(tmp_path)
    draft.ended(EndedReply(0, [2, 9], 0, "tools", complete=True))
    for _ in range(2):
        assert law(asked(draft, [], sampling=WARM)) == law(asked(taught([1, 9], [2, 9]), [], sampling=WARM))


def test_replies_that_were_cut_are_not_stored(tmp_path: Path) -> None:
    draft = stored(tmp_path / "history")
    draft.ended(EndedReply(0, [1, 2], 0, "tools", complete=False))
    draft.ended(EndedReply(0, [1, 2], 2, "tools", complete=True))
    draft.close()
    assert not (tmp_path / "history").exists()


def test_a_store_that_cannot_be_used_leaves_a_draft_without_a_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    draft = stored(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            draft.ended(EndedReply(0, WEATHER, 0, "tools", complete=True))
        draft.close()
    assert run(asked(draft, WEATHER[:4]))
    assert len(caplog.records) == 1
