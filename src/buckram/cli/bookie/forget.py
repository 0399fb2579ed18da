"""`buckram bookie forget` and `rejoin`: an id goes, or may come back empty, once no ledger names it."""

from __future__ import annotations

import click

from buckram.cli.bookie.decommission import exit_if_refused
from buckram.cli.shared import completion
from buckram.cli.shared.options import connected, json_option, metadata_option, run_async
from buckram.cli.shared.output import emit
from buckram.core.ledgers.service_info import check_bookie_id
from buckram.errors import NoSuchBookie, NoSuchKey


@click.command("forget")
@click.argument("bookie_id", shell_complete=completion.bookies)
@metadata_option
@json_option
def forget(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Remove the cookie of a bookie that is gone for good.

    Refused with exit code 1 while the bookie is registered or any ledger names it. Its old directory cannot join
    the cluster afterwards; an empty one under the same id can.

    \b
    Example:
      buckram bookie forget bookie-1
    """
    checked = check_bookie_id(bookie_id)

    async def main() -> None:
        from buckram.healing.operations.decommission import forget as remove
        from buckram.healing.operations.operator_calls import refuse_named, refuse_registered
        from buckram.health.removal_gate import check_removable

        async with connected(uri) as client:
            store = client.services.store
            await store.sync()
            await refuse_registered(store, checked, "is not forgotten")
            try:
                await store.read_cookie(checked)
            except NoSuchKey:
                raise NoSuchBookie(checked) from None
            await check_removable(client, checked)
            await refuse_named(store, checked, "is not forgotten")
            # It may have come back while the ledgers were read.
            await refuse_registered(store, checked, "is not forgotten")
            await remove(store, checked)

    with exit_if_refused():
        run_async(main())
    if as_json:
        emit({"bookie": bookie_id, "forgotten": True})
    else:
        click.echo(f"bookie {bookie_id} is forgotten")


@click.command("rejoin")
@click.argument("bookie_id", shell_complete=completion.bookies)
@metadata_option
@json_option
def rejoin(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Let a bookie come back with an empty directory. It keeps its id; its disk was lost or replaced.

    Refused with exit code 1 while it is registered, or any ledger names it: have that copied first (`buckram bookie
    decommission`, or wait for autorecovery). A directory that still has its data needs no such word.

    \b
    Example:
      buckram bookie rejoin bookie-1
    """
    checked = check_bookie_id(bookie_id)

    async def main() -> None:
        from buckram.healing.operations.operator_calls import allow_rejoin
        from buckram.health.removal_gate import check_removable

        async with connected(uri) as client:
            await check_removable(client, checked)
            await allow_rejoin(client, checked)

    with exit_if_refused():
        run_async(main())
    if as_json:
        emit({"bookie": checked, "may_rejoin": True})
    else:
        click.echo(f"no ledger names bookie {checked}: start it with an empty directory and --id {checked}")
