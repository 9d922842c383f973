"""LoRA adapters (Hu et al. 2021, arXiv:2106.09685): small changes to a model's weights, in their own files.

A file is checked before llama.cpp sees it, which asserts on headers of another kind. A model owns its
adapters, and its contexts compute with them. This module must not know contexts.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.config import RuntimeOptions
from agentspec.errors import ModelError, UnsupportedModelError
from agentspec.llama import capi, library
from agentspec.llama.capi import AdapterHandle, ModelHandle
from agentspec.llama.gguf import GgufFile, read_gguf

__all__ = ["load_adapters", "read_adapters"]

_HINT = "give an adapter of exactly this model, as llama.cpp's convert_lora_to_gguf.py writes them"


def read_adapters(model: GgufFile, options: RuntimeOptions) -> list[tuple[GgufFile, float]]:
    """The headers and scales of the adapters asked for.

    Raises ModelNotFoundError, ModelFormatError; ModelError for a file that is no LoRA adapter, or one of
    another architecture.
    """
    files = [(read_gguf(one.path), one.scale) for one in options.lora]
    for file, _ in files:
        _check(file, model)
    return files


def load_adapters(
    model: ModelHandle, files: Sequence[tuple[GgufFile, float]]
) -> list[tuple[AdapterHandle, float]]:
    """Loads the adapters into a model, which frees them at its end.

    Raises ModelError where llama.cpp refuses one, as on tensors that are not of the model's shapes.
    """
    loaded = []
    for file, scale in files:
        library.forget_errors()
        adapter = capi.load_adapter(model, file.path)
        if adapter is None:
            said = library.recent_errors() or "it gave no reason"
            raise ModelError(f"llama.cpp cannot load the adapter {file.path}: {said}", hint=_HINT)
        if capi.adapter_waits(adapter):
            raise UnsupportedModelError(
                f"the adapter {file.path} acts only after certain tokens (an activated LoRA)",
                hint="use a plain LoRA adapter",
            )
        loaded.append((adapter, scale))
    return loaded


def _check(file: GgufFile, model: GgufFile) -> None:
    found = file.metadata
    if (found.get("general.type"), found.get("adapter.type")) != ("adapter", "lora"):
        raise ModelError(f"{file.path} is not a LoRA adapter", hint=_HINT)
    if file.architecture != model.architecture:
        ours, theirs = model.architecture, file.architecture
        raise ModelError(
            f"the adapter {file.path} is for {theirs!r}, and {model.path.name} is {ours!r}", hint=_HINT
        )
    if not file.n_tensors or not isinstance(found.get("adapter.lora.alpha", 0.0), float):
        raise ModelError(f"the adapter {file.path} is damaged: no tensors, or no number for its alpha")
