"""A model's vocabulary: what its tokens spell, and how text becomes tokens.

Everything is bytes: a token may be part of a character. It must not know templates or grammars. Methods are
safe to call from any thread; the vocabulary lives as long as its model.
"""

from __future__ import annotations

import functools
import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from agentspec.errors import UnsupportedModelError, VocabMismatchError
from agentspec.llama import capi
from agentspec.llama.capi import TokenAttribute, VocabHandle

__all__ = ["Vocab", "check_draft_vocab"]

_SPECIAL = TokenAttribute.CONTROL | TokenAttribute.UNKNOWN | TokenAttribute.USER_DEFINED

# The ids below are often unused or special, and named differently within one family.
_FIRST_COMPARED = 5
# Vocabularies of one family are padded to different sizes.
_MAX_SIZE_DIFFERENCE = 128

_RUN = re.compile(rb"\s+|\S+")
_SHORT_RUN = 2048
_STACK_PER_BYTE = 1024
_MAX_STACK = 2**30

T = TypeVar("T")


class Vocab:
    """The vocabulary of one model. Implements `agentspec.types.Vocabulary`."""

    def __init__(self, handle: VocabHandle, *, model_name: str) -> None:
        """Raises UnsupportedModelError for a model without a vocabulary."""
        if capi.vocab_is_none(handle):
            raise UnsupportedModelError(f"{model_name} has no vocabulary, so it cannot take or write text")
        self._handle: VocabHandle | None = handle
        self.model_name = model_name
        self._n_tokens = capi.vocab_n_tokens(handle)
        self._pieces = capi.token_pieces(handle, self._n_tokens)
        self._attributes = capi.token_attributes(handle, self._n_tokens)
        self._end_ids = capi.end_tokens(handle, self._n_tokens)
        self._bos, self._eos = capi.vocab_bos(handle), capi.vocab_eos(handle)
        self._eot, self._add_bos = capi.vocab_eot(handle), capi.vocab_add_bos(handle)

    def close(self) -> None:
        """Called by the model when it is closed; `tokenize` raises from then on."""
        self._handle = None

    # ------------------------------------------------------------------------------------ properties

    @property
    def n_tokens(self) -> int:
        return self._n_tokens

    @functools.cached_property
    def fingerprint(self) -> str:
        """Names the vocabulary: equal for equal tokens in equal order, 32 hexadecimal digits."""
        digest = hashlib.sha256()
        for piece in self._pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        return digest.hexdigest()[:32]

    @property
    def end_ids(self) -> frozenset[int]:
        """The end-of-generation ids."""
        return self._end_ids

    @property
    def bos_id(self) -> int | None:
        """The id of the token that begins a text, if there is one."""
        return self._optional(self._bos)

    @property
    def eos_id(self) -> int | None:
        return self._optional(self._eos)

    @property
    def eot_id(self) -> int | None:
        """The id of the token that ends a turn, if there is one."""
        return self._optional(self._eot)

    @property
    def add_bos(self) -> bool:
        """Whether the model expects `bos_id` in front of a prompt; `tokenize` never adds it."""
        return self._add_bos

    # ---------------------------------------------------------------------------------------- tokens

    def pieces(self) -> Sequence[bytes]:
        """The bytes of every token by id, control tokens as their spelling. Shared: do not change it."""
        return self._pieces

    def share_pieces(self, other: Vocab) -> None:
        """Holds no copy of the bytes that another vocabulary has under the same id: of 150,000, 8 MB."""
        known = other._pieces
        shared = min(len(known), self._n_tokens)
        self._pieces = [
            theirs if theirs == own else own
            for own, theirs in zip(self._pieces, known[:shared], strict=False)
        ] + self._pieces[shared:]

    def token_text(self, token: int) -> bytes:
        """What a token is called: its bytes, or the spelling of a control token."""
        return self._pieces[self._checked(token)]

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for in the reply; b"" for control tokens and ends of generation."""
        hidden = self.is_control(token) or token in self._end_ids
        return b"" if hidden else self._pieces[token]

    def is_control(self, token: int) -> bool:
        """Whether the token is a control or unknown token: one that stands for no text."""
        return bool(
            self._attributes[self._checked(token)] & (TokenAttribute.CONTROL | TokenAttribute.UNKNOWN)
        )

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token, or a marker that was added to the vocabulary.

        Runs of white space, which some families add in the same way as markers, are text.
        """
        marked = self._attributes[self._checked(token)] & _SPECIAL
        return bool(marked) and bool(self._pieces[token].strip() or self.is_control(token))

    def is_byte(self, token: int) -> bool:
        """Whether the token is the fallback for one byte."""
        return bool(self._attributes[self._checked(token)] & TokenAttribute.BYTE)

    def special_id(self, spelling: str) -> int | None:
        """The id of the single special token spelled so (such as "<tool_call>"), if there is one."""
        return self._special_ids.get(spelling.encode())

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """The bytes that tokens stand for in the reply, joined."""
        return b"".join(map(self.token_bytes, tokens))

    # -------------------------------------------------------------------------------------- tokenize

    def tokenize(self, text: bytes, *, special: bool) -> list[int]:
        """Token ids of `text`; nothing is added in front.

        special: whether spellings of control tokens become those tokens. Markers that were added to the
        vocabulary, such as <tool_call>, become tokens in any case: the model's training did the same.

        Text that is not UTF-8 is taken byte by byte where it is not. SentencePiece models spell a text
        with a space in front. Raises ValueError on a byte that the vocabulary cannot spell, and on a run
        of half a million bytes without a space (or of nothing else).
        """
        # llama.cpp throws through C, which ends the process, on code points beyond Unicode
        tokens: list[int] = []
        while text:
            try:
                text.decode("utf-8")
            except UnicodeDecodeError as error:
                tokens += self._tokenize_valid(text[: error.start], special=special)
                tokens += [self._byte_id(byte) for byte in text[error.start : error.end]]
                text = text[error.end :]
            else:
                return tokens + self._tokenize_valid(text, special=special)
        return tokens

    def _tokenize_valid(self, text: bytes, *, special: bool) -> list[int]:
        handle = self._handle
        if handle is None:
            raise ValueError(f"{self.model_name} was closed")
        if not text:
            return []
        # Some families split text with std::regex, which recurses once a character of a match: some
        # 25 000 letters without a space overflow the usual stack. A match spans two runs at most.
        longest = max(match.end() - match.start() for match in _RUN.finditer(text))
        if longest <= _SHORT_RUN:
            return capi.tokenize(handle, text, special=special)
        stack = 2 * longest * _STACK_PER_BYTE + 2**24
        if stack > _MAX_STACK:
            raise ValueError(f"text with a run of {longest} bytes without a space cannot be tokenized")
        return _with_stack(stack, lambda: capi.tokenize(handle, text, special=special))

    def _byte_id(self, byte: int) -> int:
        token = self._byte_ids.get(byte)
        if token is None:
            raise ValueError(f"the vocabulary of {self.model_name} cannot spell the byte 0x{byte:02x}")
        return token

    # ---------------------------------------------------------------------------------------- caches

    @functools.cached_property
    def _special_ids(self) -> dict[bytes, int]:
        mask = TokenAttribute.CONTROL | TokenAttribute.USER_DEFINED
        found: dict[bytes, int] = {}
        for token, attributes in enumerate(self._attributes):
            if attributes & mask:
                found.setdefault(self._pieces[token], token)
        return found

    @functools.cached_property
    def _byte_ids(self) -> dict[int, int]:
        """One token for each byte; a fallback token where there is one."""
        found: dict[int, int] = {}
        for token, piece in enumerate(self._pieces):
            if (
                len(piece) == 1
                and (self.is_byte(token) or piece[0] not in found)
                and not self.is_control(token)
            ):
                found[piece[0]] = token
        return found

    def _checked(self, token: int) -> int:
        if not 0 <= token < self._n_tokens:
            raise ValueError(f"token {token} is outside the vocabulary of {self._n_tokens}")
        return token

    @staticmethod
    def _optional(token: int) -> int | None:
        return token if token >= 0 else None


def check_draft_vocab(target: Vocab, draft: Vocab) -> None:
    """Checks that the draft's tokens are the target's, so that its ids can be proposed as they are.

    The two must agree, by bytes and by end-of-generation, on every id from 5 on; one may have up to 128
    ids more than the other (padding). The rule is llama.cpp's own for speculative decoding.

    Raises VocabMismatchError, naming the first id that differs.
    """
    hint = "use a draft of the same family as the target"
    names = f"the draft {draft.model_name} does not fit the target {target.model_name}"
    if abs(target.n_tokens - draft.n_tokens) > _MAX_SIZE_DIFFERENCE:
        raise VocabMismatchError(f"{names}: {draft.n_tokens} tokens against {target.n_tokens}", hint=hint)
    ours, theirs = target.pieces(), draft.pieces()
    shared = range(_FIRST_COMPARED, min(target.n_tokens, draft.n_tokens))
    differing = next((token for token in shared if ours[token] != theirs[token]), None)
    if differing is not None:
        raise VocabMismatchError(
            f"{names}: token {differing} is {theirs[differing]!r} in the draft, "
            f"{ours[differing]!r} in the target",
            hint=hint,
        )
    for what, of in (("an end of generation", _is_end), ("a control token", Vocab.is_control)):
        differing = next((token for token in shared if of(target, token) != of(draft, token)), None)
        if differing is not None:
            side = "target" if of(target, differing) else "draft"
            raise VocabMismatchError(
                f"{names}: token {differing} ({ours[differing]!r}) is {what} in the {side} only", hint=hint
            )


def _is_end(vocab: Vocab, token: int) -> bool:
    return token in vocab.end_ids


_stack_lock = threading.Lock()


def _with_stack(size: int, work: Callable[[], T]) -> T:
    """Runs `work` in a thread with a stack of `size` bytes (address space; only what is used is real)."""
    result: list[T] = []
    with _stack_lock:  # the size is a setting of the process
        before = threading.stack_size(size)
        try:
            thread = threading.Thread(target=lambda: result.append(work()), name="agentspec-tokenize")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return result[0]
