"""Python environments for peers, made once and kept in the cache folder.

A peer gets the very llama-cpp-python that this process would load, by links: what is compared is then the
same build of llama.cpp. It must not know what the peers are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from agentspec.bench.agents.peer import PeerError, last_lines
from agentspec.config import cache_dir

__all__ = ["llama_cpp_home", "make_environment", "run_logged"]


def make_environment(name: str, requirements: Sequence[str], *, llama_cpp: bool = False) -> Path:
    """The Python of an environment with these packages, made where it does not exist yet.

    requirements: pinned, so that figures of two machines are about the same code
    llama_cpp:    whether this process's llama-cpp-python is to be importable there

    Raises PeerError.
    """
    from filelock import FileLock  # here: only this command needs it

    python_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256("\n".join([python_version, *requirements]).encode()).hexdigest()
    folder = cache_dir() / "peers" / f"{name}-{digest[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    python, ready, log = folder / "bin" / "python", folder / "ready", folder.parent / f"{folder.name}.log"
    with FileLock(f"{folder}.lock"):
        if not ready.exists():
            run_logged([sys.executable, "-m", "venv", "--clear", str(folder)], log)
            pip = [
                str(python),
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "--no-input",
                "--quiet",
            ]
            run_logged([*pip, *requirements], log)
            ready.touch()
        if llama_cpp:
            _link(folder / "lib" / f"python{python_version}" / "site-packages")
    return python


def run_logged(command: Sequence[str], log: Path) -> None:
    """Runs a program, its output into a log. Raises PeerError with the end of it where the program fails."""
    with log.open("w+", encoding="utf-8", errors="replace") as sink:
        try:
            done = subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, check=False)
        except OSError as error:
            raise PeerError(f"{command[0]} cannot be run: {error}") from error
        if done.returncode:
            raise PeerError(f"{' '.join(command[:4])} ... failed: {last_lines(sink)} (all of it: {log})")


def llama_cpp_home() -> Path:
    """The folder of the llama_cpp package that this process would import. Raises PeerError."""
    found = importlib.util.find_spec("llama_cpp")
    if found is None or found.origin is None:
        raise PeerError("llama-cpp-python is not installed")
    return Path(found.origin).parent


def _link(site: Path) -> None:
    """Makes the package and what describes it importable from there."""
    package = llama_cpp_home()
    for old in site.glob("llama_cpp*"):
        if old.is_symlink():
            old.unlink()
    for original in (package, *package.parent.glob("llama_cpp_python-*.dist-info")):
        (site / original.name).symlink_to(original)
