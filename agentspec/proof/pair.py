"""Model files to a pair that can be put to a proof: its own contexts, and prompts with their grammars.

It must not know how a proof is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agentspec.config import RuntimeOptions
from agentspec.drafts.base import Draft
from agentspec.drafts.grammar import GrammarDraft
from agentspec.engine.draft_model import open_model_draft
from agentspec.engine.request import Request
from agentspec.grammar.reply import compile_json, follow_json
from agentspec.grammar.tokenizer import GrammarTokenizer
from agentspec.llama import Context, Model, Vocab
from agentspec.proof.contexts import PROMPTS, Prompt
from agentspec.proof.prove import Pair
from agentspec.types import Matcher

__all__ = ["open_pair"]

_SLOTS = 32  # replies at once
_PASS = 60  # tokens: from 64 a pass on, llama.cpp's attention on a CPU is another kernel, with other digits


@contextlib.contextmanager
def open_pair(
    target: Path,
    draft: Path | None,
    *,
    options: RuntimeOptions,
    draft_options: RuntimeOptions,
    reply: int,
) -> Iterator[Pair]:
    """Loads the models, and frees them at the end.

    draft: None for a pair of which only the grammar drafts: then there are only prompts that have one
    reply: most tokens of a reply

    Raises ModelError and ConfigError as `Model.load` and `Context` do.
    """
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(Model.load(target, options))
        requests = _requests(model.vocab, free=draft is not None)
        n_ctx = _SLOTS * (max(len(request.prompt) for request in requests) + reply)
        n_ctx = min(n_ctx, model.n_ctx_train or n_ctx)  # with less room, fewer replies share a pass
        options = options.model_copy(update={"n_batch": _PASS})
        context = stack.enter_context(Context(model, n_ctx, n_slots=_SLOTS, options=options, n_outputs=_PASS))
        drafts: list[Draft] = [GrammarDraft(model.vocab.token_bytes)]
        if draft is not None:
            small = open_model_draft(model, draft, options=draft_options, n_ctx=n_ctx, n_slots=_SLOTS)
            drafts.append(stack.enter_context(small))
        yield Pair(context, model.vocab, drafts, requests)


def _requests(vocab: Vocab, *, free: bool) -> list[Request]:
    """The prompts as requests; free: also those that go on in free text."""
    tokenizer = GrammarTokenizer(vocab)
    return [_request(prompt, vocab, tokenizer) for prompt in PROMPTS if free or prompt.schema is not None]


def _request(prompt: Prompt, vocab: Vocab, tokenizer: GrammarTokenizer) -> Request:
    """The prompt, with what the grammar fixes at the start of the reply: its first token is then a choice."""
    tokens = vocab.tokenize(prompt.text.encode(), special=False)
    if vocab.add_bos and vocab.bos_id is not None:
        tokens.insert(0, vocab.bos_id)
    matcher = _matcher(prompt, vocab, tokenizer)
    if matcher is not None:
        opening = max(matcher.forced(), matcher.guess(), key=len)
        for token in opening:
            matcher.advance(token)
        tokens += opening
    return Request(tuple(tokens), matcher, prompt.law)


def _matcher(prompt: Prompt, vocab: Vocab, tokenizer: GrammarTokenizer) -> Matcher | None:
    if prompt.schema is None:
        return None
    if prompt.law == "propose":
        end = vocab.eos_id if vocab.eot_id is None else vocab.eot_id
        return follow_json(tokenizer, prompt.schema, end=end).start()
    return compile_json(tokenizer, prompt.schema, spelling=prompt.law.removeprefix("enforce:")).start()
