"""Deleting a stream: mark its head so that it cannot be opened, fence its writer, delete everything, the head last.

It may be stopped at any point; deleting again, or the janitor, completes it. The open segment's ledger is recovered
before anything is deleted, since records in it could still be acknowledged; records of unlisted ledgers never are.
"""

from __future__ import annotations

from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.forks import given_up
from buckram.core.streams.metadata.changes import HeadStep, deleted
from buckram.core.streams.metadata.head import PAGE_SEGMENTS, Head, Segment
from buckram.core.streams.metadata.purposes import Purpose
from buckram.core.streams.names import StreamId, StreamName
from buckram.errors import (
    ConfigError,
    ForeignLedger,
    KeyNotEmpty,
    NoSuchKey,
    NoSuchLedger,
    NoSuchStream,
    ReadFailed,
    RecoveryFailed,
    VersionConflict,
    WriteFailed,
)
from buckram.seams import KeyStore
from buckram.streams.maintain.history.table import update_tables_before
from buckram.streams.shared.ledgers import discard, drop_segments, let_go, list_intents
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.ownership import recovered
from buckram.streams.shared.shared_ledgers import shared_by

_PAGE = 1000


async def delete_stream(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    *,
    uid: str | None = None,
    force: bool = False,
    acting_for: Purpose = Purpose.RECORDS,
) -> None:
    """Delete a stream; with `uid` only if the name still belongs to that one. `acting_for`: the purpose of the stream,
    needed to delete one that is not for records.

    Raises NoSuchStream, MachineLog, StreamPurpose; unless `force` also RecoveryFailed if its writer could not be
    fenced, and ReadFailed or WriteFailed if its history cannot be reached.
    """
    head = await streams.change(name, partial(_deleting, str(name), acting_for=acting_for), uid=uid)
    if not force:
        await _fence(client, name, head)
    await _drop_from_tables(streams, name, head, force=force)
    await _drop_ledgers(client, streams, head, force=force)
    await _drop_keys(streams, head)
    while True:
        try:
            at = await streams.read(name)
        except NoSuchStream:
            return
        if at.head.uid != head.uid:
            return
        try:
            await streams.remove(name, at.version)
            return
        except (NoSuchKey, VersionConflict):
            continue


async def delete_incomplete(client: LedgerClient, streams: StreamStore, name: StreamName, uid: str) -> bool:
    """Delete a fork unless it is complete; returns whether it was deleted. The head decides that, in one step."""
    head = await streams.change(name, partial(given_up, str(name)), uid=uid)
    if head.deleting:
        await delete_stream(client, streams, name, uid=uid)
    return head.deleting


def _deleting(name: str, head: Head, *, acting_for: Purpose) -> HeadStep | None:
    return deleted(name, head, acting_for)


async def _fence(client: LedgerClient, name: StreamName, head: Head) -> None:
    """Fence the stream's writer, after which no record of the stream is acknowledged. Raises RecoveryFailed."""
    row = head.open_segment
    if row is None:
        return
    try:
        async with recovered(client, StreamId(name, head.uid), row.ledger):
            return
    except (NoSuchLedger, ForeignLedger):
        return  # An earlier attempt fenced and deleted it, or it has no record of this stream.
    except RecoveryFailed as error:
        raise RecoveryFailed(
            row.ledger,
            f"stream {name} is marked as deleted and nothing of it was deleted yet, because its writer could not be "
            f"fenced and may still get acknowledgements: {error}. Delete it again when the bookies are back (the "
            "janitor does, too), or with force=True (--force) if they never come back",
        ) from error


async def drop_leftovers(client: LedgerClient, streams: StreamStore, uid: str) -> None:
    """Delete the intents, ledgers and keys that late requests left below the data of a deleted stream."""
    head = Head(uid, 0)
    await _drop_ledgers(client, streams, head)
    await _drop_keys(streams, head)


async def _drop_from_tables(streams: StreamStore, name: StreamName, head: Head, *, force: bool) -> None:
    """Take the stream's files out of the tables around its history; what was exported stays in them."""
    rows = [row async for row in streams.segments(head) if row.offloaded is not None]
    try:
        await update_tables_before(streams, name, head.uid, rows)
    except (ConfigError, ReadFailed, WriteFailed):
        if not force:
            raise


async def _drop_ledgers(client: LedgerClient, streams: StreamStore, head: Head, *, force: bool = False) -> None:
    """Delete all ledgers and files of history; with `force` files that cannot be reached are left where they are."""
    rows: list[Segment] = []
    async for row in streams.segments(head):
        rows.append(row)
        if len(rows) == PAGE_SEGMENTS:
            await drop_segments(client, streams, head.uid, rows, leave_files=force)
            rows = []
    await drop_segments(client, streams, head.uid, rows, leave_files=force)
    for ledger in (*head.garbage, *([head.table.ledger] if head.table is not None else ())):
        await let_go(client, streams, head.uid, ledger)
    while found := await list_intents(streams, head.uid, limit=_PAGE):
        for intent in found:
            await discard(client, streams, head.uid, intent)
    while shared := await shared_by(streams, head.uid):  # A fork that was not completed lists none of them.
        for ledger in shared:
            await let_go(client, streams, head.uid, ledger)


async def _drop_keys(streams: StreamStore, head: Head) -> None:
    keys, layout = streams.keys, streams.layout
    for number in range(head.first // PAGE_SEGMENTS, head.paged // PAGE_SEGMENTS):
        await _drop(keys, layout.page(head.uid, number))
    for parent in (
        layout.cursors(head.uid),
        layout.intents(head.uid),
        layout.object_writers(head.uid),
        layout.replicas(head.uid),
        layout.exports(head.uid),
        layout.imports(head.uid),
        layout.shared(head.uid),
        f"{layout.data(head.uid)}/pages",
    ):
        while names := await keys.children(parent, limit=_PAGE):
            for child in names:
                await _drop(keys, f"{parent}/{child}")
        await _drop(keys, parent)
    await _drop(keys, layout.progress(head.uid))
    await _drop(keys, layout.backup(head.uid))
    await _drop(keys, layout.backup_claim(head.uid))
    await _drop(keys, layout.lease(head.uid))
    await _drop(keys, layout.insertion(head.uid))
    await _drop(keys, layout.data(head.uid))


async def _drop(keys: KeyStore, key: str) -> None:
    """Delete a key, whatever its version. One that has just got children stays, for the janitor."""
    while True:
        try:
            found = await keys.get(key)
            await keys.delete(key, found.version)
            return
        except VersionConflict:
            continue
        except (NoSuchKey, KeyNotEmpty):
            return
