"""A model's vocabulary as llguidance wants it.

Building it takes about half a second for 152k tokens, so there is one per model. It must not know
where the vocabulary comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llguidance
import numpy as np

from agentspec.types import IdArray, Vocabulary

__all__ = ["GrammarTokenizer", "ReplyTokenizer"]

_ANCHOR = b"\n"


class ReplyTokenizer:
    """The model's own tokenization of text as it is within a reply."""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self._anchor = _spelling(vocab, _ANCHOR)

    def tokenize(self, text: bytes) -> list[int]:
        """Ids of text without special tokens.

        SentencePiece models put a space in front of a text. So a line break is tokenized before it and
        taken away again, unless the two have merged: families that add the space do not merge it.

        Raises ValueError on a byte that the vocabulary cannot spell.
        """
        if self._anchor:
            whole = self.vocab.tokenize(_ANCHOR + text, special=False)
            if whole[: len(self._anchor)] == self._anchor:
                return whole[len(self._anchor) :]
        return self.vocab.tokenize(text, special=False)


class GrammarTokenizer(ReplyTokenizer):
    """llguidance's view of a vocabulary, and the plain tokenizer beside it.

    n_tokens: the length of a mask
    end_ids:  the end-of-generation ids, all of which end a reply
    """

    def __init__(self, vocab: Vocabulary) -> None:
        super().__init__(vocab)
        self.n_tokens = vocab.n_tokens
        self.end_ids = vocab.end_ids
        # llguidance's own guess of the end ids is wrong for most models: name them.
        self.native = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Wrapped(vocab, self.tokenize)),
            n_vocab=vocab.n_tokens,
            eos_token=sorted(vocab.end_ids),
        )
        self._beginnings: dict[tuple[bytes, ...], IdArray] = {}

    def beginning(self, prefixes: tuple[bytes, ...]) -> IdArray:
        """The tokens whose text begins with one of these, ascending."""
        known = self._beginnings.get(prefixes)
        if known is None:
            texts = map(self.vocab.token_bytes, range(self.n_tokens))
            found = [token for token, text in enumerate(texts) if text.startswith(prefixes)]
            known = self._beginnings[prefixes] = np.array(found, dtype=np.int64)
        return known


class _Wrapped:
    """The attributes that llguidance.TokenizerWrapper reads."""

    def __init__(self, vocab: Vocabulary, tokenize: Callable[[bytes], list[int]]) -> None:
        self.eos_token_id = min(vocab.end_ids)
        self.bos_token_id: int | None = None
        self.tokens: Sequence[bytes] = vocab.pieces()
        self.special_token_ids = [token for token in range(vocab.n_tokens) if vocab.is_special(token)]
        self._tokenize = tokenize

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenize(text.encode() if isinstance(text, str) else text)


def _spelling(vocab: Vocabulary, text: bytes) -> list[int]:
    """The tokens of `text`; [] where the vocabulary cannot spell it."""
    try:
        return vocab.tokenize(text, special=False)
    except ValueError:
        return []
