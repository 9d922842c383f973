"""Which way a grammar's fork is taken: the one that the conversation speaks of."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.drafts.base import Offer
from agentspec.drafts.branches import likeliest_branch
from agentspec.grammar.matcher import CompiledGrammar
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.testing import TableVocab, TrieMatcher

WORDS = ["search", "_flights", "_hotels", "get", "_weather", "_time", "Paris", "Rome", "Malmö", "}"]
VOCAB = TableVocab(WORDS, end_ids=())


def replies(*spelled: str) -> TrieMatcher:
    return TrieMatcher([VOCAB.tokenize(one.encode(), special=False) for one in spelled])


def offered(matcher: TrieMatcher, *texts: str) -> Offer:
    offer = likeliest_branch(matcher, texts, VOCAB.token_bytes)
    assert offer is not None
    return offer


def text(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


def test_the_branch_that_is_spoken_of_is_taken_with_all_that_is_fixed_behind_it() -> None:
    tools = replies("search_flights}", "get_weather}")
    assert text(offered(tools, "What is the weather like?").tokens) == "get_weather}"
    assert text(offered(tools, "Any flights today?").tokens) == "search_flights}"


def test_words_are_compared_by_their_stem_whatever_their_case() -> None:
    tools = replies("search_hotels}", "search_flights}")
    tools.advance(0)
    assert text(offered(tools, "I need a FLIGHT.").tokens) == "_flights}"
    assert text(offered(replies("Rome}", "Malmö}"), "en resa till MALMÖ").tokens) == "Malmö}"


def test_every_text_counts() -> None:
    assert text(offered(replies("Paris}", "Rome}"), "thanks", "from Rome").tokens) == "Rome}"


def test_without_a_word_to_go_by_it_is_the_first_and_less_sure_the_more_there_are() -> None:
    two, three = replies("Paris}", "Rome}"), replies("Paris}", "Rome}", "Malmö}")
    assert text(offered(two).tokens) == "Paris}"
    assert (offered(two).confidence[0], offered(three, "Hello").confidence[0]) == (1 / 2, 1 / 3)


def test_it_is_the_surer_the_more_one_branch_leads() -> None:
    """Half the words of one; all of one and none of the other; all of both."""
    tools = replies("search_flights}", "get_weather}")
    half, all_, both = (
        offered(tools, said).confidence[0]
        for said in ("weather", "get weather", "get weather, search flights")
    )
    assert 1 / 2 == both < half < all_ < 1.0


def test_what_is_fixed_behind_the_choice_is_nearly_certain() -> None:
    offer = offered(replies("search_flights}", "get_weather}"), "weather")
    assert len(offer.confidence) == len(offer.tokens) == 3
    assert min(offer.confidence[1:]) > 0.95
    assert offer.draft_probs is None


def test_the_end_of_the_reply_is_a_branch_too() -> None:
    vocab = TableVocab(["Rome", "Paris", "<end>"], end_ids=[2])
    matcher = CompiledGrammar(GrammarTokenizer(vocab), 'start: "Rome" "Paris"?').start()
    matcher.advance(0)
    offer = likeliest_branch(matcher, ["To Paris."], vocab.token_bytes)
    assert offer is not None
    assert list(offer.tokens) == [1]
    assert offer.confidence[0] > 1 / 2


def test_among_many_branches_it_has_no_idea() -> None:
    def choice(count: int) -> TrieMatcher:
        return TrieMatcher([(token,) for token in range(count)])

    spelled = [b"x"] * 20
    assert likeliest_branch(choice(16), (), spelled.__getitem__) is not None
    assert likeliest_branch(choice(17), (), spelled.__getitem__) is None


def test_the_state_it_is_asked_about_stays() -> None:
    tools = replies("search_flights}", "get_weather}")
    offered(tools, "weather")
    assert tools.legal().tolist() == [0, 3]
