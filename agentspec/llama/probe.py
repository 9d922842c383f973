"""Finds out whether this build of llama.cpp survives a decode, in a process that may die.

Some builds die with SIGILL in their first decode (GCC 12 drops the AMX tile set-up), and a broken GGUF may
run into an assertion of llama.cpp; either would take the interpreter along. So the first time a build, a
machine, a model and its options meet, a child process loads the model and decodes 1, 8 and 32 tokens.
Where it dies with weight repacking, it is tried without. The outcome is kept on disk, so the cost (about
two loads of the model) comes once.

This module starts the child and reads the outcome; `probe_child` is the child. It must not load a model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec import config
from agentspec.config import RuntimeOptions
from agentspec.errors import ConfigError, UnsupportedModelError
from agentspec.llama import library
from agentspec.llama.gguf import GgufFile, read_gguf

__all__ = ["REPORTED", "BuildWarning", "child_command", "child_environment", "choose_extra_bufts"]

REPORTED = 3
"""Exit status of a child that met an error of its own accord; the load that follows will raise it."""

logger = logging.getLogger("agentspec.llama")

_REBUILD = (
    "rebuild it: CXXFLAGS='-fno-tree-dse -fno-dse' pip install --force-reinstall --no-cache-dir "
    "--no-binary llama-cpp-python 'llama-cpp-python>=0.3.36,<0.3.37'"
)
# loading at 20 MB/s from a slow disk, and decoding on a busy machine
_SECONDS_FIXED, _BYTES_PER_SECOND = 120.0, 20e6
# what decides which code runs; the rest (threads, batch size) does not
_KEY_OPTIONS = (
    "n_gpu_layers",
    "main_gpu",
    "split_mode",
    "tensor_split",
    "flash_attn",
    "type_k",
    "type_v",
    "use_extra_bufts",
)


class BuildWarning(RuntimeWarning):
    """The installed llama.cpp works, but slower than a sound build would."""


@dataclass(frozen=True, slots=True)
class _Death:
    """How a child died: the reason, and the last it said."""

    reason: str
    said: str


def choose_extra_bufts(file: GgufFile, options: RuntimeOptions) -> bool:
    """Whether to repack weights: as the option says, or under "auto" where this build survives it.

    Warns (BuildWarning) where repacking has to be left off. Raises UnsupportedModelError where the model
    cannot be decoded by this build at all; ConfigError where it can, but not with the option given.
    """
    if not sys.executable:
        logger.warning("no interpreter to probe llama.cpp with; weight repacking stays off")
        return options.use_extra_bufts is True
    asked = options.use_extra_bufts
    store = config.cache_dir() / "probes" / f"{_key(file, options)}.json"
    choice = _remembered(store)
    deaths: list[_Death] = []
    if choice is None:
        for candidate in (True, False) if asked == "auto" else (asked,):
            outcome = _try(file, options, candidate)
            if isinstance(outcome, _Death):
                deaths.append(outcome)
                continue
            choice = candidate
            if outcome == 0:
                _remember(store, choice)
            break
    if choice is None:
        raise _fatal(file, asked, deaths)
    if asked == "auto" and not choice:
        warnings.warn(
            "the installed llama.cpp dies when it repacks weights for this CPU, so that is off and passes "
            f"over several tokens take two to three times as long; {_REBUILD}",
            BuildWarning,
            stacklevel=3,
        )
    return choice


def child_command(file: GgufFile, options: RuntimeOptions, extra_bufts: bool) -> Sequence[str]:
    """The command of the child process; it exits with 0 once it has survived, or with REPORTED."""
    return [
        sys.executable,
        "-P",  # the working folder must not shadow a module
        "-m",
        "agentspec.llama.probe_child",
        str(file.path),
        options.model_dump_json(),
        "repack" if extra_bufts else "plain",
    ]


def child_environment() -> Mapping[str, str]:
    """The environment of the child process: it must find this package, installed or not."""
    home = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path, "GGML_NO_BACKTRACE": "1"}


def _try(file: GgufFile, options: RuntimeOptions, extra_bufts: bool) -> int | _Death:
    """Runs one child; its exit status, or how it was killed."""
    limit = _SECONDS_FIXED + file.size / _BYTES_PER_SECOND
    try:
        done = subprocess.run(
            child_command(file, options, extra_bufts),
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _Death(f"no answer within {limit:.0f} s", "")
    said = done.stderr.decode("utf-8", errors="replace").strip()[-800:]
    logger.debug("probe of %s, repacking %s: exit %s %s", file.path, extra_bufts, done.returncode, said)
    if done.returncode < 0:
        return _Death(_signal_name(-done.returncode), said)
    if done.returncode >= 0xC0000000:  # Windows: an NTSTATUS
        return _Death(f"status 0x{done.returncode:08X}", said)
    if done.returncode not in (0, REPORTED):
        logger.warning("the probe of llama.cpp did not run, so the load is a risk: %s", said)
    return done.returncode


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _fatal(
    file: GgufFile, asked: bool | str, deaths: Sequence[_Death]
) -> UnsupportedModelError | ConfigError:
    how = "; ".join(f"{death.reason}{': ' + death.said if death.said else ''}" for death in deaths)
    if asked is True:
        return ConfigError(
            f"use_extra_bufts=True: llama.cpp dies decoding {file.path} ({how})",
            hint=f"use 'auto' or False, or {_REBUILD}",
        )
    return UnsupportedModelError(
        f"llama.cpp dies decoding {file.path} ({how})",
        hint=f"if other models run, this file is damaged or newer than llama.cpp; else {_REBUILD}",
    )


# ------------------------------------------------------------------------------------------- memory


def _key(file: GgufFile, options: RuntimeOptions) -> str:
    parts = {
        "library": library.library_fingerprint(),
        "cpu": _cpu(),
        "devices": [device.description for device in library.devices()],
        "model": file.fingerprint,
        "adapters": [[read_gguf(one.path).fingerprint, one.scale] for one in options.lora],
        "options": {name: options.model_dump(mode="json")[name] for name in _KEY_OPTIONS},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _cpu() -> str:
    """What tells CPUs with different instruction sets apart."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _remembered(store: Path) -> bool | None:
    try:
        kept = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    choice = kept.get("use_extra_bufts") if isinstance(kept, dict) else None
    return choice if isinstance(choice, bool) else None


def _remember(store: Path, choice: bool) -> None:
    """Writes under another name first, so that a reader never sees half a file."""
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=store.parent, prefix=store.name, delete=False
        ) as temporary:
            json.dump({"use_extra_bufts": choice}, temporary)
        os.replace(temporary.name, store)
    except OSError as error:
        logger.warning("cannot keep the outcome of the probe: %s", error)
