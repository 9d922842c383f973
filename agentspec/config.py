"""Every option and its default: the one home of both.

The classes are closed (an unknown name is an error) and frozen. What needs a model to decide, such as the
number of GPU layers under "auto", is decided in `agentspec.llama`; this module must not know how.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentspec.errors import ConfigError

__all__ = [
    "BUILT_IN_SOURCES",
    "DEFAULT_DRAFT",
    "DEFAULT_MODEL",
    "ContextOptions",
    "DraftOptions",
    "GenerationOptions",
    "LawOptions",
    "LoraOptions",
    "Options",
    "ProofOptions",
    "RuntimeOptions",
    "SamplingOptions",
    "ToolOptions",
    "TraceOptions",
    "available_cpus",
    "cache_dir",
]

DEFAULT_MODEL = "qwen2.5-coder-1.5b-instruct"
DEFAULT_DRAFT = "qwen2.5-coder-0.5b-instruct"

BUILT_IN_SOURCES = ("grammar", "lookup", "history", "model")
"""The draft sources that come with the package, as they are named in options."""

KvType = Literal["f16", "bf16", "f32", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]


class Options(BaseModel):
    """Base of all option classes: frozen, and closed to unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Self:
        """Builds the options from a mapping.

        Raises ConfigError that names each bad option and, for an unknown one, the nearest known name.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(cls._explain(error), hint=cls._hint(error)) from error

    @classmethod
    def _explain(cls, error: ValidationError) -> str:
        lines = []
        for item in error.errors():
            name = ".".join(str(part) for part in item["loc"]) or cls.__name__
            if item["type"] == "extra_forbidden":
                near = difflib.get_close_matches(name, cls.model_fields, n=1)
                guess = f"; did you mean {near[0]!r}?" if near else ""
                lines.append(f"unknown option {name!r}{guess}")
            else:
                lines.append(f"option {name!r}: {item['msg']} (got {item['input']!r})")
        return "; ".join(lines)

    @classmethod
    def _hint(cls, error: ValidationError) -> str:
        if any(item["type"] == "extra_forbidden" for item in error.errors()):
            return "known options: " + ", ".join(sorted(cls.model_fields))
        return ""


class LoraOptions(Options):
    """A LoRA adapter. A path alone stands for one at scale 1."""

    path: str = Field(description="A GGUF with an adapter for the model.")
    scale: float = Field(
        1.0, ge=-100.0, le=100.0, description="Factor of what it adds to the weights; 0 adds nothing."
    )

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, value: object) -> object:
        return {"path": os.fspath(value)} if isinstance(value, (str, Path)) else value


class RuntimeOptions(Options):
    """How llama.cpp runs one model. Target and draft each have their own."""

    n_gpu_layers: int | Literal["auto"] = Field(
        "auto",
        description="Layers to put on the GPU: a count, -1 for all, or 'auto' "
        "(all where the build has GPU support, none where it has not).",
    )
    main_gpu: int = Field(0, ge=0, description="The GPU that holds the model or its small tensors.")
    split_mode: Literal["none", "layer", "row"] = Field(
        "layer", description="How a model is split over several GPUs."
    )
    tensor_split: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        None, description="Share of the model on each GPU."
    )
    flash_attn: bool | Literal["auto"] = Field(
        "auto",
        description="Flash attention; 'auto' leaves it out on a CPU with n_parallel=1, where it is slower.",
    )
    type_k: KvType = Field("f16", description="Type of the K cache.")
    type_v: KvType = Field("f16", description="Type of the V cache.")
    n_threads: int | None = Field(
        None, ge=1, description="CPU threads; None for the CPUs this process may use."
    )
    n_batch: int = Field(512, ge=8, description="Tokens that one decode can take.")
    lora: tuple[LoraOptions, ...] = Field(
        (),
        description="LoRA adapters of the model: paths of GGUF files, or {'path': ..., 'scale': ...}.",
    )
    use_extra_bufts: bool | Literal["auto"] = Field(
        "auto",
        description="CPU weight repacking (AMX and others); 'auto' probes once whether this build "
        "survives it.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.n_gpu_layers, int) and self.n_gpu_layers < -1:
            raise ValueError("n_gpu_layers must be -1 (all), 0 (none), a positive count or 'auto'")
        if self.type_v not in ("f16", "bf16", "f32") and self.flash_attn is False:
            raise ValueError(f"type_v={self.type_v!r} needs flash attention; leave flash_attn on")
        return self


class ContextOptions(Options):
    """The context that target and draft share out among their slots."""

    n_ctx: int = Field(
        8192, ge=64, description="Tokens that all sequences together can hold; what they share counts once."
    )
    n_parallel: int = Field(
        4,
        ge=1,
        le=255,
        description="Sequences that can be held at once. 1 is fastest for one agent at a time on a CPU.",
    )
    max_waiting: int = Field(
        1024, ge=1, description="Requests that may wait for a sequence; one more is refused."
    )


class SamplingOptions(Options):
    """The sampler chain, applied to target and draft rows alike, in this order:

    mask, logit bias, penalties, top-k, typical, top-p, min-p, temperature, normalise (llama.cpp's default
    chain with the mask first).
    """

    temperature: float = Field(
        0.0, ge=0.0, le=100.0, description="0 is greedy: the most likely token, lowest id on ties."
    )
    logit_bias: Mapping[int, float] = Field(
        default={},
        description="Added to the logits of these token ids; -inf rules a token out.",
    )
    repeat_penalty: float = Field(
        1.0, ge=0.01, le=100.0, description="Divides the positive logits of recent tokens; 1 is off."
    )
    frequency_penalty: float = Field(
        0.0, ge=-100.0, le=100.0, description="Taken off a token's logit once for each recent occurrence."
    )
    presence_penalty: float = Field(
        0.0, ge=-100.0, le=100.0, description="Taken off the logit of every recent token."
    )
    repeat_last_n: int = Field(
        64, ge=-1, description="How many tokens, prompt included, are recent to the penalties; -1 for all."
    )
    top_k: int = Field(0, ge=0, description="Keep the k most likely tokens; 0 keeps all.")
    typical_p: float = Field(
        1.0, gt=0.0, le=1.0, description="Keep the most typical tokens up to this mass; 1 keeps all."
    )
    top_p: float = Field(
        1.0, gt=0.0, le=1.0, description="Keep the smallest set with this mass; 1 keeps all."
    )
    min_p: float = Field(
        0.0, ge=0.0, le=1.0, description="Drop tokens below this share of the top one; 0 drops none."
    )

    @field_validator("logit_bias")
    @classmethod
    def _bias_can_be_added(cls, bias: Mapping[int, float]) -> Mapping[int, float]:
        for token, value in bias.items():
            if not 0 <= token < 2**31:
                raise ValueError(f"{token} is not a token id")
            if not (abs(value) <= 1e6 or value == -math.inf):
                raise ValueError(f"the bias of token {token} is {value}; give -1e6 to 1e6, or -inf")
        return bias

    @property
    def penalises(self) -> bool:
        """Whether the law depends on which tokens came before, beyond the logits."""
        neutral = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) == (1.0, 0.0, 0.0)
        return not neutral and self.repeat_last_n != 0


class LawOptions(Options):
    """The law of the reply: what 'exact' is exact with respect to. Never a property of the drafts."""

    grammar: Literal["enforce", "propose", "off"] = Field(
        "enforce",
        description="'enforce' masks the target to the grammar; 'propose' leaves it free, and the grammar "
        "only drafts; 'off' knows no grammar (under these two, calls are checked afterwards).",
    )
    spelling: Literal["canonical", "any"] = Field(
        "canonical",
        description="Under 'enforce': whether fixed text must be spelled in its canonical tokens, or in any.",
    )
    unsupported: Literal["superset", "error"] = Field(
        "superset",
        description="What becomes of a schema that a grammar cannot enforce whole (uniqueItems, not, "
        "look-around in a pattern, ...): 'superset' enforces as much as it can, and a reply that does not "
        "fit the rest is sampled again; 'error' refuses it.",
    )
    max_resamples: int = Field(
        3,
        ge=0,
        description="Under 'enforce': how often a reply that is whole, and does not fit its schema all the "
        "same, is sampled again. At temperature 0 it would be the same, and is not.",
    )


class DraftOptions(Options):
    """What proposes tokens, and how many."""

    sources: tuple[str, ...] = Field(
        BUILT_IN_SOURCES,
        description="The draft sources to use, of those available; () decodes one token a pass.",
    )
    max_block: int = Field(24, ge=1, le=256, description="Most tokens that one target pass may verify.")
    max_model_tokens: int = Field(
        12, ge=1, le=64, description="Most tokens of one block that the draft model may propose."
    )
    draft_temperature: float | None = Field(
        None,
        gt=0.0,
        le=100.0,
        description="Temperature that drafts make their laws with; None for that of the reply's law, which "
        "is best but for drafts that are wrongly sure of themselves. Calibration starts from it.",
    )
    agent: str = Field(
        "",
        description="Keeps what is learned from earlier replies apart: agents that share tools but not "
        "habits, or must not see each other's text, get names of their own.",
    )
    verifier: Literal["auto", "block", "token_wise", "seed_invariant"] = Field(
        "auto",
        description="How proposals are verified; each is exact. 'block' accepts most. 'seed_invariant' makes "
        "a seed give the same text whatever is proposed. 'auto' is 'seed_invariant' where a seed is given, "
        "and 'block' where none is.",
    )

    @property
    def skips_forced(self) -> bool:
        """Whether forced tokens come without a pass of their own: what the grammar draft is."""
        return "grammar" in self.sources


class GenerationOptions(Options):
    """Where a reply ends, and its seed."""

    max_tokens: int = Field(1024, ge=1, description="Most tokens of a reply.")
    stop: tuple[str, ...] = Field((), description="Strings that end a reply; they are cut off it.")
    seed: int | None = Field(
        None, ge=0, lt=2**64, description="Seed of the reply's randomness; None draws a new one."
    )
    timeout: float | None = Field(
        None,
        ge=0.0,
        description="Most seconds a reply may take, waiting included, looked at between passes; "
        "None for no limit.",
    )
    logprobs: bool = Field(
        False,
        description="Whether to return each token's log-probability under the law of the reply, those of the "
        "end token and of a stop string included.",
    )

    @field_validator("stop")
    @classmethod
    def _stops_can_occur(cls, stops: tuple[str, ...]) -> tuple[str, ...]:
        for stop in stops:
            if not stop:
                raise ValueError("a stop string must not be empty")
            try:
                stop.encode()
            except UnicodeEncodeError:
                raise ValueError(f"the stop string {stop!r} is not valid Unicode") from None
        return stops


class ToolOptions(Options):
    """How many calls a reply may make."""

    parallel_tool_calls: bool = Field(
        False,
        description="Whether one reply may hold several calls. Small models that may, repeat themselves.",
    )
    stream_tool_calls: Literal["whole", "incremental"] = Field(
        "whole",
        description="Whether a stream gives each call when it is complete and checked, or its arguments "
        "while they are written; what follows them makes a call invalid that turns out to be.",
    )


class TraceOptions(Options):
    """What is written down of replies."""

    trace_path: str | None = Field(
        None,
        description="A file that each reply adds a line to: its tokens, who proposed them and what became of "
        "it (trace.v1, JSON lines). It holds prompts and replies as token ids. None writes nothing.",
    )
    trace_top_k: int = Field(
        0,
        ge=0,
        le=1000,
        description="How many of the most likely tokens of each law, the target's and the draft's, go into "
        "trace_path at every position: what a draft is trained on.",
    )

    @property
    def recorded(self) -> int | None:
        """What `agentspec.engine.request.Request` takes."""
        return None if self.trace_path is None else self.trace_top_k


class ProofOptions(Options):
    """What `agentspec prove` compares, and how much of it: that decides how small a difference is found."""

    samples: int = Field(4000, ge=500, description="Sampled continuations with drafts, and as many without.")
    tokens: int = Field(
        3, ge=2, le=16, description="Tokens of each; twice as many where a grammar fixes some of them."
    )
    temperature: float = Field(1.0, gt=0.0, le=100.0, description="Temperature of the sampled ones.")
    greedy_prompts: int = Field(12, ge=0, le=12, description="Prompts whose greedy replies are compared.")
    greedy_tokens: int = Field(48, ge=1, le=512, description="Most tokens of a greedy reply.")
    alpha: float = Field(
        1e-4,
        ge=1e-4,
        le=0.5,
        description="Probability of a false alarm: of finding a difference between equal laws.",
    )
    seed: int = Field(0, ge=0, description="Seed of the samples and of the test.")

    @property
    def longest(self) -> int:
        """Tokens of the longest reply."""
        return max(2 * self.tokens, self.greedy_tokens)


def cache_dir() -> Path:
    """Where models, wheels and probes are kept: $AGENTSPEC_CACHE, or the platform's cache folder."""
    override = os.environ.get("AGENTSPEC_CACHE")
    if override:
        return Path(override).expanduser()
    import platformdirs  # here: only commands that touch the disk need it

    return Path(platformdirs.user_cache_dir("agentspec", appauthor=False))


def available_cpus() -> int:
    """CPUs this process may use: its affinity mask, bounded by the cgroup's quota."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        count = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup v2: the affinity mask is all there is to know
    return max(1, count)
