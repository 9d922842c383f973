"""The set-up of a fresh machine: what is built, when it is built again, and what a failure says."""

from __future__ import annotations

import json
import os
import platform
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from agentspec import config
from tools import llama_build, setup_env, shell
from tools.llama_build import Build, plan_build
from tools.shell import SetupError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, prints: str = "") -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)


def test_the_version_built_is_one_that_the_package_accepts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = (r for r in map(Requirement, project["dependencies"]) if r.name == "llama-cpp-python")
    assert requirement.specifier.contains(llama_build.LLAMA_CPP_PYTHON)
    assert set(setup_env.EXTRAS.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("environ", [{"AGENTSPEC_CACHE": "~/elsewhere"}, {"XDG_CACHE_HOME": "/x"}, {}])
def test_the_cache_folder_is_the_package_s(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENTSPEC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert setup_env.cache_dir(os.environ) == config.cache_dir()


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has its own backend")
def test_backends_are_detected(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_build, "find_nvcc", lambda: None)
    assert plan_build({}).backend == "cpu"
    program(bin_folder, "glslc")
    program(bin_folder, "vulkaninfo", "deviceType = PHYSICAL_DEVICE_TYPE_CPU")
    assert plan_build({}).backend == "cpu"
    program(bin_folder, "vulkaninfo", "deviceType = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU")
    assert plan_build({}).backend == "vulkan"
    monkeypatch.setattr(llama_build, "find_nvcc", lambda: "/opt/nvcc")
    assert plan_build({}).backend == "vulkan"
    program(bin_folder, "nvidia-smi", "GPU 0: a card")
    cuda = plan_build({})
    assert cuda.backend == "cuda"
    assert cuda.environment["CMAKE_ARGS"] == "-DGGML_CUDA=on"
    assert cuda.environment["CUDACXX"] == "/opt/nvcc"
    assert plan_build({"AGENTSPEC_BACKEND": "cpu"}).backend == "cpu"


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(SetupError, match="'rocm' is unknown; it is one of cpu, cuda, metal, vulkan"):
        plan_build({"AGENTSPEC_BACKEND": "rocm"})


def test_cuda_without_nvcc_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_build, "find_nvcc", lambda: None)
    with pytest.raises(SetupError, match="needs nvcc"):
        plan_build({"AGENTSPEC_BACKEND": "cuda"})


@pytest.mark.parametrize("amx", [True, False])
@pytest.mark.parametrize(("compiler", "guarded"), [("g++ (GCC) 12.2", True), ("clang version 19", False)])
def test_gcc_on_x86_gets_the_flags_that_keep_amx_alive_or_else_make_blocks_fast(
    compiler: str, guarded: bool, amx: bool, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(llama_build, "cpu_features", lambda: "avx2 amx_tile" if amx else "avx2")
    program(bin_folder, "c++", compiler)
    fast = [] if amx else [llama_build.GCC_X86_SCHEDULING]

    def flags(name: str) -> str | None:
        return plan_build({"AGENTSPEC_BACKEND": "cpu", "CFLAGS": "-g"}).environment.get(name)

    assert flags("CXXFLAGS") == (" ".join([f"-include {llama_build.AMX_HEADER}", *fast]) if guarded else None)
    assert flags("CFLAGS") == (" ".join([*fast, "-g"]) if guarded else None)
    assert llama_build.AMX_HEADER.is_file()
    monkeypatch.setattr(llama_build, "AMX_HEADER", Path("/home/a user/amx_tiles.h"))
    # a path with a space would be two words
    assert flags("CXXFLAGS") == (" ".join(["-fno-tree-dse -fno-dse", *fast]) if guarded else None)


def test_the_key_does_not_depend_on_where_the_checkout_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every checkout would compile llama.cpp anew."""
    header = llama_build.AMX_HEADER

    def key(path: Path) -> str:
        monkeypatch.setattr(llama_build, "AMX_HEADER", path)
        return Build("cpu", {"CXXFLAGS": f"-include {path}"}).key

    copy = tmp_path / header.name
    copy.write_bytes(header.read_bytes())
    here = key(header)
    assert key(copy) == here
    copy.write_bytes(b"// another one")
    assert key(copy) != here


def test_the_user_s_flags_are_kept() -> None:
    build = plan_build({"AGENTSPEC_BACKEND": "vulkan", "CMAKE_ARGS": "-DGGML_NATIVE=off"})
    assert build.environment["CMAKE_ARGS"] == "-DGGML_VULKAN=on -DGGML_NATIVE=off"


def test_the_key_changes_with_all_that_shapes_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        Build("cpu", {}).key,
        Build("cpu", {"CXXFLAGS": "-O1"}).key,
        Build("cuda", {}).key,
    ]
    monkeypatch.setattr(llama_build, "cpu_features", lambda: "sse2 avx9000")
    keys.append(Build("cpu", {}).key)
    assert len(set(keys)) == 4
    assert Build("cpu", {}).key == keys[-1]


def test_a_wheel_that_was_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "run_logged", lambda *args: pytest.fail(f"ran {args}"))
    build = Build("cpu", {})
    kept = (
        tmp_path / "wheels" / build.key / f"llama_cpp_python-{llama_build.LLAMA_CPP_PYTHON}-py3-none-any.whl"
    )
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert setup_env.wheel_for(build, {"AGENTSPEC_CACHE": str(tmp_path)}) == kept


def test_a_build_keeps_its_wheel_and_passes_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Build("cpu", {"CXXFLAGS": "-O1"})

    def fake_pip(_title: str, command: list[str], _log: Path, environ: dict[str, str]) -> None:
        assert (environ["CXXFLAGS"], environ["CXX"]) == ("-O1", sys.executable)
        assert "--no-cache-dir" in command
        folder = Path(command[command.index("--wheel-dir") + 1])
        (folder / f"llama_cpp_python-{llama_build.LLAMA_CPP_PYTHON}-py3-none-any.whl").touch()

    monkeypatch.setattr(setup_env, "run_logged", fake_pip)
    wheel = setup_env.wheel_for(build, {"AGENTSPEC_CACHE": str(tmp_path), "CXX": sys.executable})
    assert wheel.parent == tmp_path / "wheels" / build.key
    assert wheel.exists()
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [build.key]


@pytest.mark.usefixtures("bin_folder")
def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no C\+\+ compiler"):
        setup_env.wheel_for(Build("cpu", {}), {"AGENTSPEC_CACHE": str(tmp_path)})


def test_a_ready_environment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installs: list[str] = []
    stamp = tmp_path / "stamp.json"
    monkeypatch.setattr(setup_env, "STAMP", stamp)
    monkeypatch.setattr(setup_env, "make_venv", lambda: None)
    monkeypatch.setattr(setup_env, "wheel_for", lambda *_: Path("a.whl"))
    monkeypatch.setattr(setup_env, "install", lambda wheel, _: installs.append(wheel.name))
    for _ in range(2):
        setup_env.set_up([], {"AGENTSPEC_BACKEND": "cpu"})
    assert installs == ["a.whl"]
    setup_env.set_up([], {"AGENTSPEC_BACKEND": "vulkan"})
    assert installs == ["a.whl", "a.whl"]
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "pyproject": "changed"}))
    setup_env.set_up([], {"AGENTSPEC_BACKEND": "vulkan"})
    assert len(installs) == 3


def test_an_install_that_fails_leaves_no_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_wheel: Path, _environ: dict[str, str]) -> None:
        raise SetupError("no")

    stamp = tmp_path / "stamp.json"
    stamp.write_text("{}")
    monkeypatch.setattr(setup_env, "STAMP", stamp)
    monkeypatch.setattr(setup_env, "make_venv", lambda: None)
    monkeypatch.setattr(setup_env, "wheel_for", lambda *_: Path("a.whl"))
    monkeypatch.setattr(setup_env, "install", broken)
    with pytest.raises(SetupError):
        setup_env.set_up([], {"AGENTSPEC_BACKEND": "cpu"})
    assert not stamp.exists()


def test_a_failed_step_shows_the_end_of_its_log_and_what_to_do(tmp_path: Path) -> None:
    code = "import sys; print('c++: fatal error: Killed signal'); sys.exit(1)"
    log = tmp_path / "log"
    with pytest.raises(SetupError) as caught:
        shell.run_logged("compiling", [sys.executable, "-c", code], log, os.environ)
    assert "Killed signal" in str(caught.value)
    assert "CMAKE_BUILD_PARALLEL_LEVEL=1" in str(caught.value)
    assert str(log) in str(caught.value)


def test_a_long_step_shows_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shell, "LINE_SECONDS", 0.0)
    shell.run_logged(
        "compiling", [sys.executable, "-c", "print('[3/70] x.cpp')"], tmp_path / "log", os.environ
    )
    assert "compiling: 3/70, 0 s" in capsys.readouterr().out


def test_an_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "MIN_PYTHON", (4, 0))
    with pytest.raises(SetupError, match=r"Python 4\.0 or newer"):
        setup_env.set_up([], {})
