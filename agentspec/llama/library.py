"""llama.cpp as a loaded library: started once, its log led into `logging`, its devices and its identity.

Importing this module loads the shared library; `start` initialises it. Nothing here knows models or
contexts. llama.cpp's log is process-wide: it goes to the logger "agentspec.llama", which prints nothing
unless the application configures it, and the last errors are kept so that exceptions can quote them.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import llama_cpp._ggml as _ggml
import llama_cpp.llama_cpp as _c

__all__ = [
    "Device",
    "block_shape",
    "devices",
    "forget_errors",
    "library_fingerprint",
    "recent_errors",
    "start",
    "supports_gpu",
    "system_info",
]

logger = logging.getLogger("agentspec.llama")
logger.addHandler(logging.NullHandler())

# enum ggml_log_level; 5 continues the line before
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.WARNING}
_ERROR, _CONTINUE = 4, 5
_GPU, _IGPU = 1, 2  # enum ggml_backend_dev_type


class _Log:
    """Receives llama.cpp's log lines, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._level = 0
        self._line = ""
        self.errors: deque[str] = deque(maxlen=6)

    def write(self, level: int, text: bytes | None, _: int | None) -> None:
        with self._lock:
            if level != _CONTINUE:
                self._flush()
                self._level = level
            self._line += (text or b"").decode("utf-8", errors="replace")
            if self._line.endswith("\n"):
                self._flush()

    def _flush(self) -> None:
        line, self._line = self._line.strip(), ""
        if not line.strip("."):  # progress dots
            return
        if self._level == _ERROR:
            self.errors.append(line)
        # one step below llama.cpp's own level: what matters is raised as an error by agentspec
        logger.log(_LEVELS.get(self._level, logging.DEBUG), "%s", line)


_log = _Log()
_log_callback = _c.llama_log_callback(_log.write)  # llama.cpp keeps the pointer: never let go of it


@dataclass(frozen=True, slots=True)
class Device:
    """A device that llama.cpp can compute on. memory: bytes, 0 where unknown."""

    name: str
    description: str
    is_gpu: bool
    memory: int


@functools.cache
def start() -> None:
    """Initialises llama.cpp; calls after the first do nothing."""
    _c.llama_log_set(_log_callback, ctypes.c_void_p(0))
    _c.llama_backend_init()


def recent_errors() -> str:
    """What llama.cpp logged as errors since `forget_errors`; "" if nothing."""
    return "; ".join(_log.errors)


def forget_errors() -> None:
    """Clears `recent_errors`, so that an exception quotes only what belongs to it."""
    _log.errors.clear()


def supports_gpu() -> bool:
    """Whether this build can compute on a GPU that is present."""
    start()
    return bool(_c.llama_supports_gpu_offload())


@functools.cache
def devices() -> tuple[Device, ...]:
    """The devices llama.cpp found, in its order."""
    start()
    lib = _ggml.libggml
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    get = _function(lib, "ggml_backend_dev_get", [ctypes.c_size_t], pointer)
    name = _function(lib, "ggml_backend_dev_name", [pointer], text)
    description = _function(lib, "ggml_backend_dev_description", [pointer], text)
    kind = _function(lib, "ggml_backend_dev_type", [pointer], ctypes.c_int)
    count = _function(lib, "ggml_backend_dev_count", [], ctypes.c_size_t)
    memory = _function(
        lib,
        "ggml_backend_dev_memory",
        [pointer, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)],
        None,
    )
    found = []
    for index in range(count()):
        device = get(index)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            Device(
                name=(name(device) or b"").decode("utf-8", errors="replace"),
                description=(description(device) or b"").decode("utf-8", errors="replace"),
                is_gpu=kind(device) in (_GPU, _IGPU),
                memory=total.value,
            )
        )
    return tuple(found)


@functools.cache
def block_shape(tensor_type: int) -> tuple[int, int] | None:
    """(elements, bytes) of one block of a ggml tensor type; None for an id that is not in use."""
    if not 0 <= tensor_type < _c.GGML_TYPE_COUNT:  # ggml indexes its table unchecked
        return None
    lib = _ggml.libggml
    elements = _function(lib, "ggml_blck_size", [ctypes.c_int], ctypes.c_int64)(tensor_type)
    size = _function(lib, "ggml_type_size", [ctypes.c_int], ctypes.c_size_t)(tensor_type)
    return (elements, size) if elements > 0 and size > 0 else None


def system_info() -> str:
    """The instruction sets this build uses, as llama.cpp prints them."""
    start()
    info = _c.llama_print_system_info()
    return info.decode("utf-8", errors="replace").strip() if info else ""


@functools.cache
def library_fingerprint() -> str:
    """Hex digest that changes when another build of llama.cpp is installed."""
    digest = hashlib.sha256(f"{llama_cpp.__version__}\n{system_info()}".encode())
    # size and time, not content: a CUDA build is hundreds of megabytes
    for file in sorted((Path(llama_cpp.__file__).parent / "lib").glob("*")):
        stat = file.stat()
        digest.update(f"\n{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()


def _function(
    lib: ctypes.CDLL, name: str, arguments: list[type], result: type | None
) -> ctypes._NamedFuncPointer:
    function = lib[name]  # a fresh object: nobody else's prototype is changed
    function.argtypes = arguments
    function.restype = result
    return function
