"""Real chat templates and vocabularies, without weights, for the tests: from llama-cpp-python's own sources.

Standard library only.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.llama_build import LLAMA_CPP_PYTHON
from tools.shell import SetupError, run_logged

INSIDE = "/vendor/llama.cpp/models/"


def sources_folder(cache: Path) -> Path:
    """Where they are kept."""
    return cache / "sources" / f"llama-cpp-python-{LLAMA_CPP_PYTHON}"


def fetch_sources(cache: Path, pip_download: Sequence[str], environ: Mapping[str, str]) -> Path:
    """The folder with `templates/*.jinja` and `ggml-vocab-*.gguf`, downloaded (77 MB) where it is missing.

    pip_download: the command `pip download`

    Raises SetupError.
    """
    folder = sources_folder(cache)
    if folder.exists():
        return folder
    working = folder.parent / f".working-{os.getpid()}"
    working.mkdir(parents=True, exist_ok=True)
    try:
        run_logged(
            "downloading llama.cpp's chat templates and vocabularies",
            [
                *pip_download,
                *("--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(working)),
                f"llama-cpp-python=={LLAMA_CPP_PYTHON}",
            ],
            folder.parent / "download.log",
            environ,
        )
        archive = next(working.glob("llama_cpp_python-*.tar.gz"), None)
        if archive is None:
            raise SetupError(f"pip left no source archive of llama-cpp-python {LLAMA_CPP_PYTHON}")
        unpacked = working / "models"
        with tarfile.open(archive) as archived:
            for member in archived:
                _, found, path = member.name.partition(INSIDE)
                if found and member.isfile() and Path(path).suffix in (".jinja", ".gguf"):
                    member.name = path
                    archived.extract(member, unpacked, filter="data")
        if not folder.exists():  # else another process was faster
            unpacked.replace(folder)
    finally:
        shutil.rmtree(working, ignore_errors=True)
    return folder
