"""Snapshots of real contexts: the same logits to the last bit, and no prompt computed twice on a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentspec.config import RuntimeOptions
from agentspec.errors import CacheError, DecodeError
from agentspec.llama import Context, Model
from agentspec.types import Span

pytestmark = pytest.mark.model

N = 80


@pytest.fixture(scope="module")
def model(small_model: Path) -> Iterator[Model]:
    with Model.load(small_model) as made:
        yield made


@pytest.fixture
def context(model: Model) -> Iterator[Context]:
    with Context(model, 512, n_slots=2) as made:
        yield made


def prompt(model: Model) -> list[int]:
    found = model.vocab.tokenize(b"You are a helpful assistant. " * 40, special=False)
    return found[: N + 8]


def test_a_restored_prefix_has_the_same_logits_to_the_last_bit(model: Model, context: Context) -> None:
    tokens = prompt(model)
    context.decode([Span(0, tokens[:N], ())])
    (expected,) = context.decode([Span(0, tokens[N:], (7,))])
    state = context.state(0, N)
    assert list(context.tokens(0)) == tokens  # as it was
    with Context(model, 512, n_slots=2) as other:
        assert other.fingerprint == context.fingerprint
        other.decode([Span(0, [1, 2, 3], ())])  # something else beside it, and before it in its slot
        other.decode([Span(1, [4, 5], ())])
        other.restore(1, tokens[:N], state)
        assert list(other.tokens(1)) == tokens[:N]
        assert other.cached_length(1) == N
        (found,) = other.decode([Span(1, tokens[N:], (7,))])
    assert np.array_equal(found, expected)


def test_taking_a_state_takes_no_room(model: Model, context: Context) -> None:
    tokens = prompt(model)
    context.decode([Span(0, tokens, ())])
    states = {bytes(context.state(0, N)) for _ in range(20)}  # twenty copies would not fit
    assert len(states) == 1
    assert context.n_free == context.n_ctx - len(tokens)
    context.clear(0)
    context.decode([Span(1, (tokens * 6)[: context.n_ctx], ())])


def test_a_state_that_is_not_taken_leaves_an_empty_slot(model: Model, context: Context) -> None:
    tokens = prompt(model)
    context.decode([Span(0, tokens, ())])
    context.decode([Span(1, tokens, ())])
    state = context.state(0, N)
    with pytest.raises(CacheError, match="does not take the state"):
        context.restore(1, tokens[: N - 1], state)  # another number of tokens
    assert (list(context.tokens(1)), context.cached_length(1)) == ([], 0)
    with pytest.raises(CacheError, match="does not take the state"):
        context.restore(1, tokens[:N], state[:-1])
    assert (list(context.tokens(1)), context.cached_length(1)) == ([], 0)
    context.restore(1, tokens[:N], state)


def test_what_makes_no_sense_is_refused(model: Model, context: Context) -> None:
    tokens = prompt(model)
    context.decode([Span(0, tokens, ())])
    for length in (0, len(tokens) + 1):
        with pytest.raises(ValueError, match=f"no state of {length} tokens"):
            context.state(0, length)
    state = context.state(0, len(tokens))
    with Context(model, 256, n_slots=2) as small:
        small.decode([Span(0, tokens * 2, ())])
        with pytest.raises(DecodeError, match="full"):
            small.restore(1, tokens, state)
        assert not small.tokens(1)


def test_fingerprints_tell_settings_apart(model: Model, small_model: Path, context: Context) -> None:
    options = RuntimeOptions.parse({"type_k": "q8_0", "flash_attn": True})
    with Context(model, 512, options=options) as quantized:
        assert quantized.fingerprint != context.fingerprint
    with Context(model, 1024, n_slots=3) as larger:
        assert larger.fingerprint == context.fingerprint
    with Model.load(small_model) as again, Context(again, 512, n_slots=2) as same:
        assert same.fingerprint == context.fingerprint


def test_weights_that_were_replaced_are_others(small_model: Path, tmp_path: Path) -> None:
    """A file trained again may differ in nothing that a fingerprint samples."""
    path = tmp_path / "model.gguf"
    path.write_bytes(small_model.read_bytes())
    found = []
    for time in (1_000_000_000, 1_000_000_001):
        os.utime(path, (time, time))
        with Model.load(path, vocab_only=True) as model:
            found.append(model.arithmetic)
    assert found[0] != found[1]


def test_a_new_process_computes_only_what_is_new(small_model: Path, tmp_path: Path) -> None:
    script = f"""
        import json, sys
        from agentspec import ChatAgentSpec

        model = ChatAgentSpec(model={str(small_model)!r}, n_ctx=2048, temperature=0, max_tokens=8)
        system = "You answer questions about the sea. " * 20
        reply = model.invoke([("system", system), ("user", sys.argv[1])])
        print(json.dumps([reply.response_metadata["agentspec"]["prefill"], reply.text]))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = {"AGENTSPEC_CACHE": str(tmp_path)}
    found = []
    for question in ("Why is it blue?", "Is it deep?", "Is it deep?"):
        done = subprocess.run(
            [*command, question], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (cold, _), (warm, text), (again, same) = found
    assert cold["reused"] == 0
    assert cold["computed"] > 140
    assert warm["reused"] > 140
    assert warm["computed"] < 20
    assert (again, same) == (warm, text)
    assert len(list((tmp_path / "snapshots").glob("*.kv"))) == 1


def agentspec(cache: Path, *arguments: str) -> str:
    """Runs the command with a cache folder of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "agentspec", *arguments],
        env={"AGENTSPEC_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tools_are_read_ahead_of_the_first_call(small_model: Path, tmp_path: Path) -> None:
    """By target and draft: here they are the same file, and share a state."""
    models = ("--model", str(small_model), "--draft", str(small_model))
    warm = ("cache", "warm", "schemas/flights.json", *models, "--system", "You book flights. " * 20, "--json")
    done, again = (json.loads(agentspec(tmp_path, *warm)) for _ in range(2))
    (stored,) = done["snapshots"]
    assert (stored["model"], done["prefill"]["reused"]) == (small_model.stem, 0)
    assert again["prefill"]["reused"] == stored["n_tokens"]
    listed = json.loads(agentspec(tmp_path, "cache", "list", "--json"))["snapshots"]
    assert [one["path"] for one in listed] == [stored["path"]]
    assert small_model.stem in agentspec(tmp_path, "cache", "list")
    assert agentspec(tmp_path, "cache", "clear", "--model", "another").startswith("0 snapshots deleted")
    assert agentspec(tmp_path, "cache", "clear").startswith("1 snapshots deleted")
    assert json.loads(agentspec(tmp_path, "cache", "list", "--json"))["snapshots"] == []
