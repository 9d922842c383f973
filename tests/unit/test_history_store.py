"""Replies on disk: kept across runs, shared between processes, bounded, private, and never in the way."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from agentspec.drafts.history_store import HistoryStore

FINGERPRINT = "a vocabulary"
REPLY = [151_657, 4_913, 606]


def store(folder: Path, fingerprint: str = FINGERPRINT, **limits: int) -> HistoryStore:
    return HistoryStore(folder, fingerprint, **limits)


def written(folder: Path, *replies: list[int], tool_set: str = "tools") -> Path:
    """A folder's only file, after replies were stored in it."""
    one = store(folder)
    for reply in replies:
        one.add(tool_set, reply)
    one.close()
    (path,) = folder.glob("*.jsonl")
    return path


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What has been warned of so far."""
    with caplog.at_level(logging.WARNING):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_replies_come_back_in_order_and_by_tool_set(tmp_path: Path) -> None:
    one = store(tmp_path / "deep" / "history")
    assert one.load("tools") == []
    for reply in ([1, 2], [3], [1, 2]):
        one.add("tools", reply)
    one.add("", [4])
    one.close()
    other = store(tmp_path / "deep" / "history")
    assert other.load("tools") == [[1, 2], [3], [1, 2]]
    assert other.load("") == [[4]]
    assert other.load("unknown") == []


def test_a_reply_is_on_disk_as_soon_as_it_is_added(tmp_path: Path) -> None:
    store(tmp_path).add("tools", REPLY)
    assert store(tmp_path).load("tools") == [REPLY]


def test_loading_leaves_no_trace(tmp_path: Path) -> None:
    one = store(tmp_path / "history")
    assert one.load("tools") == []
    one.close()
    assert not (tmp_path / "history").exists()


def test_vocabularies_are_kept_apart(tmp_path: Path) -> None:
    store(tmp_path, "one").add("tools", [1])
    store(tmp_path, "other").add("tools", [2])
    assert store(tmp_path, "one").load("tools") == [[1]]
    assert store(tmp_path, "other").load("tools") == [[2]]


def test_the_format_is_json_lines_under_a_header(tmp_path: Path) -> None:
    """What version 1 is: readers of other versions rely on the first two fields."""
    header, *lines = written(tmp_path, REPLY, [5]).read_text().splitlines()
    assert (
        json.loads(header).items()
        >= {
            "format": "agentspec.history",
            "version": 1,
            "fingerprint": FINGERPRINT,
        }.items()
    )
    assert [json.loads(line)["tokens"] for line in lines] == [REPLY, [5]]


@pytest.mark.skipif(
    sys.platform == "win32",
    reason="Windows has no modes of files: there the user's own folder is closed to others",
)
def test_only_the_owner_may_read_what_was_written(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "history"
        one = store(folder, max_bytes=200)
        for _ in range(20):  # appends, and writes anew
            one.add("tools", REPLY)
            assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700


# ---------------------------------------------------------------------------------------------- bounds


def test_the_latest_replies_are_kept_within_both_bounds(tmp_path: Path) -> None:
    one = store(tmp_path, max_replies=5, max_bytes=1_000)
    for number in range(100):
        one.add("tools", [number])
    assert store(tmp_path, max_replies=5, max_bytes=1_000).load("tools") == [[n] for n in range(95, 100)]
    (path,) = tmp_path.glob("*.jsonl")
    assert path.stat().st_size <= 2_000
    few = store(tmp_path, max_bytes=100).load("tools")
    assert few == [[n] for n in range(100 - len(few), 100)]
    assert 1 < len(few) < 5


def test_a_line_that_just_fits_is_read_and_one_that_does_not_is_no_damage(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    lines = written(tmp_path, *[[number] for number in range(10)]).read_bytes().splitlines(keepends=True)
    three = sum(map(len, lines[-3:]))
    assert store(tmp_path, max_bytes=three).load("tools") == [[7], [8], [9]]
    assert store(tmp_path, max_bytes=three - 1).load("tools") == [[8], [9]]
    assert warnings() == []


def test_a_reply_that_is_too_long_is_not_stored(tmp_path: Path) -> None:
    one = store(tmp_path, max_bytes=100)
    for reply in ([1], list(range(1_000)), [2]):
        one.add("tools", reply)
    assert store(tmp_path).load("tools") == [[1], [2]]


def test_the_tool_set_that_was_not_written_to_for_longest_goes_first(tmp_path: Path) -> None:
    others = store(tmp_path, "other vocabulary")
    others.add("a", [9])
    for path in tmp_path.glob("*.jsonl"):
        os.utime(path, (0, 0))
    one = store(tmp_path, max_tool_sets=6)
    for at, name in enumerate("abcdefa"):
        one.add(name, [at])
        newest = max(tmp_path.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (at, at))  # clocks may be too coarse to tell them apart
    for at, name in enumerate("ghi"):
        one.add(name, [at])
        assert one.load(name) == [[at]]
    assert [name for name in "abcdefghi" if one.load(name)] == list("aefghi")
    assert one.load("a") == [[0], [6]]
    assert others.load("a") == [[9]]


# ---------------------------------------------------------------------------------------- bad files


def test_damaged_lines_are_left_out_with_one_warning(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    path = written(tmp_path, [1], [2], [3])
    header, one, two, three = path.read_bytes().splitlines(keepends=True)
    bad = [
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b"{}\n",
        b"7\n",
        b"\n",
        two.replace(b"[2]", b"[4]"),
        two.replace(b"[2]", b"[2.0]"),
        two[: len(two) // 2] + b"\n",
    ]
    path.write_bytes(header + one + b"".join(bad) + three)
    again = store(tmp_path, max_bytes=10**6)
    assert again.load("tools") == [[1], [3]]
    assert len(warnings()) == 1
    assert f"damaged lines are left out: {len(bad)}" in warnings()[0]
    again.load("tools")
    assert len(warnings()) == 1


@pytest.mark.parametrize("cut", [1, 5])
def test_after_a_writer_that_was_killed_only_its_line_is_lost(
    tmp_path: Path, warnings: Callable[[], list[str]], cut: int
) -> None:
    path = written(tmp_path, [1], [2])
    path.write_bytes(path.read_bytes()[:-cut])
    store(tmp_path).add("tools", [3])
    assert store(tmp_path).load("tools") == ([[1], [3]] if cut > 1 else [[1], [2], [3]])
    assert len(warnings()) == (cut > 1)


def test_a_file_that_was_cut_is_read_up_to_there(tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    path = written(tmp_path, [1], [2])
    path.write_bytes(path.read_bytes()[:-5])
    assert store(tmp_path).load("tools") == [[1]]
    assert len(warnings()) == 1


def test_a_new_file_that_was_not_finished_changes_nothing(tmp_path: Path) -> None:
    """A process was killed before it could put the new file in the old one's place."""
    path = written(tmp_path, [1])
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(path.read_bytes() * 10)
    assert store(tmp_path).load("tools") == [[1]]
    one = store(tmp_path, max_bytes=100)
    for number in range(2, 10):
        one.add("tools", [number])
    assert one.load("tools")[-1] == [9]
    assert path.read_bytes().count(b"format") == 1
    assert not unfinished.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"not JSON\n", b"[1]\n", b'{"format": "agentsp', b"\0" * 999]
)
def test_a_file_without_its_header_is_begun_anew(
    tmp_path: Path, warnings: Callable[[], list[str]], content: bytes
) -> None:
    path = written(tmp_path, [1])
    path.write_bytes(content)
    one = store(tmp_path)
    assert one.load("tools") == []
    one.add("tools", [2])
    assert len(warnings()) == 1
    assert "damaged" in warnings()[0]
    assert store(tmp_path).load("tools") == [[2]]
    assert len(warnings()) == 1


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"format": "another"}, {"fingerprint": "another"}, {"tool_set": "0"}]
)
def test_a_file_that_is_something_else_is_left_as_it_is(
    tmp_path: Path, warnings: Callable[[], list[str]], change: dict[str, object]
) -> None:
    path = written(tmp_path, [1])
    header, line = path.read_text().splitlines()
    other = json.dumps(json.loads(header) | change) + "\n" + line + "\n"
    path.write_text(other)
    one = store(tmp_path)
    assert one.load("tools") == []
    one.add("tools", [2])
    one.add("others", [3])
    one.close()
    assert path.read_text() == other
    assert one.load("others") == [[3]]
    assert len(warnings()) == 1
    assert str(path) in warnings()[0]


# ------------------------------------------------------------------------------------ disks that refuse


def test_a_folder_that_cannot_be_made_means_no_storing(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    (tmp_path / "file").write_text("in the way")
    one = store(tmp_path / "file" / "history")
    for _ in range(3):
        one.add("tools", REPLY)
    assert one.load("tools") == []
    one.close()
    assert len(warnings()) == 1
    assert "no longer stored" in warnings()[0]


def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    path = written(tmp_path, REPLY)
    path.unlink()
    path.mkdir()
    one = store(tmp_path)
    assert one.load("tools") == one.load("tools") == []
    assert len(warnings()) == 1


def test_a_folder_that_is_read_only_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the refusal is played by the lock."""
    written(tmp_path, REPLY)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert store(tmp_path).load("tools") == [REPLY]


@pytest.mark.skipif(
    sys.platform == "win32",
    reason="Windows has no limit on the size of files, by which this plays a full disk",
)
def test_a_disk_that_is_full_gets_no_half_lines(tmp_path: Path, warnings: Callable[[], list[str]]) -> None:
    """The limit on the size of files makes the system write a part of the line, as a full disk does."""
    import resource

    path = written(tmp_path, [1], [2])
    before = path.read_bytes()
    one = store(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
    try:
        one.add("tools", REPLY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    one.add("tools", REPLY)
    one.close()
    assert path.read_bytes() == before
    assert len(warnings()) == 1


# ------------------------------------------------------------------------------------- many processes


def test_what_another_process_wrote_survives_a_file_that_is_written_anew(tmp_path: Path) -> None:
    ours, theirs = store(tmp_path, max_bytes=1_000), store(tmp_path, max_bytes=1_000)
    assert ours.load("tools") == theirs.load("tools") == []
    for number in range(0, 60, 2):
        ours.add("tools", [number])
        theirs.add("tools", [number + 1])
    last = ours.load("tools")
    assert len(last) > 10
    assert last == [[number] for number in range(60 - len(last), 60)]


def test_adding_never_waits_for_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done between two tokens of other replies."""
    waits: list[float] = []

    def busy(lock: FileLock, timeout: float) -> None:
        waits.append(timeout)
        raise Timeout(lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", busy)
    store(tmp_path).add("tools", REPLY)
    assert waits == [0.0]


def test_what_could_not_be_stored_while_another_process_wrote_is_stored_later(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    path = written(tmp_path, [1])
    one = store(tmp_path)
    with FileLock(tmp_path / ".lock"):
        one.add("tools", [2])
        assert len(path.read_text().splitlines()) == 2
        one.add("others", [3])
    one.add("tools", [4])
    assert store(tmp_path).load("tools") == [[1], [2], [4]]
    assert store(tmp_path).load("others") == [[3]]
    with FileLock(tmp_path / ".lock"):
        one.add("tools", [5])
    one.close()
    assert store(tmp_path).load("tools") == [[1], [2], [4], [5]]
    assert warnings() == []


def test_a_lock_that_is_never_free_costs_the_replies_not_the_run(
    tmp_path: Path, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentspec.drafts.history_store._CLOSE_WAIT", 0.0)
    monkeypatch.setattr("agentspec.drafts.history_store._LOAD_WAIT", 0.0)
    written(tmp_path, [1])
    one = store(tmp_path)
    with FileLock(tmp_path / ".lock"):
        one.add("tools", [2])
        assert one.load("tools") == [[1]]
        one.close()
        one.close()
    assert len(warnings()) == 1
    assert "replies that were not stored: 1" in warnings()[0]


WRITER = """
import sys
from pathlib import Path
from agentspec.drafts.history_store import HistoryStore

folder, first = Path(sys.argv[1]), int(sys.argv[2])
store = HistoryStore(folder, "a vocabulary", max_replies=1000, max_bytes=4000)
print("ready", flush=True)
sys.stdin.readline()
for number in range(first, first + 100):
    store.add("tools", [number] * 5)
    store.add(f"tools of {first}", [number])
store.close()
"""


def test_two_processes_that_write_at_once_lose_and_mix_nothing(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    """Both append to one file and write it anew, over and over; then each one's order must have been kept."""
    firsts = (1_000, 2_000)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in firsts
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    everything = store(tmp_path, max_replies=1_000, max_bytes=10**6)
    for first in firsts:
        assert everything.load(f"tools of {first}") == [[number] for number in range(first, first + 100)]
    shared = everything.load("tools")
    assert len(shared) > 40
    assert all(reply == reply[:1] * 5 for reply in shared)
    numbers = [reply[0] for reply in shared]
    for first in firsts:
        own = [number for number in numbers if first <= number < first + 100]
        assert own == list(range(first + 100 - len(own), first + 100))
    assert warnings() == []
