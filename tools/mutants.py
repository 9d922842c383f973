"""Breaks the code in known ways and sees whether the tests notice.

    python -m tools.mutants [--only NAME] [--list] [--jobs N] [--json FILE]

`tools/mutants.toml` holds the mutants: each one replaces a piece of text in one file, and names the tests
that should fail then. The tests named must pass on the code as it is, or nothing is learned from a failure.

A mutant is *killed* when a test fails. It *survived* when all passed. Anything else that stops a run proves
nothing about the tests, and does not count: a file that cannot be imported, a fixture or pytest itself that
breaks, a run that does not end, or a test that fails because the mutant is not even valid code.

The exit code is 0 where all were killed, 1 where not, 2 where nothing could be tried. It works on copies of
the tree and must not know what the mutants mean.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from agentspec.config import available_cpus

__all__ = ["Mutant", "Outcome", "load", "main", "mutated", "try_all"]

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".toml")
PARTS = ("agentspec", "tests", "pyproject.toml")
"""What the tests need of the tree."""

_REPORT = "report.xml"
_LIMIT = 300.0  # seconds a run may take: a mutant may never end
_PLUGIN = "pytest_asyncio.plugin"
_NOT_CODE = re.compile(r"(Name|UnboundLocal|Attribute|Type|Import|ModuleNotFound|Syntax)Error\b")


class MutantError(Exception):
    """Nothing can be learned; the text says why."""


class Mutant(BaseModel, frozen=True, extra="forbid"):
    """One way to break the code.

    catalogue: numbers of the known bugs that it is a form of; () for a bug of the same kind
    models:    the bug, in a line
    old:       the text it replaces, which occurs once in `file`
    tests:     pytest's arguments: files or node ids, one of which should fail
    """

    name: str
    catalogue: tuple[int, ...]
    models: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant.

    reason: the test that failed, or why there is no verdict; "" if it survived
    """

    mutant: Mutant
    verdict: Literal["killed", "survived", "no verdict"]
    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of pytest. failed: the test that failed, and `message` what with; None where none did."""

    code: int
    failed: str | None
    message: str
    output: str


def load(path: Path) -> list[Mutant]:
    """The mutants of a list. Raises MutantError where it is malformed."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
        return [Mutant.model_validate(entry) for entry in entries]
    except (tomllib.TOMLDecodeError, KeyError, ValidationError) as error:
        raise MutantError(f"{path}: {error}") from error


def mutated(mutant: Mutant, root: Path) -> str:
    """The text of the mutant's file with the mutation. Raises MutantError where the old text is not there
    once, or the new one is the same."""
    path = root / mutant.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    count = text.count(mutant.old)
    if count != 1:
        raise MutantError(f"{mutant.name}: its old text occurs {count} times in {mutant.file}")
    if mutant.old == mutant.new:
        raise MutantError(f"{mutant.name}: it changes nothing")
    return text.replace(mutant.old, mutant.new)


def try_all(mutants: Sequence[Mutant], root: Path, *, jobs: int) -> Iterator[Outcome]:
    """Tries every mutant on a copy of the tree, `jobs` at a time; outcomes come as they are known.

    Raises MutantError where a mutant does not fit the code, or the tests fail without any.
    """
    for mutant in mutants:
        mutated(mutant, root)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for index in range(jobs):
            copies.put(_copied(root, Path(folder, str(index))))
        _check_unmutated(mutants, copies)
        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(_try, mutant, copies) for mutant in mutants]
            try:
                for done in as_completed(running):
                    yield done.result()
            finally:
                pool.shutdown(cancel_futures=True)


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT, mutants: Path = LIST) -> int:
    """The command; `root` and `mutants` are for tests."""
    chosen = _parser().parse_args(arguments)
    try:
        known = load(mutants)
        picked = _pick(known, chosen.only)
        if chosen.list:
            for mutant in picked:
                print(f"{mutant.name}  {_numbers(mutant)}  {mutant.models}")
            return 0
        outcomes = []
        print(f"{len(picked)} mutants; first the tests on the code as it is", flush=True)
        for outcome in try_all(picked, root, jobs=max(1, chosen.jobs)):
            outcomes.append(outcome)
            print(f"[{len(outcomes):2}/{len(picked)}] {_line(outcome)}", flush=True)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(_as_json(outcomes), indent=2) + "\n", encoding="utf-8")
    return _conclude(outcomes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description="Break the code in known ways; the tests must notice."
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="try this mutant; may be repeated")
    parser.add_argument("--list", action="store_true", help="name the mutants and try none")
    parser.add_argument("--jobs", type=int, default=available_cpus(), metavar="N", help="how many at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes there too")
    return parser


def _pick(known: Sequence[Mutant], names: Sequence[str] | None) -> list[Mutant]:
    unknown = set(names or ()) - {mutant.name for mutant in known}
    if unknown:
        raise MutantError(f"no such mutant: {', '.join(sorted(unknown))}")
    return [mutant for mutant in known if names is None or mutant.name in names]


# ------------------------------------------------------------------------------------------ trying


def _copied(root: Path, folder: Path) -> Path:
    for part in PARTS:
        source = root / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.is_file():
            shutil.copy(source, folder / part)
    return folder


def _check_unmutated(mutants: Sequence[Mutant], copies: queue.SimpleQueue[Path]) -> None:
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    with _borrowed(copies) as folder:
        run = _run_tests(folder, tests)
    if run is None:
        raise MutantError(f"without any mutant, the tests take more than {_LIMIT:.0f} seconds")
    if run.code != 0:
        raise MutantError(f"{run.output}\nwithout any mutant, the tests do not pass")


def _try(mutant: Mutant, copies: queue.SimpleQueue[Path]) -> Outcome:
    started = time.monotonic()
    with _borrowed(copies) as folder:
        path = folder / mutant.file
        before = path.read_text(encoding="utf-8")
        path.write_text(mutated(mutant, folder), encoding="utf-8")
        try:
            run = _run_tests(folder, mutant.tests)
        finally:
            path.write_text(before, encoding="utf-8")
    verdict, reason = _judge(run)
    return Outcome(mutant, verdict, reason, time.monotonic() - started)


@contextmanager
def _borrowed(copies: queue.SimpleQueue[Path]) -> Iterator[Path]:
    folder = copies.get()
    try:
        yield folder
    finally:
        copies.put(folder)


def _run_tests(folder: Path, tests: Sequence[str]) -> _Run | None:
    """Runs pytest in a copy until a test fails; None where it takes too long."""
    report = folder / _REPORT
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", _PLUGIN]
    environ = {
        **os.environ,
        "PYTHONPATH": str(folder),
        # bytecode is told from stale bytecode by second and size, and a mutant may change neither
        "PYTHONDONTWRITEBYTECODE": "1",
        # to load the plugins of every package there is takes longer than most of these runs
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    try:
        done = subprocess.run(
            [*command, f"--junit-xml={report}", *tests],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    failed, message = _first_failure(report)
    return _Run(done.returncode, failed, message, done.stdout)


def _first_failure(report: Path) -> tuple[str | None, str]:
    """The first test that failed, which an error of its fixtures is not, and what it failed with."""
    if not report.exists():
        return None, ""
    for case in ElementTree.parse(report).iter("testcase"):
        failure = case.find("failure")
        if failure is not None:
            where = case.get("classname", "").removeprefix("tests.")
            return f"{where}::{case.get('name')}", failure.get("message", "")
    return None, ""


def _judge(run: _Run | None) -> tuple[Literal["killed", "survived", "no verdict"], str]:
    if run is None:
        return "no verdict", f"the tests take more than {_LIMIT:.0f} seconds"
    if run.code == 0:
        return "survived", ""
    if run.code != 1 or run.failed is None:
        last = run.output.strip().splitlines()[-1:]
        return "no verdict", f"no test failed, and pytest ended with {run.code}: {''.join(last)}"
    if _NOT_CODE.match(run.message):
        return "no verdict", f"it is not valid code: {run.message.splitlines()[0]} in {run.failed}"
    return "killed", run.failed


# --------------------------------------------------------------------------------------- reporting


def _numbers(mutant: Mutant) -> str:
    return f"({', '.join(map(str, mutant.catalogue))})" if mutant.catalogue else "(-)"


def _line(outcome: Outcome) -> str:
    head = f"{outcome.verdict:10} {outcome.mutant.name} {_numbers(outcome.mutant)}"
    return f"{head:64} {outcome.seconds:5.1f} s  {outcome.reason}".rstrip()


def _as_json(outcomes: Sequence[Outcome]) -> dict[str, object]:
    return {
        "mutants": len(outcomes),
        "killed": sum(outcome.verdict == "killed" for outcome in outcomes),
        "outcomes": [
            {
                "name": outcome.mutant.name,
                "catalogue": outcome.mutant.catalogue,
                "verdict": outcome.verdict,
                "reason": outcome.reason,
                "seconds": round(outcome.seconds, 2),
            }
            for outcome in outcomes
        ],
    }


def _conclude(outcomes: Sequence[Outcome]) -> int:
    left = [outcome for outcome in outcomes if outcome.verdict != "killed"]
    for outcome in left:
        print(
            f"\n{outcome.verdict}: {outcome.mutant.name}, in {outcome.mutant.file}: {outcome.mutant.models}"
        )
        print(f"  {outcome.reason or 'no test failed of ' + ' '.join(outcome.mutant.tests)}")
    print(f"{len(outcomes)} mutants, {len(outcomes) - len(left)} killed")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
