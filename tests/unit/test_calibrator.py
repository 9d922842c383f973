"""How bold a draft should be: what each temperature is worth, what is chosen, what is kept."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from agentspec.calibration.calibrator import Calibrator, Group, Key, Scores, Where
from agentspec.calibration.files import (
    CalibrationFile,
    CalibrationStore,
    calibration_schema,
    read_calibration,
    write_calibration,
)
from agentspec.calibration.observe import overlap
from agentspec.calibration.survival import Cell
from agentspec.calibration.temper import (
    TEMPERATURES,
    WEIGHTS,
    alphas,
    mixed,
    mixed_alphas,
    tempered,
)
from agentspec.errors import CalibrationError
from agentspec.types import Distribution

SCHEMA = Path(__file__).parents[2] / "schemas/calibration.v1.schema.json"
HERE = Where("tools", "string", 2)


def law(*probs: float) -> Distribution:
    """Over tokens 0, 1, 2, ..."""
    return Distribution(np.arange(len(probs), dtype=np.int64), np.array(probs))


def random_law(rng: np.random.Generator, size: int = 12, scale: float = 2.0) -> Distribution:
    ids = np.sort(rng.choice(40, size=size, replace=False)).astype(np.int64)
    weights = np.exp(scale * rng.normal(size=size))
    return Distribution(ids, weights / weights.sum())


# ---------------------------------------------------------------------------------------------- temperatures


def test_a_temperature_is_a_power() -> None:
    assert tempered(law(0.8, 0.2), 2.0).probs == pytest.approx([2 / 3, 1 / 3])
    assert tempered(law(0.8, 0.2), 0.5).probs == pytest.approx([16 / 17, 1 / 17])


def test_at_zero_the_best_token_is_certain_the_lowest_of_equals() -> None:
    found = tempered(law(0.2, 0.4, 0.4), 0.0)
    assert (found.ids.tolist(), found.probs.tolist()) == ([1], [1.0])


def test_what_needs_no_change_has_none_and_what_cannot_be_is_refused() -> None:
    one = law(0.8, 0.2)
    assert tempered(one, 1.0) is one
    assert tempered(law(1.0), 3.0).probs.tolist() == [1.0]
    assert tempered(law(0.5, 0.0, 0.5), 2.0).ids.tolist() == [0, 2]  # a power cannot raise what is nothing
    with pytest.raises(ValueError, match="-1"):
        tempered(one, -1.0)


@pytest.mark.parametrize("seed", range(8))
def test_what_every_temperature_and_mixture_would_bring(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, draft, other = random_law(rng, 30), random_law(rng), random_law(rng, 5)
    expected = [overlap(target, tempered(draft, temperature)) for temperature in TEMPERATURES]
    assert alphas(target, draft) == pytest.approx(expected)
    expected = [overlap(target, mixed(draft, other, weight)) for weight in WEIGHTS]
    assert mixed_alphas(target, draft, other) == pytest.approx(expected)


@pytest.mark.parametrize("power", [0.4, 2.0])
def test_of_a_wide_law_what_is_estimated_is_what_is_drawn_from(power: float) -> None:
    """A law over thousands of tokens, of which the tail weighs more the humbler it is made."""
    weights = 1.0 / np.arange(1.0, 5001.0) ** power
    wide = Distribution(np.arange(5000, dtype=np.int64), weights / weights.sum())
    target = law(0.4, 0.3, 0.1, 0.1, 0.1)
    expected = [overlap(target, tempered(wide, temperature)) for temperature in TEMPERATURES]
    assert alphas(target, wide) == pytest.approx(expected)
    other = Distribution(np.arange(2500, 7500, dtype=np.int64), wide.probs)
    expected = [overlap(target, mixed(wide, other, weight)) for weight in WEIGHTS[1:-1]]
    assert mixed_alphas(target, wide, other)[1:-1] == pytest.approx(expected)


# ------------------------------------------------------------------------------------------ what is chosen


def taught(
    *pairs: tuple[Distribution, Distribution], times: int = 1, made: Calibrator | None = None
) -> Calibrator:
    """By (target's law, draft's law) of the source "model"."""
    made = made or Calibrator()
    for _ in range(times):
        for target, draft in pairs:
            made.learn({"model": draft}, HERE, target)
    return made


BOLD = (law(0.5, 0.3, 0.2), tempered(law(0.4, 0.35, 0.25), 0.25))
HUMBLE = (law(0.9, 0.08, 0.02), law(0.5, 0.3, 0.2))
SURE = (law(0.97, 0.03), law(0.6, 0.4))


def test_a_bold_draft_is_made_humble_and_a_humble_one_bold() -> None:
    assert Calibrator().temperature("model", HERE) == 1.0
    assert taught(BOLD, times=10).temperature("model", HERE) > 1.5
    assert taught(HUMBLE, times=5).temperature("model", HERE) < 0.7


def test_a_draft_that_is_nearly_always_right_is_taken_at_its_word() -> None:
    assert taught(SURE, times=5).temperature("model", HERE) in (0.0, 0.2)
    assert taught((law(1.0), law(0.6, 0.4)), times=5).temperature("model", HERE) == 0.0


def test_what_is_right_is_left_alone() -> None:
    rng = np.random.default_rng(1)
    made = Calibrator()
    for _ in range(300):
        right = random_law(rng)
        made.learn({"model": right}, HERE, right)
        assert made.temperature("model", HERE) == 1.0


def test_places_heats_and_sources_are_apart() -> None:
    made = taught(BOLD, times=20)
    assert made.temperature("model", HERE._replace(place="key")) == 1.0
    assert made.temperature("model", HERE._replace(heat=1)) == 1.0
    assert made.temperature("history", HERE) == 1.0


def test_a_new_tool_set_begins_with_what_others_taught_and_goes_its_own_way() -> None:
    made = taught(BOLD, times=100)
    new = HERE._replace(tool_set="new")
    assert made.temperature("model", new) == made.temperature("model", HERE) > 1.5
    for _ in range(200):
        made.learn({"model": HUMBLE[1]}, new, HUMBLE[0])
    assert made.temperature("model", new) < 0.7
    assert made.temperature("model", HERE) > 1.5  # others' habits count for a few positions only


def test_a_change_is_followed() -> None:
    made = taught(BOLD, times=2000)
    for _ in range(700):
        made.learn({"model": HUMBLE[1]}, HERE, HUMBLE[0])
    assert made.temperature("model", HERE) < 0.7


def test_laws_are_mixed_where_that_is_better() -> None:
    """Each of two laws knows half of the target's."""
    target, first, second = law(0.5, 0.5), law(0.98, 0.02), law(0.02, 0.98)
    made = Calibrator()
    assert made.calibrated({"model": first, "history": second}, HERE) is first
    for _ in range(5):
        made.learn({"model": first, "history": second}, HERE, target)
    assert made.weight("model", "history", HERE) == 0.5
    assert overlap(made.calibrated({"model": first, "history": second}, HERE), target) > 0.9


def test_a_source_may_have_any_name() -> None:
    """Even one that reads like a mixture."""
    made = Calibrator()
    for _ in range(10):
        made.learn({"model": BOLD[1], "history": HUMBLE[1]}, HERE, BOLD[0])
        made.learn({"model+history": BOLD[1]}, HERE, BOLD[0])
    assert made.temperature("model+history", HERE) > 1.0
    key = Key("temperatures", "model", "string", 2)
    with pytest.raises(ValueError, match="7 scores of 15 temperatures"):
        made.put(Group("", None), key, Scores.none(len(WEIGHTS)))


def test_what_leaves_no_choice_teaches_nothing() -> None:
    made = taught(BOLD, times=20)
    before = made.temperature("model", HERE)
    for _ in range(3000):
        made.learn({"model": law(1.0)}, HERE, law(1.0))
    assert made.temperature("model", HERE) == before
    assert {scores.count for _, _, scores in made.items()} == {20.0}


def test_laws_that_are_made_at_another_temperature_are_apart() -> None:
    made = taught(BOLD, times=20)
    assert made.temperature("model", HERE._replace(made_at=0.2)) == 1.0


def test_a_seed_needs_more_of_a_law_than_of_a_certain_token() -> None:
    """Where draws share their noise, laws that overlap by 0.6 may agree in 3 of 7."""
    target, draft = law(0.5, 0.1, 0.4), law(0.55, 0.45)
    made = taught((target, draft), times=50)
    assert made.temperature("model", HERE) > 0.0
    assert made.temperature("model", HERE._replace(seeded=True)) == 0.0


def test_lookups_are_bounded() -> None:
    fixed = Calibrator(adapts=False)
    for number in range(10_000):
        fixed.temperature("model", HERE._replace(tool_set=str(number)))
    assert len(fixed._chosen) < 5000


def test_off_and_fixed() -> None:
    off = taught(BOLD, times=50, made=Calibrator(neutral=True))
    assert off.temperature("model", HERE) == 1.0
    assert off.calibrated({"model": BOLD[1]}, HERE) is BOLD[1]
    fixed = taught(BOLD, times=50, made=Calibrator(adapts=False))
    assert fixed.temperature("model", HERE) == 1.0


def test_tool_sets_are_bounded() -> None:
    made = taught(BOLD)
    for number in range(200):
        made.learn({"model": BOLD[1]}, HERE._replace(tool_set=str(number)), BOLD[0])
    names = {group.tool_set for group, _, _ in made.items()}
    assert len(names) <= 65
    assert {"", "199"} < names


# ------------------------------------------------------------------------------------------------------ files


def as_file(made: Calibrator, **changes: object) -> CalibrationFile:
    found = CalibrationFile.of(made, model="m", draft="d", vocab="v", made="online")
    return found.model_copy(update=changes)


def test_a_file_begins_where_a_calibrator_ended(tmp_path: Path) -> None:
    made = taught(BOLD, times=20)
    made.learn({"model": law(0.98, 0.02), "history": law(0.02, 0.98)}, HERE, law(0.5, 0.5))
    cell = Cell("lookup", "enum", None, 1)
    made.survival.learn(cell, accepted=True)
    path = tmp_path / "deep" / "c.json"
    write_calibration(path, as_file(made))
    assert path.stat().st_mode & 0o077 == 0
    again = read_calibration(path, vocab="v").calibrator(adapts=True)
    assert again.temperature("model", HERE) == made.temperature("model", HERE) > 1.5
    assert again.survival.estimate(cell) == pytest.approx(made.survival.estimate(cell))
    for (left, key, scores), (right, other, kept) in zip(made.items(), again.items(), strict=True):
        assert (left, key) == (right, other)
        assert kept.means == pytest.approx(scores.means, abs=1e-5)
    assert [one.name for one in path.parent.iterdir()] == ["c.json"]


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"nowhere\.json cannot be read"):
        read_calibration(tmp_path / "nowhere.json")
    path = tmp_path / "c.json"
    path.write_text('{"version": "calibration.v2"}')
    with pytest.raises(CalibrationError, match=r"c\.json is no calibration\.v1 file: version"):
        read_calibration(path)
    write_calibration(path, as_file(taught(BOLD)))
    with pytest.raises(CalibrationError, match="vocabulary v, and the target's is w"):
        read_calibration(path, vocab="w")
    other = tmp_path / "other.json"
    write_calibration(other, as_file(taught(BOLD), temperatures=[1.0] * len(TEMPERATURES)))
    with pytest.raises(CalibrationError, match=r"in .*other\.json are not those of this version"):
        read_calibration(other)
    sound = path.read_text()
    bent = json.loads(sound)
    bent["scores"][0]["alpha"].pop()
    path.write_text(json.dumps(bent))
    with pytest.raises(CalibrationError, match="are not of the temperatures"):
        read_calibration(path)
    bent = json.loads(sound)
    bent["survival"] = [{"source": "a", "place": "b", "level": 1, "heat": 0, "accepted": 2, "count": 1}]
    path.write_text(json.dumps(bent))
    with pytest.raises(CalibrationError, match="more proposals were accepted"):
        read_calibration(path)
    with pytest.raises(CalibrationError, match="cannot be written"):
        write_calibration(path / "below", as_file(Calibrator()))


def test_the_schema_is_the_formats_own() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == {"$id": "calibration.v1", **calibration_schema()}


def test_what_is_learned_is_kept_across_runs(tmp_path: Path) -> None:
    store = CalibrationStore(tmp_path, model="m", draft="d", vocab="v")
    made = store.load()
    store.save(made)
    assert not store.path.exists()  # there was nothing to save
    for _ in range(20):
        made.learn({"model": BOLD[1]}, HERE, BOLD[0])
        store.replied(made)
    assert store.path.exists()
    again = CalibrationStore(tmp_path, model="m", draft="d", vocab="v").load()
    assert again.temperature("model", HERE) > 1.5
    other = CalibrationStore(tmp_path, model="m", draft="another", vocab="v")
    assert other.path != store.path
    assert other.load().temperature("model", HERE) == 1.0


def test_a_damaged_store_begins_again_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = CalibrationStore(tmp_path, model="m", draft=None, vocab="v")
    store.path.write_text("{")
    with caplog.at_level(logging.WARNING):
        made = store.load()
    assert "what was learned of drafts is lost" in caplog.text
    store.replied(made)
    store.save(made)
    assert read_calibration(store.path).made == "online"


def test_a_store_that_cannot_be_written_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = CalibrationStore(tmp_path / "file", model="m", draft=None, vocab="v")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            store.replied(Calibrator())
            store.save(Calibrator())
    assert caplog.text.count("no longer stored") == 1
