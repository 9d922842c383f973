"""HTTP servers on this machine that misbehave on demand: a hub and a package index for tests of pulling."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JSON_TYPE = "application/vnd.pypi.simple.v1+json"


@dataclass
class Page:
    """What one path answers.

    status:     the status of the answer, where it is not to be 200 (or 206)
    cut_after:  bytes of the body after which the connection is dropped, once for each entry, in turn
    stall:      sends half of the body, sets `stalled`, and goes on when `stall` is set
    """

    body: bytes = b""
    status: int = 200
    content_type: str = "application/octet-stream"
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    stall: threading.Event | None = None
    stalled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Seen:
    path: str
    range: str | None
    authorization: str | None


class FakeServer:
    """Pages by path. `seen` lists the requests in order."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.seen: list[Seen] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.seen.append(
                    Seen(self.path, self.headers.get("Range"), self.headers.get("Authorization"))
                )
                self.close_connection = True
                # a client that the test killed is no news
                with suppress(BrokenPipeError, ConnectionResetError):
                    server._answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        for page in self.pages.values():
            if page.stall:
                page.stall.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def requests_of(self, path: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.path == path]

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        page = self.pages.get(handler.path, Page(b"nothing here", status=404))
        start, body = 0, page.body
        status = page.status
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if wanted and status == 200:
            start = int(wanted[1])
            status = 206 if start < len(body) else 416
            body = body[start:]
        handler.send_response(status)
        handler.send_header("Content-Type", page.content_type)
        handler.send_header("Content-Length", str(len(body)))
        if status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{len(page.body) - 1}/{len(page.body)}")
        if status == 416:
            handler.send_header("Content-Range", f"bytes */{len(page.body)}")
        for name, value in page.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        if page.cut_after:
            body = body[: page.cut_after.pop(0)]
        if page.stall:
            handler.wfile.write(body[: len(body) // 2])
            handler.wfile.flush()
            page.stalled.set()
            page.stall.wait(timeout=60)
            body = body[len(body) // 2 :]
        handler.wfile.write(body)
        handler.wfile.flush()


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    try:
        yield server
    finally:
        server.close()


def wheel_of(member: str, content: bytes) -> bytes:
    """A zip file with one data member among the usual others."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fake/__init__.py", "raise SystemExit('wheels are read, never imported')")
        archive.writestr(member, content)
    return buffer.getvalue()


def publish_wheel(server: FakeServer, project: str, version: str, content: bytes) -> Page:
    """Puts a wheel and its JSON index page on the server; returns the page of the wheel."""
    distribution = project.replace("-", "_")
    body = wheel_of(f"{distribution}/data/part.bin", content)
    filename = f"{distribution}-{version}-py3-none-any.whl"
    other = {"filename": f"{distribution}-0.0.1-py3-none-any.whl", "url": "../../files/other", "hashes": {}}
    listed = {
        "filename": filename,
        "url": f"../../files/{filename}",
        "hashes": {"sha256": hashlib.sha256(body).hexdigest()},
        "size": len(body),
    }
    server.pages[f"/simple/{project}/"] = Page(
        json.dumps({"files": [other, listed]}).encode(), content_type=JSON_TYPE
    )
    page = server.pages[f"/files/{filename}"] = Page(body)
    return page
