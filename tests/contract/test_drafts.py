"""The draft sources that come with the package keep the contract of all draft sources."""

from __future__ import annotations

from agentspec.drafts.base import Draft
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.history import HistoryDraft
from agentspec.drafts.lookup import LookupDraft
from agentspec.drafts.model import ModelDraft
from agentspec.drafts.vocab_map import MappedVocab
from agentspec.testing import DraftContract, TableModel, TableVocab, random_rows


class TestGrammarDraft(DraftContract):
    def make(self) -> Draft:
        return GrammarDraft(self.context.vocab.token_bytes)


class TestGrammarDraftWithoutBranches(DraftContract):
    def make(self) -> Draft:
        return GrammarDraft()


class TestHistoryDraft(DraftContract):
    def make(self) -> Draft:
        return HistoryDraft(self.context.vocab.token_bytes)


class TestLookupDraft(DraftContract):
    def make(self) -> Draft:
        return LookupDraft(self.context.vocab.token_bytes, self.context.tokenize)


class TestModelDraft(DraftContract):
    def make(self) -> Draft:
        n_vocab = self.context.vocab.n_tokens
        session = TableModel(random_rows(n_vocab, seed=2), n_vocab=n_vocab, n_slots=self.n_slots)
        return ModelDraft(session, n_vocab=n_vocab)


class TestModelDraftOfAnotherSize(DraftContract):
    """Its vocabulary lacks the last token, its memory cannot go back, and its context soon is full."""

    def make(self) -> Draft:
        session = TableModel(
            random_rows(6, seed=3), n_vocab=6, n_ctx=48, n_batch=8, n_slots=self.n_slots, can_rewind=False
        )
        return ModelDraft(session, n_vocab=self.context.vocab.n_tokens)


class TestModelDraftOfAnotherVocabulary(DraftContract):
    """It reads some of the target's tokens as several of its own."""

    def make(self) -> Draft:
        vocab = TableVocab(["<stop>", "c", "{", '"', "a", "}", ":", "b"], end_ids={0})
        session = TableModel(
            random_rows(vocab.n_tokens, seed=4), n_vocab=vocab.n_tokens, n_ctx=128, n_slots=self.n_slots
        )
        target = self.context.vocab
        vocab_map = MappedVocab.by_spelling(target, vocab, roles={min(target.end_ids): 0})
        return ModelDraft(session, n_vocab=target.n_tokens, vocab_map=vocab_map)
