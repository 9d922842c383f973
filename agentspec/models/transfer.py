"""HTTP for large files: resumed after a cut, and given up soon where nobody answers.

A source that never answered is dead, and the caller has others: no second try. One that answered before
gets patience. What cannot be read becomes `Unavailable`, whose text says what the server answered; no httpx
error leaves this module. Nothing here knows models, hubs or package indexes.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import httpx

from agentspec.errors import ConfigError
from agentspec.models.progress import Progress

__all__ = ["Fetcher", "RemoteInfo", "Unavailable", "without_credentials"]

_CONNECT_SECONDS = 5.0
_OPEN_SECONDS = 10.0  # of wall time: a connect timeout is per address, and a dead host may have many
_READ_SECONDS = 30.0
_PAUSES = (0.5, 1.0, 2.0, 4.0)  # between tries that bring nothing
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})

_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class Unavailable(Exception):
    """This source cannot give the file; the text says why, without credentials."""


class _Interrupted(Exception):
    """The transfer stopped, and going on from where it was may help."""


@dataclass(frozen=True, slots=True)
class RemoteInfo:
    """What the server said of a file: its size in bytes, and its SHA-256 where it names one."""

    size: int | None
    sha256: str | None


def without_credentials(url: str) -> str:
    """The URL as it may be shown: without user name, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Fetcher:
    """An HTTP client for one source, to be used in a `with` block."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._answered = False
        try:
            self._client = httpx.Client(
                follow_redirects=True,
                timeout=httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
                verify=_ssl_context(),
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"the proxy settings of the environment cannot be used: {error}",
                hint="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY",
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def document(self, url: str, *, accept: str) -> httpx.Response:
        """A small document, read whole. Raises Unavailable."""
        tries = iter(_PAUSES)
        while True:
            try:
                with self._open(url, {"Accept": accept}) as response:
                    _check_status(response)
                    response.read()
                    return response
            except (_Interrupted, httpx.TransportError) as error:
                self._pause_or_give_up(tries, error)

    def file(
        self,
        url: str,
        target: Path,
        *,
        size: int | None = None,
        headers: Mapping[str, str] | None = None,
        already: int = 0,
    ) -> RemoteInfo:
        """Brings `target` to the whole of the file, going on from the bytes it holds.

        size:     what the file must measure, where that is known
        already:  bytes of earlier parts, added to what is reported as progress

        Raises Unavailable, leaving what has arrived for a later try.
        """
        held = target.stat().st_size if target.exists() else 0
        if held == size:
            return RemoteInfo(size, None)
        tries = iter(_PAUSES)
        while True:
            try:
                return self._receive(url, target, held, size, headers or {}, already)
            except (_Interrupted, httpx.TransportError) as error:
                now = target.stat().st_size if target.exists() else 0
                if now > held:
                    tries = iter(_PAUSES)
                held = now
                self._pause_or_give_up(tries, error)

    def _receive(
        self,
        url: str,
        target: Path,
        held: int,
        size: int | None,
        headers: Mapping[str, str],
        already: int,
    ) -> RemoteInfo:
        asked = {**headers, "Accept-Encoding": "identity"}
        if held:
            asked["Range"] = f"bytes={held}-"
        with self._open(url, asked) as response:
            if response.status_code == 416 and held:
                return _no_more(response, target, held)
            _check_status(response)
            start, total = _extent(response, held)
            if size is not None and total is not None and total != size:
                raise Unavailable(f"has {total} bytes there, not {size}")
            with target.open("r+b" if start else "wb") as stream:
                stream.seek(start)
                stream.truncate()
                for chunk in response.iter_raw():
                    stream.write(chunk)
                    start += len(chunk)
                    self._progress.update(already + start)
            if total is not None and start != total:
                raise _Interrupted(f"the server stopped after {start} of {total} bytes")
            return RemoteInfo(total, _named_sha256(response))

    @contextmanager
    def _open(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """The response to a GET, its body unread. Raises Unavailable where nobody has answered yet."""
        try:
            request = self._client.build_request("GET", url, headers=dict(headers))
            response = _within(_OPEN_SECONDS, lambda: self._client.send(request, stream=True))
        except httpx.TransportError as error:
            if self._answered:
                raise
            raise Unavailable(_reason(error)) from error
        except (httpx.InvalidURL, httpx.TooManyRedirects, httpx.DecodingError) as error:
            raise Unavailable(_reason(error)) from error
        self._answered = True
        with closing(response):
            yield response

    def _pause_or_give_up(self, tries: Iterator[float], error: Exception) -> None:
        seconds = next(tries, None)
        if seconds is None:
            raise Unavailable(_reason(error)) from error
        time.sleep(seconds)


def _check_status(response: httpx.Response) -> None:
    if response.status_code in _PASSING:
        raise _Interrupted(_status(response))
    if response.status_code not in (200, 206):
        raise Unavailable(_status(response))


def _status(response: httpx.Response) -> str:
    return f"HTTP {response.status_code} {response.reason_phrase}".rstrip()


def _extent(response: httpx.Response, held: int) -> tuple[int, int | None]:
    """Where the body starts in the file, and the size of the whole."""
    if response.status_code == 200:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if found is None or int(found[1]) != held:
        raise Unavailable("answered with another range than the one asked for")
    return held, None if found[2] == "*" else int(found[2])


def _no_more(response: httpx.Response, target: Path, held: int) -> RemoteInfo:
    """The server has nothing after the bytes held: either that is all of it, or they are not of this file."""
    found = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("Content-Range", ""))
    if found is not None and int(found[1]) == held:
        return RemoteInfo(held, _named_sha256(response))
    target.unlink()
    raise _Interrupted("what was kept of an earlier download is longer than the file")


def _named_sha256(response: httpx.Response) -> str | None:
    """The SHA-256 that a hub gives for a large file, in the headers of its redirect to the storage."""
    for answer in (*response.history, response):
        tag = answer.headers.get("X-Linked-Etag", "").strip('"')
        if re.fullmatch(r"[0-9a-f]{64}", tag):
            return str(tag)
    return None


def _reason(error: Exception) -> str:
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _within(seconds: float, open_response: Callable[[], httpx.Response]) -> httpx.Response:
    """Calls in a thread that is left behind when time is up: DNS and connects cannot be cancelled."""
    outcome: list[httpx.Response | BaseException] = []
    abandoned = threading.Event()

    def work() -> None:
        try:
            response = open_response()
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, not swallowed
            outcome.append(error)
        else:
            outcome.append(response)
            if abandoned.is_set():
                response.close()

    thread = threading.Thread(target=work, daemon=True, name="agentspec-open")
    thread.start()
    thread.join(seconds)
    if not outcome:
        abandoned.set()
        raise httpx.ConnectTimeout(f"no answer within {seconds:.0f} s")
    result = outcome[0]
    if isinstance(result, BaseException):
        raise result
    return result


def _ssl_context() -> ssl.SSLContext | bool:
    """Trusts the bundle that the environment names, as pip and curl do; else httpx's own choice."""
    for variable in _CERTIFICATE_VARIABLES:
        value = os.environ.get(variable)
        if not value:
            continue
        path = Path(value)
        if not path.exists():
            raise ConfigError(f"{variable} names {value}, which does not exist", hint="correct or unset it")
        try:
            if path.is_dir():
                return ssl.create_default_context(capath=value)
            return ssl.create_default_context(cafile=value)
        except ssl.SSLError as error:
            raise ConfigError(
                f"{variable} names {value}, which holds no usable certificates: {error}",
                hint="correct or unset it",
            ) from error
    return True
