"""`buckram rebalance`: even out space after bookies were added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buckram.cli.bookie.decommission import copying, exit_if_refused, rate_of, rate_option
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import counted, emit, remark, table
from buckram.errors import InvalidArgument

if TYPE_CHECKING:
    from buckram.healing.operations.rebalance import Rebalanced

_SHOWN = 10


@click.command("rebalance")
@click.option(
    "--within",
    default="10%",
    metavar="SHARE",
    show_default=True,
    help="Largest deviation from the mean that counts as even.",
)
@click.option("--dry-run", is_flag=True, help="Only report what would be moved.")
@rate_option
@cluster_options
def rebalance(within: str, dry_run: bool, rate: str | None, uri: str | None, as_json: bool) -> None:
    """Move copies from the fullest bookies to the emptiest.

    They are copies of closed ledgers; do it after bookies were added.

    A new copy is complete before metadata names it, so there are never fewer copies, and no placement gets worse. What
    was moved away is freed by the collection of the old bookie. Ctrl-C leaves nothing half done, and the same command
    goes on. Without --rate as fast as the disks allow. Exit code 1 when it is refused, or some ledgers could not be
    moved.

    \b
    Example:
      buckram rebalance --dry-run
      buckram rebalance --rate 50MB
    """
    share, limit = _share(within), rate_of(rate)

    async def main() -> Rebalanced:
        from buckram.healing.operations.rebalance import rebalance as even_out

        async with connected(uri) as client:
            with copying("moves", as_json) as show:
                return await even_out(client, show, within=share, rate=limit, dry_run=dry_run)

    with exit_if_refused():
        found = run_async(main())
    if as_json:
        _emit(found, dry_run)
    else:
        _print(found, dry_run)
    if found.failed:
        raise click.exceptions.Exit(Exit.FAILED)


def _share(given: str) -> float:
    try:
        share = float(given.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0.01 <= share <= 1.0:
        raise InvalidArgument(f"--within {given}: needs a share of the mean from 1% to 100%, for example 10%")
    return share


def _emit(found: Rebalanced, dry_run: bool) -> None:
    emit(
        {
            "dry_run": dry_run,
            "even": found.even,
            "bookies": {
                bookie: {"bytes_before": found.before.get(bookie, 0), "bytes_after": found.after.get(bookie, 0)}
                for bookie in sorted({*found.before, *found.after})
            },
            "moves": len(found.moves),
            "entries_copied": found.entries,
            "bytes_copied": found.bytes,
            "failed": {str(ledger): why for ledger, why in list(found.failed.items())[:_SHOWN]},
        }
    )


def _print(found: Rebalanced, dry_run: bool) -> None:
    rows = [
        (bookie, round(found.before.get(bookie, 0) / 1e6, 1), round(found.after.get(bookie, 0) / 1e6, 1))
        for bookie in sorted({*found.before, *found.after})
    ]
    table(("BOOKIE", "MB BEFORE", "MB AFTER"), rows)
    what = "would be moved" if dry_run else "moved"
    copied = "" if dry_run else f", {found.bytes / 1e6:.1f} MB copied"
    print(f"{counted(len(found.moves), 'place')} of fragments {what}{copied}")
    if not found.even:
        print("bookies are not even: what is left may not be moved, is too large, or is in ledgers that are open")
    for ledger, why in list(found.failed.items())[:_SHOWN]:
        remark(f"ledger {ledger}: {why}")
    if len(found.failed) > _SHOWN:
        remark(f"and {counted(len(found.failed) - _SHOWN, 'ledger')} more")
