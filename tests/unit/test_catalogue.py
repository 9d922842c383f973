"""The catalogue against its schema, and every form of `model=`."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from agentspec.config import DEFAULT_DRAFT, DEFAULT_MODEL
from agentspec.errors import ConfigError, ModelNotFoundError, UnsupportedModelError
from agentspec.models.catalogue import HubFile, ModelFile, catalogue, lookup, parse_reference

ROOT = Path(__file__).parents[2]
CATALOGUE = json.loads((ROOT / "agentspec/models/catalogue.json").read_text(encoding="utf-8"))
SCHEMA = json.loads((ROOT / "schemas/catalogue.v1.schema.json").read_text(encoding="utf-8"))


def test_the_catalogue_fits_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(CATALOGUE, SCHEMA)


@pytest.mark.parametrize("field", ["name", "file", "sha256"])
def test_names_files_and_hashes_are_distinct(field: str) -> None:
    values = [model[field] for model in CATALOGUE["models"]]
    assert len(set(values)) == len(values)


def test_every_model_can_be_had_and_is_loaded_whole() -> None:
    assert list(catalogue()) == [model["name"] for model in CATALOGUE["models"]]
    for record in CATALOGUE["models"]:
        entry = lookup(record["name"])
        assert entry.hub or entry.wheels
        assert (entry.file, entry.bytes, entry.sha256) == (record["file"], record["bytes"], record["sha256"])


def test_several_wheels_are_numbered() -> None:
    for entry in catalogue().values():
        assert entry.wheels is not None
        projects = [entry.wheels.project_of(part) for part in range(1, entry.wheels.parts + 1)]
        assert len(set(projects)) == entry.wheels.parts
        assert not any("{" in project for project in projects)


def test_the_default_pair_is_in_the_catalogue() -> None:
    assert "target" in lookup(DEFAULT_MODEL).roles
    assert "draft" in lookup(DEFAULT_DRAFT).roles


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        lookup("qwen2.5-coder-1.5b")
    assert "did you mean 'qwen2.5-coder-1.5b-instruct'?" in caught.value.hint
    assert "smollm2-135m-instruct" in caught.value.hint


@pytest.mark.parametrize("model", ["m.gguf", "./m.gguf", "models/m", "models\\m.gguf", Path("m")])
def test_paths(model: str | Path) -> None:
    assert parse_reference(model) == Path(model)


def test_home_is_expanded() -> None:
    assert parse_reference("~/m.gguf") == Path.home() / "m.gguf"


def test_hub_references() -> None:
    entry = parse_reference("hf:owner/repo/folder/m.gguf")
    assert isinstance(entry, ModelFile)
    assert entry.hub == HubFile("owner/repo", "folder/m.gguf")
    assert entry.file == "hf/owner--repo/folder/m.gguf"
    assert (entry.bytes, entry.sha256, entry.wheels) == (None, None, None)


@pytest.mark.parametrize(
    "model",
    [
        "hf:",
        "hf:m.gguf",
        "hf:owner/m.gguf",
        "hf:owner/repo/m.bin",
        "hf:owner/repo/../../m.gguf",
        "hf:/o/r/m.gguf",
    ],
)
def test_malformed_hub_references(model: str) -> None:
    with pytest.raises(ConfigError, match=r"hf:owner/repo/file\.gguf"):
        parse_reference(model)


def test_split_files_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="split"):
        parse_reference("hf:owner/repo/m-00001-of-00003.gguf")
