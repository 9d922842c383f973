"""Two model files to a running engine and what the chat layer needs beside it.

Nothing is loaded before `open_runtime`, and equal settings share one runtime for as long as anybody holds
it. It must not know messages or LangChain.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

from agentspec.calibration.traces import ReplyTrace, recorded
from agentspec.chat import formats
from agentspec.chat.formats import WireFormat, special_names
from agentspec.chat.literal import BREAK, LiteralText
from agentspec.chat.reasoning import NO_THOUGHT, Reasoning
from agentspec.chat.template import ChatTemplate, template_source
from agentspec.config import ContextOptions, RuntimeOptions, cache_dir
from agentspec.drafts.base import Draft
from agentspec.drafts.grammar import GrammarDraft
from agentspec.drafts.history import HistoryDraft
from agentspec.drafts.history_store import HistoryStore
from agentspec.drafts.lookup import LookupDraft
from agentspec.drafts.plugins import DraftContext, DraftPlugin, plugin_drafts
from agentspec.engine.core import Core
from agentspec.engine.cost import Costs
from agentspec.engine.draft_model import open_model_draft
from agentspec.engine.engine import Engine
from agentspec.engine.request import Request, Result
from agentspec.errors import TemplateError
from agentspec.grammar.matcher import Grammar
from agentspec.grammar.reply import compile_json, compile_reply, follow_json, follow_reply
from agentspec.grammar.text import Pattern, compile_pattern, follow_pattern
from agentspec.grammar.tokenizer import GrammarTokenizer, ReplyTokenizer
from agentspec.llama import Context, Model, Vocab
from agentspec.models.pull import ensure
from agentspec.prefix import common_prefix
from agentspec.snapshots import Snapshots, default_folder
from agentspec.types import (
    BoundTool,
    Json,
    Matcher,
    SystemTurn,
    ToolChoice,
    Turn,
    UserTurn,
    Vocabulary,
)

__all__ = ["Runtime", "RuntimeSpec", "open_runtime"]

G = TypeVar("G")

_GRAMMARS_KEPT = 64

_ROWS, _ROWS_EACH = 64, 9
"""Rows of logits that a pass can return: at least, and for each sequence. One of 150,000 is 1.2 MB."""

_OTHER_WORDS = "\N{REFERENCE MARK}"
"""What a user says whose words begin like nobody else's."""


@dataclass(frozen=True)
class RuntimeSpec:
    """What a runtime is made of; equal specs share one.

    model, draft: catalogue names, paths or "hf:owner/repo/file.gguf"; draft None runs without a draft model
    n_ctx:        tokens that all conversations together can hold
    n_parallel:   replies that can be generated at once
    max_waiting:  requests that may wait for their turn
    history:      where earlier replies are kept for the history draft
    plugins:      draft sources beside the built-in and the installed ones: (name, plugin) of each
    snapshots:    whether the state of prompts that conversations share is kept on disk
    ignore_costs: propose whatever is offered, whatever a pass takes: to measure what drafts know
    """

    model: str
    draft: str | None
    n_ctx: int = ContextOptions().n_ctx
    n_parallel: int = ContextOptions().n_parallel
    max_waiting: int = ContextOptions().max_waiting
    target: RuntimeOptions = field(default_factory=RuntimeOptions)
    draft_runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    chat_template: str | None = None
    wire_format: str | None = None
    history: Literal["disk", "memory", "off"] = "disk"
    plugins: tuple[tuple[str, DraftPlugin], ...] = ()
    snapshots: Literal["disk", "off"] = "disk"
    ignore_costs: bool = False


class Runtime:
    """An engine, its target's vocabulary and template, and the grammars compiled for it.

    template: the error that a chat is answered with where the model has none that works: completions go on
    """

    def __init__(
        self,
        *,
        name: str,
        engine: Engine,
        vocab: Vocabulary,
        template: ChatTemplate | TemplateError,
        wire_format: WireFormat | None,
        n_ctx: int,
        bos_id: int | None = None,
        turn_end_id: int | None = None,
        draft: str | None = None,
        fingerprint: str = "",
    ) -> None:
        self.name = name
        self._draft_name = draft
        self._fingerprint = fingerprint  # of the vocabulary
        self.engine = engine
        self.vocab = vocab
        self.n_ctx = n_ctx
        self.shown = frozenset() if isinstance(template, TemplateError) else _control_tokens(vocab, template)
        self._template = template
        self._format = wire_format
        self._bos_id = bos_id
        self._turn_end_id = turn_end_id
        self._grammars: OrderedDict[str, object] = OrderedDict()
        self._heads: OrderedDict[str, tuple[int, ...]] = OrderedDict()  # prompts that end in other words
        self._tokenizer: GrammarTokenizer | None = None
        self._lock = threading.Lock()

    @property
    def template(self) -> ChatTemplate:
        """How messages become a prompt. Raises TemplateError where the model cannot chat."""
        if isinstance(self._template, TemplateError):
            raise TemplateError(self._template.message, hint=self._template.hint) from self._template
        return self._template

    @property
    def format(self) -> WireFormat:
        """How calls are written. Raises TemplateError as `template`."""
        return self.template.wire_format if self._format is None else self._format

    @property
    def add_bos(self) -> bool:
        """Whether a prompt begins with the model's BOS token."""
        return self._bos_id is not None

    def render(self, turns: Sequence[Turn], tools: Sequence[BoundTool]) -> str:
        """The prompt of a conversation, for `tokenize_prompt`. Control tokens in it are the template's own:
        text of the conversation that spells one stays text. Raises TemplateError as `ChatTemplate.render`."""
        literal = self._literal_text
        return self.template.render([*map(literal.turn, turns)], [*map(literal.tool, tools)])

    @functools.cached_property
    def _literal_text(self) -> LiteralText:
        pieces, vocab = self.vocab.pieces(), self.vocab
        control = (i for i in range(len(pieces)) if not vocab.token_bytes(i) and vocab.is_special(i))
        return LiteralText({pieces[token].decode(errors="replace") for token in control})

    def tokenize_prompt(self, text: str) -> tuple[int, ...]:
        """A rendered prompt's token ids, with BOS where the model wants one and the text has none."""
        parts = text.split(BREAK)  # tokenized apart, they spell no control token
        tokens = [token for part in parts for token in self.vocab.tokenize(part.encode(), special=True)]
        if self._bos_id is not None and tokens[:1] != [self._bos_id]:
            tokens.insert(0, self._bos_id)
        return tuple(tokens)

    def tokenize_reply(self, data: bytes) -> list[int]:
        """Token ids of text as it is within a reply, without special tokens."""
        with self._lock:
            tokenizer = self._grammar_tokenizer()
        return tokenizer.tokenize(data)

    def stable_prefix(self, turns: Sequence[Turn], tools: Sequence[BoundTool], prompt: Sequence[int]) -> int:
        """How many of a prompt's first tokens other conversations with the same instructions and tools begin
        with too; 0 where it has neither.

        turns: those the prompt was made of
        """
        head = list(itertools.takewhile(lambda turn: isinstance(turn, SystemTurn), turns))
        if not head and not tools:
            return 0
        key = repr((head, [(tool.name, tool.description, tool.parameters) for tool in tools]))
        with self._lock:
            other = self._heads.get(key)
        if other is None:
            try:
                text = self.render([*head, UserTurn(_OTHER_WORDS)], tools)
            except TemplateError:
                other = ()  # it has no room for a conversation of one turn
            else:
                other = self.tokenize_prompt(text)
            with self._lock:
                self._heads[key] = other
                while len(self._heads) > _GRAMMARS_KEPT:
                    self._heads.popitem(last=False)
        return common_prefix(other, prompt)

    def reply_matcher(
        self,
        tools: Sequence[BoundTool],
        choice: ToolChoice,
        *,
        spelling: str,
        parallel: bool,
        reasoning: Reasoning = NO_THOUGHT,
        answer: Mapping[str, Json] | None = None,
    ) -> Matcher | None:
        """A matcher that binds a whole reply; None where every text is legal.

        answer: the schema of the document that a reply without calls has to be

        Raises SchemaError naming the tool whose schema cannot be enforced.
        """
        return self._start_any(
            ["reply", _shown(tools), repr(choice), parallel, spelling, reasoning.opening, answer],
            lambda tokenizer: compile_reply(
                tokenizer,
                self.format,
                tools,
                choice,
                spelling=spelling,
                parallel=parallel,
                reasoning=reasoning,
                answer=answer,
            ),
        )

    def reply_follower(
        self,
        tools: Sequence[BoundTool],
        choice: ToolChoice,
        *,
        parallel: bool,
        reasoning: Reasoning = NO_THOUGHT,
        answer: Mapping[str, Json] | None = None,
    ) -> Matcher | None:
        """A matcher that goes along with a reply and only proposes. None, and raises, as `reply_matcher`."""
        return self._start_any(
            ["follow reply", _shown(tools), repr(choice), parallel, reasoning.opening, answer],
            lambda tokenizer: follow_reply(
                tokenizer,
                self.format,
                tools,
                choice,
                end=self._turn_end_id,
                parallel=parallel,
                reasoning=reasoning,
                answer=answer,
            ),
        )

    def schema_matcher(
        self, schema: Mapping[str, Json], *, spelling: str, reasoning: Reasoning = NO_THOUGHT
    ) -> Matcher:
        """A matcher for a reply that is one JSON document fitting the schema. Raises SchemaError."""
        return self._start(
            ["schema", schema, spelling, reasoning.opening],
            lambda tokenizer: compile_json(
                tokenizer, schema, spelling=spelling, reasoning=reasoning, channels=self.format.channels
            ),
        )

    def schema_follower(self, schema: Mapping[str, Json], *, reasoning: Reasoning = NO_THOUGHT) -> Matcher:
        """A matcher that goes along with such a reply and only proposes. Raises SchemaError."""
        return self._start(
            ["follow schema", schema, reasoning.opening],
            lambda tokenizer: follow_json(tokenizer, schema, end=self._turn_end_id, reasoning=reasoning),
        )

    def document_matcher(self, schema: Mapping[str, Json], *, spelling: str) -> Matcher:
        """As `schema_matcher`, for a completion, which has no reasoning and no channels."""
        return self._start(
            ["document", schema, spelling],
            lambda tokenizer: compile_json(tokenizer, schema, spelling=spelling),
        )

    def pattern_matcher(self, pattern: Pattern, *, spelling: str) -> Matcher:
        """A matcher for a reply that matches a pattern. Raises ConfigError for one that is not sound."""
        return self._start(
            [pattern.kind, pattern.text, spelling],
            lambda tokenizer: compile_pattern(tokenizer, pattern, spelling=spelling),
        )

    def pattern_follower(self, pattern: Pattern) -> Matcher:
        """A matcher that goes along with such a reply and only proposes. Raises ConfigError likewise."""
        return self._start(
            ["follow", pattern.kind, pattern.text],
            lambda tokenizer: follow_pattern(tokenizer, pattern, end=self._turn_end_id),
        )

    def trace_of(self, request: Request, result: Result) -> ReplyTrace:
        """What a trace file holds of a reply that was recorded."""
        assert result.recording is not None
        return ReplyTrace(
            model=self.name,
            draft=self._draft_name,
            vocab=self._fingerprint,
            law=request.law,
            sampling=request.sampling.model_dump(mode="json", exclude_defaults=True),
            tool_set=request.tool_set,
            agent=request.draft.agent,
            prompt=list(request.prompt),
            finish_reason=result.finish_reason,
            **recorded(result.recording),
        )

    def close(self) -> None:
        """Ends the engine and frees both models. Replies under way fail with EngineClosedError."""
        self.engine.close()

    def _start(self, key: Sequence[Json], compiled: Callable[[GrammarTokenizer], Grammar]) -> Matcher:
        """A matcher of the grammar that is kept under `key`, or of the one compiled now."""
        return self._kept(key, compiled).start()

    def _start_any(
        self, key: Sequence[Json], compiled: Callable[[GrammarTokenizer], Grammar | None]
    ) -> Matcher | None:
        """As `_start`; None where there is nothing to match."""
        grammar = self._kept(key, compiled)
        return None if grammar is None else grammar.start()

    def _kept(self, key: Sequence[Json], compiled: Callable[[GrammarTokenizer], G]) -> G:
        name = json.dumps(key)
        with self._lock:
            if name not in self._grammars:
                self._grammars[name] = compiled(self._grammar_tokenizer())
                while len(self._grammars) > _GRAMMARS_KEPT:
                    self._grammars.popitem(last=False)
            self._grammars.move_to_end(name)
            return cast(G, self._grammars[name])  # a key says which of the methods above it is of

    def _grammar_tokenizer(self) -> GrammarTokenizer:
        if self._tokenizer is None:
            self._tokenizer = GrammarTokenizer(self.vocab)
        return self._tokenizer


_OPEN: weakref.WeakValueDictionary[RuntimeSpec, Runtime] = weakref.WeakValueDictionary()
_LOADING: dict[RuntimeSpec, threading.Lock] = {}
_GUARD = threading.Lock()  # of both, and never held for long


def open_runtime(spec: RuntimeSpec) -> Runtime:
    """The runtime of a spec: the one in use, or a new one. Missing catalogue models are pulled.

    Raises ModelError (no such file, not a GGUF, a draft that does not fit, ...), ConfigError (an option
    that does not fit this machine or model). A model whose chat template does not work is opened: only chats
    with it raise TemplateError.
    """
    with _GUARD:
        loading = _LOADING.setdefault(spec, threading.Lock())
    with loading:  # two threads that ask for the same models must not load them twice
        with _GUARD:
            runtime = _OPEN.get(spec)
        if runtime is None or runtime.engine.closed:
            runtime = _load(spec)
            with _GUARD:
                _OPEN[spec] = runtime
    return runtime


def _load(spec: RuntimeSpec) -> Runtime:
    with contextlib.ExitStack() as stack:
        target_path = ensure(spec.model)
        draft_path = None if spec.draft is None else ensure(spec.draft)
        target = stack.enter_context(Model.load(target_path, spec.target))
        vocab = target.vocab
        wire = formats.by_name(spec.wire_format) if spec.wire_format else None
        template = _chat_template(target, spec.chat_template, wire)
        context = stack.enter_context(
            Context(
                target,
                n_ctx=spec.n_ctx,
                n_slots=spec.n_parallel,
                options=spec.target,
                n_outputs=max(_ROWS, _ROWS_EACH * spec.n_parallel),
            )
        )
        drafts = _cheap_drafts(vocab, spec)
        open_snapshots = functools.partial(_open_snapshots, spec, stack)
        if draft_path is not None:
            draft = open_model_draft(
                target,
                draft_path,
                options=spec.draft_runtime,
                n_ctx=spec.n_ctx,
                n_slots=spec.n_parallel,
                open_snapshots=open_snapshots,
            )
            drafts.append(stack.enter_context(draft))
        core = Core(
            context,
            vocab,
            drafts,
            costs=Costs.free() if spec.ignore_costs else None,
            snapshots=open_snapshots(context),
        )
        freeing = stack.pop_all()  # from here on the engine's thread frees the models
    return Runtime(
        name=spec.model,
        engine=Engine(core, max_waiting=spec.max_waiting, on_close=freeing.close),
        vocab=vocab,
        template=template,
        wire_format=wire,
        n_ctx=context.n_ctx,
        bos_id=vocab.bos_id if vocab.add_bos else None,
        turn_end_id=vocab.eos_id if vocab.eot_id is None else vocab.eot_id,
        draft=spec.draft,
        fingerprint=vocab.fingerprint,
    )


def _chat_template(
    target: Model, chosen: str | None, wire: WireFormat | None
) -> ChatTemplate | TemplateError:
    vocab = target.vocab
    bos, eos = _spelling(vocab, vocab.bos_id), _spelling(vocab, vocab.eos_id)
    ends = [_spelling(vocab, token) for token in sorted(vocab.end_ids)]
    try:
        source = template_source(target.chat_template, chosen)
        return ChatTemplate(source, bos=bos, eos=eos, ends=ends, wire_format=wire)
    except TemplateError as error:
        return error


def _open_snapshots(spec: RuntimeSpec, stack: contextlib.ExitStack, context: Context) -> Snapshots | None:
    """The stored states for a context; what is still being written is waited for at the end."""
    if spec.snapshots == "off" or not context.can_snapshot:
        return None
    snapshots = Snapshots(default_folder(), context.fingerprint, model=context.model.name)
    stack.callback(snapshots.close)
    return snapshots


def _cheap_drafts(vocab: Vocab, spec: RuntimeSpec) -> list[Draft]:
    tokenizer = ReplyTokenizer(vocab)
    store = None
    if spec.history == "disk":
        store = HistoryStore(cache_dir() / "history", fingerprint=vocab.fingerprint)
    drafts: list[Draft] = [GrammarDraft(vocab.token_bytes)]
    if spec.history != "off":
        drafts.append(HistoryDraft(vocab.token_bytes, store))
    drafts.append(LookupDraft(vocab.token_bytes, tokenizer.tokenize))
    return drafts + plugin_drafts(DraftContext(vocab, tokenizer.tokenize), dict(spec.plugins))


def _shown(tools: Sequence[BoundTool]) -> list[Json]:
    """What a grammar depends on in tools."""
    return [{"name": tool.name, "parameters": tool.parameters} for tool in tools]


def _control_tokens(vocab: Vocabulary, template: ChatTemplate) -> frozenset[int]:
    """Those that mark calls and reasoning: what parses a reply looks for their spelling."""
    texts = template.wire_format.texts
    if template.marks is not None:
        texts = (*texts, template.marks.begin, template.marks.end)
    found = {vocab.special_id(name) for text in texts for name in special_names(text)}
    return frozenset(token for token in found if token is not None and token not in vocab.end_ids)


def _spelling(vocab: Vocab, token: int | None) -> str:
    return "" if token is None else vocab.token_text(token).decode()
