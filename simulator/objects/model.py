"""Model of names: what calls on names do, written apart from `core/objects`, whose bugs it must find.

Names are flat here: a dictionary of full names, and the directories that were made to be kept. A directory is there if
it is kept or anything is below it. The same model folds the log (`reference.py`) and explains histories of calls
(`histories.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")
ABSENT, BLOCKED, CHANGED, EXISTS, FILLED, INCOMPLETE, LOST = (
    "absent",
    "blocked",
    "changed",
    "exists",
    "filled",
    "incomplete",
    "lost",
)
"""Kinds of refusals. LOST: the bytes were given up, so nothing was changed; no model foresees it."""


class Refused(Exception):
    """The call changes nothing; the text is the kind of the refusal."""


class Names(Generic[R]):
    """Objects by full name, and directories that are kept. `holds` says whether a row has a version."""

    def __init__(self, rows: dict[str, R], kept: set[str], holds: Callable[[R, int], bool]) -> None:
        self.rows, self.kept, self._holds = rows, kept, holds

    def is_directory(self, path: str) -> bool:
        below = f"{path}/"
        return path in self.kept or any(name.startswith(below) for name in (*self.rows, *self.kept))

    def _obstructed(self, path: str) -> bool:
        """Return whether an object is where the path needs a directory."""
        parts = path.split("/")
        return any("/".join(parts[:depth]) in self.rows for depth in range(1, len(parts)))

    def needed(self, name: str) -> R:
        if name not in self.rows:
            raise Refused(ABSENT)
        return self.rows[name]

    def check(self, name: str, condition: str | int | None) -> None:
        """Raise Refused unless an object may be put under the name."""
        if self.is_directory(name):
            raise Refused(BLOCKED)
        row = self.rows.get(name)
        if condition == ABSENT and row is not None:
            raise Refused(EXISTS)
        if isinstance(condition, int) and (row is None or not self._holds(row, condition)):
            raise Refused(CHANGED)
        if self._obstructed(name):
            raise Refused(BLOCKED)

    def put(self, name: str, row: R, condition: str | int | None) -> None:
        self.check(name, condition)
        self.rows[name] = row

    def delete(self, name: str, condition: int | None) -> None:
        row = self.needed(name)
        if condition is not None and not self._holds(row, condition):
            raise Refused(CHANGED)
        del self.rows[name]

    def move_directory(self, source: str, name: str) -> None:
        """Give a directory another name, with all that is below it."""
        if name == source:
            return
        if name.startswith(f"{source}/"):
            raise Refused(BLOCKED)
        if name in self.rows or self.is_directory(name):
            raise Refused(EXISTS)
        if self._obstructed(name):
            raise Refused(BLOCKED)

        def moved(path: str) -> str:
            return name + path[len(source) :] if path == source or path.startswith(f"{source}/") else path

        self.rows = {moved(path): row for path, row in self.rows.items()}
        self.kept = {moved(path) for path in self.kept}

    def remove(self, path: str, recursive: bool) -> None:
        if path in self.rows:
            del self.rows[path]
            return
        if not self.is_directory(path):
            raise Refused(ABSENT)
        below = f"{path}/"
        if not recursive and any(name.startswith(below) for name in self.rows):
            raise Refused(FILLED)
        self.rows = {name: row for name, row in self.rows.items() if not name.startswith(below)}
        self.kept = {name for name in self.kept if name != path and not name.startswith(below)}

    def make_directories(self, path: str) -> bool:
        """Keep a directory and those above it; return whether it is new."""
        if path in self.rows or self._obstructed(path):
            raise Refused(BLOCKED)
        fresh = not self.is_directory(path)
        parts = path.split("/")
        self.kept |= {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
        return fresh


__all__ = ["ABSENT", "BLOCKED", "CHANGED", "EXISTS", "FILLED", "INCOMPLETE", "LOST", "Names", "Refused"]
