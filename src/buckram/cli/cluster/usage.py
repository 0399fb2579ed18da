"""`buckram usage`: what each namespace stores and transfers, and its quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from buckram.cli.shared import values
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import emit, remark, table
from buckram.core.tenants.quotas import Quotas
from buckram.metadata.records.tenants import Published, TenantStore
from buckram.serve.json_views.status import WITHIN_S, fresh, usage_rows


@click.command()
@click.option("--namespace", "only", default="", metavar="NAME", help="Show only this namespace.")
@click.option(
    "--applications", is_flag=True, help="Show bytes of closed ledgers by the application that made them, too."
)
@cluster_options
def usage(only: str, applications: bool, uri: str | None, as_json: bool) -> None:
    """Show what namespaces store and transfer, and their quotas.

    The figures are from all bookies, and a few seconds old at most.

    Bookies begin to count at the first request for usage, or when a quota is set.

    \b
    Example:
      buckram usage
    """

    async def main() -> tuple[Published, Mapping[str, Quotas]]:
        async with connected(uri) as client:
            store = client.services.store
            found, missing = await fresh(store)
            if (nobody := client.services.bookies.nobody()) is not None:
                raise nobody
            if missing:
                remark(f"not counted: {', '.join(missing)} did not answer within {WITHIN_S:g} s")
            return found, await TenantStore(store).quotas()

    published, quotas = run_async(main())
    rows = usage_rows(published, quotas, only)
    if as_json:
        emit({"namespaces": rows})
    elif applications:
        shown = [(name, one or "-", size) for name, row in rows.items() for one, size in row["applications"].items()]
        table(("namespace", "application", "bytes"), shown)
    else:
        _print(rows)


def _print(rows: Mapping[str, Mapping[str, Any]]) -> None:
    columns = ("stored_bytes", "ledgers", "streams", "in_bytes_per_s", "in_entries_per_s", "out_bytes_per_s")
    shown = []
    for name, row in rows.items():
        limits = " ".join(f"{key}={values.shown_setting(key, value)}" for key, value in row["quotas"].items())
        shown.append((name, *(row[column] for column in columns), limits))
    table(("namespace", *columns, "quotas"), shown)
