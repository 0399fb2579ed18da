"""`buckram bookie decommission`: takes a stopped bookie out, once everything that it held is on others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buckram.cli import completion
from buckram.cli.exits import Exit
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import counted, emit, progress, remark
from buckram.core.ledgers.service_info import check_bookie_id

if TYPE_CHECKING:
    from buckram.healing.decommission import Decommissioned


@click.command("decommission")
@click.argument("bookie_id", shell_complete=completion.bookies)
@metadata_option
@json_option
def decommission(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Take a bookie out for good: stop it, then have all that it held copied to others, and its cookie removed.

    Autorecovery has to run somewhere (`buckram up`, `buckram autorecovery run`). Exit code 1 with the reasons when some
    ledgers cannot be copied; the bookie stays known then, and the command can be given again.

    \b
    Example:
      buckram bookie decommission bookie-3
    """
    checked = check_bookie_id(bookie_id)

    async def main() -> Decommissioned:
        from buckram.healing.decommission import decommission as take_out

        async with connected(uri) as client:
            with progress("ledgers", None) as advance:
                seen = [0]

                def show(done: int, total: int) -> None:
                    advance(done - seen[0])
                    seen[0] = done

                return await take_out(client, checked, show)

    found = run_async(main())
    if as_json:
        emit(
            {
                "bookie": found.bookie,
                "ledgers": found.ledgers,
                "entries_copied": found.entries,
                "remaining": len(found.remaining),
            }
        )
    elif found.done:
        print(f"bookie {found.bookie} is out: {counted(found.ledgers, 'ledger')} moved, nothing names it any more")
    if not found.done:
        for ledger in found.remaining[:10]:
            remark(f"ledger {ledger}: {found.reasons.get(ledger, 'not copied yet')}")
        remark(f"{counted(len(found.remaining), 'ledger')} still need bookie {found.bookie}; it stays known")
        raise click.exceptions.Exit(Exit.FAILED)
