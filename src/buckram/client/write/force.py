"""Forcing a deferred-sync ledger: everything acknowledged so far becomes durable on all its bookies (2.11).

Not here: what a bookie does with it (`bookie/service/dispatch.py`).
"""

from __future__ import annotations

import asyncio

from buckram.core.ledgers.append import AppendWindow
from buckram.core.wire.messages import Force
from buckram.errors import BookieError, BookieIOError, BuckramError, Code, WriteFailed
from buckram.runtime.net.pool import BookiePool
from buckram.types import BookieId, EntryId


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
