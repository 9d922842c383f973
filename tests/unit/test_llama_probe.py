"""The probe: a child that dies never takes the parent along, and its outcome is kept and obeyed.

The children here are one-line programs that die in the ways llama.cpp does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentspec.config import RuntimeOptions
from agentspec.errors import ConfigError, UnsupportedModelError
from agentspec.llama import probe
from agentspec.llama.gguf import GgufFile
from agentspec.llama.probe import BuildWarning, choose_extra_bufts

FILE = GgufFile(Path("toy.gguf"), 1000, {"general.architecture": "toy"}, (), "f" * 64)

SURVIVE = "pass"
ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
ABORT = "import os, sys; print('GGML_ASSERT(x) failed', file=sys.stderr, flush=True); os.abort()"
REPORT = f"import sys; sys.exit({probe.REPORTED})"

Children = Callable[[str, str], list[bool]]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="dies by signals")


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Children:
    """Sets what the child does with and without repacking; the list grows by each child started."""
    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path))

    def install(repack: str, plain: str) -> list[bool]:
        started: list[bool] = []

        def command(_file: GgufFile, _options: RuntimeOptions, extra_bufts: bool) -> Sequence[str]:
            started.append(extra_bufts)
            no_core = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
            return [sys.executable, "-c", no_core + (repack if extra_bufts else plain)]

        monkeypatch.setattr(probe, "child_command", command)
        return started

    return install


def test_a_sound_build_repacks_and_is_asked_once(children: Children) -> None:
    started = children(SURVIVE, SURVIVE)
    assert choose_extra_bufts(FILE, RuntimeOptions()) is True
    assert choose_extra_bufts(FILE, RuntimeOptions()) is True
    assert started == [True]


def test_a_build_that_dies_falls_back_with_one_warning(children: Children) -> None:
    started = children(ILLEGAL, SURVIVE)
    with pytest.warns(BuildWarning, match=r"CXXFLAGS='-fno-tree-dse -fno-dse'") as caught:
        assert choose_extra_bufts(FILE, RuntimeOptions()) is False
    assert len(caught) == 1
    assert started == [True, False]


def test_the_fallback_is_kept_and_still_warned_of(children: Children) -> None:
    started = children(ILLEGAL, SURVIVE)
    for _ in range(2):
        with pytest.warns(BuildWarning):
            assert choose_extra_bufts(FILE, RuntimeOptions()) is False
    assert started == [True, False]


def test_both_dead(children: Children) -> None:
    started = children(ILLEGAL, ABORT)
    with pytest.raises(UnsupportedModelError, match=r"SIGILL.*SIGABRT.*GGML_ASSERT") as caught:
        choose_extra_bufts(FILE, RuntimeOptions())
    assert "-fno-tree-dse" in caught.value.hint
    with pytest.raises(UnsupportedModelError):  # it is not kept: a rebuild must get its chance
        choose_extra_bufts(FILE, RuntimeOptions())
    assert started == [True, False] * 2


def test_an_explicit_choice_is_tried_but_not_replaced(children: Children) -> None:
    started = children(ILLEGAL, SURVIVE)
    with pytest.raises(ConfigError, match=r"use_extra_bufts=True.*SIGILL"):
        choose_extra_bufts(FILE, RuntimeOptions(use_extra_bufts=True))
    assert choose_extra_bufts(FILE, RuntimeOptions(use_extra_bufts=False)) is False
    assert started == [True, False]


def test_an_error_the_child_reports_is_left_to_the_load(children: Children) -> None:
    started = children(REPORT, SURVIVE)
    for _ in range(2):  # and it is not kept
        assert choose_extra_bufts(FILE, RuntimeOptions()) is True
    assert started == [True, True]


def test_a_hanging_child_is_ended(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    children("import threading; threading.Event().wait()", SURVIVE)
    monkeypatch.setattr(probe, "_SECONDS_FIXED", 0.5)
    with pytest.warns(BuildWarning):
        assert choose_extra_bufts(FILE, RuntimeOptions()) is False


@pytest.mark.parametrize("options", [RuntimeOptions(type_k="q8_0"), RuntimeOptions(flash_attn=False)])
def test_options_that_matter_are_probed_apart(children: Children, options: RuntimeOptions) -> None:
    started = children(SURVIVE, SURVIVE)
    choose_extra_bufts(FILE, RuntimeOptions())
    choose_extra_bufts(FILE, options)
    choose_extra_bufts(FILE, RuntimeOptions(n_threads=1, n_batch=64))
    assert started == [True, True]


@pytest.mark.parametrize("kept", ["", "{", "[]", json.dumps({"use_extra_bufts": "yes"}), "\udcff"])
def test_a_damaged_record_is_not_trusted(children: Children, tmp_path: Path, kept: str) -> None:
    started = children(SURVIVE, SURVIVE)
    choose_extra_bufts(FILE, RuntimeOptions())
    (record,) = (tmp_path / "probes").iterdir()
    record.write_bytes(kept.encode("utf-8", errors="surrogateescape"))
    assert choose_extra_bufts(FILE, RuntimeOptions()) is True
    assert started == [True, True]


def test_a_cache_that_cannot_be_written_is_no_error(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    children(SURVIVE, SURVIVE)
    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path / "file"))
    assert choose_extra_bufts(FILE, RuntimeOptions()) is True


def test_the_real_child_reports_a_missing_file() -> None:
    command = probe.child_command(FILE, RuntimeOptions(), True)
    done = subprocess.run(command, env=probe.child_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == probe.REPORTED
    assert "no model file at toy.gguf" in done.stderr
