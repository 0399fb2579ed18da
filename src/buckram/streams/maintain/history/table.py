"""The table of a stream's history: which files belong to it, and bringing it up to date.

The table follows the metadata: offloaded segments that the stream lists in the directory, and what an export published
there. It is brought up to date after each offload and export, and before files are deleted, so it never names a file
that is gone. Not here: the table itself (`streams/maintain/history/iceberg.py`).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from buckram.core.streams.external.history import copy_of, decode_manifest
from buckram.core.streams.metadata.changes import is_dead
from buckram.core.streams.metadata.head import HISTORY, Segment
from buckram.core.streams.names import StreamName
from buckram.errors import ConfigError, NoSuchStream, ReadFailed, StreamError
from buckram.extras import needs
from buckram.streams.maintain.history.export_records import read_export
from buckram.streams.shared.locations import TABLE, FileLocation, in_thread
from buckram.streams.shared.metadata import StreamStore
from buckram.types import LedgerId

if TYPE_CHECKING:
    from buckram.streams.maintain.history.iceberg import HistoryTable

_TRIES = 20


async def update_table(streams: StreamStore, name: StreamName, uid: str, directory: str, *, create: bool = True) -> str:
    """Bring the table of a directory of history up to date and return where it is; "" if there is none.

    `create`: make it if there is none and there is something to put into it; without pyiceberg nothing is made then.
    Raises ReadFailed, WriteFailed, ConfigError for a table that is there while pyiceberg is missing, StreamError if
    others change it all the time.
    """
    if not directory.endswith(f"/{uid}"):
        return ""  # The history of another stream, which has its own table.
    known = find_spec("pyiceberg") is not None and find_spec("pyarrow") is not None
    if not known or not create:
        there = await in_thread(-1, directory, partial(_is_there, directory))
        if not there:
            return ""
        if not known:
            raise ConfigError(needs(f"the table at {directory}/{TABLE}", "history"))
    for _ in range(_TRIES):
        table = await in_thread(-1, directory, partial(_load, directory))
        # The wanted copies are read after the table: a process that commits later gets a conflict.
        wanted = await _wanted(streams, name, uid, directory)
        if wanted is None or (not wanted and not table.exists):
            if wanted is None and table.exists:
                await in_thread(-1, directory, FileLocation(table.location).clear)
            return ""
        if await in_thread(-1, directory, partial(_commit, directory, table, wanted)):
            return table.location
    raise StreamError(str(name), f"the table at {directory} was changed {_TRIES} times meanwhile; try again")


async def update_tables_before(streams: StreamStore, name: StreamName, uid: str, rows: list[Segment]) -> None:
    """Take the files of these segments, which are dead or of a deleted stream, out of their tables."""
    directories = dict.fromkeys(row.offloaded.location for row in rows if row.offloaded is not None)
    for directory in directories:
        await update_table(streams, name, uid, directory, create=False)


async def table_copies(directory: str) -> set[LedgerId] | None:
    """Return the copies that the table of a directory has; None if there is no table. ConfigError without pyiceberg."""
    if not await in_thread(-1, directory, partial(_is_there, directory)):
        return None
    if find_spec("pyiceberg") is None:
        raise ConfigError(needs(f"the table at {directory}/{TABLE}", "history"))
    return set((await in_thread(-1, directory, partial(_load, directory))).files)


async def _wanted(streams: StreamStore, name: StreamName, uid: str, directory: str) -> dict[LedgerId, str] | None:
    """Return the manifest of each copy that belongs to the table; None if there will be none any more."""
    try:
        head = (await streams.read(name)).head
        alive = head.uid == uid and not head.deleting
    except NoSuchStream:
        alive = False
    rows = [row async for row in streams.segments(head)] if alive else []
    listed = [row for row in rows if is_in(row, directory) and not is_dead(head, row)]
    export = await read_export(streams, uid, directory)
    if not alive and not export.copies:
        return None
    files = await in_thread(-1, directory, FileLocation(directory).files)
    manifests = {copy: file for file in files if file.startswith("_") and (copy := copy_of(file)) is not None}
    mine = [row.ledger for row in listed]
    # Offloaded segments take the place of exported copies of the same records.
    ranges = [(row.base, row.end) for row in rows if is_in(row, directory)]
    mine += [
        copy
        for copy in export.copies
        if copy in manifests and not any(base <= base_of(manifests[copy]) < end for base, end in ranges)
    ]
    return {copy: manifests[copy] for copy in mine if copy in manifests}


def base_of(manifest: str) -> int:
    """Return the first offset that the name of a manifest tells."""
    return int(manifest.removeprefix("_").split("-")[0])


def is_in(row: Segment, directory: str) -> bool:
    """Return whether a segment is history in this directory."""
    return row.kind == HISTORY and row.offloaded is not None and row.offloaded.location == directory


# -- in a thread ------------------------------------------------------------------------------------------


def _is_there(directory: str) -> bool:
    return bool(FileLocation(f"{directory}/{TABLE}/metadata").names())


def _load(directory: str) -> HistoryTable:
    from buckram.streams.maintain.history.iceberg import HistoryTable, TableMoved

    for _ in range(_TRIES):
        with suppress(TableMoved):
            return HistoryTable(directory)
    raise ReadFailed(-1, f"the table at {directory} was changed {_TRIES} times while it was read")


def _commit(directory: str, table: HistoryTable, wanted: dict[LedgerId, str]) -> bool:
    """Commit added and removed files of the table. False if another process committed first."""
    from buckram.streams.maintain.history.iceberg import TableMoved

    place = FileLocation(directory)
    missing = [copy for copy in wanted if copy not in table.files]
    surplus = [copy for copy in table.files if copy not in wanted]
    if not missing and not surplus:
        return True
    add: list[str] = []
    for copy in missing:
        manifest = decode_manifest(wanted[copy], place.read(wanted[copy], copy))
        add += [part.file for part in manifest.parts if part.records]
    try:
        table.commit(add, surplus)
    except TableMoved:
        return False
    return True
