"""All that is known of ledgers that lack copies, for people: from marks, locks, reasons and reports of progress."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from buckram.core.healing.losses import DEFAULT_DELAY_S, Brake
from buckram.core.healing.status import Waiting, Why
from buckram.errors import MalformedRecord
from buckram.healing.board import Board, Progress
from buckram.metadata.election import Election, elected_of
from buckram.metadata.underreplication import Underreplication
from buckram.seams import MetadataStore
from buckram.types import EntryId, LedgerId

_AT_ONCE = 64
"""So many marks are read at a time."""


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
    age_s: float | None = None
    """How long it has been marked, by the clocks of who marked it and of who asks, never negative; None: not known."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of autorecovery at one moment."""

    enabled: bool
    auditor: str
    delay_s: float
    brake: Brake | None
    workers: tuple[Progress, ...]
    queue: tuple[Lacking, ...]
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the last complete run of each periodic check found."""

    @property
    def oldest(self) -> Lacking | None:
        """The ledger that has been marked for longest."""
        return max((one for one in self.queue if one.age_s is not None), key=lambda one: one.age_s or 0.0, default=None)


async def overview(store: MetadataStore, now_ms: int | None = None) -> Overview:
    """`now_ms`: the present, if ages of marks are wanted. MetadataUnavailable, MalformedRecord."""
    tree, board = Underreplication(store.keys, store.root, ""), Board(store)
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
    delay = await tree.read_delay(DEFAULT_DELAY_S)
    return Overview(
        await tree.enabled(),
        elected_of(votes),
        delay.seconds,
        await board.brake(),
        workers,
        tuple(queue),
        await board.checked(),
    )


async def _aged(tree: Underreplication, one: Lacking, now_ms: int) -> Lacking:
    try:
        mark = await tree.read_mark(one.ledger)
    except MalformedRecord:
        return one
    return one if mark is None or mark.ctime_ms < 0 else replace(one, age_s=max(0, now_ms - mark.ctime_ms) / 1000)


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
