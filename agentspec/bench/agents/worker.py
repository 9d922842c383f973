"""An agent in a process of its own: LangChain's `create_agent` on one chat model, driven by JSON lines.

It runs in environments that have LangChain and a peer and nothing else, so it imports only what these have.
The command that started it keeps the worlds: here a tool is a name, a schema and a question to the command.

    command                          worker
    {"open": {"kind": ..., ...}}  →
                                  ←  {"ready": {"form": ..., "versions": {...}}} or {"failed": reason}
    {"task": {...}}               →
                                  ←  {"call": {"name": ..., "arguments": {...}}}, any number of times
    {"result": text}              →
                                  ←  {"done": {"answer": ..., "replies": [...], "error": reason or null}}

The end of its input is the end of the worker.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

__all__ = ["Agent", "Model", "main", "serve"]

_FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What models and agents raise: a task that ends so has failed, and the next one is tried."""

_DECODING = ("draft", "target", "verify")
"""The phases of agentspec that make tokens."""

_PACKAGES = ("langchain", "langchain-core", "langchain-community", "langchain-openai", "langchain-agentspec")


@dataclass(frozen=True)
class Model:
    """A chat model and how an agent is to use it.

    forced:   whether every reply is to be a call, the answer being one as well: what small models do best
    form:     the same in words, and why it is not the better one
    decoding: the tokens and seconds of decoding of a reply, from the message and the call's own seconds
    errors:   what else it raises
    """

    chat: Any
    forced: bool
    form: str
    decoding: Callable[[Any, float], tuple[int, float]]
    errors: tuple[type[Exception], ...] = ()


class Pipe:
    """One line out, one line in, whatever thread asks."""

    def __init__(self, lines: Iterator[str], out: TextIO) -> None:
        self._lines = lines
        self._out = out
        self._lock = threading.Lock()

    def say(self, message: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def ask(self, message: Mapping[str, Any]) -> Any:
        with self._lock:
            self.say(message)
            return json.loads(next(self._lines))


@dataclass
class Agent:
    """Works on tasks with one model."""

    model: Model
    pipe: Pipe
    replies: list[dict[str, Any]] = field(default_factory=list)

    def work(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """One task, from the request to the answer."""
        from langchain.agents import create_agent
        from langchain.agents.middleware import wrap_model_call
        from langchain.agents.structured_output import StructuredOutputError, ToolStrategy
        from langchain.tools import tool

        self.replies = []

        @wrap_model_call
        def watched(request: Any, handler: Callable[[Any], Any]) -> Any:
            started = time.perf_counter()
            response = handler(request)
            self._keep(response.result[0], time.perf_counter() - started)
            return response

        tools = [
            tool(one["name"], description=one["description"], args_schema=one["parameters"])(
                self._asking(one["name"])
            )
            for one in task["tools"]
        ]
        expected: tuple[type[Exception], ...] = (*_FAILURES, StructuredOutputError, *self.model.errors)
        answer: object = None
        error = None
        try:
            agent = create_agent(
                self.model.chat,
                tools,
                system_prompt=task["instructions"],
                response_format=ToolStrategy(task["answer"]) if self.model.forced else None,
                middleware=[watched],
            )
            state = agent.invoke(
                {"messages": [{"role": "user", "content": task["request"]}]},
                {"recursion_limit": 2 * task["max_steps"]},  # a reply and its tools are two
            )
            answer = state.get("structured_response") if self.model.forced else state["messages"][-1].text
        except expected as failure:
            error = _described(failure)
        return {"answer": answer, "replies": self.replies, "error": error}

    def _asking(self, name: str) -> Callable[..., str]:
        def ask(**arguments: Any) -> str:
            return str(self.pipe.ask({"call": {"name": name, "arguments": arguments}})["result"])

        return ask

    def _keep(self, message: Any, seconds: float) -> None:
        tokens, decode_seconds = self.model.decoding(message, seconds)
        self.replies.append(
            {
                "text": message.text,
                "calls": [{"name": call["name"], "arguments": call["args"]} for call in message.tool_calls],
                "invalid": [
                    {"name": call["name"], "arguments": call["args"], "error": call["error"]}
                    for call in message.invalid_tool_calls
                ],
                "seconds": seconds,
                "tokens": tokens,
                "decode_seconds": decode_seconds,
            }
        )


def serve(
    lines: Iterator[str], out: TextIO, models: Mapping[str, Callable[[Mapping[str, Any]], Model]]
) -> None:
    """Answers the command until its lines end. models: what makes a model of each kind"""
    pipe = Pipe(lines, out)
    wanted = json.loads(next(lines))["open"]
    try:
        importlib.import_module("langchain.agents")  # what lacks is to be said before a model is loaded
        model = models[wanted["kind"]](wanted)
    except (*_FAILURES, ImportError) as failure:
        pipe.say({"failed": _described(failure)})
        return
    pipe.say({"ready": {"form": model.form, "versions": dict(_versions())}})
    agent = Agent(model, pipe)
    for line in lines:
        pipe.say({"done": agent.work(json.loads(line)["task"])})


def _described(failure: BaseException) -> str:
    """On one line, of a length that a table of results bears."""
    return " ".join(f"{type(failure).__name__}: {failure}".split())[:400]


def _versions() -> Iterator[tuple[str, str]]:
    for package in (*_PACKAGES, "llama-cpp-python"):
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


# ------------------------------------------------------------------------------------------------ models


def open_agentspec(wanted: Mapping[str, Any]) -> Model:
    """This project's own chat model, with its drafts or without."""
    from agentspec import ChatAgentSpec
    from agentspec.errors import AgentSpecError

    undrafted: dict[str, Any] = {"draft": None, "draft_sources": ()}
    chat = ChatAgentSpec(
        model=wanted["model"],
        n_ctx=wanted["n_ctx"],
        n_parallel=1,
        n_threads=wanted["n_threads"],
        n_gpu_layers=wanted["n_gpu_layers"],
        temperature=0.0,
        max_tokens=wanted["max_tokens"],
        calibration="memory",
        history="memory",
        snapshots="off",
        **({"draft": wanted["draft"]} if wanted["drafts"] else undrafted),
    )
    chat.get_num_tokens("loads the models")

    def decoding(message: Any, _: float) -> tuple[int, float]:
        facts = message.response_metadata["agentspec"]
        return int(facts["tokens"]), sum(facts["seconds"].get(phase, 0.0) for phase in _DECODING)

    return Model(chat, True, "every reply a call, by response_format", decoding, (AgentSpecError,))


def open_chat_llama_cpp(wanted: Mapping[str, Any]) -> Model:
    """langchain-community's ChatLlamaCpp. What it cannot do with an agent is found out, not assumed."""
    import llama_cpp
    from langchain.tools import tool
    from langchain_community.chat_models import ChatLlamaCpp

    chat = ChatLlamaCpp(
        model_path=wanted["path"],
        n_ctx=wanted["n_ctx"],
        n_batch=512,
        n_gpu_layers=wanted["n_gpu_layers"],
        n_threads=wanted["n_threads"],
        temperature=0.0,
        max_tokens=wanted["max_tokens"],
        repeat_penalty=1.0,
        verbose=False,
    )

    @tool
    def probe() -> str:
        """Do nothing."""
        return ""

    forced, form = True, "every reply a call, by response_format"
    try:
        chat.bind_tools(
            [probe], tool_choice="any"
        )  # what create_agent asks for where there is a response_format
    except ValueError as refusal:
        forced, form = False, f"tools bound, answer as text; with a response_format: {_described(refusal)}"

    context = chat.client.ctx

    def decoding(_: Any, seconds: float) -> tuple[int, float]:
        figures = llama_cpp.llama_perf_context(context)
        llama_cpp.llama_perf_context_reset(context)
        return int(figures.n_eval), seconds - figures.t_p_eval_ms / 1000

    return Model(chat, forced, form, decoding)


def open_llama_server(wanted: Mapping[str, Any]) -> Model:
    """A running llama-server behind langchain-openai's ChatOpenAI."""
    import httpx
    from langchain_openai import ChatOpenAI
    from openai import OpenAIError

    timings: dict[str, float] = {}

    def keep(response: Any) -> None:
        response.read()
        timings.update(response.json().get("timings", {}))

    chat = ChatOpenAI(
        base_url=wanted["url"],
        api_key="none",
        model="local",
        temperature=0.0,
        max_tokens=wanted["max_tokens"],
        max_retries=0,
        http_client=httpx.Client(event_hooks={"response": [keep]}, timeout=None, trust_env=False),
    )

    def decoding(_: Any, __: float) -> tuple[int, float]:
        return int(timings["predicted_n"]), timings["predicted_ms"] / 1000

    return Model(chat, True, "every reply a call, by response_format", decoding, (OpenAIError,))


MODELS: Mapping[str, Callable[[Mapping[str, Any]], Model]] = {
    "agentspec": open_agentspec,
    "chat-llama-cpp": open_chat_llama_cpp,
    "llama-server": open_llama_server,
}


def main() -> None:
    """Serves on stdin and stdout. Whatever else is printed, llama.cpp's lines among it, goes to stderr."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(iter(sys.stdin), out, MODELS)


if __name__ == "__main__":
    main()
