"""`buckram metadata`: what the metadata store holds."""

from __future__ import annotations

import click

from buckram.cli.shared.options import cluster_uri, json_option, metadata_option, run_async
from buckram.cli.shared.output import emit, print_ledger
from buckram.serve.json_views.ledgers import ledger_json


@click.group()
def metadata() -> None:
    """Look into the metadata store."""


@metadata.command("show")
@click.argument("ledger_id", type=click.IntRange(min=0))
@metadata_option
@json_option
def show(ledger_id: int, uri: str | None, as_json: bool) -> None:
    """Show a ledger's record as the metadata store has it. With its version, format and fragments.

    \b
    Example:
      buckram metadata show 7 --json
    """
    run_async(_show(cluster_uri(uri), ledger_id, as_json))


async def _show(uri: str, ledger_id: int, as_json: bool) -> None:
    from buckram.metadata.uri import open_store

    store = await open_store(uri)
    try:
        found = await store.read_ledger(ledger_id)
    finally:
        await store.close()
    if as_json:
        shown = ledger_json(ledger_id, found.metadata)
        emit({**shown, "version": found.version, "format_version": found.metadata.format_version})
        return
    print_ledger(ledger_id, found.metadata)
    print(f"  record version {found.version}, serialisation {found.metadata.format_version}")
