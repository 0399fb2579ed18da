"""Opening a database: its log is made if it does not exist, and this process becomes a replica, of now or of earlier.

A process that has many databases keeps few of them open (`handle_cache`). An earlier state is rebuilt from the
snapshots and the log, for use in this process only. Every group is applied as a follower would, so that every digest in
the log is compared. Not here: the use of that state (`state/db/transfer.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buckram.core.machine.fold import Fold
from buckram.core.streams.names import check_writer_name
from buckram.errors import (
    DatabaseExists,
    DatabaseFailed,
    NoEarlierState,
    NoSuchDatabase,
    NoSuchLedger,
    OffsetNotReadable,
    OffsetTruncated,
    ReadFailed,
    SnapshotDamaged,
    StateLost,
)
from buckram.runtime.process import handle_cache as shelf
from buckram.seams import Threads
from buckram.state.db.commits.database_log import check_database, create_log, has_changes
from buckram.state.db.commits.state_machine import DatabaseState
from buckram.state.db.database import Database
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine.engine import Engine
from buckram.state.db.table_engine.execution import Pending
from buckram.state.machine.machine import process_name
from buckram.state.machine.opening import open_on_log
from buckram.state.machine.replica import Candidacy
from buckram.state.machine.settings import MachineSettings
from buckram.state.machine.snapshots import Loaded, LogHandle, load_newest
from buckram.streams.read.locate import end_of_acknowledged, known_end, offset_at_time, readable_end
from buckram.streams.shared.namespaces import Namespaces

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.core.streams.metadata.head import Head
    from buckram.core.streams.names import StreamName
    from buckram.streams.namespace import StreamNamespace

_TRIES = 5
"""Maximum number of attempts; one fails when a snapshot published meanwhile removes the log that is being read."""


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
        """Fail: a rebuilt state executes no transactions."""
        raise AssertionError("a rebuilt state executes nothing")

    def engine_failed(self, error: DatabaseFailed) -> None:
        """Ignore the error: `settled` of the engine raises it."""


@asynccontextmanager
async def rebuilt(
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    *,
    offset: int | None = None,
    time_us: int | None = None,
    from_oldest: bool = False,
    directory: Path | None = None,
) -> AsyncIterator[Rebuilt]:
    """Yield the state below an offset, or of what was committed before a time; without both, the newest.

    `from_oldest`: begin with the oldest snapshot, so that all that is kept is read. Raises NoEarlierState,
    DatabaseFailed, StateLost, ReadFailed, NotDatabase.
    """
    await check_database(ns, name)
    for left in reversed(range(_TRIES)):
        found = Rebuilt(str(name), directory, client.services.runtime.threads)
        try:
            try:
                await _read(found, client, ns, name, offset, time_us, from_oldest)
            except OffsetTruncated:
                # A snapshot was published meanwhile, and the log before it went. What is kept now is read instead.
                if not left:
                    raise
                continue
            yield found
            return
        finally:
            await found.engine.close()


async def _read(
    found: Rebuilt,
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    offset: int | None,
    time_us: int | None,
    from_oldest: bool,
) -> None:
    head, end = await _newest(client, ns, name)
    if time_us is not None:
        offset = await offset_at_time(client, ns.store, name, head, time_us)
    stop = end if offset is None else offset
    if not head.earliest <= stop <= end:
        raise NoEarlierState(str(name), stop, head.earliest, end)
    place = LogHandle(client, ns.store, name, head.uid)
    fault = found.state.fault
    loaded, found.damaged = await (
        _oldest(place, head, fault, stop) if from_oldest else load_newest(place, head, fault, stop)
    )
    if loaded is not None:
        found.fold.restore(loaded.header, loaded.sessions, loaded.chunks)
        del loaded
    if found.offset < stop:
        async with ns.read(name.stream, start=found.offset, stop=stop) as reader:
            while (batch := await reader.next_batch()) is not None:
                for at, value in enumerate(batch.values(), batch.first_offset):
                    while (full := found.state.room()) is not None:
                        await full
                    found.fold.apply(at, value)
    await found.engine.settled(found.state.sequence)


async def _newest(client: LedgerClient, ns: StreamNamespace, name: StreamName) -> tuple[Head, int]:
    """Return the head, and the offset below which everything lies that was acknowledged before this call.

    Without a leader the next one decides where the acknowledged records end; until then it is the last known end.
    """
    try:
        wanted = await end_of_acknowledged(client, ns.store, name)
        return await readable_end(client, ns.store, name, wanted)
    except (OffsetNotReadable, NoSuchLedger, ReadFailed):
        head = (await ns.store.read(name)).head
        return head, await known_end(client, name, head)


async def _oldest(
    place: LogHandle, head: Head, fault: Callable[[Sequence[bytes]], str], stop: int
) -> tuple[Loaded | None, list[SnapshotDamaged]]:
    """Return the oldest snapshot that can be read, or None if the log is kept from its beginning."""
    for row in head.snapshots or ():
        with suppress(StateLost):
            return await load_newest(place, head, fault, row.offset)
    return await load_newest(place, head, fault, stop)


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


async def open_database(
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    *,
    create: bool = True,
    stand: bool = True,
    announce: str = "",
    limits: DatabaseLimits | None = None,
    settings: MachineSettings | None = None,
    directory: Path | None = None,
    policy: Mapping[str, Any] | None = None,
) -> Database:
    """Open a database; the arguments are those of `Namespace.database`. MissingEngine."""
    check_writer_name(announce)
    if not await ns.exists(name.stream):
        if not create:
            await Namespaces(ns.store).get(name.namespace)  # or that is what does not exist
            raise NoSuchDatabase(str(name))
        with suppress(DatabaseExists):
            await create_log(ns, name, policy or {})
    cdc = has_changes(await check_database(ns, name))
    full = str(name)
    state = DatabaseState(full)
    database = Database(
        full, state, limits or DatabaseLimits(), directory, client.services.forget, client.services.runtime.threads
    )
    if cdc:
        database.note_rows()
    try:
        replica = await open_on_log(
            client,
            ns,
            name,
            state,
            create=False,
            candidacy=Candidacy(stand, announce or process_name()),
            settings=settings or MachineSettings(),
            policy=policy or {},
        )
    except BaseException:
        await database.abandon()
        raise
    database.start(replica)
    try:
        client.services.adopt(database, database.aclose)
    except BaseException:
        await database.aclose()
        raise
    return database
