"""Status of the cluster as JSON: bookies, disk space, the list of findings, ledgers that lack copies, and what
namespaces use.

The usage of a namespace is its stored bytes, rates and counts, beside its quotas. Not here: the rules for findings
(`core/health`), and gathering the facts (`health/gathering.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buckram.core.cluster import bookie_report as file_systems
from buckram.core.health.findings import Finding, healthy
from buckram.core.health.state_table import OWNED
from buckram.core.health.states import Severity
from buckram.core.tenants.quotas import NONE, NOTHING, Counts, Quotas
from buckram.metadata.records.tenants import Published, TenantStore
from buckram.seams import MetadataStore
from buckram.types import BookieId

if TYPE_CHECKING:
    from buckram.core.health.facts import BookieFacts
    from buckram.healing.overview import Overview
    from buckram.health.gathering import Health

WITHIN_S = 15.0
_NOBODY_S = 3.0
"""Bookies that are starting have registered within this time; where there are none, none will publish anything."""
_BETWEEN_S = 0.1


async def fresh(store: MetadataStore) -> tuple[Published, list[BookieId]]:
    """Return figures that bookies published after the call, and the bookies that published none within the time limit.

    Turns the counting of usage on. Raises MetadataError.
    """
    tenants = TenantStore(store)
    await tenants.turn_on()
    before = await tenants.published()
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        bookies = await store.bookies()
        found = await tenants.published()
        missing = [
            one
            for one in (*bookies.writable, *bookies.readonly)
            if found.rounds.get(one, 0) == before.rounds.get(one, 0)
        ]
        within = WITHIN_S if bookies.writable or bookies.readonly else _NOBODY_S
        if (not missing and found.counts_round != before.counts_round) or loop.time() - began > within:
            return found, missing
        await asyncio.sleep(_BETWEEN_S)


def usage_rows(published: Published, quotas: Mapping[str, Quotas], only: str) -> dict[str, dict[str, Any]]:
    """Return the JSON of each namespace's usage, or of `only` one."""
    total = published.total
    rows: dict[str, dict[str, Any]] = {}
    for name in sorted({*total, *published.counts, *quotas}):
        if only and name != only:
            continue
        used, counts = total.get(name, NOTHING), published.counts.get(name, Counts())
        rows[name] = {
            "stored_bytes": used.stored_bytes,
            "ledgers": counts.ledgers,
            "streams": counts.streams,
            "databases": counts.databases,
            "in_bytes_per_s": round(used.in_bytes_per_s, 1),
            "in_entries_per_s": round(used.in_entries_per_s, 1),
            "out_bytes_per_s": round(used.out_bytes_per_s, 1),
            "connections": used.connections,
            "applications": dict(counts.applications),
            "quotas": quotas.get(name, NONE).limits(),
        }
    return rows


MOST_LEDGERS = 20
"""Maximum ledgers that are listed; `buckram autorecovery status` lists all."""


@dataclass(frozen=True, slots=True)
class BookieState:
    """One bookie: its state is "writable", "readonly", "down" or "silent". Bytes are None where it does not answer."""

    id: str
    state: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    file_system: int = 0
    """A number that bookies on the same file system share; 0 where it is unknown."""


def space_of(bookies: Iterable[BookieState]) -> tuple[int, int]:
    """Bytes that are free, and all bytes. A file system that bookies share counts once."""
    return file_systems.file_system_space((one.id, one.file_system, one.free_bytes, one.total_bytes) for one in bookies)


def bookie_states(found: Health) -> tuple[BookieState, ...]:
    """All bookies that the cluster knows."""
    return tuple(_state(one) for one in found.facts.bookies)


def _state(one: BookieFacts) -> BookieState:
    state = one.state if one.answers or one.state == "down" else "silent"
    return BookieState(one.id, state, one.free_bytes, one.total_bytes, one.file_system)


def problems_json(found: Health) -> dict[str, Any]:
    """The list of findings as every door shows it."""
    return {"healthy": found.healthy, "problems": [one.as_json() for one in found.findings]}


def status_json(found: Health) -> dict[str, Any]:
    """Return the JSON of the cluster's status."""
    healing = found.healing
    queue = () if healing is None else healing.queue
    oldest = None if healing is None else healing.oldest
    free, total = space_of(bookie_states(found))
    return {
        **problems_json(found),
        "warnings": [one.as_json() for one in found.findings if one.state.severity is Severity.WARNING],
        "unverified": {} if healing is None else dict(healing.unverified),
        "degraded": [] if healing is None else list(healing.degraded),
        "bookies": [
            {"id": one.id, "state": one.state, "free_bytes": one.free_bytes, "total_bytes": one.total_bytes}
            for one in bookie_states(found)
        ],
        "free_bytes": free,
        "total_bytes": total,
        "under_replicated": len(queue),
        "oldest_mark_s": oldest.age_s if oldest else None,
        "misplaced": None if healing is None else healing.misplaced,
        "unavailable": sum(one.unreadable for one in queue),
        "auditor": None if healing is None else healing.auditor or None,
        "bytes_per_s": 0 if healing is None else sum(worker.bytes_per_s for worker in healing.workers),
        "queue": [
            {"ledger": one.ledger, "state": one.state, "why": one.why, "eta_s": one.eta_s, "age_s": one.age_s}
            for one in queue[:MOST_LEDGERS]
        ],
    }


def status_seen(found: Health, sees: Callable[[str], bool]) -> dict[str, Any]:
    """Return the JSON for a principal who may not see the whole cluster: findings about streams and namespaces that it
    may see, and the names of the other states without their places.

    `sees`: whether the principal may see a namespace, or a stream by its full name.
    """
    seen = [one for one in found.findings if one.state.name not in OWNED or sees(one.where.partition(" ")[0])]
    rows = [one.as_json() if one.state.name in OWNED else _of_the_cluster(one) for one in seen]
    problems = [row for number, row in enumerate(rows) if row not in rows[:number]]
    return {"healthy": healthy(seen), "problems": problems}


def _of_the_cluster(one: Finding) -> dict[str, str]:
    do = "an administrator of the cluster sees where it is, and what to do about it"
    return {**one.as_json(), "where": "the cluster", "why": one.state.title, "do": do}


# -- autorecovery -----------------------------------------------------------------------------------------


def healing_json(found: Overview) -> dict[str, Any]:
    """Return the JSON of autorecovery."""
    return {
        "enabled": found.enabled,
        "auditor": found.auditor or None,
        "delay_s": found.delay_s,
        "brake": None if found.brake is None else {"bookies": list(found.brake.bookies), "why": found.brake.why},
        "workers": [{"worker": one.worker, "bytes_per_s": one.bytes_per_s} for one in found.workers],
        "queue": [
            {
                "ledger": one.ledger,
                "state": one.state,
                "why": one.why,
                "eta_s": one.eta_s,
                "lost": [list(row) for row in one.lost],
                "age_s": one.age_s,
            }
            for one in found.queue
        ],
        "oldest_mark_s": found.oldest.age_s if found.oldest else None,
        "checks": {check: dict(result) for check, result in found.checks.items()},
    }
