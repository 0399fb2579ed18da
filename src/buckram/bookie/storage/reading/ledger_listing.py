"""Lists the live ledgers of a store, in slices so that requests are served meanwhile.

Not here: where ledger states are stored (`bookie/storage/ledger_table.py`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from heapq import merge
from itertools import islice

from buckram.bookie.storage.ledger_table import LedgerTable
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.slices import Slices
from buckram.runtime.disk.io_errors import harmless
from buckram.types import LedgerId

PAGE_IDS = 64
"""Ledgers per slice."""
_SORTED_AT_ONCE = 500
_LOADED_AT_ONCE = 16


def ledgers_after(table: LedgerTable, after: LedgerId, limit: int) -> list[LedgerId]:
    """Return up to `limit` ids of live ledgers above `after`, ascending. Raises StoreError as live_ledger_ids does."""
    try:
        live = (state.ledger_id for state in table.states(after) if not state.tombstone)
        return list(islice(live, limit))
    except (ValueError, OSError) as error:
        raise _damaged(error) from None


def _damaged(error: Exception) -> StoreError:
    if harmless(error):
        return StoreError("io", f"the ledger table cannot be read now: {error}")
    return StoreError("corrupt", f"the ledger table is damaged: {error}")


async def live_ledger_ids(table: LedgerTable) -> array[int]:
    """Return the ids of all ledgers that were live when the call began, ascending.

    A ledger that is created or deleted during the call may or may not be listed. The list takes 8 bytes per ledger;
    during the call, ledgers whose states are only in memory take some more.
    Raises StoreError if a page is damaged, so that an incomplete list is never mistaken for a complete one.
    """
    try:
        return await _live_ids(table)
    except (ValueError, OSError) as error:
        raise _damaged(error) from None


async def _live_ids(table: LedgerTable) -> array[int]:
    slices = Slices(1)
    # Memory first: from there a ledger only moves on into files, so none is missed between the two.
    recent = await _recent(table, slices)
    live: array[int] = array("q")
    after, at = -1, 0
    more = True
    while more:
        marks, up_to = table.marks(after, PAGE_IDS)
        more = up_to is not None or at + PAGE_IDS < len(recent)
        if at + PAGE_IDS < len(recent):
            last = recent[at + PAGE_IDS - 1]
            up_to = last if up_to is None else min(last, up_to)
        stop = len(recent) if up_to is None else bisect_right(recent, up_to, at)
        loaded = 0
        for ledger in recent[at:stop]:
            record = table.pinned.get(ledger)
            if record is not None:
                marks[ledger] = record.tombstone
            elif (state := table.load(ledger)) is not None:
                marks[ledger] = state.tombstone
                loaded += 1
                if loaded % _LOADED_AT_ONCE == 0:
                    await slices.step()
        live.extend(one for one in sorted(marks) if not marks[one] and (up_to is None or one <= up_to))
        if up_to is not None:
            after, at = up_to, stop
        await slices.step()
    return live


async def _recent(table: LedgerTable, slices: Slices) -> array[int]:
    """Return the ledgers whose newest state may be in memory only; ascending, without repetition."""
    pieces = []
    for number, ledgers in enumerate(table.in_memory()):
        for start in range(0, len(ledgers), _SORTED_AT_ONCE):
            piece = ledgers[start : start + _SORTED_AT_ONCE]
            # Most ledgers of a log file that is being written are pinned, so the first list has them already.
            pieces.append(sorted(piece if number == 0 else [one for one in piece if one not in table.pinned]))
            await slices.step()
    found: array[int] = array("q")
    last = -1
    for ledger in merge(*pieces):
        if ledger != last:
            found.append(ledger)
            last = ledger
            if len(found) % _SORTED_AT_ONCE == 0:
                await slices.step()
    return found
