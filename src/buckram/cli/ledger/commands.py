"""`buckram ledger`: create, show, list, recover, close, delete.

Entries: ledger_write.py, ledger_read.py; check and repair: ledger_check.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from buckram.cli.ledger.check import check, repair
from buckram.cli.ledger.entries import LEDGER, read, tail, write
from buckram.cli.shared.options import (
    cluster_options,
    confirm,
    confirm_loss,
    connected,
    custom_metadata,
    ledger_options,
    password_option,
    quorum,
    run_async,
    yes_option,
)
from buckram.cli.shared.output import emit, print_ledger, remark, table
from buckram.core.ledgers.quorum import Quorum
from buckram.errors import MetadataError, RecoveryFailed
from buckram.serve.json_views.ledgers import STATES, ledger_json, listed_json, records_of
from buckram.serve.json_views.ledgers import away as away_of
from buckram.types import LedgerMetadata

if TYPE_CHECKING:
    pass


@click.group()
def ledger() -> None:
    """Create, write, read and manage ledgers."""


for command in (write, read, tail, check, repair):
    ledger.add_command(command)


@ledger.command("create")
@ledger_options
@cluster_options
def create(
    ensemble: str,
    write_quorum: int | None,
    ack_quorum: int | None,
    digest: str,
    password: str,
    meta: tuple[str, ...],
    uri: str | None,
    as_json: bool,
) -> None:
    """Create an empty ledger, leave it open, and print its id as JSON.

    \b
    Example:
      buckram ledger create --ensemble 3/3/2 --meta owner=me
    """
    shape = quorum(ensemble, write_quorum, ack_quorum)
    del as_json  # the output is JSON in any case, as that of `ledger write`
    emit({"ledger": run_async(_create(uri, shape, digest, password, custom_metadata(meta)))})


async def _create(uri: str | None, shape: Quorum, digest: str, password: str, meta: dict[str, bytes]) -> int:
    async with connected(uri) as client:
        writer = await client.create(ensemble=str(shape), digest=digest, password=password, custom_metadata=meta)
        await writer.abandon()  # the handle goes, the ledger stays open
        return writer.ledger_id


@ledger.command("show")
@click.argument("ledger_id", type=LEDGER)
@cluster_options
def show(ledger_id: int, uri: str | None, as_json: bool) -> None:
    """Show state, quorums, fragments and custom metadata of a ledger.

    \b
    Example:
      buckram ledger show 7
    """
    metadata, away = run_async(_looked(uri, ledger_id))
    if as_json:
        emit({**ledger_json(ledger_id, metadata), "away": away})
        return
    print_ledger(ledger_id, metadata)
    if away:
        print(f"  under-replicated: {', '.join(away)} away; start them, or `buckram ledger repair {ledger_id}`")


async def _looked(uri: str | None, ledger_id: int) -> tuple[LedgerMetadata, list[str]]:
    """Return the ledger's metadata, and the members that are not registered now."""
    async with connected(uri) as client:
        metadata = await client.metadata(ledger_id)
        return metadata, away_of(client, metadata)


def _print(ledger_id: int, metadata: LedgerMetadata, as_json: bool) -> None:
    if as_json:
        emit(ledger_json(ledger_id, metadata))
    else:
        print_ledger(ledger_id, metadata)


@ledger.command("list")
@click.option("--ids", is_flag=True, help="Print only the ids, without reading each record.")
@cluster_options
def list_ledgers(ids: bool, uri: str | None, as_json: bool) -> None:
    """List all ledgers, ascending.

    \b
    Example:
      buckram ledger list
    """
    run_async(_list(uri, ids, as_json))


async def _list(uri: str | None, ids: bool, as_json: bool) -> None:
    async with connected(uri) as client:
        found = [ledger_id async for ledger_id in client.list()]
        if ids:
            if as_json:
                emit({"ledgers": found})
            else:
                print("\n".join(map(str, found)), end="\n" if found else "")
            return
        rows = await records_of(client, found)
        if as_json:
            emit({"ledgers": [listed_json(client, ledger_id, answer) for ledger_id, answer in rows]})
            return
    table(("LEDGER", "STATE", "LAST", "BYTES", "E/QW/QA", "FRAGMENTS"), [_row(known, answer) for known, answer in rows])
    for _, answer in rows:
        if isinstance(answer, MetadataError):
            remark(f"buckram: {answer}")


def _row(ledger_id: int, answer: LedgerMetadata | MetadataError) -> tuple[object, ...]:
    if isinstance(answer, MetadataError):
        return ledger_id, "unreadable", "", "", "", ""
    shape = f"{answer.ensemble_size}/{answer.write_quorum}/{answer.ack_quorum}"
    end = ("", "") if answer.last_entry is None else (answer.last_entry, answer.length)
    return ledger_id, STATES[answer.state], *end, shape, len(answer.fragments)


def _recover_command(ledger_id: int, password: str, yes: bool, uri: str | None, as_json: bool) -> None:
    question = f"Recover ledger {ledger_id}? A writer that is still alive is fenced: it cannot go on."
    confirm(question, yes, f"ledger {ledger_id} is not recovered")
    _print(ledger_id, run_async(_recover(uri, ledger_id, password)), as_json)


async def _recover(uri: str | None, ledger_id: int, password: str) -> LedgerMetadata:
    async with connected(uri) as client:
        reader = await client.recover(ledger_id, password=password)
        await reader.close()
        return await client.metadata(ledger_id)


@ledger.command("recover")
@click.argument("ledger_id", type=LEDGER)
@password_option
@yes_option
@cluster_options
def recover(ledger_id: int, password: str, yes: bool, uri: str | None, as_json: bool) -> None:
    """Fence the writer of a ledger, find its last entry, close it.

    Every entry that was acknowledged is kept. A live writer is fenced: its next append fails.

    \b
    Example:
      buckram ledger recover 7 --yes
    """
    _recover_command(ledger_id, password, yes, uri, as_json)


@ledger.command("close")
@click.argument("ledger_id", type=LEDGER)
@password_option
@yes_option
@cluster_options
def close(ledger_id: int, password: str, yes: bool, uri: str | None, as_json: bool) -> None:
    """Close like `recover`: A LIVE WRITER IS FENCED and cannot go on.

    Only the writer itself can close its ledger without that (`ledger write --close`).

    \b
    Example:
      buckram ledger close 7 --yes
    """
    _recover_command(ledger_id, password, yes, uri, as_json)


@ledger.command("delete")
@click.argument("ledger_id", type=LEDGER)
@click.option(
    "--force", is_flag=True, help="Delete it even if its bookies are gone, so that a live writer cannot be fenced."
)
@password_option
@yes_option
@cluster_options
def delete(ledger_id: int, force: bool, password: str, yes: bool, uri: str | None, as_json: bool) -> None:
    """Delete a ledger, whose live writer is fenced. A ledger that is open is recovered first.

    Bookies give the space back when they next compare their store with the metadata, so one that is down meanwhile
    holds its entries until then. Where too few bookies answer for a recovery, --force removes the ledger's metadata all
    the same: a writer that still reaches its bookies may go on until they collect the ledger, and what it wrote is
    lost. A ledger of a stream is refused, with --force, too: `stream delete --force` deletes it with its stream.

    \b
    Examples:
      buckram ledger delete 7 --yes
      buckram ledger delete 7 --force --yes
    """
    confirm_loss(f"Delete ledger {ledger_id} and all its entries?", yes, f"ledger {ledger_id} is not deleted")
    fenced = run_async(_delete(uri, ledger_id, password, force))
    if as_json:
        emit({"ledger": ledger_id, "deleted": True, "fenced": fenced})
        return
    print(f"ledger {ledger_id} deleted")
    if not fenced:
        print(
            "  it was not closed and its bookies are gone: a writer that reaches them may go on until they collect it"
        )


async def _delete(uri: str | None, ledger_id: int, password: str, force: bool) -> bool:
    async with connected(uri) as client:
        try:
            return await client.delete(ledger_id, password=password, force=force)
        except RecoveryFailed:
            remark(f"`buckram ledger delete {ledger_id} --force` deletes it without its bookies")
            raise
