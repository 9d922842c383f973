"""llama-server: built where the cache folder has none, started on a free port, ended whatever happens.

Only the server is compiled, from the sources of the installed llama-cpp-python; the libraries it is linked
against are the installed ones, so that it computes with the same kernels (see server/CMakeLists.txt). It must
not know who speaks with it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agentspec.bench.agents.environments import llama_cpp_home, run_logged
from agentspec.bench.agents.peer import PeerError, last_lines
from agentspec.config import available_cpus, cache_dir

__all__ = ["build_server", "libraries", "run_server"]

_PROJECT = Path(__file__).with_name("server")
_INSIDE = "/vendor/llama.cpp/"
_POLL_SECONDS = 0.2


def libraries() -> Path:
    """The folder with the libraries that a server can be linked against. Raises PeerError."""
    home = llama_cpp_home()
    for folder in (home.parent / "lib", home / "lib"):
        if any(folder.glob("libllama-common.*")):
            return folder
    raise PeerError(
        "llama-cpp-python came without libllama-common, which llama-server is linked against",
        hint="name a llama-server with --llama-server",
    )


def build_server(python: Path) -> Path:
    """The server, compiled (some minutes) where the cache folder has none.

    python: of an environment with pip, cmake and ninja
    Raises PeerError.
    """
    from filelock import FileLock  # here: only this command needs it

    version = importlib.metadata.version("llama-cpp-python")
    digest = hashlib.sha256((_PROJECT / "CMakeLists.txt").read_bytes()).hexdigest()
    folder = cache_dir() / "llama-server" / f"{version}-{digest[:12]}"
    built = folder / "llama-server"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not built.exists():
            with tempfile.TemporaryDirectory(dir=folder) as working:
                _compile(python, version, Path(working), folder).replace(built)
    return built


def _compile(python: Path, version: str, working: Path, logs: Path) -> Path:
    found = libraries()
    source = _sources(python, version, working, logs)
    build = working / "build"
    cmake = str(python.with_name("cmake"))
    run_logged(
        [
            *(cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={python.with_name('ninja')}"),
            *("-DCMAKE_BUILD_TYPE=Release", f"-DLLAMA_SOURCE={source}", f"-DLLAMA_LIBRARIES={found}"),
            *("-S", str(_PROJECT), "-B", str(build)),
        ],
        logs / "configure.log",
    )
    jobs = ("--parallel", str(available_cpus()))
    run_logged([*_nice(), cmake, "--build", str(build), *jobs], logs / "build.log")
    return build / "llama-server"


def _sources(python: Path, version: str, working: Path, logs: Path) -> Path:
    """llama.cpp's sources of that version of llama-cpp-python, downloaded."""
    command = [str(python), "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
    source = ["--no-binary", "llama-cpp-python", "--dest", str(working), f"llama-cpp-python=={version}"]
    run_logged([*command, *source], logs / "download.log")
    archive = next(working.glob("llama_cpp_python-*.tar.gz"), None)
    if archive is None:
        raise PeerError(f"pip left no source archive of llama-cpp-python {version}")
    unpacked = working / "source"
    with tarfile.open(archive) as archived:
        for member in archived:
            _, found, path = member.name.partition(_INSIDE)
            if found:
                member.name = path
                archived.extract(member, unpacked, filter="data")
    return unpacked


def _nice() -> Sequence[str]:
    """Compiling may take its time where someone else works on this machine."""
    return ("nice", "-n", "19") if shutil.which("nice") else ()


@contextmanager
def run_server(
    server: Path, model: Path, *, n_ctx: int, n_threads: int, n_gpu_layers: int, seconds: float
) -> Iterator[str]:
    """A running server's address.

    seconds: how long it may take until it answers
    Raises PeerError.
    """
    port = _free_port()
    command = [
        *(str(server), "--model", str(model), "--host", "127.0.0.1", "--port", str(port), "--jinja"),
        *("--ctx-size", str(n_ctx), "--parallel", "1", "--threads", str(n_threads)),
        *("--n-gpu-layers", str(n_gpu_layers)),
    ]
    paths = [str(libraries()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environ = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        try:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ)
        except OSError as error:
            raise PeerError(f"llama-server cannot be started: {error}") from error
        try:
            _wait_for(process, port, seconds, log)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int, seconds: float, log: IO[str]) -> None:
    """Returns when the server says that it is well. Raises PeerError where that does not happen in time."""
    import httpx  # here: it is not needed where the server has ended

    deadline = time.monotonic() + seconds
    with httpx.Client(trust_env=False, timeout=seconds) as client:
        while time.monotonic() < deadline:
            try:
                if client.get(f"http://127.0.0.1:{port}/health").is_success:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            try:
                process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise PeerError(f"llama-server has ended: {last_lines(log)}")
    raise PeerError(f"llama-server was not ready after {seconds:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
