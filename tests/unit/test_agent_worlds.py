"""The worlds that agents work in, the tasks in them, and what counts as done."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agentspec.bench.agents.calls import Judge
from agentspec.bench.agents.world import Mentions, State, Task, wrong
from agentspec.bench.agents.worlds import TASKS, WORLDS
from agentspec.bench.agents.worlds.files import Files
from agentspec.bench.agents.worlds.office import Office
from agentspec.bench.agents.worlds.shop import Shop
from agentspec.types import Json

EACH_TASK = pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.world}-{task.name}")


def test_there_are_enough_tasks_and_tools() -> None:
    assert len(TASKS) >= 30
    assert len({(task.world, task.name) for task in TASKS}) == len(TASKS)
    assert {task.world for task in TASKS} == set(WORLDS)
    assert sum(len(world().tools()) for world in WORLDS.values()) >= 8
    assert sum(len(task.solution) > 1 for task in TASKS) > len(TASKS) / 2


@EACH_TASK
def test_the_solution_solves_it_and_every_call_of_it_is_needed(task: Task) -> None:
    world = WORLDS[task.world]()
    judge, before = Judge(world), world.state()
    for name, arguments in task.solution:
        assert judge.fault(name, arguments) == ""
        world.call(name, arguments)
    assert wrong(task, before, world.state(), task.answer) == ""


@EACH_TASK
def test_doing_nothing_or_saying_nothing_does_not(task: Task) -> None:
    world = WORLDS[task.world]()
    assert wrong(task, world.state(), world.state(), "")
    if task.ends:
        assert wrong(task, world.state(), world.state(), task.answer)


@EACH_TASK
def test_nor_does_doing_more_than_was_asked(task: Task) -> None:
    more: Mapping[str, tuple[str, Mapping[str, Json]]] = {
        "shop": ("place_order", {"customer": "Nobody", "item": "SOCKS-9", "quantity": 7, "city": "Rome"}),
        "office": ("add_event", {"date": "2027-01-01", "time": "00:00", "title": "Party"}),
        "files": ("write_note", {"path": "work/more.txt", "content": "more"}),
    }
    world = WORLDS[task.world]()
    before = world.state()
    for name, arguments in (*task.solution, more[task.world]):
        world.call(name, arguments)
    assert "was not to change" in wrong(task, before, world.state(), task.answer)


def test_what_is_wrong_is_said() -> None:
    before: State = {"a": {"x": 1}, "b": {"x": 1}}
    after: State = {"a": {"x": 2}, "b": {"x": 1, "y": "One two"}}
    task = Task(
        name="",
        world="",
        request="",
        solution=(),
        answer="",
        ends={"b": {"x": 2, "y": Mentions(["ONE", ("three", "four")])}},
        says=Mentions(["yes"]),
    )
    assert wrong(task, before, after, "No.").split("; ") == [
        "a was not to change",
        "b: x is 1, not 2",
        "b: y does not mention three or four",
        "the answer does not say yes",
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        ("find_order", {"customer": "Nils Berg"}, ""),
        ("Answer", {"message": "done"}, ""),
        ("Answer", {}, "Answer: 'message' is a required property"),
        ("sell", {}, "there is no tool 'sell'"),
        (None, {}, "there is no tool None"),
        ("find_order", {}, "find_order: 'customer' is a required property"),
        ("find_order", {"customer": 3}, "find_order: 3 is not of type 'string'"),
        ("find_order", "Nils Berg", "find_order: 'Nils Berg' is not of type 'object'"),
        (
            "place_order",
            {"customer": "A", "item": "B", "quantity": 0, "city": "C"},
            "place_order: 0 is less than the minimum of 1",
        ),
    ],
)
def test_calls_are_held_to_the_tools_schemas(name: Json, arguments: Json, fault: str) -> None:
    assert Judge(Shop()).fault(name, arguments) == fault


def test_a_call_with_more_arguments_than_the_tool_has() -> None:
    assert "'city' was unexpected" in Judge(Shop()).fault("find_order", {"customer": "A", "city": "B"})


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("cancel_order", {"order": "A-1042"}, "not cancelled: order A-1042 is shipped"),
        (
            "cancel_order",
            {"order": "A-1"},
            "not cancelled: there is no order A-1; find_order gives the number",
        ),
        (
            "place_order",
            {"customer": "A", "item": "TENT-4", "quantity": 1, "city": "B"},
            "not placed: 0 of TENT-4 in stock",
        ),
        (
            "place_order",
            {"customer": "A", "item": "tent", "quantity": 1, "city": "B"},
            "not placed: there is no item tent; search_items gives the code",
        ),
        ("find_order", {"customer": "nils berg"}, "order A-1043, open: 2 of item BOTTLE-2, city Malmo"),
        ("find_order", {"customer": "Nobody"}, "Nobody has no order"),
        ("search_items", {"words": "LAMP"}, "item LAMP-7: trail lamp, 39.90 EUR, 12 in stock"),
        ("search_items", {"words": "boat"}, "no item is called boat"),
        ("search_items", {"words": "SOCKS-9"}, "item SOCKS-9: wool socks, 12.50 EUR, 40 in stock"),
    ],
)
def test_the_shop_answers(name: str, arguments: Mapping[str, Json], result: str) -> None:
    shop = Shop()
    before = shop.state()
    assert shop.call(name, arguments) == result
    assert shop.state() == before


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("find_person", {"name": "Jan Novak"}, "nobody is called Jan Novak"),
        ("list_events", {"date": "2026-03-13"}, "nothing on 2026-03-13"),
        ("list_events", {"date": "2026-03-10"}, "E-11: 09:00 Team meeting\nE-12: 14:00 Budget review"),
        (
            "add_event",
            {"date": "2026-03-10", "time": "09:00", "title": "x"},
            "not added: E-11 is at that time",
        ),
        (
            "move_event",
            {"event": "E-11", "date": "2026-03-10", "time": "14:00"},
            "not moved: E-12 is at that time",
        ),
        (
            "move_event",
            {"event": "E-1", "date": "2026-03-10", "time": "14:00"},
            "not moved: there is no event E-1; list_events gives the number",
        ),
        (
            "cancel_event",
            {"event": "E-1"},
            "not cancelled: there is no event E-1; list_events gives the number",
        ),
        (
            "send_mail",
            {"to": "Nils", "subject": "", "body": ""},
            "not sent: there is no address Nils; find_person gives it",
        ),
    ],
)
def test_the_office_answers(name: str, arguments: Mapping[str, Json], result: str) -> None:
    office = Office()
    before = office.state()
    assert office.call(name, arguments) == result
    assert office.state() == before


def test_a_cancelled_event_is_gone() -> None:
    office = Office()
    office.call("cancel_event", {"event": "E-11"})
    assert "E-11" not in office.call("list_events", {"date": "2026-03-10"})
    assert office.call("cancel_event", {"event": "E-11"}).startswith("not cancelled")
    assert office.call("add_event", {"date": "2026-03-10", "time": "09:00", "title": "x"}).startswith("added")


def test_notes_are_listed_moved_and_missed() -> None:
    files = Files()
    assert files.call("list_notes", {"folder": "archive"}) == "archive is empty"
    assert files.call("list_notes", {"folder": "work/"}) == "work/draft.txt, work/ideas.txt"
    before = files.state()
    for name, more in (("read_note", {}), ("delete_note", {}), ("move_note", {"folder": "home"})):
        assert "there is no note work/x.txt" in files.call(name, {"path": "work/x.txt", **more})
    assert files.state() == before
    assert files.call("move_note", {"path": "work/ideas.txt", "folder": "home"}) == "moved to home/ideas.txt"
    assert files.call("list_notes", {"folder": "work"}) == "work/draft.txt"
