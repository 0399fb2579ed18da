"""Rebuilding an earlier state of a database from its snapshots and its log, in this process and for nobody else.

Every group is applied as a follower would, so that every digest in the log is compared. Not here: what becomes of the
state (`db/transfer.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from buckram.core.machine.fold import Fold
from buckram.db.engine import Engine
from buckram.db.execution import Pending
from buckram.db.opening import check_database
from buckram.db.settings import DatabaseLimits
from buckram.db.state import DatabaseState
from buckram.errors import DatabaseFailed, NoEarlierState, SnapshotDamaged
from buckram.machine.snapshots import Place, load_newest
from buckram.seams import Threads
from buckram.streams.read.locate import known_end, offset_at_time

if TYPE_CHECKING:
    from buckram.client.client import Client
    from buckram.core.streams.names import StreamName
    from buckram.streams.namespace import Namespace


class Rebuilt:
    """A state that stands still. `offset`: it has all records below."""

    def __init__(self, database: str, directory: Path | None, threads: Threads) -> None:
        self.state = DatabaseState(database)
        self.engine = self.state.engine = Engine(database, DatabaseLimits(), self, directory, threads)
        self.fold = Fold(database, self.state)
        self.damaged: list[SnapshotDamaged] = []
        """Snapshots that could not be read; the one before was taken."""

    @property
    def offset(self) -> int:
        return self.fold.applied

    def commit_wanted(self, pending: Pending) -> None:
        """Nothing is executed here."""
        raise AssertionError("a rebuilt state executes nothing")

    def engine_failed(self, error: DatabaseFailed) -> None:
        """`settled` raises it."""


@asynccontextmanager
async def rebuilt(
    client: Client,
    ns: Namespace,
    name: StreamName,
    *,
    offset: int | None = None,
    time_us: int | None = None,
    from_oldest: bool = False,
    directory: Path | None = None,
) -> AsyncIterator[Rebuilt]:
    """The state below an offset, or of what was committed before a moment; without both, the newest.

    `from_oldest`: begin with the oldest snapshot, so that all that is kept is read. Raises NoEarlierState,
    DatabaseFailed, StateLost, ReadFailed, NotDatabase.
    """
    await check_database(ns, name)
    head = (await ns.store.read(name)).head
    end = await known_end(client, name, head)
    if time_us is not None:
        offset = await offset_at_time(client, ns.store, name, head, time_us)
    stop = end if offset is None else offset
    if not head.earliest <= stop <= end:
        raise NoEarlierState(str(name), stop, head.earliest, end)
    found = Rebuilt(str(name), directory, client.services.runtime.threads)
    try:
        rows = head.snapshots or ()
        at_most = rows[0].offset if from_oldest and rows else stop
        loaded, found.damaged = await load_newest(Place(client, ns.store, name, head.uid), head, at_most)
        if loaded is not None:
            found.fold.restore(loaded.header, loaded.sessions, loaded.chunks)
            del loaded
        if found.offset < stop:
            async with ns.read(name.stream, start=found.offset, stop=stop) as reader:
                while (batch := await reader.next_batch()) is not None:
                    for place, value in enumerate(batch.values(), batch.first_offset):
                        found.fold.apply(place, value)
        await found.engine.settled(found.state.sequence)
        yield found
    finally:
        await found.engine.close()


__all__ = ["Rebuilt", "rebuilt"]
