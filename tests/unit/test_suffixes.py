"""The indexes of a copying draft: token sequences against brute force, and what is read in texts."""

from __future__ import annotations

import random

import pytest

from agentspec.drafts.suffixes import MAX_MATCH, Match, SuffixIndex, TextIndex, key_words, stems


def indexed(tokens: list[int], *, grams: tuple[int, ...] = (4, 2), walk: int = 16) -> SuffixIndex:
    index = SuffixIndex(grams=grams, walk=walk)
    index.append(tokens)
    return index


def longest(tokens: list[int], tail: list[int], *, gram: int) -> Match | None:
    """By brute force: the longest match that a token follows, of equals the latest."""
    best = None
    for end in range(1, len(tokens)):
        most = min(end, len(tail), MAX_MATCH)
        length = next((n for n in range(most) if tokens[end - 1 - n] != tail[-1 - n]), most)
        if length >= gram and (best is None or length >= best.length):
            best = Match(length, end)
    return best


def first(matches: list[Match]) -> Match | None:
    return matches[0] if matches else None


# ------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("grams", [(2,), (4, 2), (1,), (5, 3, 2)])
def test_it_finds_what_brute_force_finds(seed: int, grams: tuple[int, ...]) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(3) for _ in range(150)]
    index = indexed(tokens, grams=grams, walk=1000)
    for _ in range(30):
        start = rng.randrange(len(tokens))
        tail = [*tokens[start : start + rng.randrange(40)], rng.randrange(3)]
        assert first(index.matches(tail)) == longest(tokens, tail, gram=grams[-1])


def test_a_match_needs_a_token_behind_it() -> None:
    assert indexed([1, 2, 3, 1, 2]).matches([1, 2]) == [Match(2, 2)]
    assert indexed([3, 1, 2]).matches([1, 2]) == []


def test_matches_come_longest_first_and_of_equals_the_latest_first() -> None:
    tokens = [9, 1, 2, 8, 1, 2, 9, 1, 2, 7, 1, 2, 0]
    matches = indexed(tokens, grams=(2,)).matches([9, 1, 2])
    assert matches == [Match(3, 9), Match(3, 3), Match(2, 12), Match(2, 6)]


def test_a_tail_may_run_past_what_is_indexed() -> None:
    assert indexed([5, 6, 7, 8, 5]).matches([8, 5, 6, 7]) == [Match(3, 3)]


def test_a_query_looks_at_the_latest_occurrences_only() -> None:
    index = indexed([1, 2] * 50, grams=(2,), walk=3)
    # the last occurrence has nothing behind it, and counts as looked at
    assert index.matches([1, 2]) == [Match(2, 98), Match(2, 96)]


def test_a_long_end_is_found_behind_many_occurrences_of_its_own_end() -> None:
    tokens = [5, 6, 1, 2, 77, *[1, 2, 9] * 40]
    assert indexed(tokens, grams=(2,)).matches([5, 6, 1, 2])[0].length == 2
    assert indexed(tokens, grams=(4, 2)).matches([5, 6, 1, 2]) == [Match(4, 4)]


def test_what_has_only_its_hash_in_common_is_no_match() -> None:
    assert hash((-1, 5)) == hash((-2, 5))
    assert indexed([-1, 5, 7]).matches([-2, 5]) == []


@pytest.mark.parametrize("seed", range(10))
def test_following_a_changed_sequence_leaves_the_index_of_that_sequence(seed: int) -> None:
    rng = random.Random(seed)
    index, tokens = SuffixIndex(), list[int]()
    for _ in range(15):
        kept = rng.choice([0, len(tokens) // 2, max(0, len(tokens) - 3), len(tokens)])
        tokens = tokens[:kept] + [rng.randrange(4) for _ in range(rng.randrange(30))]
        index.follow(tokens)
        fresh = indexed(tokens)
        assert list(index.tokens) == tokens
        assert index.n_entries == fresh.n_entries
        for end in range(len(tokens) + 1):
            assert index.matches(tokens[:end]) == fresh.matches(tokens[:end])


def test_it_holds_a_few_numbers_a_token_and_none_when_emptied() -> None:
    for n in (100, 1000, 10_000):
        assert indexed(list(range(n))).n_entries == 5 * n
        assert indexed([7] * n).n_entries <= 3 * n + 8
    index = indexed(list(range(100)))
    index.follow([])
    assert index.n_entries == 0


def test_a_change_at_the_end_costs_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    index = indexed(list(range(1000)))
    worked: list[int] = []
    key_of = SuffixIndex._key

    def counted(self: SuffixIndex, position: int, gram: int) -> int:
        worked.append(position)
        return key_of(self, position, gram)

    monkeypatch.setattr(SuffixIndex, "_key", counted)
    index.follow([*range(997), 5, 6])
    assert set(worked) == {997, 998, 999}
    assert len(worked) == 2 * (3 + 2)  # for both grams: three taken back, two appended


# --------------------------------------------------------------------------------------------- texts


def kinds(text: str) -> dict[bytes, str]:
    """What is noted of a text, the first of equals."""
    found: dict[bytes, str] = {}
    for mention in TextIndex(text)._mentions:
        found.setdefault(mention.text, mention.kind)
    return found


def test_a_text_is_held_as_json_spells_it() -> None:
    assert TextIndex('a "b"\n\\ é').data == 'a \\"b\\"\\n\\\\ é'.encode()


def test_words_quotes_names_and_numbers_are_told_apart() -> None:
    found = kinds('Please fly Ann Lee to "New Delhi" (order #W77, ann@x.org), for 1,250.50 or `so`.')
    assert found[b"Ann Lee"] == "name"
    assert found[b"New Delhi"] == "quote"
    assert found[b"so"] == "quote"
    assert found[b"#W77"] == found[b"ann@x.org"] == "id"
    assert found[b"1250.50"] == "number"
    assert found[b"order"] == found[b"fly"] == "word"
    assert b"(order" not in found


def test_a_word_that_begins_a_sentence_is_no_name() -> None:
    found = kinds("Fly. Then go\nHome to Rome. Visit Ann Lee! A\nBo Xi")
    assert [found[word] for word in (b"Fly", b"Then", b"Home")] == ["word"] * 3
    assert found[b"Bo Xi"] == "name"
    assert found[b"Rome"] == "name"
    assert found[b"Ann Lee"] == "name"  # without the verb, as well as with it


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("on 2024-05-20", []),
        ("at 10:30", []),
        ("in B12", []),
        ("v1.2", []),
        ("-3 to 5m, 1,000 or 2.5.", [b"-3", b"5", b"1000", b"2.5"]),
    ],
)
def test_parts_of_dates_and_ids_are_no_numbers(text: str, numbers: list[bytes]) -> None:
    assert [mention.text for mention in TextIndex(text).numbers] == numbers


def test_members_of_json_know_their_key() -> None:
    index = TextIndex('{"user": {"user_id": "u1", "age": 7, "ok": true}, "order_ids": ["o1", "o2"]}')
    assert {mention.text for mention in index.of_key(stems("orderId")) if mention.kind == "member"} == {
        b"o1",
        b"o2",
    }
    assert {(mention.text, mention.kind) for mention in index.of_key(stems("age"))} == {(b"7", "number")}
    assert b"u1" in {mention.text for mention in index.of_key(stems("user"))}
    assert [mention.text for mention in index.numbers] == [b"7", b"true"]


def test_keys_are_mentions_about_the_member_that_holds_them() -> None:
    index = TextIndex('{"payment_methods": {"card_12": {"last": "99"}}}')
    assert {mention.text for mention in index.of_key(stems("payment_id"))} == {b"card_12"}


@pytest.mark.parametrize(
    "text",
    [
        '{"city": "Rome", "note": "it is cut o',
        "{'city': 'Rome', 'ok': None}",
        '[{"city": "Rome"',
        '  {"a": [}, "city": "Rome"}',
    ],
)
def test_json_is_read_leniently(text: str) -> None:
    found = [mention for mention in TextIndex(text).of_key(stems("city")) if mention.kind == "member"]
    assert [mention.text for mention in found] == [b"Rome"]


def test_what_is_cut_off_or_python_is_read_as_far_as_it_goes() -> None:
    cut = TextIndex('{"note": "it is cut o')
    assert b"it is cut o" in {mention.text for mention in cut.of_key(stems("note"))}
    python = TextIndex("{'ok': True, 'no': None}")
    assert [mention.text for mention in python.numbers] == [b"true", b"null"]


def test_what_follows_an_object_belongs_to_the_key_around_it() -> None:
    index = TextIndex('{"ids": [{"x": "x1"}, "i2"]}')
    assert {mention.text for mention in index.of_key(stems("ids"))} >= {b"i2"}
    assert b"i2" not in {mention.text for mention in index.of_key(stems("x"))}


def test_strings_of_json_are_spelled_anew_and_read_word_by_word() -> None:
    index = TextIndex('{"note": "caf\\u00e9 \\"A1\\" for Ann Lee"}')
    spelled = 'café \\"A1\\" for Ann Lee'.encode()
    assert index.data.splitlines() == [b"note", spelled]
    assert [mention.kind for mention in index.begun("café".encode())] == ["member"]
    assert [mention.text for mention in index.begun(b"Ann")] == [b"Ann Lee"]


def test_a_result_that_is_json_in_json_is_read_once() -> None:
    """Each escaped quote could begin a string that goes on to the end."""
    text = '{\\"a\\": \\"b\\", ' * 3
    assert len(TextIndex(text)._mentions) < 20


def test_a_value_that_has_begun_is_found_at_the_start_of_words_only() -> None:
    index = TextIndex("go to Romeo, or near Rome today, in error")
    assert [mention.text for mention in index.begun(b"Rome")] == [b"Romeo", b"Rome"]
    assert [mention.text for mention in index.begun(b"near Rome t")] == [b"near"]
    assert list(index.begun(b"rror")) == []


def test_what_is_near_a_word_of_a_key_is_found_on_both_sides() -> None:
    index = TextIndex("My old Order number is A1 and that is all there is to say about B2")
    near = {(mention.text, behind) for mention, behind in index.near(stems("order_id"))}
    assert (b"A1", True) in near
    assert (b"old", False) in near
    assert b"B2" not in {text for text, _ in near}


def test_empty_texts_mention_nothing() -> None:
    for text in ("", " ", "{", "[]", '{"a": ""}', "...", '"'):
        index = TextIndex(text)
        assert not index.striking
        assert not index.numbers


def test_lone_surrogates_are_read_too() -> None:
    assert TextIndex("a \ud800 b").data == b"a ? b"


def test_escapes_are_no_part_of_words() -> None:
    found = kinds('C:\\tmp\\log\n5 items\t"a\nb" "c d"')
    assert found[b"tmp"] == found[b"log"] == found[b"items"] == "word"
    assert found[b"5"] == "id"
    assert found[b"c d"] == "quote"
    assert b"a\\nb" not in found
    assert [mention.text for mention in TextIndex("a\n5").numbers] == [b"5"]


def test_mentions_point_into_the_text() -> None:
    for text in ('Fly "Ann Lee" to Rome, 3 times,\n é 7 \\ `x`', '{"a": "b c 5", "d": [1, "e"]}'):
        index = TextIndex(text)
        for mention in index._mentions:
            assert index.data.startswith(mention.text, mention.start), mention


def test_keys_have_words_and_stems() -> None:
    assert key_words("user_ID") == {"user", "id"}
    assert key_words("orderIds") == {"order", "ids"}
    assert stems("orderIds") == {"order", "orderids"}
    assert not stems("first_name").isdisjoint(stems("first"))
    assert stems("first_name").isdisjoint(stems("last_name"))
    assert stems("") == frozenset()
