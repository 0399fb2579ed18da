"""Overview for people of ledgers that lack copies: from marks, locks, reasons and reports of progress."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from buckram.core.healing.absences import Attendance, sessions_of
from buckram.core.healing.lost_bookies import DEFAULT_DELAY_S, HealingBrake
from buckram.core.healing.status import Shortfall, WaitingLedger, Why, shortfalls
from buckram.errors import MalformedRecord
from buckram.healing.status_store import CopyProgress, HealingStatusStore
from buckram.metadata.records.auditor_election import Election, elected_of
from buckram.metadata.records.bookie_health import degraded_bookies
from buckram.metadata.records.incomplete_copies import ledgers_behind
from buckram.metadata.records.underreplication import Underreplication
from buckram.seams import MetadataStore
from buckram.types import BookieId, EntryId, LedgerId

_AT_ONCE = 64
NOTED = "a client noted that a member may lack entries; the member is checked as soon as it answers"
COPIES, PLACEMENT = "checkallledgers", "placementpolicycheck"
"""Names of the checks of all copies and of placement, as keys in the tree: Apache's check of all ledgers marks the
same.
"""
"""So many marks are read at a time."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """One marked ledger."""

    ledger: LedgerId
    state: str
    """"in progress", "queued", "waiting" or "lost"."""
    why: str
    eta_s: float | None
    """Seconds until all that is queued now is copied; None if no replicator of ours reports its rate."""
    lost: tuple[tuple[EntryId, EntryId], ...] = ()
    """Rows of entries of which no good copy is left."""
    unreadable: bool = False
    """True if some entries cannot be read now: they are lost, or their bookies are away."""
    age_s: float | None = None
    """Age of the mark in seconds, by the clocks of who marked it and of who asks, never negative; None if it is not
    known.
    """


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of autorecovery at one moment."""

    enabled: bool
    auditor: str
    delay_s: float
    brake: HealingBrake | None
    workers: tuple[CopyProgress, ...]
    queue: tuple[Lacking, ...]
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Result of the last complete run of each periodic check, by its name."""

    unverified: Mapping[BookieId, int | None] = field(default_factory=dict)
    """Bookies that were away and whose copies were not looked at since, with the number of ledgers that are left."""
    attended: bool = True
    """False if no auditor has found out yet which ledgers are open, and so watched who was away since."""
    degraded: Mapping[BookieId, str] = field(default_factory=dict)
    """Bookies that clients find slow, and why."""

    @property
    def shortfalls(self) -> list[Shortfall]:
        """Return the reasons why it cannot be said that all copies not known to lack are there."""
        return shortfalls(
            self.unverified,
            self.degraded,
            checked=COPIES in self.checks,
            attended=self.attended,
            untold=sum(_count(self.checks.get(COPIES, {}).get(what)) for what in ("unknown", "unreadable")),
        )

    @property
    def misplaced(self) -> int | None:
        """Return the number of ledgers that the last placement check would have elsewhere; None if there was
        no check.
        """
        found: int | None = self.checks.get(PLACEMENT, {}).get("misplaced")
        return found

    @property
    def oldest(self) -> Lacking | None:
        """Return the ledger that has been marked for longest."""
        return max((one for one in self.queue if one.age_s is not None), key=lambda one: one.age_s or 0.0, default=None)


def _count(said: object) -> int:
    return said if isinstance(said, int) else 0


async def overview(store: MetadataStore, now_ms: int | None = None) -> Overview:
    """Read the overview.

    `now_ms`: the present, if ages of marks are wanted. Raises MetadataUnavailable, MalformedRecord.
    """
    tree, board = Underreplication(store.keys, store.root, ""), HealingStatusStore(store)
    votes = await Election(store.keys, store.root, "").votes()
    workers = tuple(await board.progress())
    reasons = {waiting.ledger: waiting async for waiting in board.waiting()}
    locked = frozenset(await tree.locked())
    eta = eta_s(workers)
    queue: list[Lacking] = []
    async for ledger in tree.marked():
        if ledger in locked:
            one = Lacking(ledger, "in progress", f"copied by {await tree.lock_holder(ledger)}", eta)
        else:
            one = _not_begun(ledger, reasons.get(ledger), eta)
        queue.append(one)
    if now_ms is not None:
        for first in range(0, len(queue), _AT_ONCE):
            part = queue[first : first + _AT_ONCE]
            queue[first : first + _AT_ONCE] = await asyncio.gather(*(_aged(tree, one, now_ms) for one in part))
    marked = frozenset(one.ledger for one in queue)
    queue += [Lacking(one, "queued", NOTED, None) for one in await ledgers_behind(store) if one not in marked]
    delay, attendance = await tree.read_delay(DEFAULT_DELAY_S), await _attendance(store, board)
    return Overview(
        await tree.enabled(),
        elected_of(votes),
        delay.seconds,
        await board.brake(),
        workers,
        tuple(queue),
        await board.checked(),
        attendance.unverified,
        attendance.walks is not None,
        await degraded_bookies(store),
    )


async def _attendance(store: MetadataStore, board: HealingStatusStore) -> Attendance:
    """Return the attendance as it is now, whether or not an auditor has seen yet which bookies are back."""
    attendance, _ = await board.attendance()
    attendance.seen(sessions_of(await store.bookies()))
    return attendance


async def _aged(tree: Underreplication, one: Lacking, now_ms: int) -> Lacking:
    try:
        mark = await tree.read_mark(one.ledger)
    except MalformedRecord:
        return one
    return one if mark is None or mark.ctime_ms < 0 else replace(one, age_s=max(0, now_ms - mark.ctime_ms) / 1000)


def _not_begun(ledger: LedgerId, waiting: WaitingLedger | None, eta: float | None) -> Lacking:
    if waiting is None:
        return Lacking(ledger, "queued", "", eta)
    why = "; ".join(reason.text for reason in waiting.reasons)
    unreadable = any(reason.why in (Why.NO_GOOD_COPY, Why.COPY_AWAY) for reason in waiting.reasons)
    return Lacking(ledger, "lost" if waiting.lost else "waiting", why, None, waiting.lost, unreadable)


def eta_s(workers: Sequence[CopyProgress]) -> float | None:
    """Return an estimate of the seconds until all that replicators know of is copied; None if none reports a rate."""
    rate = sum(worker.bytes_per_s for worker in workers)
    left = max((worker.left_bytes for worker in workers), default=0)
    return left / rate if rate > 0 else None
