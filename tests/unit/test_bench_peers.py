"""Peers' processes, environments and llama-server: made once, spoken with, and ended whatever happens."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentspec.bench.agents import environments, llama_server
from agentspec.bench.agents.environments import make_environment, run_logged
from agentspec.bench.agents.llama_server import run_server
from agentspec.bench.agents.peer import PeerError, start_peer

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
LONG = 60.0


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_peer_answers_and_ends_with_its_input() -> None:
    with start_peer(script(ECHO), os.environ, seconds=LONG) as peer:
        assert peer.ask({"a": 1}) == {"a": 1}
        assert peer.ask({"b": "ü"}) == {"b": "ü"}


def test_a_peer_that_dies_says_why_as_often_as_it_is_asked() -> None:
    with start_peer(script("raise SystemExit('no such model')"), os.environ, seconds=LONG) as peer:
        for _ in range(2):
            with pytest.raises(PeerError, match="it has ended: no such model"):
                peer.ask({})


def test_a_silent_peer_is_given_up_and_ended_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.bench.agents.peer._ENDING_SECONDS", 0.1)
    deaf = "import threading; threading.Event().wait()"
    with (
        start_peer(script(deaf), os.environ, seconds=0.1) as peer,
        pytest.raises(PeerError, match="it said nothing"),
    ):
        peer.ask({})


def test_a_peer_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="cannot be started"), start_peer([str(tmp_path)], {}, seconds=LONG):
        pass


def test_a_program_that_fails_is_explained_by_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(PeerError, match=r"(?s)failed: .*no network"):
        run_logged(script("print('pip:'); raise SystemExit('no network')"), log)
    assert "pip:" in log.read_text()
    with pytest.raises(PeerError, match="cannot be run"):
        run_logged([str(tmp_path / "absent")], log)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """What would have been run to make an environment: only its folders are made."""
    ran: list[Sequence[str]] = []

    def run(command: Sequence[str], _: Path) -> None:
        ran.append(command)
        if "venv" in command:
            version = f"python{sys.version_info.major}.{sys.version_info.minor}"
            (Path(command[-1]) / "lib" / version / "site-packages").mkdir(parents=True)

    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(environments, "run_logged", run)
    return ran


def test_an_environment_is_made_once_for_its_packages(commands: list[Sequence[str]]) -> None:
    python = make_environment("p", ["a==1"])
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    assert commands[1][0] == str(python)
    assert commands[1][-1] == "a==1"
    assert make_environment("p", ["a==1"]) == python
    assert len(commands) == 2
    assert make_environment("p", ["a==2"]) != python


def test_an_environment_that_failed_is_made_anew(
    commands: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise PeerError("no network")

    with monkeypatch.context() as patched:
        patched.setattr(environments, "run_logged", fails)
        with pytest.raises(PeerError, match="no network"):
            make_environment("p", ["a==1"])
    make_environment("p", ["a==1"])
    assert len(commands) == 2


@pytest.mark.usefixtures("commands")
def test_a_peer_gets_this_build_of_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made_with(build: str) -> Path:
        home = tmp_path / build / "llama_cpp"
        home.mkdir(parents=True)
        home.with_name(f"llama_cpp_python-{build}.dist-info").mkdir()
        monkeypatch.setattr(environments, "llama_cpp_home", lambda: home)
        return make_environment("p", [], llama_cpp=True)

    python = made_with("old")
    assert made_with("new") == python
    (site,) = (python.parents[1] / "lib").glob("*/site-packages")
    assert sorted(path.name for path in site.iterdir()) == ["llama_cpp", "llama_cpp_python-new.dist-info"]
    assert (site / "llama_cpp").resolve() == tmp_path / "new" / "llama_cpp"


def fake_server(folder: Path, code: str) -> Path:
    """A program in place of llama-server."""
    program = folder / "llama-server"
    program.write_text(f"#!{sys.executable}\nimport sys\n{code}\n")
    program.chmod(0o755)
    return program


SERVES = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


@pytest.fixture
def _no_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "libraries", lambda: tmp_path)


@pytest.mark.usefixtures("_no_libraries")
def test_a_server_is_waited_for_and_ended(tmp_path: Path) -> None:
    import httpx

    program = fake_server(tmp_path, SERVES)
    options = {"n_ctx": 1, "n_threads": 1, "n_gpu_layers": 0}
    with run_server(program, tmp_path, **options, seconds=LONG) as url:
        assert url.endswith("/v1")
        health = url.replace("/v1", "/health")
        assert httpx.get(health, trust_env=False).is_success
    with pytest.raises(httpx.ConnectError):
        httpx.get(health, trust_env=False)


@pytest.mark.usefixtures("_no_libraries")
def test_a_server_that_ends_or_is_never_ready_is_an_error(tmp_path: Path) -> None:
    options = {"n_ctx": 1, "n_threads": 1, "n_gpu_layers": 0}
    program = fake_server(tmp_path, "raise SystemExit('unknown model')")
    with (
        pytest.raises(PeerError, match="unknown model"),
        run_server(program, tmp_path, **options, seconds=LONG),
    ):
        pass
    program = fake_server(tmp_path, "import threading; threading.Event().wait()")
    with pytest.raises(PeerError, match="not ready"), run_server(program, tmp_path, **options, seconds=0.3):
        pass


def test_a_llama_cpp_without_the_common_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "llama_cpp_home", lambda: tmp_path / "llama_cpp")
    with pytest.raises(PeerError, match="--llama-server"):
        llama_server.libraries()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libllama-common.so").touch()
    assert llama_server.libraries() == tmp_path / "lib"
