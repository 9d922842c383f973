"""A draft's model file to a source of proposals for one target, whatever the draft's vocabulary.

A draft is one of three kinds: of the target's vocabulary; pruned to some of the target's tokens, which its
header then lists; or of another vocabulary, whose tokens are matched by what they spell. This module must not
know requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from agentspec.config import RuntimeOptions
from agentspec.drafts.model import ModelDraft
from agentspec.drafts.vocab_map import MappedVocab, SameVocab, VocabMap
from agentspec.errors import VocabMismatchError
from agentspec.llama import Context, Model, Vocab, check_draft_vocab
from agentspec.prefix import StateStore

__all__ = ["TARGET_FINGERPRINT", "TARGET_IDS", "map_vocab", "open_model_draft"]

TARGET_FINGERPRINT = "agentspec.draft.target_fingerprint"
"""Entry in the header of a pruned draft: the fingerprint of its target's vocabulary."""

TARGET_IDS = "agentspec.draft.target_ids"
"""Entry in the header of a pruned draft: each token's id in the target, -1 for none; an array of integers."""

_ENOUGH = 0.5
"""Least part of the smaller vocabulary that two must share: those of English text share four fifths."""

_HINT = "use a draft of the same family as the target, or None for no draft model"


@contextlib.contextmanager
def open_model_draft(
    target: Model,
    path: Path,
    *,
    options: RuntimeOptions,
    n_ctx: int,
    n_slots: int,
    open_snapshots: Callable[[Context], StateStore | None] = lambda _: None,
) -> Iterator[ModelDraft]:
    """Loads a draft for a target, and frees it at the end.

    n_ctx, n_slots: of its context, as of the target's
    open_snapshots: stored states for a context

    Raises ModelError and ConfigError as `Model.load` and `Context` do, VocabMismatchError as `map_vocab`.
    """
    with Model.load(path, options) as model:
        vocab_map = map_vocab(target, model)
        # a pass of a draft returns one row a sequence; every row more would keep memory
        with Context(model, n_ctx=n_ctx, n_slots=n_slots, options=options, n_outputs=n_slots) as context:
            yield ModelDraft(
                context,
                n_vocab=target.vocab.n_tokens,
                vocab_map=vocab_map,
                snapshots=open_snapshots(context),
            )


def map_vocab(target: Model, draft: Model) -> VocabMap:
    """Between the ids of a target and of its draft.

    Raises VocabMismatchError for a pruned draft of another target, and for vocabularies that share too little
    for the draft to be of use.
    """
    ours, theirs = target.vocab, draft.vocab
    if TARGET_IDS in draft.arrays or TARGET_FINGERPRINT in draft.metadata:
        return _pruned(target, draft)
    try:
        check_draft_vocab(ours, theirs)
    except VocabMismatchError as error:
        return _by_spelling(ours, theirs, error)
    theirs.share_pieces(ours)
    return SameVocab(n_target=ours.n_tokens, n_draft=theirs.n_tokens)


def _pruned(target: Model, draft: Model) -> MappedVocab:
    made_for, ids = draft.metadata.get(TARGET_FINGERPRINT), draft.arrays.get(TARGET_IDS)
    names = f"the pruned draft {draft.name} does not fit the target {target.name}"
    if made_for != target.vocab.fingerprint:
        raise VocabMismatchError(
            f"{names}: it was made for the vocabulary {made_for}, and the target's is "
            f"{target.vocab.fingerprint}",
            hint="use the draft with the target it was pruned for, or prune it again for this one",
        )
    try:
        if ids is None:
            raise VocabMismatchError(f"its header has no {TARGET_IDS}")
        return MappedVocab.pruned(target.vocab, draft.vocab, ids)
    except VocabMismatchError as error:
        raise VocabMismatchError(f"{names}: {error.message}", hint="prune the draft again") from error


def _by_spelling(target: Vocab, draft: Vocab, mismatch: VocabMismatchError) -> MappedVocab:
    ends = _turn_end(target), _turn_end(draft)
    found = MappedVocab.by_spelling(
        target,
        draft,
        roles={} if ends[0] is None or ends[1] is None else {ends[0]: ends[1]},
        opening=() if draft.bos_id is None or not draft.add_bos else (draft.bos_id,),
        unread=() if target.bos_id is None or not target.add_bos else (target.bos_id,),
    )
    smaller = min(target.n_tokens, draft.n_tokens)
    if found.n_twins < _ENOUGH * smaller:
        raise VocabMismatchError(
            f"{mismatch.message}; and of the {draft.n_tokens} tokens of the draft, only {found.n_twins} are "
            "spelled like one of the target's",
            hint=_HINT,
        ) from mismatch
    return found


def _turn_end(vocab: Vocab) -> int | None:
    return vocab.eos_id if vocab.eot_id is None else vocab.eot_id
