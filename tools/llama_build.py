"""How llama.cpp is compiled for this machine, and the key under which the result is kept.

The key holds everything that shapes the wheel, compiler flags and CPU included: pip's own cache looks at
neither, and a build for one CPU may crash on another. Nothing here compiles. Standard library only.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.shell import SetupError, output, say, succeeds

LLAMA_CPP_PYTHON = "0.3.36"

CMAKE_ARGS = {
    "cpu": "-DGGML_METAL=off" if sys.platform == "darwin" else "",
    "cuda": "-DGGML_CUDA=on",
    "metal": "-DGGML_METAL=on",
    "vulkan": "-DGGML_VULKAN=on",
}
# GCC 12 takes the stores of AMX tile configurations for dead ones (llama.cpp PR 26954), and a build dies with
# SIGILL on any CPU that has AMX. The header tells it better; without it, both of these flags are needed,
# which make blocks a tenth slower
AMX_HEADER = Path(__file__).resolve().with_name("amx_tiles.h")
GCC_X86_FLAGS = "-fno-tree-dse -fno-dse"
# GCC's scheduling of x86 code does not mind how many registers there are, and spills half of those that
# llama.cpp's kernels for blocks of tokens keep their sums in. This one, its own on ARM, does mind
GCC_X86_SCHEDULING = "-fschedule-insns -fsched-pressure --param=sched-pressure-algorithm=2"


@dataclass(frozen=True)
class Build:
    """How llama.cpp is to be compiled. `environment` is added to that of the build."""

    backend: str
    environment: Mapping[str, str]

    @property
    def key(self) -> str:
        """Names the folder of the wheel. No Python version is in it: the wheel has no extension module.

        Nor is the place of this checkout: the header counts by its content.
        """
        header = hashlib.sha256(AMX_HEADER.read_bytes()).hexdigest()
        parts = [
            platform.system(),
            platform.machine(),
            *platform.libc_ver(),
            cpu_features(),
            *(
                f"{name}={value}".replace(str(AMX_HEADER), header)
                for name, value in sorted(self.environment.items())
            ),
        ]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return f"llama-cpp-python-{LLAMA_CPP_PYTHON}-{self.backend}-{digest[:12]}"


def plan_build(environ: Mapping[str, str]) -> Build:
    """The backend asked for by AGENTSPEC_BACKEND, or the one this machine can use. Raises SetupError."""
    asked = environ.get("AGENTSPEC_BACKEND", "").strip().lower()
    if asked and asked not in CMAKE_ARGS:
        raise SetupError(f"AGENTSPEC_BACKEND={asked!r} is unknown; it is one of {', '.join(CMAKE_ARGS)}")
    backend = asked or detect_backend()
    environment = {"CMAKE_ARGS": join(CMAKE_ARGS[backend], environ.get("CMAKE_ARGS"))}
    if platform.machine() in ("x86_64", "AMD64") and not compiler_is_clang(environ):
        # with AMX, blocks have kernels of their own
        scheduling = "" if "amx_tile" in cpu_features().split() else GCC_X86_SCHEDULING
        environment["CFLAGS"] = join(scheduling, environ.get("CFLAGS"))
        environment["CXXFLAGS"] = join(join(gcc_x86_flags(), scheduling), environ.get("CXXFLAGS"))
    if backend == "cuda":
        nvcc = find_nvcc()
        if nvcc is None:
            raise SetupError("AGENTSPEC_BACKEND=cuda needs nvcc: install the CUDA toolkit, or put it on PATH")
        environment["CUDACXX"] = environ.get("CUDACXX", nvcc)
    return Build(backend, {name: value for name, value in environment.items() if value})


def gcc_x86_flags() -> str:
    """What keeps AMX alive: see above. A path with a space cannot be given in CXXFLAGS."""
    return GCC_X86_FLAGS if re.search(r"\s", str(AMX_HEADER)) else f"-include {AMX_HEADER}"


def detect_backend() -> str:
    if sys.platform == "darwin":
        return "metal" if platform.machine() == "arm64" else "cpu"
    if succeeds("nvidia-smi", "-L"):
        if find_nvcc() is not None:
            return "cuda"
        say("there is an NVIDIA GPU but no nvcc, so llama.cpp is built for the CPU; to use the GPU install")
        say("the CUDA toolkit and run this again")
    if shutil.which("glslc") and has_vulkan_gpu():
        return "vulkan"
    return "cpu"


def find_nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def has_vulkan_gpu() -> bool:
    """Whether Vulkan has a real GPU here; its software renderer is slower than the CPU backend."""
    return (
        re.search(r"PHYSICAL_DEVICE_TYPE_(DISCRETE|INTEGRATED)_GPU", output("vulkaninfo", "--summary"))
        is not None
    )


def compiler_of(environ: Mapping[str, str]) -> str | None:
    """The C++ compiler that cmake would take."""
    candidates = [environ["CXX"]] if environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for found in map(shutil.which, candidates) if found), None)


def compiler_is_clang(environ: Mapping[str, str]) -> bool:
    compiler = compiler_of(environ)
    return compiler is not None and "clang" in output(compiler, "--version")


def cpu_features() -> str:
    """What a native build depends on: the CPU's instruction sets, or its name where they are not listed."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return output("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.processor()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, flags=re.MULTILINE)
    return " ".join(sorted(found[1].split())) if found else platform.processor()


def join(ours: str, theirs: str | None) -> str:
    return " ".join(filter(None, (ours, theirs)))
