"""`agentspec bench schemas`: tools are found in any form, and judged one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.bench.schemas import FoundTool, bench_schemas, read_tools
from agentspec.cli.bench_schemas import lines
from agentspec.errors import ConfigError
from agentspec.types import BoundTool, Json
from tests.unit.grammars import IMPOSSIBLE, closed, small_tokenizer

SCHEMA: dict[str, Json] = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}}}


def test_tools_are_found_in_every_form(tmp_path: Path) -> None:
    openai = {"type": "function", "function": {"name": "one", "description": "", "parameters": SCHEMA}}
    anthropic = {"name": "two", "input_schema": SCHEMA}
    mcp = {"server": "x", "name": "three", "inputSchema": SCHEMA}
    records = [{"id": 1, "tools": [openai, anthropic]}, {"deep": {"er": [mcp, mcp]}}, anthropic]
    text = "\n".join(json.dumps(record) for record in records) + "\n\n"
    (tmp_path / "records.jsonl").write_text(text, encoding="utf-8")
    folder = tmp_path / "schemas" / "more"
    folder.mkdir(parents=True)
    (folder / "titled.json").write_text(json.dumps({**SCHEMA, "title": "four"}), encoding="utf-8")
    (folder / "five.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (folder / "notes.txt").write_text("no JSON", encoding="utf-8")
    found = read_tools([tmp_path / "records.jsonl", tmp_path / "schemas"])
    assert [one.tool.name for one in found] == ["one", "two", "three", "five", "four"]
    assert all(one.tool.parameters["properties"] == SCHEMA["properties"] for one in found)
    assert found[2].where.endswith("records.jsonl:2")


def test_files_without_tools_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": [1]}', encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{}\n{"x', encoding="utf-8")
    with pytest.raises(ConfigError, match="no tool in 1 files"):
        read_tools([tmp_path / "a.json"])
    with pytest.raises(ConfigError, match=r"b\.jsonl:2 is not JSON"):
        read_tools([tmp_path])
    with pytest.raises(ConfigError, match="does not exist"):
        read_tools([tmp_path / "c.json"])


def judged(*schemas: Any) -> dict[str, Any]:
    tools = [FoundTool(BoundTool(f"t{index}", "", schema), "here") for index, schema in enumerate(schemas)]
    told: list[int] = []
    findings = bench_schemas(tools, small_tokenizer(), report=told.append)
    assert told == [len(tools)] * len(tools)
    assert len([*lines(findings)]) >= 3
    return findings.as_json()


def test_every_tool_is_judged() -> None:
    unique: Json = {"type": "array", "uniqueItems": True, "items": {"type": "boolean"}}
    shown = judged(SCHEMA, closed({"a": unique}), closed({"a": IMPOSSIBLE}), ["no schema"])
    counts = {name: shown[name] for name in ("total", "compiled", "superset", "refused", "crashed")}
    assert counts == {"total": 4, "compiled": 1, "superset": 1, "refused": 2, "crashed": 0}
    assert shown["superset_tools"] == [
        {"tool": "t1", "where": "here", "not_enforced": ["/properties/a/uniqueItems"]}
    ]
    assert "'t2': /properties/a cannot be enforced" in shown["refused_tools"][0]["reason"]
    assert "not a JSON object" in shown["refused_tools"][1]["reason"]
    assert shown["mask_us"]["median"] > 0
    assert shown["compile_ms"]["p99"] == shown["compile_ms"]["max"]  # of few, the rarest is the longest


def test_a_crash_is_counted_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: BoundTool) -> None:
        raise KeyError("x")

    monkeypatch.setattr("agentspec.bench.schemas.enforceable_tool", crash)
    shown = judged(SCHEMA)
    assert shown["crashed_tools"] == [{"tool": "t0", "where": "here", "reason": "KeyError: 'x'"}]
    assert shown["compile_ms"] is None
