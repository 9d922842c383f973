"""A folder of notes, in memory. It must not know its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentspec.bench.agents.world import IN_STEPS, State, Tool, World, text

__all__ = ["NOTES", "Files"]

NOTES: Mapping[str, str] = {
    "inbox/todo.txt": "call the plumber, then buy paint",
    "inbox/trip.txt": "train to Bergen on 2026-04-02, seat 61",
    "inbox/bill.txt": "electricity: 84.20 EUR, due 2026-03-20",
    "home/paint.txt": "colour: sand, 5 litres, shop: Hansen",
    "home/wifi.txt": "network: oak, password: blue-kettle-42",
    "work/ideas.txt": "a lamp that folds",
    "work/draft.txt": "dear customers, we have moved",
}
"""What each holds at the beginning."""

_PATH = text("folder and name, such as a list shows them")


class Files(World):
    """Seven notes in three folders, and an empty folder `archive`."""

    instructions = f"You keep notes for the user, in the folders inbox, home, work and archive. {IN_STEPS}"

    def __init__(self) -> None:
        self._notes = dict(NOTES)

    def tools(self) -> Sequence[Tool]:
        return (
            Tool(
                "list_notes",
                "List the notes in a folder.",
                {"folder": text("the folder's name")},
                self._list,
            ),
            Tool("read_note", "Read a note.", {"path": _PATH}, self._read),
            Tool(
                "write_note",
                "Write a note; what the path held before is replaced.",
                {"path": text("folder and name, the name ending in .txt"), "content": text("the whole text")},
                self._write,
            ),
            Tool(
                "move_note",
                "Move a note that list_notes has shown to another folder.",
                {"path": _PATH, "folder": text("the folder's name")},
                self._move,
            ),
            Tool("delete_note", "Delete a note that list_notes has shown.", {"path": _PATH}, self._delete),
        )

    def state(self) -> State:
        return {path: {"content": content} for path, content in self._notes.items()}

    def _list(self, folder: str) -> str:
        found = sorted(path for path in self._notes if path.startswith(f"{folder.strip('/')}/"))
        return ", ".join(found) or f"{folder} is empty"

    def _read(self, path: str) -> str:
        return self._notes.get(path, _no_note(path))

    def _write(self, path: str, content: str) -> str:
        self._notes[path] = content
        return f"{path} is written"

    def _move(self, path: str, folder: str) -> str:
        if path not in self._notes:
            return f"not moved: {_no_note(path)}"
        moved = f"{folder.strip('/')}/{path.rpartition('/')[2]}"
        self._notes[moved] = self._notes.pop(path)
        return f"moved to {moved}"

    def _delete(self, path: str) -> str:
        if path not in self._notes:
            return f"not deleted: {_no_note(path)}"
        del self._notes[path]
        return f"{path} is deleted"


def _no_note(path: str) -> str:
    return f"there is no note {path}; list_notes gives the paths"
