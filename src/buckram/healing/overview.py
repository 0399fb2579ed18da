"""All that is known of ledgers that lack copies, for people: from marks, locks, reasons and reports of progress."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from buckram.core.healing.losses import DEFAULT_DELAY_S, Brake
from buckram.core.healing.status import Waiting, Why
from buckram.errors import MalformedRecord
from buckram.healing.board import Board, Progress
from buckram.metadata.election import Election, elected_of
from buckram.metadata.underreplication import Underreplication
from buckram.seams import MetadataStore
from buckram.types import EntryId, LedgerId

_AGED = 1000
"""The marks of so many ledgers are read for their ages; whoever has more marks than that has one large trouble."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """One marked ledger."""

    ledger: LedgerId
    state: str
    """"in progress", "queued", "waiting" or "lost"."""
    why: str
    eta_s: float | None
    """Seconds until all that is queued now is copied, where some replicator of ours reports its rate."""
    lost: tuple[tuple[EntryId, EntryId], ...] = ()
    """Rows of entries of which no good copy is left."""
    unreadable: bool = False
    """Some entries cannot be read now: they are lost, or their bookies are away."""
    marked_s: float | None = None
    """Seconds since it was marked, by the clocks of the marker and of who asks, never negative; None: not known."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of autorecovery at one moment."""

    enabled: bool
    auditor: str
    delay_s: float
    brake: Brake | None
    workers: tuple[Progress, ...]
    queue: tuple[Lacking, ...]


async def overview(store: MetadataStore, now_ms: int | None = None) -> Overview:
    """MetadataUnavailable, MalformedRecord. `now_ms`: the time of the wall clock, if ages of marks are wanted."""
    tree, board = Underreplication(store.keys, store.root, ""), Board(store)
    votes = await Election(store.keys, store.root, "").votes()
    workers = tuple(await board.progress())
    reasons = {waiting.ledger: waiting async for waiting in board.waiting()}
    locked = frozenset(await tree.locked())
    eta = eta_s(workers)
    queue: list[Lacking] = []
    async for ledger in tree.marked():
        if ledger in locked:
            queue.append(Lacking(ledger, "in progress", f"copied by {await tree.lock_holder(ledger)}", eta))
        else:
            queue.append(_not_begun(ledger, reasons.get(ledger), eta))
    if now_ms is not None:
        queue[:_AGED] = await asyncio.gather(*(_aged(tree, one, now_ms) for one in queue[:_AGED]))
    delay = await tree.read_delay(DEFAULT_DELAY_S)
    return Overview(await tree.enabled(), elected_of(votes), delay.seconds, await board.brake(), workers, tuple(queue))


async def _aged(tree: Underreplication, one: Lacking, now_ms: int) -> Lacking:
    try:
        mark = await tree.read_mark(one.ledger)
    except MalformedRecord:
        return one
    return one if mark is None or mark.ctime_ms < 0 else replace(one, marked_s=max(0, now_ms - mark.ctime_ms) / 1000)


def _not_begun(ledger: LedgerId, waiting: Waiting | None, eta: float | None) -> Lacking:
    if waiting is None:
        return Lacking(ledger, "queued", "", eta)
    why = "; ".join(reason.text for reason in waiting.reasons)
    unreadable = any(reason.why in (Why.NO_GOOD_COPY, Why.COPY_AWAY) for reason in waiting.reasons)
    return Lacking(ledger, "lost" if waiting.lost else "waiting", why, None, waiting.lost, unreadable)


def eta_s(workers: Sequence[Progress]) -> float | None:
    """About the seconds until all that replicators know of is copied; None where nobody reports a rate."""
    rate = sum(worker.bytes_per_s for worker in workers)
    left = max((worker.left_bytes for worker in workers), default=0)
    return left / rate if rate > 0 else None
