"""Durability of what was appended: forcing a deferred-sync ledger, the members' copies, and the sealing of a ledger.

Forcing makes everything that is acknowledged so far durable on all bookies of the ledger (2.11). At the end of a writer
everything that can still be acknowledged is, then the ledger's metadata become CLOSED (3.1). Before that, its members
have everything, or it is noted which of them may lack entries, because it is not known what was confirmed once a
ledger is closed: a writer that dies in between leaves an open ledger, and its recovery asks the members
(`client/maintain/recover.py`).

Not here: when a writer closes, and which error a close gives (`client/write/engine.py`), what a bookie does with a
force (`bookie/service/dispatch.py`).
"""

from __future__ import annotations

import asyncio

from buckram.client.shared.lagging_replicas import BehindNotes, Copies, LaggingMembers
from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.client.shared.services import Services
from buckram.client.write.append_limits import AppendRoom
from buckram.client.write.completions import Completions
from buckram.core.ledgers.append import AppendWindow
from buckram.core.ledgers.metadata import closed
from buckram.core.wire.messages import Force
from buckram.errors import BookieError, BookieIOError, BuckramError, Code, LedgerFenced, WriteFailed
from buckram.runtime.net.pool import BookiePool
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata

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


# -- the copies of the members --------------------------------------------------------------------------------

HURRY_S = 0.5
"""Longest wait for members where records wait for the close, or where a member hung a moment ago, seconds."""


async def complete_copies(
    services: Services,
    window: AppendWindow,
    copies: Copies,
    lagging: LaggingMembers,
    notes: BehindNotes,
    within_s: float,
) -> list[BookieId]:
    """Wait for late replies and copy what lacks, for `within_s` in all. Return the members that may lack entries, which
    are noted then. A hurried copy, its end and the note may take half a second each beyond that."""
    loop, bookies = asyncio.get_running_loop(), services.bookies
    members = [window.ensemble[position] for position, _ in window.live()]
    if any(bookies.quarantined(bookie) for bookie in [*members, *lagging.left]):
        within_s = min(within_s, HURRY_S)
    until = loop.time() + within_s
    await copies.wait(within_s)
    if copies.unanswered:  # replies are not counted by member: their lists show which have everything
        for bookie in members:
            lagging.failed(bookie)
    if not lagging.left:
        return []
    there = [bookie for bookie in lagging.left if bookies.info(bookie) is not None]
    behind = await lagging.settle(max(min(HURRY_S, within_s), until - loop.time()), there)
    for bookie in behind:
        bookies.report_failed(bookie)
    if behind:
        await notes.note(behind, max(HURRY_S, until - loop.time()))
    return behind


# -- forcing --------------------------------------------------------------------------------------------------


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
