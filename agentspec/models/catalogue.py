"""The catalogue of known models, and what the string in `model=` may be.

    "qwen2.5-coder-1.5b-instruct"   a name of `catalogue.json` (its form: schemas/catalogue.v1.schema.json)
    "hf:owner/repo/file.gguf"       a file of a hub repository
    "./some/file.gguf"              a path: anything with a separator, or that ends in .gguf

Nothing here touches the network or the models folder.
"""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal, TypedDict

from agentspec.errors import ConfigError, ModelNotFoundError, UnsupportedModelError

__all__ = ["HubFile", "ModelFile", "Role", "WheelParts", "catalogue", "lookup", "parse_reference"]

Role = Literal["target", "draft", "test"]

_HUB_PREFIX = "hf:"
_HUB_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a Hugging Face repository, at its main branch. `repo` is "owner/name"."""

    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class WheelParts:
    """A file cut into members of wheels on a Python package index, to be concatenated in order.

    project: the project's name, with `{part}` for the part's number, from 1
    member:  fnmatch pattern that fits exactly one member of each wheel
    """

    project: str
    version: str
    member: str
    parts: int

    def project_of(self, part: int) -> str:
        return self.project.replace("{part}", str(part))


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One model file and its sources.

    name:    what the user calls it
    file:    its path in the models folder, "/"-separated
    bytes:   its size; None where no catalogue knows it, as for `hf:` references
    sha256:  lower-case hex; None likewise
    """

    name: str
    file: str
    bytes: int | None
    sha256: str | None
    hub: HubFile | None
    wheels: WheelParts | None = None
    license: str = ""
    description: str = ""
    roles: tuple[Role, ...] = ()


class _HubRecord(TypedDict):
    repo: str
    file: str


class _WheelsRecord(TypedDict):
    project: str
    version: str
    member: str
    parts: int


class _ModelRecord(TypedDict):
    name: str
    description: str
    roles: list[Role]
    file: str
    bytes: int
    sha256: str
    hub: _HubRecord | None
    wheels: _WheelsRecord | None
    license: str


class _CatalogueRecord(TypedDict):
    version: int
    models: list[_ModelRecord]


@functools.cache
def catalogue() -> Mapping[str, ModelFile]:
    """The known models by name, in the catalogue's order."""
    text = importlib.resources.files(__package__).joinpath("catalogue.json").read_text(encoding="utf-8")
    record: _CatalogueRecord = json.loads(text)  # ours, and held to its schema by a test
    return MappingProxyType({model["name"]: _from_record(model) for model in record["models"]})


def _from_record(model: _ModelRecord) -> ModelFile:
    hub, wheels = model["hub"], model["wheels"]
    return ModelFile(
        name=model["name"],
        file=model["file"],
        bytes=model["bytes"],
        sha256=model["sha256"],
        hub=HubFile(**hub) if hub else None,
        wheels=WheelParts(**wheels) if wheels else None,
        license=model["license"],
        description=model["description"],
        roles=tuple(model["roles"]),
    )


def lookup(name: str) -> ModelFile:
    """The catalogue's entry. Raises ModelNotFoundError with the nearest name and the list of all."""
    known = catalogue()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? " if near else ""
    raise ModelNotFoundError(
        f"no model named {name!r}",
        hint=f"{guess}known names: {', '.join(known)}; a file is given by its path (ending in .gguf), "
        "a file on the hub as hf:owner/repo/file.gguf",
    )


def parse_reference(model: str | Path) -> ModelFile | Path:
    """What a `model=` value names: a file with sources, or a path (which need not exist).

    Raises ModelNotFoundError for an unknown name, ConfigError for a malformed `hf:` reference,
    UnsupportedModelError for one part of a split GGUF.
    """
    if isinstance(model, Path):
        return model.expanduser()
    if model.startswith(_HUB_PREFIX):
        return _hub_reference(model)
    if "/" in model or "\\" in model or model.endswith(".gguf"):
        return Path(model).expanduser()
    return lookup(model)


def _hub_reference(model: str) -> ModelFile:
    parts = PurePosixPath(model.removeprefix(_HUB_PREFIX)).parts
    if len(parts) < 3 or not parts[-1].endswith(".gguf") or not all(map(_HUB_PART.fullmatch, parts)):
        raise ConfigError(
            f"{model!r} does not name a GGUF file on the hub", hint="write hf:owner/repo/file.gguf"
        )
    if _SPLIT_GGUF.search(parts[-1]):
        raise UnsupportedModelError(
            f"{model!r} is one part of a split GGUF",
            hint="merge the parts with `llama-gguf-split --merge` and give the path of the result",
        )
    owner, repo, *inside = parts
    return ModelFile(
        name=model,
        file="/".join(("hf", f"{owner}--{repo}", *inside)),
        bytes=None,
        sha256=None,
        hub=HubFile(repo=f"{owner}/{repo}", file="/".join(inside)),
    )
