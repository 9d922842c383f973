"""What is asked of the assistant who keeps the notes."""

from __future__ import annotations

from collections.abc import Sequence

from agentspec.bench.agents.world import Mentions, Task
from agentspec.bench.agents.worlds.files import NOTES

__all__ = ["TASKS"]

TASKS: Sequence[Task] = (
    Task(
        name="a number in a note",
        world="files",
        request="List the notes in the inbox and read the one about the trip. What is my seat?",
        solution=[("list_notes", {"folder": "inbox"}), ("read_note", {"path": "inbox/trip.txt"})],
        answer="Seat 61.",
        says=Mentions(["61"]),
    ),
    Task(
        name="the password",
        world="files",
        request="List the notes in the folder home and read the one about the wifi. What is the password?",
        solution=[("list_notes", {"folder": "home"}), ("read_note", {"path": "home/wifi.txt"})],
        answer="It is blue-kettle-42.",
        says=Mentions(["blue-kettle-42"]),
    ),
    Task(
        name="archive a note",
        world="files",
        request="List the notes in the inbox and move the bill to the archive.",
        solution=[
            ("list_notes", {"folder": "inbox"}),
            ("move_note", {"path": "inbox/bill.txt", "folder": "archive"}),
        ],
        answer="The bill is in the archive.",
        ends={
            "inbox/bill.txt": {"content": None},
            "archive/bill.txt": {"content": NOTES["inbox/bill.txt"]},
        },
    ),
    Task(
        name="delete a note",
        world="files",
        request="List the notes in the folder work and delete the one with ideas.",
        solution=[("list_notes", {"folder": "work"}), ("delete_note", {"path": "work/ideas.txt"})],
        answer="The note is deleted.",
        ends={"work/ideas.txt": {"content": None}},
    ),
    Task(
        name="a new note",
        world="files",
        request="Write a note home/garden.txt that says: water the roses on Friday",
        solution=[("write_note", {"path": "home/garden.txt", "content": "water the roses on Friday"})],
        answer="The note is written.",
        ends={"home/garden.txt": {"content": Mentions(["water the roses", "friday"])}},
    ),
    Task(
        name="copy a fact",
        world="files",
        request="Read inbox/bill.txt. Then write a note home/pay.txt with the amount and the date "
        "when it is due.",
        solution=[
            ("read_note", {"path": "inbox/bill.txt"}),
            ("write_note", {"path": "home/pay.txt", "content": "84.20 EUR, due 2026-03-20"}),
        ],
        answer="The note has the amount and the date.",
        ends={"home/pay.txt": {"content": Mentions(["84.20", "2026-03-20"])}},
    ),
    Task(
        name="copy a note",
        world="files",
        request="Read work/draft.txt, then write a note archive/draft.txt with the same text.",
        solution=[
            ("read_note", {"path": "work/draft.txt"}),
            ("write_note", {"path": "archive/draft.txt", "content": NOTES["work/draft.txt"]}),
        ],
        answer="The copy is made.",
        ends={"archive/draft.txt": {"content": Mentions([NOTES["work/draft.txt"]])}},
    ),
    Task(
        name="add a line",
        world="files",
        request="Read inbox/todo.txt. Then write it again with all that it says and, at the end, the "
        "words: return the books",
        solution=[
            ("read_note", {"path": "inbox/todo.txt"}),
            (
                "write_note",
                {"path": "inbox/todo.txt", "content": f"{NOTES['inbox/todo.txt']}, return the books"},
            ),
        ],
        answer="The note has one more thing to do.",
        ends={"inbox/todo.txt": {"content": Mentions(["call the plumber", "buy paint", "return the books"])}},
    ),
    Task(
        name="move by its content",
        world="files",
        request="List the notes in the folder home and read each of them. Move the one that names a "
        "colour to the folder work.",
        solution=[
            ("list_notes", {"folder": "home"}),
            ("read_note", {"path": "home/paint.txt"}),
            ("move_note", {"path": "home/paint.txt", "folder": "work"}),
        ],
        answer="The note about paint is in work.",
        ends={
            "home/paint.txt": {"content": None},
            "work/paint.txt": {"content": NOTES["home/paint.txt"]},
        },
    ),
    Task(
        name="how many notes",
        world="files",
        request="List the notes in the inbox, then those in the folder work. How many are in each?",
        solution=[("list_notes", {"folder": "inbox"}), ("list_notes", {"folder": "work"})],
        answer="3 in the inbox and 2 in work.",
        says=Mentions([("3", "three"), ("2", "two")]),
    ),
    Task(
        name="clear a folder",
        world="files",
        request="List the notes in the folder work. Move each of them to the archive.",
        solution=[
            ("list_notes", {"folder": "work"}),
            ("move_note", {"path": "work/draft.txt", "folder": "archive"}),
            ("move_note", {"path": "work/ideas.txt", "folder": "archive"}),
        ],
        answer="Both notes are in the archive.",
        ends={
            "work/draft.txt": {"content": None},
            "work/ideas.txt": {"content": None},
            "archive/draft.txt": {"content": NOTES["work/draft.txt"]},
            "archive/ideas.txt": {"content": NOTES["work/ideas.txt"]},
        },
    ),
)
