"""The last step before a ledger is closed: its members have everything, or it is noted which of them may lack entries.

Nobody knows what was confirmed once a ledger is closed. So this comes before its record says CLOSED: a writer that dies
in between leaves an open ledger, and whoever recovers that one asks the members (`recover.py`).
"""

from __future__ import annotations

import asyncio

from buckram.client.shared.behind import BehindNotes
from buckram.client.shared.copies import Copies
from buckram.client.shared.lagging_replicas import LaggingMembers
from buckram.client.shared.services import Services
from buckram.core.ledgers.append import AppendWindow
from buckram.types import BookieId

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


__all__ = ["HURRY_S", "complete_copies"]
