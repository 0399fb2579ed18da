"""Usage of namespaces: stored bytes, rates, counts, and their quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from buckram.core.tenants.quotas import NONE, NOTHING, Counts, Quotas
from buckram.metadata.records.tenants import Published, TenantStore
from buckram.seams import MetadataStore
from buckram.types import BookieId

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
