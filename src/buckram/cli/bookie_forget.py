"""`buckram bookie forget`: removes the cookie of a bookie that is gone for good, once no ledger names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buckram.cli import completion
from buckram.cli.exits import Exit
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import counted, emit
from buckram.core.ledgers.service_info import check_bookie_id
from buckram.errors import NoSuchBookie, NoSuchKey
from buckram.metadata.accused import pardon

if TYPE_CHECKING:
    from buckram.seams import MetadataStore
    from buckram.types import BookieId

_SHOWN = 10


class Kept(click.ClickException):
    """The bookie is still needed; the message says for what, and what to do."""

    exit_code = Exit.FAILED


@click.command("forget")
@click.argument("bookie_id", shell_complete=completion.bookies)
@metadata_option
@json_option
def forget(bookie_id: str, uri: str | None, as_json: bool) -> None:
    """Remove a bookie that is gone for good from the cluster: its cookie goes.

    Refused with exit code 1 while the bookie is registered or any ledger names it. Its old directory cannot join
    the cluster afterwards; an empty one under the same id can.

    \b
    Example:
      buckram bookie forget bookie-1
    """
    run_async(_forget(uri, check_bookie_id(bookie_id)))
    if as_json:
        emit({"bookie": bookie_id, "forgotten": True})
    else:
        click.echo(f"bookie {bookie_id} is forgotten")


async def _forget(uri: str | None, bookie_id: BookieId) -> None:
    from buckram.healing.decommission import ledgers_naming

    async with connected(uri) as client:
        store = client.services.store
        await store.sync()
        await _refuse_registered(store, bookie_id)
        try:
            version = (await store.read_cookie(bookie_id)).version
        except NoSuchKey:
            raise NoSuchBookie(bookie_id) from None
        naming = await ledgers_naming(store, bookie_id)
        if naming:
            shown = ", ".join(map(str, list(naming)[:_SHOWN])) + (", ..." if len(naming) > _SHOWN else "")
            raise Kept(
                f"bookie {bookie_id} is not forgotten: {counted(len(naming), 'ledger')} still "
                f"{'names' if len(naming) == 1 else 'name'} it ({shown}); `buckram bookie decommission` has them "
                "copied first (or `buckram ledger repair` each; `buckram stream seal` for a stream of a dead writer)"
            )
        # It may have come back while the ledgers were read.
        await _refuse_registered(store, bookie_id)
        await store.delete_cookie(bookie_id, version)
        await pardon(store, bookie_id)  # what was held against it is of no use any more


async def _refuse_registered(store: MetadataStore, bookie_id: BookieId) -> None:
    if (await store.bookies()).find(bookie_id) is not None:
        raise Kept(f"bookie {bookie_id} is not forgotten: it is registered; stop it first")
