"""What several commands do with their options alike."""

from __future__ import annotations

from pathlib import Path

from agentspec.errors import ConfigError

__all__ = ["check_writable", "layers"]


def check_writable(path: Path) -> None:
    """Raises ConfigError where a result could not be written, before minutes have gone into it.

    path: of `--json`; "-" is stdout
    """
    if str(path) == "-":
        return
    try:
        path.touch()
    except OSError as error:
        raise ConfigError(f"--json {path} cannot be written: {error.strerror}") from error


def layers(text: str) -> int | str:
    """`--n-gpu-layers`: a count, or a word for `RuntimeOptions` to judge."""
    try:
        return int(text)
    except ValueError:
        return text
