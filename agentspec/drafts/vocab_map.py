"""How a draft of another vocabulary reads the target's tokens, and proposes them.

A target token that the draft's vocabulary has too is its *twin* there; any other is read as the several
tokens that the draft spells its bytes with. So a prefix may have another number of tokens for the draft. Only
twins can be proposed: of the draft's law, what has no twin is left out and the rest is normalised, before
anything is drawn from it, so that the recorded law is the one that was drawn from.

    SameVocab     the draft's ids are the target's; one of the two may have more of them (padding)
    MappedVocab   the twins are listed, as in a draft whose vocabulary was pruned, or found by spelling

This module must not know sessions, laws or model files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from agentspec.errors import VocabMismatchError
from agentspec.grammar.tokenizer import ReplyTokenizer
from agentspec.prefix import common_prefix
from agentspec.types import Legal, LogitsArray, Vocabulary

__all__ = ["MappedVocab", "Reader", "SameVocab", "VocabMap"]

Reader: TypeAlias = Callable[[Sequence[int]], list[int]]
"""One sequence's prefix, as it grows and is cut back, to the draft's tokens for it: [] where it cannot be
read. The result is for reading only, and valid until the next call."""


_FEW = 256


class VocabMap(Protocol):
    """Between a target's ids and a draft's."""

    def reader(self) -> Reader:
        """What reads one sequence; each slot has its own."""
        ...

    def reaches(self, legal: Legal) -> bool:
        """Whether the draft can propose any of the legal target ids."""
        ...

    def known(self, legal: Legal) -> Legal:
        """Those of the legal target ids that the draft can propose; None for all of `row`."""
        ...

    def row(self, row: LogitsArray) -> LogitsArray:
        """The draft's logits by target id; only those of `known` ids count. Shape (at most n_target,)."""
        ...


class SameVocab:
    """A draft whose ids are the target's, up to where the shorter of the two vocabularies ends."""

    def __init__(self, *, n_target: int, n_draft: int) -> None:
        self._n_shared = min(n_target, n_draft)
        self._n_draft = n_draft
        self._padded = n_target > n_draft

    def reader(self) -> Reader:
        return self._read

    def reaches(self, legal: Legal) -> bool:
        return legal is None or int(legal[0]) < self._n_shared

    def known(self, legal: Legal) -> Legal:
        if legal is None or legal[-1] < self._n_shared:
            return legal
        return legal[legal < self._n_shared]

    def row(self, row: LogitsArray) -> LogitsArray:
        return row[: self._n_shared]

    def _read(self, prefix: Sequence[int]) -> list[int]:
        return [] if self._padded and max(prefix) >= self._n_draft else list(prefix)


class MappedVocab:
    """A draft with ids of its own.

    target_ids: the target id of each of the draft's tokens, -1 where it has no twin; shape (n_draft,)
    n_target:   size of the target's vocabulary
    spell:      the draft's tokens for a target token that has no twin
    opening:    draft tokens in front of every sequence
    unread:     target tokens that the draft does not read

    Raises VocabMismatchError where `target_ids` names an id twice, or one that the target has not.
    """

    def __init__(
        self,
        target_ids: npt.NDArray[np.int64],
        *,
        n_target: int,
        spell: Callable[[int], Iterable[int]],
        opening: Sequence[int] = (),
        unread: Iterable[int] = (),
    ) -> None:
        drafts = np.flatnonzero(target_ids != -1)
        drafts = drafts[np.argsort(target_ids[drafts], kind="stable")]
        targets = target_ids[drafts]
        if targets.size and not (targets[0] >= 0 and targets[-1] < n_target):
            raise VocabMismatchError(f"target ids outside a vocabulary of {n_target} tokens")
        if np.any(targets[1:] == targets[:-1]):
            raise VocabMismatchError("two tokens of the draft have the same target id")
        self._targets = targets  # ascending
        self._drafts = drafts  # drafts[i] is the twin of targets[i]
        self._n_target = n_target
        self._has_twin = np.zeros(n_target, dtype=np.bool_)
        self._has_twin[targets] = True
        self._spell = spell
        self._readings: dict[int, tuple[int, ...]] = {
            target: (twin,) for target, twin in zip(targets.tolist(), drafts.tolist(), strict=True)
        }
        self._readings |= dict.fromkeys(unread, ())
        self._opening = tuple(opening)

    @classmethod
    def pruned(cls, target: Vocabulary, draft: Vocabulary, target_ids: npt.NDArray[np.int64]) -> MappedVocab:
        """The map of a draft that lists its twins.

        Raises VocabMismatchError where the list is not one of this draft's tokens and this target's ids.
        """
        if target_ids.shape != (draft.n_tokens,):
            raise VocabMismatchError(f"{target_ids.size} target ids for {draft.n_tokens} tokens of the draft")
        return cls(target_ids, n_target=target.n_tokens, spell=_Speller(target, draft))

    @classmethod
    def by_spelling(
        cls,
        target: Vocabulary,
        draft: Vocabulary,
        *,
        roles: Mapping[int, int],
        opening: Sequence[int] = (),
        unread: Iterable[int] = (),
    ) -> MappedVocab:
        """The map of two vocabularies whose tokens were chosen apart: twins have equal bytes.

        A special token's twin is the special token of the same spelling, and no ordinary one.

        roles:  target id -> draft id of special tokens that mean the same, for those without such a twin
        unread: target ids that the draft does not read, as the BOS of a target where the draft has its own
        """
        # of equals the last: before a vocabulary's ordinary tokens come its fallbacks for single bytes
        twins = {_spelling(draft, token): token for token in range(draft.n_tokens)}
        target_ids = np.full(draft.n_tokens, -1, dtype=np.int64)
        for token in range(target.n_tokens):
            special, piece = _spelling(target, token)
            twin = twins.get((special, piece))
            if piece and twin is not None:
                target_ids[twin] = token
        found = set(target_ids.tolist())
        for token, twin in roles.items():
            if token not in found and target_ids[twin] == -1:
                target_ids[twin] = token
        return cls(
            target_ids,
            n_target=target.n_tokens,
            spell=_Speller(target, draft),
            opening=opening,
            unread=unread,
        )

    @property
    def n_twins(self) -> int:
        return len(self._targets)

    def read_token(self, token: int) -> Sequence[int]:
        """The draft's tokens for one of the target's; () for one that it cannot spell."""
        if token not in self._readings:
            self._readings[token] = tuple(self._spell(token))
        return self._readings[token]

    def reader(self) -> Reader:
        return _Translation(self, self._opening).read

    def reaches(self, legal: Legal) -> bool:
        # the first few answer for nearly all: asked for every token, of up to all tokens
        return legal is None or bool(self._has_twin[legal[:_FEW]].any() or self._has_twin[legal].any())

    def known(self, legal: Legal) -> Legal:
        return self._targets if legal is None else legal[np.flatnonzero(self._has_twin[legal])]

    def row(self, row: LogitsArray) -> LogitsArray:
        mapped = np.full(self._n_target, -np.inf, dtype=np.float32)
        mapped[self._targets] = row[self._drafts]
        return mapped


class _Translation:
    """One sequence in the draft's tokens; only what has changed since the last call is translated."""

    def __init__(self, vocab_map: MappedVocab, opening: Sequence[int]) -> None:
        self._map = vocab_map
        self._prefix: list[int] = []
        self._read = list(opening)
        self._lengths = [len(opening)]  # of `_read` after so many tokens of the prefix

    def read(self, prefix: Sequence[int]) -> list[int]:
        prefix = list(prefix)
        kept = common_prefix(self._prefix, prefix)
        del self._lengths[kept + 1 :], self._read[self._lengths[kept] :]
        for token in prefix[kept:]:
            self._read += self._map.read_token(token)
            self._lengths.append(len(self._read))
        self._prefix = prefix
        return self._read


class _Speller:
    """A target token in a draft's tokens, as text: special tokens too, as their names."""

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._pieces = target.pieces()
        self._tokenizer = ReplyTokenizer(draft)

    def __call__(self, token: int) -> list[int]:
        try:
            return self._tokenizer.tokenize(self._pieces[token])
        except ValueError:  # bytes that its vocabulary lacks
            return []


def _spelling(vocab: Vocabulary, token: int) -> tuple[bool, bytes]:
    return vocab.is_special(token), vocab.pieces()[token]
