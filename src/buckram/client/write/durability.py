"""The end of a writer: what can still be acknowledged is, then its ledger's metadata become CLOSED (3.1).

Not here: who closes when, and which error a close gives (`client/write/engine.py`).
"""

from __future__ import annotations

import asyncio

from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.client.write.append_limits import AppendRoom
from buckram.client.write.completions import Completions
from buckram.core.ledgers.append import AppendWindow
from buckram.core.ledgers.metadata import closed
from buckram.errors import BuckramError, LedgerFenced
from buckram.types import EntryId, LedgerId, LedgerMetadata

_WITHIN_S = 30.0


async def wait_settled(window: AppendWindow, room: AppendRoom, completions: Completions) -> None:
    """Wait until nothing is pending that can still be acknowledged: explicit ids behind a gap cannot.

    Returns also when the writer fails meanwhile, which keeps the error.
    """
    while not window.closed:
        queued_before = room.waiting and not window.explicit_ids
        if not queued_before and window.reachable <= window.pending_head:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if queued_before:
            room.wait((), future)
        else:
            completions.add(window.reachable, None, future)
        try:
            await future
        except BuckramError:
            return


async def seal(cell: MetadataCell, ledger_id: LedgerId, last_entry: EntryId, length: int) -> LedgerMetadata:
    """Write CLOSED with the owner's last entry and length.

    CLOSED with the same values already is success: our own write whose answer was lost, or a recovery that found the
    same. Other values mean that somebody recovered it while adds were outstanding: LedgerFenced. A recovery that has
    not ended is overtaken (S2: one write to CLOSED wins, the recoverer adopts it). MetadataUnavailable: unknown,
    call again.
    """

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if not metadata.closed:
            return closed(metadata, last_entry, length)
        if (metadata.last_entry, metadata.length) == (last_entry, length):
            return None
        raise LedgerFenced(
            ledger_id,
            f"another client recovered it and closed it at entry {metadata.last_entry}, {metadata.length} bytes; "
            f"this writer had confirmed entry {last_entry}, {length} bytes",
        )

    return await cell.update(change, within_s=_WITHIN_S)
