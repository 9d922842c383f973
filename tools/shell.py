"""Runs programs for the set-up: quietly, or with a log and a sign of life. Standard library only."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LINE_SECONDS = 20.0


class SetupError(Exception):
    """The set-up cannot go on; the text says what to do."""


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def run_logged(title: str, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
    """Runs a program, its output into a log, and shows that it lives. Raises SetupError."""
    say(title)
    started = time.monotonic()
    shown = started
    step = ""
    terminal = sys.stdout.isatty()
    with (
        log.open("w", encoding="utf-8") as sink,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environ),
        ) as process,
    ):
        assert process.stdout is not None, "asked for with PIPE"
        for line in process.stdout:
            sink.write(line)
            found = re.search(r"\[(\d+/\d+)\]", line)
            step = f" {found[1]}," if found else step
            now = time.monotonic()
            if now - shown >= (0.2 if terminal else LINE_SECONDS):
                shown = now
                text = f"[setup]   {title}:{step} {now - started:.0f} s"
                print(f"\r{text}\033[K" if terminal else text, end="" if terminal else "\n", flush=True)
        code = process.wait()
    if terminal:
        print("\r\033[K", end="", flush=True)
    if code:
        raise SetupError(explain(title, command, log))


def explain(title: str, command: Sequence[str], log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    shown = "\n".join(lines[-25:])
    hint = advice("\n".join(lines[-80:]))
    return f"{title} failed: {shlex.join(command)}\n{shown}\n\n{hint}\nThe whole log: {log}"


def advice(log: str) -> str:
    """What to do about the failures that are common."""
    known = {
        r"No matching distribution|Could not find a version|Connection|ReadTimeout|Temporary failure": (
            "A package could not be had: check the network, and PIP_INDEX_URL and HTTPS_PROXY if set."
        ),
        r"Killed|out of memory|Cannot allocate": (
            "The compiler ran out of memory: set CMAKE_BUILD_PARALLEL_LEVEL=1 and run this again."
        ),
        r"(?i)cuda|nvcc": "The CUDA build failed: AGENTSPEC_BACKEND=cpu builds for the CPU instead.",
        r"(?i)vulkan|glslc": "The Vulkan build failed: AGENTSPEC_BACKEND=cpu builds for the CPU instead.",
        r"CMAKE_CXX_COMPILER|No space left": "cmake needs a working C++ compiler and some 2 GB of disk.",
    }
    return next((hint for pattern, hint in known.items() if re.search(pattern, log)), "")


def output(*command: str) -> str:
    """What a program prints, or "" where it cannot run."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
