"""The command line: what it prints, and what it exits with."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import agentspec
from agentspec.cli import main as cli
from agentspec.models.catalogue import catalogue
from tests.unit.fake_servers import Page, fake_server

REFERENCE = "hf:owner/tiny-GGUF/tiny.gguf"
HUB_PATH = "/owner/tiny-GGUF/resolve/main/tiny.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 100


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("HF_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path / "cache"))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the entry point in this process and returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["agentspec", *arguments])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    code = exited.value.code
    assert isinstance(code, int)
    return code


def test_models_lists_the_catalogue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "models") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in catalogue())
    assert "downloaded" not in printed


def test_models_as_json_says_what_is_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first, *_ = catalogue().values()
    (tmp_path / "cache" / "models").mkdir(parents=True)
    (tmp_path / "cache" / "models" / first.file).touch()
    assert run(monkeypatch, "models", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["models"]
    assert [model["name"] for model in listed if model["present"]] == [first.name]


@pytest.mark.parametrize("arguments", [("--version",), ("version",)])
def test_version(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 0
    printed = capsys.readouterr().out
    assert f"agentspec {agentspec.__version__}" in printed
    assert "llama-cpp-python 0.3." in printed


def test_errors_are_one_message_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "pull", "smollm2") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no model named 'smollm2'\nhint: did you mean")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("arguments", [("pull",), ("nonsense",), ("models", "--nonsense")])
def test_wrong_usage(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, *arguments) == 2


@pytest.mark.parametrize("command", [(), ("pull",), ("models",), ("version",)])
def test_every_command_has_help(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *command, "--help") == 0
    assert "Usage:" in capsys.readouterr().out


def test_pull_prints_json_to_stdout_and_progress_to_stderr() -> None:
    with fake_server() as hub:
        hub.pages[HUB_PATH] = Page(
            CONTENT, headers={"X-Linked-Etag": f'"{hashlib.sha256(CONTENT).hexdigest()}"'}
        )
        done = subprocess.run(
            [sys.executable, "-m", "agentspec", "pull", "--json", REFERENCE],
            env={**os.environ, "HF_ENDPOINT": hub.url},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    (model,) = json.loads(done.stdout)["models"]
    assert (model["name"], model["bytes"]) == (REFERENCE, len(CONTENT))
    assert Path(model["path"]).read_bytes() == CONTENT
    assert f"{REFERENCE} from hub" in done.stderr


def test_ctrl_c_exits_with_130_and_no_traceback() -> None:
    script = f"""
        import runpy, signal, sys

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        sys.argv = ["agentspec", "pull", {REFERENCE!r}]
        runpy.run_module("agentspec", run_name="__main__")
    """
    with fake_server() as hub:
        page = hub.pages[HUB_PATH] = Page(CONTENT, stall=threading.Event())
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)],
            env={**os.environ, "HF_ENDPOINT": hub.url},
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert page.stalled.wait(timeout=30)
            child.send_signal(signal.SIGINT)
            _, printed = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in printed
