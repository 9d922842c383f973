"""A Python package index as a place to find wheels: which one the user has set, and what it lists.

Speaks the simple API (PEP 503 and 691): JSON where the index has it, HTML where it has not. Wheels are only
located here; none is ever installed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit, urlunsplit

from agentspec.models.transfer import Fetcher, Unavailable

__all__ = ["Wheel", "configured_index", "find_wheel"]

DEFAULT_INDEX = "https://pypi.org/simple"

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel that an index lists. `size` (bytes) and `sha256` are None where it does not say."""

    filename: str
    url: str
    sha256: str | None
    size: int | None


def configured_index() -> str:
    """The index that pip or uv would use here: the environment, then pip's configuration, then PyPI."""
    for variable in _VARIABLES:
        value = os.environ.get(variable, "").strip()
        if value:
            named = re.fullmatch(r"[\w.-]+=(.+)", value)  # uv allows name=url
            return named[1] if named else value
    return _pip_index() or DEFAULT_INDEX


def _pip_index() -> str | None:
    """`index-url` of pip's configuration files; pip knows where they are."""
    try:
        listing = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = dict(re.findall(r"^(\w+)\.index-url='(.*)'$", listing, flags=re.MULTILINE))
    return found.get("download") or found.get("install") or found.get("global")


def find_wheel(fetcher: Fetcher, index: str, project: str, version: str) -> Wheel:
    """The wheel of that version, one for any platform where there are several. Raises Unavailable."""
    page = f"{index.rstrip('/')}/{project}/"
    response = fetcher.document(page, accept=_ACCEPT)
    if "json" in response.headers.get("Content-Type", ""):
        wheels = _from_json(response.text, str(response.url))
    else:
        wheels = _from_html(response.text, str(response.url))
    fitting = [wheel for wheel in wheels if _is_wheel_of(wheel.filename, version)]
    if not fitting:
        raise Unavailable(f"lists no wheel of {project} {version}")
    best = min(fitting, key=lambda wheel: not wheel.filename.endswith("-none-any.whl"))
    return Wheel(best.filename, _with_credentials_of(index, best.url), best.sha256, best.size)


def _is_wheel_of(filename: str, version: str) -> bool:
    fields = filename.split("-")
    return filename.endswith(".whl") and len(fields) in (5, 6) and fields[1] == version


def _from_json(text: str, base: str) -> list[Wheel]:
    try:
        record: object = json.loads(text)
    except ValueError as error:
        raise Unavailable(f"answered with broken JSON: {error}") from error
    wheels = []
    match record:
        case {"files": list(files)}:
            for file in files:
                match file:
                    case {"filename": str(name), "url": str(url), **rest}:
                        wheels.append(Wheel(name, urljoin(base, url), _sha256_in(rest), _size_in(rest)))
    return wheels


def _sha256_in(record: Mapping[object, object]) -> str | None:
    match record:
        case {"hashes": {"sha256": str(sha256)}}:
            return sha256.lower()
    return None


def _size_in(record: Mapping[object, object]) -> int | None:
    match record:
        case {"size": int(size)}:
            return size
    return None


def _from_html(text: str, base: str) -> list[Wheel]:
    anchors = _Anchors()
    anchors.feed(text)
    wheels = []
    for href in anchors.hrefs:
        url, fragment = urldefrag(urljoin(base, href))
        found = re.search(r"sha256=([0-9a-fA-F]{64})", fragment)
        name = urlsplit(url).path.rpartition("/")[2]
        wheels.append(Wheel(name, url, found[1].lower() if found else None, None))
    return wheels


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.hrefs.append(href)


def _with_credentials_of(index: str, url: str) -> str:
    """An index that needs a password usually needs it for its files too, and lists them without."""
    home, there = urlsplit(index), urlsplit(url)
    same_server = (home.scheme, home.netloc.rpartition("@")[2]) == (there.scheme, there.netloc)
    if not same_server or "@" not in home.netloc:
        return url
    return urlunsplit(there._replace(netloc=home.netloc))
