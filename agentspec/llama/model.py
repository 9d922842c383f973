"""A loaded GGUF: its weights, its vocabulary and what its header says.

`Model.load` decides what "auto" options mean on this machine and refuses what cannot be decoded token by
token. It must not know requests or drafts. A model may be shared by several contexts and threads; closing
it closes its contexts first.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from agentspec.config import RuntimeOptions
from agentspec.errors import BackendError, ConfigError, ModelError, UnsupportedModelError
from agentspec.llama import capi, library, probe
from agentspec.llama.adapters import load_adapters, read_adapters
from agentspec.llama.capi import AdapterHandle, ModelHandle, ModelSettings
from agentspec.llama.gguf import GgufFile, Integers, Scalar, read_gguf
from agentspec.llama.vocab import Vocab

__all__ = ["Closeable", "Model"]

_REBUILD_GPU = (
    "set n_gpu_layers to 0 or 'auto', or rebuild llama-cpp-python with GPU support: "
    "AGENTSPEC_BACKEND=cuda make ... in a checkout, or CMAKE_ARGS='-DGGML_CUDA=on' (-DGGML_METAL=on, "
    "-DGGML_VULKAN=on) pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python "
    "llama-cpp-python"
)


class Closeable(Protocol):
    """Something that must be closed before its model."""

    def close(self) -> None: ...


class Model:
    """A GGUF in memory. Made by `Model.load`; a context manager that closes itself."""

    def __init__(
        self,
        handle: ModelHandle,
        file: GgufFile,
        settings: ModelSettings,
        adapters: Sequence[tuple[AdapterHandle, float]] = (),
        adapter_files: Sequence[tuple[GgufFile, float]] = (),
    ) -> None:
        self._handle: ModelHandle | None = handle
        self._adapters = tuple(adapters)
        self._weights = [_identity(file), *(f"{_identity(one)}*{scale}" for one, scale in adapter_files)]
        self._file = file
        self._settings = settings
        self._vocab = Vocab(capi.model_vocab(handle), model_name=self.name)
        self._contexts: weakref.WeakSet[Closeable] = weakref.WeakSet()
        # from here on the handle is this object's to free, if it is only dropped;
        # not at exit: a thread may still be decoding then, and the system takes the memory back anyway
        self._free = weakref.finalize(self, _free, handle, self._vocab)
        self._free.atexit = False

    @classmethod
    def load(
        cls, path: str | Path, options: RuntimeOptions | None = None, *, vocab_only: bool = False
    ) -> Model:
        """Loads the GGUF at `path`.

        vocab_only: read the vocabulary and no weights: quick, and no context can be made of it

        The first load of a model with new options on a new machine or build first tries both in another
        process (`probe`); later ones remember the outcome.

        Raises ModelNotFoundError, ModelFormatError, UnsupportedModelError; BackendError where GPU work
        is asked of a build or machine without GPU; ConfigError on GPU options that do not fit the
        machine; ModelError where llama.cpp refuses the file for another reason, or an adapter.
        """
        options = options or RuntimeOptions()
        check_gpu_options(options)
        file = read_gguf(path)
        extra_bufts = False if vocab_only else probe.choose_extra_bufts(file, options)
        return cls.load_unprobed(file, options, extra_bufts=extra_bufts, vocab_only=vocab_only)

    @classmethod
    def load_unprobed(
        cls, file: GgufFile, options: RuntimeOptions, *, extra_bufts: bool, vocab_only: bool = False
    ) -> Model:
        """Loads without asking the probe: what the probe's own process does."""
        library.start()
        adapters = [] if vocab_only else read_adapters(file, options)
        settings = _settings(options, extra_bufts=extra_bufts, vocab_only=vocab_only)
        library.forget_errors()
        handle = capi.load_model(file.path, settings)
        if handle is None:
            said = library.recent_errors()
            if "split buffers" in said:
                raise ConfigError(
                    f"split_mode={options.split_mode!r} does not work on this device: {said}",
                    hint="use split_mode='layer' or 'none'",
                )
            raise _load_error(file, said)
        try:
            if not vocab_only:
                _check_decodable(handle, file)
            return cls(handle, file, settings, load_adapters(handle, adapters), adapters)
        except ModelError:
            capi.free_model(handle)
            raise

    # ------------------------------------------------------------------------------------ properties

    @property
    def handle(self) -> ModelHandle:
        """For `Context`. Raises ModelError once the model is closed."""
        if self._handle is None:
            raise ModelError(f"{self.name} was closed")
        return self._handle

    @property
    def vocab(self) -> Vocab:
        return self._vocab

    @property
    def adapters(self) -> Sequence[tuple[AdapterHandle, float]]:
        """The LoRA adapters that its contexts compute with, each with its scale."""
        return self._adapters

    # llama.cpp asserts when it is asked for these of a model loaded with vocab_only: the header knows them

    @property
    def n_ctx_train(self) -> int:
        """The context length the model was trained for, in tokens; 0 where the file does not say."""
        return self._number("context_length") or 0

    @property
    def head_size(self) -> int | None:
        """Values per head in the K cache; None where the layers differ."""
        width, heads = self._number("embedding_length"), self._number("attention.head_count")
        return self._number("attention.key_length") or (width // heads if width and heads else None)

    def _number(self, key: str) -> int | None:
        value = self._file.arch_value(key)
        return value if isinstance(value, int) else None

    @property
    def chat_template(self) -> str | None:
        """The Jinja template in the file; metadata holds others as "tokenizer.chat_template.NAME"."""
        template = self._file.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def name(self) -> str:
        """The file's name without its ending: what the user asked for."""
        return self._file.path.stem

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def architecture(self) -> str:
        return self._file.architecture

    @property
    def metadata(self) -> Mapping[str, Scalar]:
        """The scalar entries of the file's header."""
        return self._file.metadata

    @property
    def arrays(self) -> Mapping[str, Integers]:
        """agentspec's own arrays in the file's header."""
        return self._file.arrays

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file.size

    @property
    def fingerprint(self) -> str:
        """Tells this file's content from any other's; see `GgufFile`."""
        return self._file.fingerprint

    @property
    def arithmetic(self) -> str:
        """Tells apart what computes with other weights, adapters included, or by other kernels."""
        settings = self._settings
        return " ".join(
            [
                *self._weights,
                library.library_fingerprint(),
                f"layers {settings.n_gpu_layers}",
                f"repacked {settings.use_extra_bufts}",
            ]
        )

    @property
    def vocab_only(self) -> bool:
        return self._settings.vocab_only

    @property
    def uses_extra_bufts(self) -> bool:
        """Whether weights may be repacked for the CPU (AMX and others)."""
        return self._settings.use_extra_bufts

    @property
    def n_gpu_layers(self) -> int:
        """Layers asked of the GPU; -1 for all."""
        return self._settings.n_gpu_layers

    # ----------------------------------------------------------------------------------------- close

    def adopt(self, context: Closeable) -> None:
        """Registers a context, to be closed before the model is."""
        self._contexts.add(context)

    def close(self) -> None:
        """Frees the model and its contexts. A second call does nothing."""
        for context in list(self._contexts):
            context.close()
        self._handle = None
        self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _identity(file: GgufFile) -> str:
    """Fingerprints sample the weights: a file trained again may differ in others only, and in its time."""
    return f"{file.fingerprint} {file.path.stat().st_mtime_ns}"


def _free(handle: ModelHandle, vocab: Vocab) -> None:
    """Frees a model; its vocabulary, which somebody may hold on to, must not read it any more."""
    vocab.close()
    capi.free_model(handle)


def check_gpu_options(options: RuntimeOptions) -> None:
    """Raises BackendError or ConfigError on GPU options this build or machine cannot honour."""
    gpus = sum(device.is_gpu for device in library.devices())
    shares = options.tensor_split
    if not library.supports_gpu():
        asked = [
            f"{name}={value!r}"
            for name, value, neutral in (
                ("n_gpu_layers", options.n_gpu_layers, options.n_gpu_layers in ("auto", 0)),
                ("main_gpu", options.main_gpu, options.main_gpu == 0),
                ("tensor_split", shares, shares is None),
            )
            if not neutral
        ]
        if asked:
            raise BackendError(
                f"{', '.join(asked)} needs a GPU, and this build of llama.cpp finds none", hint=_REBUILD_GPU
            )
        return
    if options.main_gpu >= max(gpus, 1):
        raise ConfigError(f"main_gpu={options.main_gpu}, but there are {gpus} GPUs", hint="they count from 0")
    if shares is not None and (
        len(shares) > min(max(gpus, 1), capi.MAX_DEVICES) or not all(map(math.isfinite, shares))
    ):
        raise ConfigError(
            f"tensor_split={shares} does not fit {gpus} GPUs", hint="give one finite share a GPU"
        )


def _settings(options: RuntimeOptions, *, extra_bufts: bool, vocab_only: bool) -> ModelSettings:
    layers = options.n_gpu_layers
    if layers == "auto":
        layers = -1 if library.supports_gpu() else 0
    return ModelSettings(
        n_gpu_layers=0 if vocab_only else layers,
        split_mode=capi.SPLIT_MODES[options.split_mode],
        main_gpu=options.main_gpu,
        tensor_split=options.tensor_split,
        use_extra_bufts=extra_bufts,
        # Repacking copies the weights. Mapped, the originals stay resident beside the copies (1.5B on
        # AMX: +45 %); read, they are gone after loading. Without repacking, mapping costs nothing and
        # processes share it.
        mmap=not (extra_bufts and layers == 0),
        vocab_only=vocab_only,
    )


def _check_decodable(handle: ModelHandle, file: GgufFile) -> None:
    pooling = file.arch_value("pooling_type")
    reasons = (
        (capi.model_has_encoder(handle), "it has an encoder"),
        (not capi.model_has_decoder(handle), "it has no decoder"),
        (capi.model_is_diffusion(handle), "it writes by diffusion"),
        (file.arch_value("attention.causal") is False, "its attention looks ahead"),
        (isinstance(pooling, int) and pooling > 0, "it makes embeddings"),
    )
    for applies, reason in reasons:
        if applies:
            raise UnsupportedModelError(
                f"{file.path.name} ({file.architecture}) cannot be decoded token by token: {reason}",
                hint="use a causal language model",
            )


def _load_error(file: GgufFile, said: str) -> ModelError:
    what = f"llama.cpp cannot load {file.path}: {said or 'it gave no reason'}"
    if "unknown model architecture" in said or "unknown pre-tokenizer" in said:
        return UnsupportedModelError(what, hint="upgrade llama-cpp-python, or use another model")
    if not file.n_tensors:
        return UnsupportedModelError(what, hint="the file holds a vocabulary and no weights")
    return ModelError(what, hint="if the memory is short, use a smaller model; else download the file again")
