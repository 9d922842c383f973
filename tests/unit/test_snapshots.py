"""Snapshot files: found by what they are of, whole or not at all, and believed only when they check."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentspec import snapshots as module
from agentspec.snapshots import Snapshots, clear, stored

TOKENS = list(range(100, 200))
STATE = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def opened(folder: Path, fingerprint: str = "model A", max_bytes: int = 10**6) -> Snapshots:
    return Snapshots(folder, fingerprint, model="a-model", max_bytes=max_bytes)


def saved(folder: Path, tokens: list[int] = TOKENS, state: bytes = STATE) -> Path:
    """Stores a state; returns the file that came of it."""
    before = set(folder.glob("*.kv"))
    snapshots = opened(folder)
    snapshots.save(tokens, state)
    snapshots.close()
    (path,) = set(folder.glob("*.kv")) - before
    return path


def test_what_is_saved_is_loaded_by_another(folder: Path) -> None:
    saved(folder)
    other = opened(folder)
    assert other.has(TOKENS)
    assert other.load(TOKENS) == STATE
    assert other.load(TOKENS[:-1]) is None
    assert not other.has([*TOKENS, 1])


def test_a_state_is_known_before_it_is_written(folder: Path) -> None:
    snapshots = opened(folder)
    snapshots.save(TOKENS, STATE)
    assert snapshots.has(TOKENS)
    snapshots.close()
    assert snapshots.has(TOKENS)


def test_the_longest_prefix_is_found(folder: Path) -> None:
    snapshots = opened(folder)
    assert snapshots.longest(TOKENS) == 0
    for tokens in (TOKENS[:10], TOKENS[:40], [*TOKENS[:50], 7]):
        snapshots.save(tokens, STATE)
    snapshots.close()
    assert snapshots.longest(TOKENS) == 40
    assert snapshots.longest(TOKENS[:40]) == 40
    assert snapshots.longest(TOKENS[:39]) == 10
    assert snapshots.longest([*TOKENS[:50], 7, 8]) == 51
    assert snapshots.longest([]) == 0


def test_another_model_sees_nothing(folder: Path) -> None:
    saved(folder)
    other = opened(folder, "model B")
    assert (other.longest(TOKENS), other.load(TOKENS), other.has(TOKENS)) == (0, None, False)


def cut(data: bytes) -> bytes:
    return data[:-1]


def flipped(data: bytes) -> bytes:
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def longer(data: bytes) -> bytes:
    return data + b"\0"


def no_header(data: bytes) -> bytes:
    return data[data.index(b"\n") + 1 :]


def foreign(data: bytes) -> bytes:
    return data.replace(b"model A", b"model B")


def without_end(data: bytes) -> bytes:
    return data[:40]


def no_json(data: bytes) -> bytes:
    return data.replace(b"{", b"[", 1)


def empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut, flipped, longer, no_header, foreign, without_end, no_json, empty])
def test_a_file_that_does_not_check_is_not_used(
    damage: Callable[[bytes], bytes], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(folder)
    path.write_bytes(damage(path.read_bytes()))
    snapshots = opened(folder)
    with caplog.at_level(logging.WARNING):
        assert snapshots.load(TOKENS) is None
    assert [record.getMessage().startswith(f"{path} is not used: ") for record in caplog.records] == [True]
    assert not path.exists()  # the next one is written in its place
    assert saved(folder) == path
    assert opened(folder).load(TOKENS) == STATE


@pytest.mark.parametrize("tokens", [TOKENS[:50], [*TOKENS[:-1], 7]])
def test_a_file_under_the_name_of_another_is_not_used(tokens: list[int], folder: Path) -> None:
    other = saved(folder, tokens)
    path = saved(folder)
    os.replace(other, path)
    assert opened(folder).load(TOKENS) is None


@pytest.mark.skipif(
    sys.platform == "win32",
    reason="Windows has no modes of files: there the user's own folder is closed to others",
)
def test_files_are_their_owners_alone(folder: Path) -> None:
    path = saved(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_those_not_used_for_longest_go_first(folder: Path) -> None:
    first, second = saved(folder, TOKENS[:10]), saved(folder, TOKENS[:20])
    for age, path in ((30.0, first), (60.0, second)):
        os.utime(path, (path.stat().st_atime - age, path.stat().st_mtime - age))
    small = opened(folder, max_bytes=int(2.5 * first.stat().st_size))
    assert small.load(TOKENS[:20]) == STATE  # which makes it the one used last
    small.save(TOKENS[:30], STATE)
    small.close()
    assert not first.exists()
    assert second.exists()
    assert small.longest(TOKENS) == 30


def test_what_is_too_large_is_left_out(folder: Path) -> None:
    small = opened(folder, max_bytes=len(STATE))
    small.save(TOKENS, STATE)
    small.close()
    assert not small.has(TOKENS)


def test_a_folder_that_cannot_be_written_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    snapshots = opened(tmp_path / "file" / "snapshots")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            snapshots.save(TOKENS, STATE)
            snapshots.close()
    assert len(caplog.records) == 1
    assert not snapshots.has(TOKENS)


def test_what_a_killed_process_left_is_cleared_after_a_while(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(folder)
    left = folder / ".0123456789abcdef-1-0.kv.17-4"
    left.write_bytes(b"half")
    saved(folder, TOKENS[:50])
    assert left.exists()
    monkeypatch.setattr(module, "_ABANDONED", -1.0)
    saved(folder, TOKENS[:60])
    assert not left.exists()


def test_a_process_killed_while_it_writes_leaves_nothing_that_is_used(folder: Path) -> None:
    script = f"""
        import itertools, sys
        from pathlib import Path
        from agentspec.snapshots import Snapshots

        snapshots = Snapshots(Path({str(folder)!r}), "model A")
        for number in itertools.count():
            snapshots.save([number, 1, 2], bytes([number % 256]) * 3_000_000)
            if number == 3:
                print("writing", flush=True)
            if number > 3:
                snapshots.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.kill()
    snapshots = opened(folder)
    for number in range(1000):
        state = snapshots.load([number, 1, 2])
        assert state in (None, bytes([number % 256]) * 3_000_000)
        if state is None and number > 10:
            break
    snapshots.save(TOKENS, STATE)
    snapshots.close()
    assert snapshots.load(TOKENS) == STATE


def test_the_list_of_what_is_stored(folder: Path) -> None:
    assert stored(folder) == []
    old, new = saved(folder, TOKENS[:10]), saved(folder)
    os.utime(old, (0.0, 0.0))
    (folder / "notes.kv").write_bytes(b"mine")
    found = stored(folder)
    assert [(one.path, one.model, one.n_tokens) for one in found] == [
        (new, "a-model", 100),
        (old, "a-model", 10),
    ]
    assert found[0].n_bytes == new.stat().st_size
    assert found[1].used == 0.0


def test_clearing_leaves_nothing_behind(folder: Path) -> None:
    assert clear(folder) == []
    path = saved(folder)
    left, mine = folder / f".{path.name}.17-4", folder / "notes.txt"
    for other in (left, mine):
        other.write_bytes(b"half")
    assert clear(folder, "another-model") == []
    assert path.exists()
    assert [one.path for one in clear(folder)] == [path]
    assert list(folder.iterdir()) == [mine]


def test_no_thread_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the interpreter's end none can be started."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    snapshots = opened(folder)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        snapshots.save(TOKENS, STATE)
        assert not snapshots.has(TOKENS)
        snapshots.close()
    snapshots.save(TOKENS, STATE)
    snapshots.close()
    assert snapshots.load(TOKENS) == STATE


def test_the_header_can_be_read_by_people(folder: Path) -> None:
    magic, header, _ = saved(folder).read_bytes().split(b"\n", 2)
    assert magic == b"agentspec.snapshot 1"
    assert json.loads(header)["n_tokens"] == len(TOKENS)


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "agentspec-snapshots"]
