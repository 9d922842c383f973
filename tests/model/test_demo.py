"""The demo as `make demo` runs it, with one round: what it promises besides speed.

But for one thing: no costs are measured, or the passes it makes would depend on how busy the machine is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentspec.config import ContextOptions

pytestmark = [pytest.mark.model, pytest.mark.slow]

ROOT = Path(__file__).parents[2]

DEMO = """
import runpy
from agentspec.engine import core
core.Costs = core.Costs.free
runpy.run_module("examples.demo", run_name="__main__", alter_sys=True)
"""

KV_BYTES_A_TOKEN = {  # layers * (K and V) * (KV heads * head size) * two bytes
    "target": 28 * 2 * (2 * 128) * 2,
    "draft": 24 * 2 * (2 * 64) * 2,
}


def test_the_demo_keeps_its_promises(target_model: Path, draft_model: Path) -> None:
    command = [sys.executable, "-c", DEMO, "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])

    assert figures["tool_calls"] == figures["valid_tool_calls"] >= 4
    none, grammar, model, everything = (
        figures["configs"][name] for name in ("none", "grammar", "grammar+model", "all")
    )
    assert none["target_passes"] == none["tokens"], "plain decoding is one token a pass"
    assert none["acceptance"] == {}
    assert set(grammar["acceptance"]) == {"grammar"}
    assert grammar["acceptance"]["grammar"] > 0.9
    assert grammar["tokens"] >= 2 * grammar["target_passes"]
    assert set(model["acceptance"]) == {"grammar", "model"}
    assert model["tokens"] >= 4 * model["target_passes"]
    assert everything["tokens"] >= 3 * everything["target_passes"]

    if figures["peak_rss_mb"] is not None:
        kv = ContextOptions().n_ctx * sum(KV_BYTES_A_TOKEN.values())
        files = target_model.stat().st_size + draft_model.stat().st_size
        assert figures["peak_rss_mb"] <= (files + kv) / 1e6 + 400
