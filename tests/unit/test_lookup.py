"""The lookup draft: what it copies, from where, and what it thinks of it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from agentspec.config import SamplingOptions
from agentspec.drafts import lookup
from agentspec.drafts.base import EndedReply, Offer
from agentspec.drafts.lookup import LookupDraft
from agentspec.drafts.suffixes import SuffixIndex, TextIndex
from agentspec.places import TEXT, Place, PlaceScanner
from agentspec.testing import TableVocab, TrieMatcher
from agentspec.types import Matcher

# every byte, and a few longer pieces; ` Rome` is one token in a message and two inside quotes
LONGER = [" Rome", "ome", "aris", " York", "w Y", "2024", '": "', '", "', " the", "é"]
VOCAB = TableVocab([*(bytes([byte]) for byte in range(256)), *LONGER], end_ids=())


@dataclass
class Asked:
    """A DraftRequest of plain values."""

    prefix: Sequence[int]
    n_prompt: int = 0
    n_settled: int = 0
    place: Place = TEXT
    texts: Sequence[str] = ()
    matcher: Matcher | None = None
    room: int = 16
    slot: int = 0
    tool_set: str = ""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)


def tokenize(text: bytes) -> list[int]:
    return VOCAB.tokenize(text, special=False)


def tokens_of(text: str) -> list[int]:
    return tokenize(text.encode())


@functools.cache
def one_of(*texts: str) -> TrieMatcher:
    return TrieMatcher([tokens_of(text) for text in texts])


def new_draft() -> LookupDraft:
    return LookupDraft(VOCAB.token_bytes, tokenize)


def asked(
    prefix: Sequence[int], *, settled: int | None = None, draft: LookupDraft | None = None
) -> Offer | None:
    """What it offers in free text, where it knows tokens only."""
    n_settled = len(prefix) if settled is None else settled
    (offer,) = (draft or new_draft()).offer([Asked(prefix, n_settled, n_settled)])
    return offer


def asked_in(
    reply: str | bytes,
    *texts: str,
    matcher: Matcher | None = None,
    room: int = 16,
    draft: LookupDraft | None = None,
) -> Offer | None:
    """What it offers behind a reply that was written so far; the prompt is one token."""
    data = reply if isinstance(reply, bytes) else reply.encode()
    scanner = PlaceScanner()
    scanner.advance(data)
    prefix = [0, *tokenize(data)]
    request = Asked(prefix, 1, len(prefix), scanner.place, texts, matcher, room)
    (offer,) = (draft or new_draft()).offer([request])
    return offer


def call(arguments: str) -> str:
    return '{"name": "f", "arguments": {' + arguments


def text_of(offer: Offer | None) -> str | None:
    return None if offer is None else b"".join(map(VOCAB.token_bytes, offer.tokens)).decode()


def first_confidence(offer: Offer | None) -> float:
    assert offer is not None
    return offer.confidence[0]


# ------------------------------------------------------------------------------------------- tokens


def test_what_followed_the_longest_match_is_offered() -> None:
    offer = asked([5, 6, 7, 8, 9, 1, 6, 7, 3, 2, 5, 6, 7])
    assert offer is not None
    assert list(offer.tokens) == [8, 9, 1, 6, 7, 3, 2, 5, 6, 7]


def test_of_equal_matches_the_latest_is_copied() -> None:
    offer = asked([5, 6, 1, 5, 6, 2, 5, 6])
    assert offer is not None
    assert list(offer.tokens) == [2, 5, 6]


def test_a_run_ends_where_the_block_does() -> None:
    prefix = [*range(20), 3, 4]
    (offer,) = new_draft().offer([Asked(prefix, 22, 22, room=4)])
    assert offer is not None
    assert list(offer.tokens) == [5, 6, 7, 8]
    assert len(offer.confidence) == 4


def test_where_nothing_has_occurred_before_nothing_is_offered() -> None:
    assert asked([1, 2, 3, 4]) is None
    assert asked([]) is None


def test_confidence_grows_with_the_match_and_with_the_matches_that_agree() -> None:
    short = asked([1, 2, 9, 8, 7, 1, 2])
    long = asked([3, 4, 5, 1, 2, 9, 8, 7, 3, 4, 5, 1, 2])
    agreed = asked([1, 2, 9, 8, 1, 2, 9, 7, 1, 2])
    divided = asked([1, 2, 6, 8, 1, 2, 9, 7, 1, 2])
    assert first_confidence(divided) < first_confidence(short) < first_confidence(agreed)
    assert first_confidence(short) < first_confidence(long)
    for offer in (short, long, agreed, divided):
        assert offer is not None
        assert all(0.0 < confidence <= 1.0 for confidence in offer.confidence)


def test_matches_that_part_on_the_way_count_from_there_on() -> None:
    together = asked([1, 2, 9, 9, 5, 1, 2, 9, 9, 5, 3, 1, 2])
    parted = asked([1, 2, 9, 9, 6, 1, 2, 9, 9, 5, 3, 1, 2])
    assert together is not None
    assert parted is not None
    assert together.tokens[:5] == parted.tokens[:5] == [9, 9, 5, 3, 1]
    assert together.confidence[:2] == parted.confidence[:2]
    assert together.confidence[2] > parted.confidence[2]
    assert parted.confidence[3] == pytest.approx(1 / 1.5 * 5 / 7)  # what has parted has no say any more


def test_much_shorter_matches_have_no_say() -> None:
    long, short = [*range(10), 99], [6, 7, 8, 9]
    alone = asked([*long, *long[:-1]])
    assert first_confidence(asked([*long, *short, 50, *short, 51, *long[:-1]])) == first_confidence(alone)


def test_an_illegal_token_gives_way_to_the_next_match() -> None:
    prefix = [5, 6, 1, 4, 5, 6, 2, 5, 6]
    (offer,) = new_draft().offer([Asked(prefix, 9, 9, matcher=TrieMatcher([(1, 4)]))])
    assert offer is not None
    assert list(offer.tokens[:2]) == [1, 4]
    assert new_draft().offer([Asked(prefix, 9, 9, matcher=TrieMatcher([(3,), (4,)]))]) == [None]


def test_tokens_of_the_block_are_matched_but_not_kept() -> None:
    draft = new_draft()
    settled = [5, 6, 7, 8, 1]
    offer = asked([*settled, 5, 6], settled=5, draft=draft)
    assert offer is not None
    assert list(offer.tokens) == [7, 8, 1]
    assert asked([*settled, 9, 9, 9, 9], settled=5, draft=draft) is None
    after = asked([*settled, 3, 1, 5], settled=7, draft=draft)
    assert after is None  # 5, 6 was rejected, and is known from the prompt alone


def test_between_brackets_two_tokens_in_common_say_nothing() -> None:
    place = Place("structure", ("f", "a"))
    assert new_draft().offer([Asked([1, 2, 9, 1, 2], 5, 5, place)]) == [None]
    (offer,) = new_draft().offer([Asked([3, 4, 1, 2, 9, 3, 4, 1, 2], 9, 9, place)])
    assert offer is not None
    assert offer.tokens[0] == 9


def test_another_conversation_in_a_slot_is_not_mixed_with_the_last() -> None:
    draft = new_draft()
    old, new = [1, 2, 3, 4, 50, 51, 52], [1, 2, 60, 4, 50, 51, 1]
    draft.offer([Asked([*old, 50], 7, 7)])
    draft.ended(EndedReply(0, old, len(old), "", complete=True))
    assert draft.offer([Asked([*new, 2, 3], 7, 7)]) == [None]  # 2, 3 is of the old one
    (offer,) = draft.offer([Asked([*new, 50, 51], 7, 7)])
    assert offer is not None
    assert list(offer.tokens) == [1]


def test_a_shorter_prefix_than_the_last_is_followed_too() -> None:
    draft = new_draft()
    asked([1, 2, 3, 1, 2], draft=draft)
    assert asked([1, 2], draft=draft) is None
    assert list(draft._slots[0].index.tokens) == [1, 2]
    for settled in (3, 2):
        draft.offer([Asked([1, 2, 3], 1, settled)])
        assert list(draft._slots[0].index.tokens) == [1, 2, 3][:settled]


def test_slots_are_kept_apart_and_answered_in_order() -> None:
    draft = new_draft()
    one, none, two = [1, 2, 3, 1, 2], [1, 2], [1, 2, 4, 1, 2]
    requests = [
        Asked(prefix, len(prefix), len(prefix), slot=slot) for slot, prefix in enumerate((one, none, two))
    ]
    offers = draft.offer(requests)
    assert [None if offer is None else offer.tokens[0] for offer in offers] == [3, None, 4]


def test_a_reply_grows_the_index_without_comparing_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = new_draft()
    prefix = [1, 2, 3, 4]
    draft.offer([Asked(prefix, 3, 3)])
    monkeypatch.setattr(SuffixIndex, "follow", lambda *_: pytest.fail("compared"))
    for token in (1, 2, 3):
        prefix.append(token)
        draft.offer([Asked(prefix, 3, len(prefix))])
    assert list(draft._slots[0].index.tokens) == prefix


# --------------------------------------------------------------------------- values that have begun


def test_a_word_is_finished_as_it_is_spelled_inside_quotes() -> None:
    offer = asked_in(call('"city": "R'), "I go to Rome")
    assert offer is not None
    assert [VOCAB.token_bytes(token) for token in offer.tokens] == [b"ome"]


def test_what_comes_is_tokenized_together_with_what_is_there() -> None:
    offer = asked_in(call('"city": "New'), "from New York to Rome")
    assert offer is not None
    assert [VOCAB.token_bytes(token) for token in offer.tokens] == [b" York"]
    inside = asked_in(call('"city": "Ne'), "from New York to Rome")  # `w Y` crosses no boundary here
    assert inside is not None
    assert [VOCAB.token_bytes(token) for token in inside.tokens] == [b"w Y", b"o", b"r", b"k"]


def test_the_spelling_of_the_whole_word_counts() -> None:
    """As with merges, which make other tokens of a part."""

    def merging(text: bytes) -> list[int]:
        return list(text) if text.startswith(b"Rome") else tokenize(text)

    offer = asked_in(call('"city": "R'), "I go to Rome", draft=LookupDraft(VOCAB.token_bytes, merging))
    assert offer is not None
    assert list(offer.tokens) == list(b"ome")


def test_a_value_is_looked_for_at_the_start_of_words_only() -> None:
    assert asked_in(call('"word": "om'), "Rome or home") is None


def test_the_latest_message_counts_most() -> None:
    assert text_of(asked_in(call('"to": "R'), "to Riga", "to Rome")) == "iga"
    assert text_of(asked_in(call('"to": "R'), "to Rome", "to Riga")) == "ome"
    for arguments in ('"to": "R', '"to": "'):
        latest, older = (asked_in(call(arguments), *texts) for texts in (("to Rome",), ("", "to Rome")))
        assert text_of(latest) == text_of(older)
        assert first_confidence(latest) > first_confidence(older)


def test_the_more_is_written_the_surer_is_the_rest() -> None:
    less, more = (asked_in(call(f'"to": "{value}'), "to Romania") for value in ("R", "Roma"))
    assert first_confidence(less) < first_confidence(more)


def test_a_member_of_the_same_key_goes_on_first() -> None:
    result = '{"city": "Riga", "town": "Rome"}'
    assert text_of(asked_in(call('"city": "R'), result)) == "iga"
    assert text_of(asked_in(call('"town": "R'), result)) == "ome"


def test_words_go_on_to_the_end_of_the_sentence_and_are_less_sure_of_it() -> None:
    offer = asked_in(call('"note": "call'), "Please note: call her back. Thanks")
    assert text_of(offer) == " her back"
    assert text_of(asked_in(call('"note": "call'), "call her back, (or not)")) == " her back"
    assert first_confidence(offer) < 0.5  # the value may have been the one word
    later = asked_in(call('"note": "call her'), "Please note: call her back. Thanks")
    assert text_of(later) == " back"
    assert first_confidence(later) > first_confidence(offer)


def test_the_words_behind_a_word_are_less_sure_than_the_word() -> None:
    offer = asked_in(call('"note": "cal'), "note: call her now")
    assert text_of(offer) == "l her now"
    assert offer is not None
    assert offer.confidence[0] > offer.confidence[1]
    assert offer.confidence[2] > offer.confidence[1]  # inside the next word again


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Rome", 'to "Rome" please'),
        ("Rome", '{"city": "Rome"}'),
        ("Ann Lee", "Ask Ann Lee about it"),
        ("W77", "order W77 is late"),
        ("end", "this is the end."),
    ],
)
def test_nothing_is_offered_behind_a_value_that_is_complete(value: str, text: str) -> None:
    assert asked_in(call(f'"x": "{value}'), text) is None


def test_a_value_that_is_complete_for_most_mentions_is_taken_for_complete() -> None:
    assert asked_in(call('"x": "Rome'), 'From "Rome", "Rome"', 'not "Romeo"') is None
    assert text_of(asked_in(call('"x": "Rome'), 'not "Romeo"')) == "o"


def test_more_mentions_make_it_surer_and_rivals_less_so() -> None:
    alone = asked_in(call('"x": "R'), "to Rome")
    twice = asked_in(call('"x": "R'), "to Rome, to Rome")
    rival = asked_in(call('"x": "R'), "to Rome, to Riga, to Rome")
    assert text_of(alone) == text_of(twice) == text_of(rival) == "ome"
    assert first_confidence(rival) < first_confidence(alone) < first_confidence(twice)


def test_escapes_are_copied_as_they_are_spelled() -> None:
    assert text_of(asked_in(call('"x": "say \\"h'), 'you say "hi" now')) == "i"
    assert text_of(asked_in(call('"path": "C:\\\\t'), "C:\\tmp\\x is it")) == "mp"
    assert text_of(asked_in(call('"x": "a\\"'), '{"v": "a\\"b"}')) == "b"
    assert text_of(asked_in(call('"x": "a'), '{"v": "a\\nb"}')) == "\\nb"


def test_a_value_that_ends_inside_a_character_is_finished() -> None:
    offer = asked_in(call('"x": "Caf').encode() + b"\xc3", "im Café Zoë")
    assert offer is not None
    assert b"".join(map(VOCAB.token_bytes, offer.tokens)) == b"\xa9 Zo\xc3\xab"
    assert text_of(asked_in(call('"x": "Caf'), "im Café Zoë")) == "é Zoë"


# ----------------------------------------------------------------------- values that have not begun


def test_a_quoted_text_is_the_first_guess() -> None:
    offer = asked_in(call('"x": "'), 'search "tea pot" for me')
    assert text_of(offer) == "tea pot"
    assert offer is not None
    assert min(offer.confidence[1:]) == max(offer.confidence[1:])  # it is one, though of two words


def test_a_member_of_the_same_key_is_preferred() -> None:
    result = '{"user": "u_1", "order_id": "A17", "city": "Rome"}'
    offer = asked_in(call('"order_id": "'), result)
    assert text_of(offer) == "A17"
    assert asked_in(call('"order_id": "'), '{"total": "A17"}') is None
    assert text_of(asked_in(call('"orders": ["'), result)) == "A17"


def test_a_word_near_one_of_the_key_is_preferred() -> None:
    text = "Book for Ann Lee, my hotel is Grand Inn, with breakfast"
    assert text_of(asked_in(call('"hotel": "'), text)) == "Grand Inn"
    assert text_of(asked_in(call('"guest": "'), text)) == "Ann Lee"


def test_values_look_as_their_key_says() -> None:
    text = "Mail bob@x.org on 2024-05-20 about A17 and Rome"
    for key, value in {"email": "bob@x.org", "due_date": "2024-05-20", "city": "Rome"}.items():
        assert text_of(asked_in(call(f'"{key}": "'), text)) == value


def test_what_the_reply_has_used_already_comes_later() -> None:
    text = 'compare "tea" and "wine"'
    assert text_of(asked_in(call('"x": "'), text)) == "tea"
    assert text_of(asked_in(call('"x": "tea", "y": "'), text)) == "wine"


def test_the_latest_message_is_preferred_at_the_start_too() -> None:
    assert text_of(asked_in(call('"x": "'), 'no, "wine"', 'a "tea"')) == "wine"


def test_an_illegal_value_gives_way_to_the_next() -> None:
    texts = ('"tea" or "wine"',)
    assert text_of(asked_in(call('"x": "'), *texts, matcher=one_of("wine", "water"))) == "wine"
    assert asked_in(call('"x": "'), *texts, matcher=one_of("beer", "gin")) is None


def test_a_value_ends_where_the_block_does() -> None:
    offer = asked_in(call('"x": "'), 'search "tea pot"', room=3)
    assert text_of(offer) == "tea"


def test_ordinary_words_are_no_guess() -> None:
    assert asked_in(call('"x": "'), "please do what I said") is None


# ------------------------------------------------------------------------------------------ numbers


def test_a_number_that_has_begun_is_finished() -> None:
    assert text_of(asked_in(call('"n": 3'), "for 375 euros")) == "75"
    assert text_of(asked_in(call('"n": 12'), "for 1,250.50 euros")) == "50.50"
    assert asked_in(call('"n": 375'), "for 375 euros") is None
    assert text_of(asked_in(call('"n": 1'), 'see "12 monkeys"')) == "2"


def test_numbers_begin_only_where_the_grammar_lets_them() -> None:
    number = one_of("375", "4", "12", "true")
    assert text_of(asked_in(call('"n": '), "for 375 euros", matcher=number)) == "375"
    assert asked_in(call('"n": '), "for 375 euros") is None
    assert asked_in(call('"n": '), "for 375 euros", matcher=one_of('"a"', "[")) is None
    assert asked_in(call('"n": 375'), "for 12 euros", matcher=one_of(",", "12")) is None


def test_numbers_come_in_the_order_in_which_they_are_mentioned() -> None:
    digits, text = one_of("5", "7", "9"), "5 by 7 by 9"
    first = asked_in(call('"a": '), text, matcher=digits)
    assert text_of(first) == "5"
    assert first_confidence(first) > 1 / 3
    assert text_of(asked_in(call('"a": 5, "b": '), "9 and 5 by 7", matcher=digits)) == "7"
    assert text_of(asked_in(call('"a": 5, "b": '), text, matcher=digits)) == "7"
    assert text_of(asked_in(call('"a": [5, 7, '), text, matcher=digits)) == "9"


def test_a_number_is_that_of_the_same_key() -> None:
    result = '{"count": 4, "price": 12, "paid": true}'
    values = one_of("4", "12", "true")
    assert text_of(asked_in(call('"price": '), result, matcher=values)) == "12"
    assert text_of(asked_in(call('"paid": '), result, matcher=values)) == "true"
    assert text_of(asked_in(call('"paid": tr'), result)) == "ue"


# ------------------------------------------------------------------------------------- all together


def test_what_tokens_and_text_agree_on_is_surer_than_either() -> None:
    history, value = '{"city": "Rome"}', call('"city": "R')
    prefix = [0, *tokens_of(history + value)]
    scanner = PlaceScanner()
    scanner.advance(value.encode())
    n_prompt = 1 + len(tokens_of(history))

    def ask(*texts: str, prompt: str = history) -> Offer | None:
        tokens = prefix if prompt else prefix[n_prompt:]
        request = Asked(tokens, len(tokens), len(tokens), scanner.place, texts)
        return new_draft().offer([request])[0]

    both, text, tokens = ask("to Rome"), ask("to Rome", prompt=""), ask()
    assert both is not None
    assert VOCAB.token_bytes(both.tokens[0]) == b"ome"
    assert first_confidence(both) > max(first_confidence(text), first_confidence(tokens))
    other = ask('see "Riga"')
    assert other is not None
    assert VOCAB.token_bytes(other.tokens[0]) == b"i"  # the surer of the two, where they differ


@pytest.mark.parametrize("arguments", ['"x": "', '"x": "R', '"x": 3', '"x": ', '"x'])
@pytest.mark.parametrize("texts", [(), ("",), ("{",), ("...", " ")])
def test_empty_texts_offer_nothing(arguments: str, texts: tuple[str, ...]) -> None:
    assert asked_in(call(arguments), *texts) is None


def test_text_that_cannot_be_spelled_is_not_offered() -> None:
    def narrow(text: bytes) -> list[int]:
        if b"z" in text:
            raise ValueError("no z")
        return tokenize(text)

    draft = LookupDraft(VOCAB.token_bytes, narrow)
    assert asked_in(call('"x": "'), '"zoo"', draft=draft) is None
    assert text_of(asked_in(call('"x": "'), '"zoo" or "tea"', draft=draft)) == "tea"
    assert text_of(asked_in(call('"x": "az t'), '"az tea"', draft=draft)) == "ea"


def test_vocabularies_that_put_a_space_in_front_of_a_text_are_spelled_around_it() -> None:
    draft = LookupDraft(VOCAB.token_bytes, lambda text: tokenize(b" " + text))
    assert text_of(asked_in(call('"x": "'), '"Rome"', draft=draft)) == "Rome"
    assert text_of(asked_in(call('"x": "R'), '"Rome"', draft=draft)) == "ome"
    assert text_of(asked_in(call('"x": "New'), '"New York"', draft=draft)) == " York"


def test_a_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(text: str) -> TextIndex:
        read.append(text)
        return TextIndex(text)

    monkeypatch.setattr(lookup, "TextIndex", reading)
    draft = new_draft()
    for arguments in ('"x": "', '"x": "R', '"x": "Rome", "y": "'):
        asked_in(call(arguments), '"Rome"', "later", draft=draft)
    assert read == ['"Rome"', "later"]


def test_it_costs_no_model_pass() -> None:
    draft = new_draft()
    assert draft.cheap
    assert draft.missing(Asked([1])) == 0
    assert draft.name == "lookup"
