"""The records of exports in the metadata store: read, and changed by compare-and-set.

Not here: what a record says and how it changes (`core/streams/external/exports.py`), the copies themselves
(`streams/maintain/history/export.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from buckram.core.streams.external.exports import Export, decode_export, encode_export, export_key, without
from buckram.errors import KeyExists, NoSuchKey, VersionConflict
from buckram.streams.shared.ledgers import withdrawing_op
from buckram.streams.shared.metadata import StreamStore, head_retries, retry_metadata
from buckram.types import Create, KeyOp, LedgerId, SetValue

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
