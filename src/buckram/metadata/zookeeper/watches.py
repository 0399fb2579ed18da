"""Client-side table of ZooKeeper's one-shot watches: which callbacks wait for which node. Pure.

A session asks the server for a watch with each read; this table passes each event on to the callbacks.
"""

from __future__ import annotations

from enum import Enum

from buckram.seams import Notify


class Change(Enum):
    """Kind of event that a server reports of a node."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"


class WatchTable:
    """Functions by node. Those taken out are to be called once each; they are no longer in the table then."""

    def __init__(self) -> None:
        self._value: dict[str, dict[Notify, None]] = {}
        self._children: dict[str, dict[Notify, None]] = {}

    def add(self, path: str, notify: Notify, *, children: bool) -> None:
        """Add a function. `children`: it was set by a listing, otherwise by `get` or `exists`."""
        (self._children if children else self._value).setdefault(path, {})[notify] = None

    def take(self, path: str, change: Change) -> list[Notify]:
        found: dict[Notify, None] = {}
        if change is not Change.CHILD:
            found |= self._value.pop(path, {})
        if change in (Change.CHILD, Change.DELETED):
            found |= self._children.pop(path, {})
        return list(found)

    def take_all(self) -> list[Notify]:
        found: dict[Notify, None] = {}
        for waiting in (*self._value.values(), *self._children.values()):
            found |= waiting
        self._value.clear()
        self._children.clear()
        return list(found)
