"""Files that are here already, paths, settings of the environment, and errors a newcomer sees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentspec.errors import ConfigError, DownloadError, HashMismatchError, ModelError, ModelNotFoundError
from agentspec.models import index, store
from agentspec.models.pull import ensure, pull
from agentspec.models.sources import HubSource
from tests.unit.fake_servers import FakeServer
from tests.unit.pull.tiny import CONTENT, assert_clean, both, nobody, the_file


def test_a_file_that_is_here_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    the_file().parent.mkdir(parents=True)
    the_file().write_bytes(CONTENT)
    assert ensure("tiny") == the_file()
    monkeypatch.setattr(store, "sha256_of", lambda path: pytest.fail(f"hashed {path} again"))
    assert ensure("tiny") == the_file()


def test_a_file_that_changed_is_hashed_again_and_refused() -> None:
    the_file().parent.mkdir(parents=True)
    the_file().write_bytes(CONTENT)
    ensure("tiny")
    the_file().write_bytes(CONTENT[:-1] + b"!")
    os.utime(the_file(), ns=(1, 1))
    with pytest.raises(HashMismatchError, match=r"agentspec pull tiny"):
        ensure("tiny")
    assert the_file().exists()


def test_pull_replaces_a_file_that_is_not_the_catalogue_s(hub: FakeServer) -> None:
    the_file().parent.mkdir(parents=True)
    the_file().write_bytes(b"half a file")
    assert_clean(pull("tiny", sources=[HubSource(hub.url)]))


def test_ensure_pulls_what_is_missing(hub: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentspec.models.pull.default_sources", lambda: [HubSource(hub.url)])
    assert_clean(ensure("tiny"))


def test_no_network_says_what_each_source_answered() -> None:
    with pytest.raises(DownloadError) as caught:
        pull("tiny", sources=both(nobody(), nobody() + "/simple"))
    text = str(caught.value)
    assert text.count("Connection refused") == 2
    assert "hub http://127.0.0.1" in text
    assert "wheels at http://127.0.0.1" in text
    assert f"copy it to {the_file()}" in text


def test_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(CONTENT)
    assert ensure(str(path)) == ensure(path) == path


@pytest.mark.parametrize("model", ["missing.gguf", "some/folder/missing.gguf", "/missing.gguf"])
def test_missing_paths_are_named(model: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"missing\.gguf does not exist"):
        ensure(model)


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="is a folder"):
        ensure(tmp_path)


def test_an_unwritable_cache_is_named(hub: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"(?s)cannot store tiny.*AGENTSPEC_CACHE"):
        pull("tiny", sources=[HubSource(hub.url)])


def test_a_missing_certificate_bundle_is_named(hub: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/bundle.pem")
    with pytest.raises(ConfigError, match=r"SSL_CERT_FILE names /no/such/bundle\.pem"):
        pull("tiny", sources=[HubSource(hub.url)])


def test_a_broken_certificate_bundle_is_named(
    hub: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("not a certificate")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(ConfigError, match=r"PIP_CERT names .* no usable certificates"):
        pull("tiny", sources=[HubSource(hub.url)])


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_the_environment_names_the_index(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "https://mirror.example/simple?a=b")
    assert index.configured_index() == "https://mirror.example/simple?a=b"


def test_uv_s_named_indexes_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "corp=https://mirror.example/simple")
    assert index.configured_index() == "https://mirror.example/simple"


def test_pip_s_configuration_names_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://mirror.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert index.configured_index() == "https://mirror.example/simple"
