"""llama.cpp in-process, typed: models, vocabularies and contexts.

The only package that imports `llama_cpp`. No call here may abort the interpreter: what llama.cpp would
assert on is checked first, and what cannot be checked is tried once in another process (`probe`).
"""

from __future__ import annotations

import os

# Before the library is loaded: its threads meet at some hundred barriers a pass, where OpenMP by default
# spins for milliseconds. Beside one other busy process that made passes of 0.1 s take 2.7 s; with this
# setting they take 0.3 s, and on a quiet machine as long as before.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from agentspec.llama.context import Context
from agentspec.llama.library import Device, devices, library_fingerprint, supports_gpu, system_info
from agentspec.llama.model import Model
from agentspec.llama.probe import BuildWarning
from agentspec.llama.vocab import Vocab, check_draft_vocab

__all__ = [
    "BuildWarning",
    "Context",
    "Device",
    "Model",
    "Vocab",
    "check_draft_vocab",
    "devices",
    "library_fingerprint",
    "supports_gpu",
    "system_info",
]
