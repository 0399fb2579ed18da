"""Copies of databases as they were below an offset of their log: files of SQLite's on each machine that reads them.

All partitions of a query read the same state, because each of them reads a copy that was made at the same offset. The
processes of a machine share a copy, and the newest few are kept. Not here: how a state is rebuilt
(`state/db/opening.py`).
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from buckram.core.streams.names import StreamName, stream_name
from buckram.errors import ConfigError, MissingEngine, NoEarlierState
from buckram.spark.shared.clients import connection
from buckram.streams.read.locate import known_end, offset_at_time

if TYPE_CHECKING:
    import apsw

    from buckram.cluster import Client

KEPT = 4
"""Number of copies kept on a machine when they are not read any more."""
READABLE_S = 2.0
"""Time that a plan waits for transactions that are committed and cannot be read yet, seconds."""


async def state_offset(client: Client, database: str, offset: int | None, time: int | None) -> tuple[str, int]:
    """Return the uid of a database's log and the offset that a read is of; `time` is in microseconds UTC.

    Without both it is the newest one: with all that was committed before this call. Raises NoEarlierState, NotDatabase,
    NoSuchStream.
    """
    check_engine()
    from buckram.state.db.commits.changes import ends
    from buckram.state.db.commits.database_log import check_database

    name = stream_name(database)
    ns = client.namespace(name.namespace)
    head = await check_database(ns, name)
    if time is not None:
        return head.uid, await offset_at_time(client, ns.store, name, head, time)
    sure, end = await ends(client, ns, name, head)
    if offset is not None:
        if not head.earliest <= offset <= end:
            raise NoEarlierState(database, offset, head.earliest, end)
        end = offset
    until = asyncio.get_running_loop().time() + READABLE_S
    while sure < end and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(0.02)
        sure = await known_end(client, name, (await ns.store.read(name)).head)
    # A leader that died may have left records that were never acknowledged.
    return head.uid, min(sure, end)


@contextmanager
def opened_copy(uri: str, database: str, uid: str, offset: int) -> Iterator[apsw.Connection]:
    """Open the state below an offset for reading; the first one on a machine makes the copy.

    Raises NoEarlierState if the log does not have the state any more, and ConfigError if the folder of copies belongs
    to another user.
    """
    check_engine()
    import apsw

    folder = _folder()
    digest = hashlib.sha256(f"{uri} {uid} {offset}".encode()).hexdigest()[:24]
    path = folder / f"{digest}.db"
    with _lock_of(path).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _drop_oldest(folder)
            name = stream_name(database)
            connection(uri).run(lambda client: _copied(client, name, path, offset))
        os.utime(path)
        # It stays readable when others remove the file.
        found = apsw.Connection(
            f"file:{quote(str(path))}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        found.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    try:
        yield found
    finally:
        found.close()


async def _copied(client: Client, name: StreamName, path: Path, offset: int) -> None:
    await client.namespace(name.namespace).backup_database(name.stream, str(path), offset=offset)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"buckram-spark-databases-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or not folder.is_dir() or folder.is_symlink():
        raise ConfigError(f"{folder}: copies of databases are kept there, and others can enter it: remove it")
    return folder


def _lock_of(path: Path) -> Path:
    """Return the file that whoever makes, opens or removes a copy locks. One of 256; none is ever removed, because two
    processes would hold the lock of two files then.
    """
    return path.with_name(f"{path.name[:2]}.lock")


def _drop_oldest(folder: Path) -> None:
    """Make room for one more copy. One that is being made or opened stays."""
    found: list[tuple[float, Path]] = []
    for path in folder.glob("*.db"):
        with suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[KEPT - 1 :]:
        with _lock_of(path).open("w") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)


def described(found: apsw.Connection, sql: str) -> list[tuple[str, str]]:
    """Return the columns of a statement with their declared types, in capitals; raises apsw.Error."""
    import apsw.ext

    info: Any = apsw.ext.query_info(found, sql)
    return [(name, (kind or "").upper()) for name, kind in info.description]


def check_engine() -> None:
    """Raise MissingEngine without the table engine."""
    try:
        import_module("apsw")
        import_module("zstandard")
    except ImportError as error:
        raise MissingEngine(str(error)) from None
