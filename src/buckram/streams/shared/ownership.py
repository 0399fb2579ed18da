"""Ownership checks: a ledger, or files, named by a stream's metadata must be its own before they are opened or deleted.

Clients write the metadata of their streams, and could name any ledger there. The ledger's own record has the stream for
which it was made, and keys below that record the other holders; no client can change either for another stream. So a
server that may do everything does nothing for a stream that the stream's owner could not do. A foreign ledger is
reported to the log, a metric, the audit trail, and a note that `buckram doctor` reads.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from buckram.client.shared.handles import Opening
from buckram.core.streams.external.history import is_directory_of
from buckram.core.streams.names import StreamId, is_made_for
from buckram.errors import BuckramError, ForeignLedger, NoSuchKey
from buckram.metadata.records.foreign_references import ForeignNote, leave_foreign_note
from buckram.metadata.records.pending_audit_events import leave_note
from buckram.seams import MetadataStore
from buckram.streams.shared.metadata import retry_metadata
from buckram.types import LedgerId, LedgerMetadata

if TYPE_CHECKING:
    from buckram.client.ledger_client import LedgerClient
    from buckram.client.read.reader import Reader

_log = logging.getLogger("buckram.streams")


async def is_own(store: MetadataStore, stream: StreamId, ledger: LedgerId, metadata: LedgerMetadata) -> bool:
    """Return whether the ledger with this record was made for the stream, or is held by it. MetadataUnavailable."""
    if is_made_for(metadata.custom_metadata, stream):
        return True
    key = await store.ledger_key(ledger)
    try:
        await retry_metadata(lambda: store.keys.get(f"{key}/{stream.uid}"))
    except NoSuchKey:
        return False
    return True


async def check_own(client: LedgerClient, stream: StreamId, ledger: LedgerId, metadata: LedgerMetadata) -> None:
    """Raise ForeignLedger, and report it, unless the ledger is the stream's own."""
    if not await is_own(client.services.store, stream, ledger, metadata):
        raise await report_foreign(client, stream, foreign(stream, ledger))


def check_own_files(stream: StreamId, copy: LedgerId, directory: str) -> None:
    """Raise ForeignLedger unless a directory is that of the stream's history; `copy` is the id of the files.

    A caller that has a client reports it (`report_foreign`).
    """
    if not is_directory_of(directory, stream):
        raise foreign(stream, copy, directory)


def foreign(stream: StreamId, ledger: LedgerId, location: str = "") -> ForeignLedger:
    """Return the error for a ledger, or files, that are not the stream's own."""
    return ForeignLedger(f"uid {stream.uid}" if stream.name is None else str(stream.name), ledger, location)


async def report_foreign(client: LedgerClient, stream: StreamId, error: ForeignLedger) -> ForeignLedger:
    """Report the error to the log, the metric, the audit trail and the notes that `buckram doctor` reads; returns it.

    The trail and the notes are for servers: a program that is held to grants may not write them.
    """
    _log.error("%s", error)
    world, store = client.services.runtime, client.services.store
    count = world.stats.counter("buckram_client_foreign_ledgers_total", "times that a stream named what is not its own")
    count.inc()
    note = ForeignNote(error.stream, stream.uid, error.ledger, world.clock.wall_us(), error.location)
    with suppress(BuckramError):
        if await leave_foreign_note(store, note):
            await leave_note(store, "found foreign", f"ledger {error.ledger}", detail=f"named by stream {error.stream}")
    return error


def opened(client: LedgerClient, stream: StreamId, ledger: LedgerId) -> Opening[Reader]:
    """Open a ledger of the stream for reading, as `client.open` does. Raises ForeignLedger."""
    return Opening(lambda: _opened(client, stream, ledger), "opened()")


def recovered(client: LedgerClient, stream: StreamId, ledger: LedgerId) -> Opening[Reader]:
    """Fence and close a ledger of the stream, as `client.recover` does. ForeignLedger comes before that."""
    return Opening(lambda: _recovered(client, stream, ledger), "recovered()")


async def _opened(client: LedgerClient, stream: StreamId, ledger: LedgerId) -> Reader:
    reader = await client.open(ledger)
    try:
        await check_own(client, stream, ledger, reader.metadata)
    except BaseException:
        await reader.close()
        raise
    return reader


async def _recovered(client: LedgerClient, stream: StreamId, ledger: LedgerId) -> Reader:
    await check_own(client, stream, ledger, await client.metadata(ledger))
    return await client.recover(ledger)
