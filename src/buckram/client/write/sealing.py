"""The two things a writer waits for beyond adds: sealing the metadata at its end (3.1) and forcing (2.11)."""

from __future__ import annotations

import asyncio

from buckram.client.shared.metadata_cell import MetadataCell
from buckram.core.ledgers.append import AppendWindow
from buckram.core.ledgers.metadata import closed
from buckram.core.wire.messages import Force
from buckram.errors import BookieError, BookieIOError, BuckramError, Code, LedgerFenced, WriteFailed
from buckram.net.pool import BookiePool
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata

_WITHIN_S = 30.0


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


async def force(window: AppendWindow, pool: BookiePool, acked_under: dict[BookieId, int], birth: bytes) -> EntryId:
    """Make everything acknowledged so far durable on all E bookies (M2); returns the last entry that is.

    `acked_under`: the `pool.losses` of each bookie when it first acknowledged something that is not forced; cleared
    when nothing of that is left. Raises the first BookieError, or WriteFailed when no force can help any more: the
    writer ended meanwhile, or a bookie may have restarted without what it had not synced. The LAC stays then.
    """
    point = window.force_point()
    if point[0] <= window.lac:
        return window.lac
    request = Force(window.ledger_id, birth)

    async def one(bookie: BookieId) -> BuckramError | None:
        try:
            reply = await pool.call(bookie, request)
        except BookieError as error:
            return error
        return None if reply.code is Code.OK else BookieIOError(bookie, f"force was answered {reply.code.name}")

    for error in await asyncio.gather(*(one(bookie) for bookie in window.ensemble)):
        if error is not None:
            raise error
    for bookie, losses in acked_under.items():
        if pool.losses(bookie) != losses:
            why = f"the connection to bookie {bookie} was lost since it acknowledged entries that were not forced"
            raise WriteFailed(window.ledger_id, f"{why}; they may be gone from it")
    if not window.closed:
        window.forced(point)
        if window.pending_head == window.lac:
            acked_under.clear()
    elif point[0] > window.lac:
        # The owner seals at its LAC, which cannot move any more: what was forced beyond it would be cut off.
        raise WriteFailed(window.ledger_id, f"the writer ended while entries up to {point[0]} were forced; recover it")
    return max(point[0], window.lac)
