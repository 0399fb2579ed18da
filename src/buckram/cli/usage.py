"""`buckram usage`: what each namespace stores, does and may do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import click

from buckram.cli import values
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import emit, remark, table
from buckram.core.tenants.quotas import NONE, Quotas
from buckram.core.tenants.usage import NOTHING, Counts
from buckram.metadata.tenants import Published, TenantStore
from buckram.seams import MetadataStore
from buckram.types import BookieId

_WITHIN_S = 15.0
_BETWEEN_S = 0.1


@click.command()
@click.option("--namespace", "only", default="", metavar="NAME", help="Of this namespace alone.")
@click.option(
    "--applications", is_flag=True, help="Also the bytes of closed ledgers by the application that made them."
)
@metadata_option
@json_option
def usage(only: str, applications: bool, uri: str | None, as_json: bool) -> None:
    """What namespaces store, send and receive, and their quotas; from all bookies, a few seconds old at most.

    Bookies count from the first time that anybody asks, or sets a quota.

    \b
    Example:
      buckram usage
    """

    async def main() -> tuple[Published, Mapping[str, Quotas]]:
        async with connected(uri) as client:
            store = client.services.store
            found, missing = await fresh(store)
            if missing:
                remark(f"not counted: {', '.join(missing)} said nothing within {_WITHIN_S:g} s")
            return found, await TenantStore(store).quotas()

    published, quotas = run_async(main())
    rows = _rows(published, quotas, only)
    if as_json:
        emit({"namespaces": rows})
    elif applications:
        shown = [(name, one or "-", size) for name, row in rows.items() for one, size in row["applications"].items()]
        table(("namespace", "application", "bytes"), shown)
    else:
        _print(rows)


async def fresh(store: MetadataStore) -> tuple[Published, list[BookieId]]:
    """What bookies publish from now on, and those that published nothing in time. Turns counting on. MetadataError."""
    tenants = TenantStore(store)
    await tenants.turn_on()
    before = await tenants.published()
    loop = asyncio.get_running_loop()
    until = loop.time() + _WITHIN_S
    while True:
        bookies = await store.bookies()
        found = await tenants.published()
        missing = [
            one
            for one in (*bookies.writable, *bookies.readonly)
            if found.rounds.get(one, 0) == before.rounds.get(one, 0)
        ]
        if (not missing and found.counts_round != before.counts_round) or loop.time() > until:
            return found, missing
        await asyncio.sleep(_BETWEEN_S)


def _rows(published: Published, quotas: Mapping[str, Quotas], only: str) -> dict[str, dict[str, Any]]:
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


def _print(rows: Mapping[str, Mapping[str, Any]]) -> None:
    columns = ("stored_bytes", "ledgers", "streams", "in_bytes_per_s", "in_entries_per_s", "out_bytes_per_s")
    shown = []
    for name, row in rows.items():
        limits = " ".join(f"{key}={values.shown_setting(key, value)}" for key, value in row["quotas"].items())
        shown.append((name, *(row[column] for column in columns), limits))
    table(("namespace", *columns, "quotas"), shown)
