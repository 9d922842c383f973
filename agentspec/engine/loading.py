"""Two model files to a runtime.

Nothing is loaded before `open_runtime`, and equal settings share one runtime for as long as anybody holds it.
It must not know messages or LangChain.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agentspec.calibration.calibrator import Calibrator
from agentspec.calibration.files import CalibrationStore, read_calibration
from agentspec.chat import formats
from agentspec.chat.formats import WireFormat
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
from agentspec.engine.runtime import Runtime
from agentspec.errors import TemplateError
from agentspec.grammar.tokenizer import ReplyTokenizer
from agentspec.llama import Context, Model, Vocab
from agentspec.models.pull import ensure
from agentspec.snapshots import Snapshots, default_folder

__all__ = ["RuntimeSpec", "open_runtime"]

_ROWS, _ROWS_EACH = 64, 9
"""Rows of logits that a pass can return: at least, and for each sequence. One of 150,000 is 1.2 MB."""


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
    calibration:  "online", "off", or the path of a calibration.v1 file; "memory" is "online" without a file
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
    calibration: str = "online"


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
        calibrator, store = _calibration(spec, vocab)
        core = Core(
            context,
            vocab,
            drafts,
            costs=Costs.free() if spec.ignore_costs else None,
            snapshots=open_snapshots(context),
            calibrator=calibrator,
            calibration_store=store,
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


def _calibration(spec: RuntimeSpec, vocab: Vocab) -> tuple[Calibrator, CalibrationStore | None]:
    """What is known of the drafts, and where more of it is kept. Raises CalibrationError for a file that was
    asked for and cannot be used."""
    match spec.calibration:
        case "off":
            return Calibrator(neutral=True), None
        case "memory":
            return Calibrator(), None
        case "online":
            folder = cache_dir() / "calibration"
            store = CalibrationStore(folder, model=spec.model, draft=spec.draft, vocab=vocab.fingerprint)
            return store.load(), store
        case path:
            return read_calibration(Path(path), vocab=vocab.fingerprint).calibrator(adapts=False), None


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


def _spelling(vocab: Vocab, token: int | None) -> str:
    return "" if token is None else vocab.token_text(token).decode()
