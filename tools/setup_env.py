"""Makes `.venv` ready: packages, llama.cpp built for this machine, and models. Standard library only.

    python -m tools.setup_env [--models NAME...] [--sources]

The first run takes minutes, nearly all of it for compiling llama-cpp-python; a later run does nothing while
the stamp in `.venv` fits. These files must parse on older Pythons too, so that they get a message and not a
traceback.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.llama_build import LLAMA_CPP_PYTHON, Build, compiler_of, plan_build
from tools.llama_sources import fetch_sources
from tools.shell import SetupError, output, run_logged, say, succeeds

EXTRAS = "dev,examples"
MIN_PYTHON = (3, 11)

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "agentspec-setup.json"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """The same folder as `agentspec.config.cache_dir`, which cannot be imported yet."""
    if environ.get("AGENTSPEC_CACHE"):
        return Path(environ["AGENTSPEC_CACHE"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "agentspec"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentspec"


def make_venv() -> None:
    """Keeps a `.venv` that works; makes a new one otherwise. Raises SetupError."""
    minimum = f"import sys; sys.exit(sys.version_info < {MIN_PYTHON!r})"
    if VENV_PYTHON.exists() and succeeds(str(VENV_PYTHON), "-c", minimum):
        return
    say(f"making .venv with Python {platform.python_version()}")
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"cannot make a virtual environment:\n{done.stdout}{done.stderr}\n"
            f"On Debian and Ubuntu: apt install python{version}-venv"
        )


def wheel_for(build: Build, environ: Mapping[str, str]) -> Path:
    """The llama-cpp-python wheel of this build, compiled where the cache folder has none."""
    home = cache_dir(environ) / "wheels"
    folder = home / build.key
    kept = find_wheel(folder)
    if kept:
        return kept
    if compiler_of(environ) is None:
        raise SetupError(
            "llama.cpp must be compiled and there is no C++ compiler. "
            "Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install"
        )
    say(f"compiling llama-cpp-python {LLAMA_CPP_PYTHON} for {build.backend}, once for this machine.")
    say("This takes about 7 minutes on 2 CPUs, less on more, and 20 or more for CUDA.")
    for name, value in build.environment.items():
        say(f"  {name}={value}")
    building = home / f".building-{os.getpid()}"
    building.mkdir(parents=True, exist_ok=True)
    try:
        run_logged(
            "compiling llama.cpp",
            [
                *pip("wheel"),
                *("--no-deps", "--no-cache-dir", "--no-binary", "llama-cpp-python", "--verbose"),
                *("--wheel-dir", str(building), f"llama-cpp-python=={LLAMA_CPP_PYTHON}"),
            ],
            home / f"{build.key}.log",
            {**environ, **build.environment},
        )
        if not folder.exists():  # else another process was faster
            building.replace(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    built = find_wheel(folder)
    if built is None:
        raise SetupError(f"the build left no wheel in {folder}; see {home / f'{build.key}.log'}")
    return built


def find_wheel(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob(f"llama_cpp_python-{LLAMA_CPP_PYTHON}-*.whl"))), None)


def install(wheel: Path, environ: Mapping[str, str]) -> None:
    """Installs the wheel, then the package with everything it and its tests need."""
    log = VENV / "agentspec-setup.log"
    run_logged(
        "installing llama-cpp-python",
        [*pip("install"), "--no-deps", "--force-reinstall", str(wheel)],
        log,
        environ,
    )
    run_logged(
        "installing agentspec and its dependencies",
        [*pip("install"), "--editable", f"{ROOT}[{EXTRAS}]"],
        log,
        environ,
    )
    run_logged("checking llama.cpp", [str(VENV_PYTHON), "-c", "import llama_cpp"], log, environ)


def pip(command: str) -> list[str]:
    return [str(VENV_PYTHON), "-m", "pip", command, "--disable-pip-version-check", "--no-input"]


def wanted_stamp(build: Build) -> dict[str, str]:
    """Everything that an installed `.venv` depends on."""
    return {
        "root": str(ROOT),
        "python": output(str(VENV_PYTHON), "-c", "import sys; print(sys.version)").strip(),
        "pyproject": hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest(),
        "extras": EXTRAS,
        "wheel": build.key,
    }


def read_stamp() -> object:
    try:
        return json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def set_up(models: Sequence[str], environ: Mapping[str, str], *, sources: bool = False) -> None:
    """Brings `.venv` and the models to where `make` needs them. Raises SetupError."""
    if sys.version_info < MIN_PYTHON:
        raise SetupError(
            f"agentspec needs Python {'.'.join(map(str, MIN_PYTHON))} or newer and this is "
            f"{platform.python_version()}; name another with: make PYTHON=python3.12 ..."
        )
    build = plan_build(environ)
    make_venv()
    if read_stamp() != wanted_stamp(build):
        STAMP.unlink(missing_ok=True)  # from here on, and until the end, nothing is ready
        install(wheel_for(build, environ), environ)
        STAMP.write_text(json.dumps(wanted_stamp(build), indent=2), encoding="utf-8")
        say(f"ready: {VENV}, llama.cpp for {build.backend}")
    if models:
        pull = [str(VENV_PYTHON), "-m", "agentspec", "pull", *models]
        if subprocess.run(
            pull, stdout=subprocess.DEVNULL, env=dict(environ), cwd=ROOT, check=False
        ).returncode:
            raise SetupError("the models could not be pulled; see above")
    if sources:
        fetch_sources(cache_dir(environ), pip("download"), environ)


def main() -> int:
    parser = argparse.ArgumentParser(description="Make .venv ready: packages, llama.cpp, models.")
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME", help="models to pull")
    parser.add_argument("--sources", action="store_true", help="llama.cpp's chat templates, for tests")
    arguments = parser.parse_args()
    try:
        set_up(arguments.models, os.environ, sources=arguments.sources)
    except SetupError as error:
        print(f"\nset-up failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up stopped; run the same command to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
