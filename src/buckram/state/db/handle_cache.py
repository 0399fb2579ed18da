"""Shelf: many databases of which few are open, each with its thread and its local files. A namespace holds its own.

Not here: when one is opened and closed (`runtime/process/handle_cache.py`), opening one (`state/db/opening.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from buckram.runtime.process import handle_cache as shelf
from buckram.state.db.database import Database

Open = Callable[[str], Awaitable[Database]]
"""Opens the database of a name."""


class Use(shelf.BorrowedHandle[Database]):
    """A database that stays open until `give` is called. From `Shelf.take`."""

    @property
    def database(self) -> Database:
        """The database."""
        return self.item


class Shelf(shelf.HandleCache[Database]):
    """`async with shelf.use("shop/main") as db`. A database that stopped begins from a snapshot at its next use."""

    def __init__(self, open_one: Open, *, idle_s: float = 60.0, most_open: int = 200) -> None:
        super().__init__(
            "databases",
            open_one,
            Database.aclose,
            lambda database: database.role == "stopped",
            idle_s=idle_s,
            most_open=most_open,
            holder=lambda name: name.partition("/")[0],
        )

    async def take(self, name: str) -> Use:
        """Return the database, in use until `give` of the value is called. Raises errors of opening, HandleClosed."""
        found = await super().take(name)
        return Use(found.item, found.give)
