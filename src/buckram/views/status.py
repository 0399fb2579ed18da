"""How the cluster is: bookies, space, ledgers that lack copies, and what is wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buckram.core.cluster.problem import Problem
from buckram.core.wire.messages import (
    DISK_STATE,
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    BookieInfoReply,
    GetBookieInfo,
    Trouble,
)
from buckram.errors import BuckramError, Code
from buckram.types import BookieSet

if TYPE_CHECKING:
    from buckram.client.client import Client
    from buckram.healing.overview import Overview

_OLD_MARK_S = 3600.0
MOST_LEDGERS = 20
"""So many ledgers are shown; `buckram autorecovery status` shows all."""


@dataclass(frozen=True, slots=True)
class BookieState:
    """One bookie as status shows it. Bytes are None where it does not answer."""

    id: str
    state: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    troubles: tuple[Trouble, ...] = ()
    """What is wrong with its disk or its files, as it says itself."""


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster at one moment."""

    bookies: tuple[BookieState, ...]
    healing: Overview
    problems: tuple[Problem, ...]

    @property
    def unavailable(self) -> int:
        """Ledgers with entries that cannot be read now."""
        return sum(one.unreadable for one in self.healing.queue)


async def look(client: Client) -> Status:
    """Everything that status shows, from the metadata store and the bookies themselves."""
    from buckram.healing.overview import overview

    store = client.services.store
    registered = await store.bookies()
    known = sorted({*await store.known_bookies(), *registered.writable, *registered.readonly})
    states = await asyncio.gather(*(_bookie(client, bookie, registered) for bookie in known))
    found = await overview(store, client.services.runtime.clock.wall_us() // 1000)
    return Status(tuple(states), found, tuple(_problems(states, found)))


async def _bookie(client: Client, bookie: str, registered: BookieSet) -> BookieState:
    state = registered.state_of(bookie)
    if state == "down":
        return BookieState(bookie, state)
    try:
        reply = await client.services.pool.call(
            bookie, GetBookieInfo(TOTAL_DISK_CAPACITY | FREE_DISK_SPACE | DISK_STATE)
        )
    except BuckramError:
        return BookieState(bookie, "silent")
    if not isinstance(reply, BookieInfoReply) or reply.code is not Code.OK:
        return BookieState(bookie, state)
    return BookieState(bookie, state, reply.free_bytes, reply.total_bytes, tuple(reply.troubles))


def _problems(bookies: list[BookieState], found: Overview) -> list[Problem]:
    problems: list[Problem] = []
    if found.brake is not None:
        do = "start them again, or say that they are gone for good: `buckram autorecovery proceed`"
        problems.append(Problem("nothing is copied", ", ".join(found.brake.bookies), found.brake.why, do))
    if not found.enabled:
        problems.append(Problem("autorecovery", "cluster", "it is disabled", "buckram autorecovery enable"))
    for one in bookies:
        if one.state == "down":
            do = (
                "start it again; if it is gone for good its copies are made anew, and once no ledger names it: "
                f"`buckram bookie forget {one.id}`"
            )
            problems.append(Problem("bookie", one.id, "it is down: it has a cookie and is not registered", do))
        elif one.state == "silent":
            problems.append(Problem("bookie", one.id, "it is registered and does not answer", "see its log"))
        problems += [Problem(trouble.what, one.id, trouble.why, trouble.action) for trouble in one.troubles]
    if found.queue and not found.auditor and not found.workers:
        problems.append(Problem("autorecovery", "cluster", "nobody runs it", "buckram autorecovery run"))
    for ledger in found.queue:
        do = "" if ledger.state in ("in progress", "queued") else "see the reason; it is tried again by itself"
        why = ledger.why or "it lacks copies"
        if ledger.age_s is not None and ledger.age_s > _OLD_MARK_S:
            why += f"; it has been marked for {ledger.age_s / 3600:.1f} hours"
        problems.append(Problem(f"ledger {ledger.state}", str(ledger.ledger), why, do))
    return problems


def status_json(found: Status) -> dict[str, Any]:
    """Return what is shown of the cluster."""
    return {
        "healthy": not found.problems,
        "problems": [one.as_json() for one in found.problems],
        "bookies": [
            {"id": one.id, "state": one.state, "free_bytes": one.free_bytes, "total_bytes": one.total_bytes}
            for one in found.bookies
        ],
        "under_replicated": len(found.healing.queue),
        "oldest_mark_s": found.healing.oldest.age_s if found.healing.oldest else None,
        "misplaced": found.healing.checks.get("placementpolicycheck", {}).get("misplaced"),
        "unavailable": found.unavailable,
        "auditor": found.healing.auditor or None,
        "bytes_per_s": sum(worker.bytes_per_s for worker in found.healing.workers),
        "queue": [
            {"ledger": one.ledger, "state": one.state, "why": one.why, "eta_s": one.eta_s, "age_s": one.age_s}
            for one in found.healing.queue[:MOST_LEDGERS]
        ],
    }
