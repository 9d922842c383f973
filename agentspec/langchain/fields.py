"""The fields that every model here has, and the runtime that comes of them.

Defaults and help texts are those of `agentspec.config`; only the types are said again, for type checkers and
editors. It must not know calls or messages, nor which of LangChain's bases a model has.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, Field, PrivateAttr

from agentspec.config import (
    BUILT_IN_SOURCES,
    DEFAULT_DRAFT,
    DEFAULT_MODEL,
    ContextOptions,
    DraftOptions,
    GenerationOptions,
    KvType,
    LawOptions,
    RuntimeOptions,
    SamplingOptions,
    TraceOptions,
)
from agentspec.drafts.plugins import DraftPlugin, check_sources
from agentspec.errors import ConfigError
from agentspec.langchain.options import (
    CALL_OPTIONS,
    MODEL_OPTIONS,
    CallOptions,
    check_names,
    given,
    inherit,
    only,
    parse,
)

if TYPE_CHECKING:
    from agentspec.engine.loading import RuntimeSpec
    from agentspec.engine.runtime import Runtime

__all__ = ["ConfiguredModel"]


class _Runtimes:
    """The runtimes a model has opened. Copies of the model share them; a pickle starts without."""

    def __init__(self) -> None:
        self.given: Runtime | None = None
        self.opened: dict[RuntimeSpec, Runtime] = {}

    def __deepcopy__(self, memo: object) -> _Runtimes:
        return self

    def __reduce__(self) -> tuple[type[_Runtimes], tuple[()]]:
        return (_Runtimes, ())


class ConfiguredModel(BaseModel):
    """A model that is configured, and loads nothing until it is asked to.

    To be mixed in before the base of LangChain's that says what kind of model it is.
    """

    model: str = Field(
        default_factory=lambda: os.environ.get("AGENTSPEC_MODEL") or DEFAULT_MODEL,
        description="The target: a catalogue name, a path to a GGUF, or 'hf:owner/repo/file.gguf'. The "
        "environment's AGENTSPEC_MODEL, where it is set.",
    )
    draft: str | None = Field(
        default="auto",
        description="The draft model, named likewise; None for none. 'auto' is the default pair's draft "
        "beside the default model, and none beside others.",
    )

    n_ctx: int = inherit(ContextOptions, "n_ctx")
    n_parallel: int = inherit(ContextOptions, "n_parallel")
    max_waiting: int = inherit(ContextOptions, "max_waiting")
    n_gpu_layers: int | Literal["auto"] = inherit(RuntimeOptions, "n_gpu_layers")
    main_gpu: int = inherit(RuntimeOptions, "main_gpu")
    split_mode: Literal["none", "layer", "row"] = inherit(RuntimeOptions, "split_mode")
    tensor_split: tuple[float, ...] | None = inherit(RuntimeOptions, "tensor_split")
    flash_attn: bool | Literal["auto"] = inherit(RuntimeOptions, "flash_attn")
    type_k: KvType = inherit(RuntimeOptions, "type_k")
    type_v: KvType = inherit(RuntimeOptions, "type_v")
    n_threads: int | None = inherit(RuntimeOptions, "n_threads")
    n_batch: int = inherit(RuntimeOptions, "n_batch")
    lora: tuple[str | dict[str, Any], ...] = inherit(RuntimeOptions, "lora")
    use_extra_bufts: bool | Literal["auto"] = inherit(RuntimeOptions, "use_extra_bufts")
    draft_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the draft's own, such as {'n_gpu_layers': 0}; the others are the target's, "
        "but for its LoRA adapters.",
    )
    snapshots: Literal["disk", "off"] = Field(
        default="disk",
        description="Whether the KV state of instructions and tools is kept in the cache folder, so that a "
        "new process need not compute it again.",
    )
    history: Literal["disk", "memory", "off"] = Field(
        default="disk",
        description="Where earlier replies are kept for the history draft: on disk across runs (the text of "
        "replies, readable by this user alone), in memory, or nowhere.",
    )
    calibration: str = Field(
        default="online",
        description="How drafts are calibrated: 'online' learns from every reply how bold they should be, "
        "and keeps it (counts, no text) in the cache folder; 'memory' forgets it with the process; 'off' "
        "takes them as they are; a path is that of a file that `agentspec calibrate` wrote.",
    )
    draft_plugins: Mapping[str, DraftPlugin] = Field(
        default_factory=dict,
        exclude=True,
        description="Draft sources of your own, by name: callables, such as classes, that take an "
        "agentspec.drafts.plugins.DraftContext. They are used unless draft_sources says otherwise.",
    )

    temperature: float = inherit(SamplingOptions, "temperature")
    logit_bias: Mapping[int, float] = inherit(SamplingOptions, "logit_bias")
    repeat_penalty: float = inherit(SamplingOptions, "repeat_penalty")
    frequency_penalty: float = inherit(SamplingOptions, "frequency_penalty")
    presence_penalty: float = inherit(SamplingOptions, "presence_penalty")
    repeat_last_n: int = inherit(SamplingOptions, "repeat_last_n")
    top_k: int = inherit(SamplingOptions, "top_k")
    typical_p: float = inherit(SamplingOptions, "typical_p")
    top_p: float = inherit(SamplingOptions, "top_p")
    min_p: float = inherit(SamplingOptions, "min_p")
    max_tokens: int = inherit(GenerationOptions, "max_tokens")
    stop: tuple[str, ...] = inherit(GenerationOptions, "stop")
    seed: int | None = inherit(GenerationOptions, "seed")
    timeout: float | None = inherit(GenerationOptions, "timeout")
    logprobs: bool = inherit(GenerationOptions, "logprobs")
    grammar: Literal["enforce", "propose", "off"] = inherit(LawOptions, "grammar")
    spelling: Literal["canonical", "any"] = inherit(LawOptions, "spelling")
    unsupported: Literal["superset", "error"] = inherit(LawOptions, "unsupported")
    max_resamples: int = inherit(LawOptions, "max_resamples")
    draft_sources: tuple[str, ...] = inherit(DraftOptions, "sources")
    draft_temperature: float | None = inherit(DraftOptions, "draft_temperature")
    agent: str = inherit(DraftOptions, "agent")
    max_block: int = inherit(DraftOptions, "max_block")
    max_model_tokens: int = inherit(DraftOptions, "max_model_tokens")
    verifier: Literal["auto", "block", "token_wise", "seed_invariant"] = inherit(DraftOptions, "verifier")
    trace_path: str | None = inherit(TraceOptions, "trace_path")
    trace_top_k: int = inherit(TraceOptions, "trace_top_k")

    _runtimes: _Runtimes = PrivateAttr(default_factory=_Runtimes)

    # Hidden from type checkers, which then hold calls to the fields. LangChain's base ignores unknown names;
    # checking them here, outside pydantic's validators, lets ConfigError through as it is.
    if not TYPE_CHECKING:

        def __init__(self, **values: object) -> None:
            values = given(values)
            check_names(values, type(self).model_fields)
            type(self)._check_values(values)
            if plugins := values.get("draft_plugins"):
                values.setdefault("draft_sources", (*BUILT_IN_SOURCES, *plugins))
            super().__init__(**values)

        # pydantic makes one of its own for a class with private attributes, which would be the only one
        def model_post_init(self, context: object, /) -> None:
            super().model_post_init(context)

    @classmethod
    def from_runtime(cls, runtime: Runtime, **options: Any) -> Self:
        """A model on a runtime that is already open, whatever its `model` and runtime options say."""
        made = cls(**{**options, "model": runtime.name})
        made._runtimes.given = runtime
        return made

    @property
    def model_name(self) -> str:
        """`model`, under the name other chat models give it."""
        return self.model

    @classmethod
    def _check_values(cls, values: Mapping[str, Any]) -> None:
        """Raises ConfigError naming the option whose value cannot be used."""
        plugins = values.get("draft_plugins", {})
        if not isinstance(plugins, Mapping) or not all(map(callable, plugins.values())):
            raise ConfigError(
                f"draft_plugins is {plugins!r}",
                hint="give a dict of callables by name, such as {'mine': MyDraft}",
            )
        check_sources(CallOptions.parse(only(values, CALL_OPTIONS)).draft.sources, plugins)
        parse(ContextOptions, values)
        parse(RuntimeOptions, values)
        _draft_runtime(values, values.get("draft_options", {}))

    # -- what comes of them

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        options = sorted((MODEL_OPTIONS | CALL_OPTIONS) & type(self).model_fields.keys())
        names = ("model", "draft", "draft_options", "history", "snapshots", "calibration", *options)
        return self._values(names)

    def _runtime(self, model: str | None = None) -> Runtime:
        """The runtime of `model`, opened on first use."""
        runtimes = self._runtimes
        if runtimes.given is not None and model in (None, runtimes.given.name):
            return runtimes.given
        from agentspec.engine.loading import open_runtime  # here: it loads llama.cpp

        spec = self._spec(model or self.model)
        runtime = runtimes.opened[spec] = open_runtime(spec)  # the one that is open, unless it was closed
        return runtime

    def share_runtimes(self, other: ConfiguredModel) -> None:
        """From now on uses the models that the other has loaded, where its settings ask for the same."""
        self._runtimes = other._runtimes

    def close(self) -> None:
        """Frees the models this one has loaded. Others with equal settings used the same, and load anew."""
        while self._runtimes.opened:
            _, runtime = self._runtimes.opened.popitem()
            runtime.close()

    def _spec(self, model: str) -> RuntimeSpec:
        from agentspec.engine.loading import RuntimeSpec  # here: it loads llama.cpp

        draft = self.draft
        if draft == "auto":
            draft = DEFAULT_DRAFT if model == DEFAULT_MODEL else None
        values = self._values(MODEL_OPTIONS)
        return RuntimeSpec(
            model=model,
            draft=draft,
            n_ctx=self.n_ctx,
            n_parallel=self.n_parallel,
            max_waiting=self.max_waiting,
            target=parse(RuntimeOptions, values),
            draft_runtime=_draft_runtime(values, self.draft_options),
            history=self.history,
            snapshots=self.snapshots,
            calibration=self.calibration,
            plugins=tuple(sorted(self.draft_plugins.items(), key=lambda plugin: plugin[0])),
        )

    def _values(self, names: Iterable[str]) -> dict[str, object]:
        return {name: getattr(self, name) for name in names}


def _draft_runtime(values: Mapping[str, object], own: Mapping[str, object]) -> RuntimeOptions:
    """The draft's options: its own over the target's, whose adapters fit no other model."""
    if not isinstance(own, Mapping):
        raise ConfigError(f"draft_options is {own!r}", hint="give a dict, such as {'n_gpu_layers': 0}")
    shared = frozenset(RuntimeOptions.model_fields) - {"lora"}
    return RuntimeOptions.parse({**only(values, shared), **own})
