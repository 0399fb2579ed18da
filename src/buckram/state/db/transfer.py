"""Databases as files, and as copies of others: backup, restore, fork, verify.

A copy is written into the log of the new database as groups of whole pages. The last group has page 1, so that the
database is empty before it and complete after it. A copy that died is made by the next call of that name.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from buckram.core.db.digest import LOCK_PAGE, digest_of
from buckram.core.db.wal_format import PAGE_BYTES
from buckram.core.streams.names import StreamName
from buckram.errors import DatabaseExists, DatabaseFailed, DatabaseNotEmpty, InvalidArgument, NotDatabase, StateLost
from buckram.state.db.commits.database_log import check_database, create_log
from buckram.state.db.commits.state_machine import DatabaseState
from buckram.state.db.opening import open_database, rebuilt
from buckram.state.db.table_engine.execution import Pending
from buckram.state.db.table_engine.wal_files import Image, write_in_thread
from buckram.state.machine.snapshots import LogHandle, load_newest
from buckram.streams.namespace import StreamNamespace

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.state.db.database import Database

_PAGES = 4096
"""Maximum pages of one group. Its parts are written in sequence, and the next group waits for the last of them."""
_WAL = b"\2\2"
_SCHEMA = slice(40, 44)
"""Bytes of the schema cookie in page 1 (SQLite's file format): a connection reads the schema again if it changed."""
_BUSY_MS = 5000
_TABLES = "SELECT count(*) FROM sqlite_schema"
_LED_S = 30.0
"""Maximum wait for the leadership of an empty database, seconds: a process that died leads while its session lives."""
Pages = Callable[[int], bytes]
"""Page N, from 1 on; called in any thread."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of `verify`. `faults` is empty for a database without faults."""

    offset: int
    """Offset of the log below which everything was read and compared."""
    groups: int
    """The number of transactions since the database was made."""
    digest: str
    """The digest of all pages, which every replica must have."""
    faults: tuple[str, ...]
    """Faults that were found, one sentence each."""


async def backup(
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    path: Path,
    *,
    offset: int | None = None,
    time_us: int | None = None,
) -> tuple[int, int]:
    """Write an earlier state of a database into a file; returns the offset and the bytes. NoEarlierState, OSError."""
    async with rebuilt(client, ns, name, offset=offset, time_us=time_us) as found:
        image = await found.engine.image(found.state.sequence)
        return found.offset, await write_in_thread(image, path)


async def restore(
    client: LedgerClient, ns: StreamNamespace, name: StreamName, path: Path, policy: Mapping[str, object]
) -> None:
    """Make a database of a file of SQLite's, or fill one that is empty. Raises DatabaseExists, InvalidArgument,
    OSError."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        source = stack.enter_context(await loop.run_in_executor(None, _File, path))
        await _import(client, ns, name, source.page, source.size, policy)


async def load(database: Database, path: Path) -> int:
    """Fill an open database, which must have nothing in it, with a file of SQLite's; returns the bytes of its pages.

    It is empty until all of it is there, and after a failure. Leader only. Raises NotLeader, DatabaseNotEmpty,
    DatabaseBusy, InvalidArgument for a file that is no database, CommitUnknown, OSError.
    """
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        source = stack.enter_context(await loop.run_in_executor(None, _File, path))
        await _write_pages(database, source.page, source.size, into_empty=True)
        return source.size * PAGE_BYTES


async def fork(
    client: LedgerClient,
    ns: StreamNamespace,
    source: StreamName,
    name: StreamName,
    *,
    offset: int | None = None,
    time_us: int | None = None,
    policy: Mapping[str, object],
) -> int:
    """Make a database of an earlier state of another one, or fill one that is empty; returns the state's offset.
    NoEarlierState, DatabaseExists."""
    origin = StreamNamespace(client, source.namespace)
    async with rebuilt(client, origin, source, offset=offset, time_us=time_us) as found:
        with closing(await found.engine.image(found.state.sequence)) as image:
            await _import(client, ns, name, image.page, image.size, policy)
        return found.offset


async def _import(
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    pages: Pages,
    size: int,
    policy: Mapping[str, object],
) -> None:
    """Make a database of these pages; one that cannot be completed is deleted again.

    A process that died has left an empty one, which is filled.
    """
    try:
        await create_log(ns, name, policy)
    except DatabaseExists:
        await _fill_empty(client, ns, name, pages, size, policy)
        return
    try:
        async with await open_database(client, ns, name, create=False) as database:
            await database.lead()
            await _write_pages(database, pages, size)
    except BaseException:
        await ns.delete(name.stream, purpose="database")
        raise


async def _fill_empty(
    client: LedgerClient,
    ns: StreamNamespace,
    name: StreamName,
    pages: Pages,
    size: int,
    policy: Mapping[str, object],
) -> None:
    """Fill a database that is there and has nothing in it. Raises DatabaseExists for any other, and for one that
    another process leads."""
    try:
        head = await check_database(ns, name)
    except NotDatabase:
        raise DatabaseExists(str(name)) from None
    if head.snapshots:  # It need not be opened to see that it was in use.
        raise DatabaseExists(str(name))
    async with await open_database(client, ns, name, create=False) as database:
        found = await database.query(_TABLES, consistency="stale")
        if found.rows != [(0,)] or not await database.leads_within(_LED_S):
            raise DatabaseExists(str(name))
        if policy:
            await ns.set_policy(name.stream, **policy)
        try:
            await _write_pages(database, pages, size, into_empty=True)
        except DatabaseNotEmpty:
            raise DatabaseExists(str(name)) from None


async def _write_pages(database: Database, pages: Pages, size: int, *, into_empty: bool = False) -> None:
    async with database.exclusive() as (engine, committing, leadership):
        if into_empty:
            found = await database.query(_TABLES, consistency="leader")
            if found.rows != [(0,)]:
                raise DatabaseNotEmpty(database.name)

        async def write(numbers: range, whole: int) -> None:
            def group() -> Pending:
                found = {number: pages(number) for number in numbers if number != LOCK_PAGE}
                if 1 in found:
                    found[1] = _schema_after(engine.files.page(1)[0], found[1])
                return engine.execution.pages_group(leadership, found, whole)

            await committing.write(await engine.run(group))
            await engine.settled(database.groups)

        for first in range(2, size + 1, _PAGES):
            numbers = range(first, min(first + _PAGES, size + 1))
            await write(numbers, numbers[-1])
        await write(range(1, 2), size)


def _schema_after(before: bytes, page: bytes) -> bytes:
    """Return the new page 1 with a schema cookie above the present one, so that connections read the schema again.

    A page that is the present one keeps its cookie: the copy of an empty database has its very bytes and its digest.
    """
    if page == before:
        return page
    numbers = int.from_bytes(before[_SCHEMA], "big") + 1, int.from_bytes(page[_SCHEMA], "big")
    return page[: _SCHEMA.start] + (max(numbers) % 2**32).to_bytes(4, "big") + page[_SCHEMA.stop :]


class _File:
    """A SQLite database file as pages, locked by SQLite meanwhile so that no other process changes it.

    SQLite first recovers from a crash: it rolls back a hot journal, and reads the commits in a write-ahead log. If
    there is such a log, or the page size is not ours, a copy is taken.
    """

    def __init__(self, path: Path) -> None:
        self._stack = ExitStack()
        try:
            with path.open("rb") as file:
                if file.read(16) != b"SQLite format 3\0":
                    raise InvalidArgument(f"{path} is no database of SQLite's")
            try:
                self._file = self._held(path)
            except apsw.Error as error:
                raise InvalidArgument(f"{path} cannot be read as a database of SQLite's: {error}") from None
            self.size = -(-os.fstat(self._file).st_size // PAGE_BYTES)
        except BaseException:
            self._stack.close()
            raise

    def _held(self, path: Path) -> int:
        """Return the descriptor of the file whose pages are to be read. Raises apsw.Error."""
        connection = self._stack.enter_context(closing(_opened(path)))
        connection.execute("BEGIN").fetchall()
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # What a crash left is recovered here.
        # To close it would give up SQLite's locks, so it stays open until the end.
        file = self._stack.enter_context(path.open("rb")).fileno()
        head, log = os.pread(file, 100, 0), path.with_name(f"{path.name}-wal")
        plain = int.from_bytes(head[16:18], "big") == PAGE_BYTES and head[20] == 0
        if plain and not (log.exists() and log.stat().st_size):
            return file
        connection.execute("COMMIT").fetchall()
        copy = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="buckram-db-"))) / "copy.db"
        connection.pragma("page_size", PAGE_BYTES)
        connection.execute("VACUUM INTO ?", (str(copy),)).fetchall()
        return self._stack.enter_context(copy.open("rb")).fileno()

    def page(self, number: int) -> bytes:
        page = os.pread(self._file, PAGE_BYTES, (number - 1) * PAGE_BYTES).ljust(PAGE_BYTES, b"\0")
        return page if number > 1 else page[:18] + _WAL + page[20:]

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _opened(path: Path) -> apsw.Connection:
    """Return a connection that waits for others, and leaves a write-ahead log where it is. Raises apsw.Error."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(_BUSY_MS)
    connection.wal_autocheckpoint(0)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


async def verify(client: LedgerClient, ns: StreamNamespace, name: StreamName) -> Verified:
    """Read everything that is kept, from the oldest snapshot on, compare all digests, and have SQLite check the pages.

    Raises StateLost, ReadFailed, NotDatabase.
    """
    loop = asyncio.get_running_loop()
    await check_database(ns, name)
    faults = await _damaged(client, ns, name)
    try:
        async with rebuilt(client, ns, name, from_oldest=True) as found:
            with closing(await found.engine.image(found.state.sequence)) as image:
                faults += await loop.run_in_executor(None, _faults, image, found.engine.digest)
                faults += await loop.run_in_executor(None, _checked, found.engine.files.path)
            return Verified(found.offset, found.state.sequence, f"{found.engine.digest:016x}", tuple(faults))
    except DatabaseFailed as error:
        return Verified(0, 0, "", (*faults, str(error)))


async def _damaged(client: LedgerClient, ns: StreamNamespace, name: StreamName) -> list[str]:
    """Return a sentence for each published snapshot that cannot be read whole."""
    head = (await ns.store.read(name)).head
    place = LogHandle(client, ns.store, name, head.uid)
    faults: dict[int, str] = {}
    for row in head.snapshots or ():
        try:
            _, damaged = await load_newest(place, head, DatabaseState(str(name)).fault, row.offset)
            faults |= {error.offset: str(error) for error in damaged}
        except StateLost as error:  # Newer ones may be good.
            faults[row.offset] = str(error)
    return [faults[offset] for offset in sorted(faults)]


def _faults(image: Image, digest: int) -> list[str]:
    found = digest_of(image.pages())
    return [] if found == digest else [f"the digest of all pages is {found:016x}, the log says {digest:016x}"]


def _checked(path: str) -> list[str]:
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        faults = _integrity(connection)
        missing = connection.execute("PRAGMA foreign_key_check").fetchall()
    finally:
        connection.close()
    return faults + [f"table {row[0]}: row {row[1]} names a row of {row[2]} that does not exist" for row in missing]


def integrity_faults(path: Path) -> list[str]:
    """Return the faults that SQLite finds in the pages of a file, one sentence each.

    The file is not changed; no other process may write it.
    """
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    try:
        with closing(apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags)) as connection:
            return _integrity(connection)
    except apsw.Error as error:
        return [f"SQLite: {error}"]


def _integrity(connection: apsw.Connection) -> list[str]:
    said = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    return [] if said == ["ok"] else [f"SQLite: {text}" for text in said]
