"""`buckram bookie collect`: a running bookie collects garbage now, and reports what it freed and what it keeps."""

from __future__ import annotations

from typing import Any

import click

from buckram.cli.bookie.decommission import exit_if_refused
from buckram.cli.shared import completion
from buckram.cli.shared.options import connected, json_option, metadata_option, run_async
from buckram.cli.shared.output import counted, emit, table
from buckram.core.cluster.bookie_report import Collected, KeptGarbage
from buckram.core.ledgers.service_info import check_bookie_id


@click.command("collect")
@click.argument("bookie_id", shell_complete=completion.bookies)
@metadata_option
@json_option
def collect(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Have a bookie delete now what metadata does not place there. It also gives back the space of dead data.

    It is one more round of its regular collection, with the same proofs: a ledger that metadata lacks is deleted only
    at a second look ([bookie] collection_age_s) after the first, so one that was deleted a moment ago goes in a later
    round.

    \b
    Example:
      buckram bookie collect bookie-1
    """
    checked = check_bookie_id(bookie_id)

    async def main() -> Collected:
        from buckram.healing.operations.collecting import collect_now

        async with connected(uri) as client:
            return await collect_now(client, checked)

    with exit_if_refused():
        found = run_async(main())
    if as_json:
        emit({"bookie": checked, **found.as_json()})
    else:
        freed = f"{counted(found.ledgers, 'ledger')} deleted, {megabytes(found.bytes_reclaimed)} MB given back"
        print(f"bookie {checked}: {freed} of {megabytes(found.bytes_reclaimable)} MB that nobody needs")
        print_kept(found.kept)


def print_kept(kept: tuple[KeptGarbage, ...]) -> None:
    """Print a table of the data that a bookie keeps, and why."""
    rows: list[tuple[Any, ...]] = [
        ("?" if one.bytes is None else megabytes(one.bytes), one.ledgers or "", one.why) for one in kept
    ]
    if rows:
        table(("KEPT MB", "LEDGERS", "WHY"), rows)


def megabytes(size: int) -> float:
    return round(size / 1e6, 1)
