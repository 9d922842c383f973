"""The systems that can be set to tasks, and how each is made ready: environment, server, worker.

Each runs in a process of its own, with the same GGUF, context, threads and caps. It must not know tasks or
how results are shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from agentspec.bench.agents.environments import make_environment
from agentspec.bench.agents.llama_server import build_server, run_server
from agentspec.bench.agents.peer import Peer, PeerError, start_peer
from agentspec.types import Json

__all__ = ["SYSTEMS", "Ready", "Settings", "open_system"]

_WORKER = Path(__file__).with_name("worker.py")
_PACKAGE_PARENT = Path(__file__).parents[3]

_LANGCHAIN = ("langchain==1.5.2", "langchain-core==1.8.3")
_CHAT_LLAMA_CPP = (
    *_LANGCHAIN,
    "langchain-community==0.4.2",
    *("numpy==2.4.6", "diskcache==5.6.3", "jinja2==3.1.6", "typing-extensions==4.16.0"),  # llama-cpp-python's
)
_LLAMA_SERVER = (*_LANGCHAIN, "langchain-openai==1.7.4", "cmake==4.4.5", "ninja==1.13.2")

_SILENCE_SECONDS = 900.0
"""How long a worker may take for one reply, on a slow machine, before it counts as dead."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all systems have in common.

    model, path:  the target by name, and its file
    draft:        the draft model of the system that has one
    n_gpu_layers: as `RuntimeOptions` takes it
    server:       a llama-server to be used in place of one that is built here
    """

    model: str
    path: Path
    draft: str | None
    n_threads: int
    n_gpu_layers: int | str = "auto"
    n_ctx: int = 4096
    max_tokens: int = 200
    server: Path | None = None

    @property
    def peers_gpu_layers(self) -> int:
        """The same for those who have no word for it: all layers, where the build has a GPU."""
        return self.n_gpu_layers if isinstance(self.n_gpu_layers, int) else -1

    def opening(self, kind: str, **more: Json) -> dict[str, Json]:
        """What a worker is told in the beginning."""
        common: dict[str, Json] = {
            "kind": kind,
            "path": str(self.path),
            "n_ctx": self.n_ctx,
            "n_threads": self.n_threads,
            "n_gpu_layers": self.peers_gpu_layers,
            "max_tokens": self.max_tokens,
        }
        return {"open": {**common, **more}}


@dataclass(frozen=True, slots=True)
class Ready:
    """A system that waits for tasks. form: how it uses LangChain's agent; versions: of its packages"""

    peer: Peer
    form: str
    versions: Mapping[str, Json]


System: TypeAlias = Callable[[Settings, ExitStack], tuple[Peer, Mapping[str, Json]]]
"""Starts a worker, and says what to tell it first. What it opens goes to the stack. Raises PeerError."""


@contextmanager
def open_system(name: str, settings: Settings) -> Iterator[Ready]:
    """A system of SYSTEMS, made ready. Raises PeerError."""
    with ExitStack() as opened:
        peer, opening = SYSTEMS[name](settings, opened)
        match peer.ask(opening):
            case {"ready": {"form": str(form), "versions": dict(versions)}}:
                yield Ready(peer, form, versions)
            case {"failed": str(reason)}:
                raise PeerError(reason)
            case other:
                raise PeerError(f"it said {other!r}")


def _agentspec(settings: Settings, opened: ExitStack, *, drafts: bool) -> tuple[Peer, Mapping[str, Json]]:
    # the same code as this process's, wherever that is
    paths = [str(_PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    peer = opened.enter_context(
        start_peer([sys.executable, "-P", str(_WORKER)], environ, seconds=_SILENCE_SECONDS)
    )
    own: dict[str, Json] = {"model": settings.model, "draft": settings.draft, "drafts": drafts}
    return peer, settings.opening("agentspec", **own, n_gpu_layers=settings.n_gpu_layers)


def _with_drafts(settings: Settings, opened: ExitStack) -> tuple[Peer, Mapping[str, Json]]:
    return _agentspec(settings, opened, drafts=True)


def _without_drafts(settings: Settings, opened: ExitStack) -> tuple[Peer, Mapping[str, Json]]:
    return _agentspec(settings, opened, drafts=False)


def _chat_llama_cpp(settings: Settings, opened: ExitStack) -> tuple[Peer, Mapping[str, Json]]:
    python = make_environment("chat-llama-cpp", _CHAT_LLAMA_CPP, llama_cpp=True)
    return _isolated(python, opened), settings.opening("chat-llama-cpp")


def _llama_server(settings: Settings, opened: ExitStack) -> tuple[Peer, Mapping[str, Json]]:
    python = make_environment("llama-server", _LLAMA_SERVER)
    running = run_server(
        settings.server or build_server(python),
        settings.path,
        n_ctx=settings.n_ctx,
        n_threads=settings.n_threads,
        n_gpu_layers=settings.peers_gpu_layers,
        seconds=_SILENCE_SECONDS,
    )
    url = opened.enter_context(running)
    return _isolated(python, opened), settings.opening("llama-server", url=url)


def _isolated(python: Path, opened: ExitStack) -> Peer:
    """A worker in an environment of its own, which sees nothing of this process's."""
    command = [str(python), "-I", str(_WORKER)]
    return opened.enter_context(start_peer(command, os.environ, seconds=_SILENCE_SECONDS))


SYSTEMS: Mapping[str, System] = {
    "agentspec": _with_drafts,
    "agentspec-no-drafts": _without_drafts,
    "chat-llama-cpp": _chat_llama_cpp,
    "llama-server": _llama_server,
}
