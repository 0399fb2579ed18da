"""The table of a stream's history: which files belong to it, the records of exports, and bringing it up to date.

The table follows the metadata: offloaded segments that the stream lists in the directory, and what an export published
there, whose records are read, and changed by compare-and-set. It is brought up to date after each offload and export,
and before files are deleted, so it never names a file that is gone. Not here: the table itself
(`streams/maintain/history/iceberg.py`), what a record says (`core/streams/external/exports.py`), the copies
(`streams/maintain/history/export.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from buckram.core.streams.external.exports import Export, decode_export, encode_export, export_key, without
from buckram.core.streams.external.history import copy_of, decode_manifest
from buckram.core.streams.metadata.changes import is_dead
from buckram.core.streams.metadata.head import HISTORY, Segment
from buckram.core.streams.names import StreamName
from buckram.errors import ConfigError, KeyExists, NoSuchKey, NoSuchStream, ReadFailed, StreamError, VersionConflict
from buckram.extras import needs
from buckram.streams.shared.ledgers import withdrawing_op
from buckram.streams.shared.locations import TABLE, FileLocation, in_thread
from buckram.streams.shared.metadata import StreamStore, head_retries, retry_metadata
from buckram.types import Create, KeyOp, LedgerId, SetValue

if TYPE_CHECKING:
    from buckram.streams.maintain.history.iceberg import HistoryTable

ExportChange = Callable[[Export], Export | None]
"""Computes the new record from the present one; None if there is nothing to change."""


async def read_export(streams: StreamStore, uid: str, location: str) -> Export:
    """Return the record of the export to this directory, or that of a new one. MalformedRecord, MetadataUnavailable."""
    key = _key(streams, uid, location)
    try:
        found = await retry_metadata(partial(streams.keys.get, key))
    except NoSuchKey:
        return Export(location)
    return decode_export(key, found.value, found.version)


async def change_export(
    streams: StreamStore, uid: str, location: str, change: ExportChange, extra: Iterable[KeyOp] = ()
) -> Export | None:
    """Apply a change together with the operations `extra`, and return the record after it; None if `change` was None.

    Conflicts of the record itself are retried. VersionConflict or NoSuchKey of a key in `extra` is raised; after
    MetadataUnavailable the change may or may not have happened.
    """
    key, retries, ops = _key(streams, uid, location), head_retries(), list(extra)
    while True:
        export = await read_export(streams, uid, location)
        changed = change(export)
        if changed is None:
            return None
        value = encode_export(changed)
        write = Create(key, value) if export.version < 0 else SetValue(key, value, export.version)
        try:
            await streams.keys.multi([write, *ops])
            return replace(changed, version=export.version + 1)
        except (KeyExists, VersionConflict) as error:
            if error.key != key:
                raise
            await retries.wait(error)


async def withdraw(
    streams: StreamStore, uid: str, location: str, copies: Iterable[LedgerId], epoch: int, now: int
) -> list[LedgerId]:
    """Take copies out of an export; returns those that were in it. Their files go by the intents that they get."""
    wanted, gone = set(copies), list[LedgerId]()

    def change(export: Export) -> Export | None:
        gone[:] = [copy for copy in export.copies if copy in wanted]
        return without(export, gone) if gone else None

    while True:
        change(await read_export(streams, uid, location))
        ops = [withdrawing_op(streams, uid, copy, location, epoch, now) for copy in gone]
        expected = list(gone)

        def same(export: Export, expected: list[LedgerId] = expected) -> Export | None:
            changed = change(export)
            return changed if gone == expected else None

        if not ops or await change_export(streams, uid, location, same, ops) is not None:
            return expected


def _key(streams: StreamStore, uid: str, location: str) -> str:
    return f"{streams.layout.exports(uid)}/{export_key(location)}"


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
