"""The list of mutants fits the code, and the runner tells what proves something from what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import Mutant

ROOT = Path(__file__).parents[2]
LISTED = mutants.load(ROOT / "tools" / "mutants.toml")

CODE = """\
def doubled(value: int) -> int:
    return 2 * value
"""

TESTS = """\
import pytest
from agentspec.code import doubled

def test_it_doubles() -> None:
    assert doubled(3) == 6

@pytest.fixture
def four() -> int:
    assert doubled(2) == 4
    return 4

def test_with_a_fixture(four: int) -> None:
    assert four == 4
"""

IN_THE_TEST = "tests/test_code.py::test_it_doubles"
IN_THE_FIXTURE = "tests/test_code.py::test_with_a_fixture"

# name: (what "2 * value" becomes, the test asked, the verdict, a part of the reason)
FAKES = {
    "wrong": ("3 * value", IN_THE_TEST, "killed", "test_code::test_it_doubles"),
    "equal": ("value + value", IN_THE_TEST, "survived", ""),
    "no-syntax": ("2 *", IN_THE_TEST, "no verdict", "pytest ended with"),
    "no-name": ("twice * value", IN_THE_TEST, "no verdict", "not valid code: NameError"),
    "fixture-breaks": ("3 * value", IN_THE_FIXTURE, "no verdict", "no test failed"),
    "pytest-dies": ("__import__('os')._exit(1)", IN_THE_TEST, "no verdict", "no test failed"),
    "wrong-again": ("4 * value", IN_THE_TEST, "killed", "test_code::test_it_doubles"),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one function and its tests."""
    for part, name, text in [("agentspec", "code.py", CODE), ("tests", "test_code.py", TESTS)]:
        (tmp_path / part).mkdir()
        (tmp_path / part / "__init__.py").touch()
        (tmp_path / part / name).write_text(text)
    return tmp_path


def listed(project: Path, *, tests: str | None = None) -> Path:
    """The list of FAKES, as a file."""
    tables = []
    for name, (new, test, _, _) in FAKES.items():
        entry = {"name": name, "catalogue": [1], "models": f"bug {name}", "file": "agentspec/code.py"}
        entry |= {"old": "2 * value", "new": new, "tests": [tests or test]}
        tables += ["[[mutant]]", *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]
    path = project / "list.toml"
    path.write_text("\n".join(tables))
    return path


def only(*names: str) -> list[str]:
    return [part for name in names for part in ("--only", name)]


# ------------------------------------------------------------------------------------------- the list


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: mutant.name)
def test_each_mutant_fits_the_code(mutant: Mutant) -> None:
    text = mutants.mutated(mutant, ROOT)  # raises unless the old text is there once, and the new one differs
    compile(text, mutant.file, "exec")
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert path.startswith(("tests/unit/", "tests/exactness/"))
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8")


def test_every_known_kind_of_bug_has_a_mutant() -> None:
    assert {number for mutant in LISTED for number in mutant.catalogue} == set(range(1, 12))
    assert len({mutant.name for mutant in LISTED}) == len(LISTED)


@pytest.mark.parametrize(("old", "new"), [("3 * value", "4 * value"), ("value", "x"), ("2 *", "2 *")])
def test_a_mutant_that_does_not_fit_is_refused(old: str, new: str, project: Path) -> None:
    wrong = Mutant(name="m", catalogue=(), models="", file="agentspec/code.py", old=old, new=new, tests=())
    with pytest.raises(mutants.MutantError, match="m: "):
        mutants.mutated(wrong, project)


# ----------------------------------------------------------------------------------------- the runner


def test_only_a_test_that_fails_kills(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = project / "report.json"
    arguments = ["--jobs", "2", "--json", str(report)]
    assert mutants.main(arguments, root=project, mutants=listed(project)) == 1
    outcomes = json.loads(report.read_text())
    for outcome in outcomes["outcomes"]:
        _, _, verdict, reason = FAKES[outcome["name"]]
        assert (outcome["verdict"], reason in outcome["reason"]) == (verdict, True), outcome
    assert {outcome["name"] for outcome in outcomes["outcomes"]} == set(FAKES)
    assert (outcomes["mutants"], outcomes["killed"]) == (7, 2)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == "7 mutants, 2 killed"
    assert "survived: equal, in agentspec/code.py: bug equal" in printed
    assert (project / "agentspec" / "code.py").read_text() == CODE


def test_all_killed_is_success(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One copy and two mutants: the first is taken back before the second is tried."""
    arguments = ["--jobs", "1", *only("wrong", "wrong-again")]
    assert mutants.main(arguments, root=project, mutants=listed(project)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 mutants, 2 killed"


def test_a_copy_keeps_no_bytecode(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytecode of one mutant would pass for that of the next of equal size, in the same second."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    copy = mutants._copied(project, tmp_path / "copy")
    run = mutants._run_tests(copy, [IN_THE_TEST])
    assert run is not None
    assert run.code == 0
    assert not list(copy.rglob("*.pyc"))


def test_tests_that_fail_without_a_mutant_prove_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "agentspec" / "code.py").write_text(CODE + "\nraise ValueError('broken before')\n")
    assert mutants.main(only("wrong"), root=project, mutants=listed(project)) == 2
    assert "without any mutant, the tests do not pass" in capsys.readouterr().err


def test_a_test_that_does_not_exist_is_noticed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = listed(project, tests="tests/test_code.py::test_gone")
    assert mutants.main(only("wrong"), root=project, mutants=missing) == 2
    assert "test_gone" in capsys.readouterr().err


def test_a_run_that_does_not_end_is_stopped(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "_LIMIT", 1e-3)
    assert mutants.main(only("wrong"), root=project, mutants=listed(project)) == 2
    assert "take more than" in capsys.readouterr().err


def test_the_list_is_shown_and_unknown_names_are_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mutants.main(["--list", *only("equal")], root=project, mutants=listed(project)) == 0
    assert capsys.readouterr().out == "equal  (1)  bug equal\n"
    assert mutants.main(only("nobody"), root=project, mutants=listed(project)) == 2
    assert "no such mutant: nobody" in capsys.readouterr().err


def test_a_malformed_list_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / "list.toml"
    path.write_text('[[mutant]]\nname = "half"\n')
    assert mutants.main([], root=project, mutants=path) == 2
    assert "list.toml" in capsys.readouterr().err
