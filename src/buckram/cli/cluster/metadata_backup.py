"""`buckram cluster backup`, `restore`, `accept-restore`, `salvage` and `collect`: what concerns the metadata's past."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared.options import (
    DIGESTS,
    cluster_options,
    cluster_uri,
    confirm_loss,
    connected,
    json_option,
    metadata_option,
    run_async,
    yes_option,
)
from buckram.cli.shared.output import emit, table
from buckram.errors import InvalidArgument

SHOWN = 20
"""Ledgers that a line names."""

if TYPE_CHECKING:
    from buckram.client.maintain.salvage import Found
    from buckram.metadata.maintain.backup import Backup
    from buckram.metadata.tree.store import TreeStore
    from buckram.types import BookieAddress, BookieId, History


async def open_tree(uri: str) -> TreeStore:
    from buckram.metadata.tree.store import TreeStore
    from buckram.metadata.uri import open_store

    store = await open_store(uri)
    assert isinstance(store, TreeStore)
    return store


@click.command("backup")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@cluster_options
def backup(file: Path, uri: str | None, as_json: bool) -> None:
    """Copy a cluster's metadata to a file. The cluster may be in use.

    \b
    Example:
      buckram cluster backup /srv/backups/metadata-monday
    """
    made = run_async(_backup(cluster_uri(uri), file))
    if as_json:
        emit(_described(made) | {"file": str(file), "keys": len(made.keys)})
    else:
        click.echo(f"{made.ledgers} ledgers, {len(made.keys)} keys of cluster {made.instance_id} are in {file}")


def _described(made: Backup) -> dict[str, Any]:
    return {
        "epoch": made.history.epoch,
        "ledgers": made.ledgers,
        "next_id": made.next_id,
        "instance_id": made.instance_id,
    }


async def _backup(uri: str, file: Path) -> Backup:
    from buckram.metadata.maintain.backup import copy_of, write_file

    store = await open_tree(uri)
    try:
        made = await copy_of(store)
    finally:
        await store.close()
    write_file(file, made)
    return made


@click.command("restore")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@metadata_option
@yes_option
@json_option
def restore(file: Path, uri: str | None, yes: bool, as_json: bool) -> None:
    """Make a metadata store hold what a backup holds. The store is an empty one, or the one that the backup is of.

    No client writes with it before `buckram cluster accept-restore`: bookies serve reads, clients refuse it.

    \b
    Example:
      buckram cluster restore /srv/backups/metadata-monday --metadata sqlite:///srv/buckram/metadata.db
    """
    from buckram.metadata.maintain.backup import read_file

    where, made = cluster_uri(uri), read_file(file)
    confirm_loss(
        f"Put {where} back to the {made.ledgers} ledgers of {file}?",
        yes,
        f"nothing is restored (a restore gives up everything in {where} that is not in {file})",
    )
    history, next_id = run_async(_restore(where, made))
    if as_json:
        emit(_described(made) | {"epoch": history.epoch, "next_id": next_id, "accepted": history.accepted})
    else:
        click.echo(f"{where} holds the {made.ledgers} ledgers of {file}")
        click.echo("now start all bookies, then: buckram cluster accept-restore")


async def _restore(uri: str, made: Backup) -> tuple[History, int]:
    from buckram.metadata.maintain.backup import restore

    store = await open_tree(uri)
    try:
        await restore(store, made)
        return await store.history(), await store.next_ledger_id()
    finally:
        await store.close()


@click.command("accept-restore")
@click.option(
    "--without",
    multiple=True,
    metavar="ID",
    help="Do not wait for this bookie, which will never come back; repeatable.",
)
@metadata_option
@yes_option
@json_option
def accept_restore(without: tuple[str, ...], uri: str | None, yes: bool, as_json: bool) -> None:
    """Begin a new epoch of a metadata store that went back. It was restored, or bookies report that it went back.

    Ids go on behind all that bookies hold. What they hold and the store does not know is kept until `buckram cluster
    collect`; `buckram cluster salvage` lists it and brings it back. What came back with the backup although bookies saw
    it deleted since is deleted again, and shown; streams begin after the segments that this was.

    \b
    Example:
      buckram cluster accept-restore --yes
    """
    where = cluster_uri(uri)
    confirm_loss(
        f"Go on with the metadata in {where} as it is now?",
        yes,
        f"the restore is not accepted (accepting it gives up the metadata that {where} does not hold, and deletes "
        "again what bookies saw deleted since)",
    )
    shown = run_async(_accept(where, without))
    if as_json:
        emit(shown)
        return
    click.echo(f"{where} goes on in epoch {shown['epoch']}, the next ledger is {shown['next_id']} or higher")
    again = shown["deleted_again"]
    if again:
        click.echo(
            f"{len(again)} ledgers came back with the backup although they were deleted since, their entries are gone: "
            f"they are deleted again: {_named(again)}"
        )
    for one in shown["lacking_records"]:
        records = f"from {one['first']} on" if one["end"] is None else f"{one['first']} to {one['end'] - 1}"
        lists = "does not list any more" if one["dropped"] else "lists, and cannot give to readers,"
        click.echo(f"stream {one['stream']} {lists} the records {records}: they were deleted since the backup")
    if shown["salvageable"]:
        click.echo(
            f"bookies hold {len(shown['salvageable'])} ledgers that the metadata does not know: buckram cluster salvage"
        )


def _named(ledgers: list[int]) -> str:
    more = "" if len(ledgers) <= SHOWN else f" and {len(ledgers) - SHOWN} more (all of them: --json)"
    return ", ".join(map(str, ledgers[:SHOWN])) + more


async def _accept(uri: str, without: tuple[str, ...]) -> dict[str, Any]:
    import random

    from buckram.client.maintain.salvage import bookie_addresses
    from buckram.metadata.maintain.acceptance import accept
    from buckram.streams.maintain.segment_list_repair import LackingRecords, begin_after_deleted
    from buckram.streams.shared.metadata import StreamStore

    store = await open_tree(uri)
    try:
        lacking: list[LackingRecords] = []

        async def repair() -> None:
            lacking.extend(await begin_after_deleted(StreamStore(store)))

        accepted = await accept(store, random.SystemRandom(), without, repair)
        found, _ = await _find(store, await bookie_addresses(store), ())
        return {
            "epoch": accepted.history.epoch,
            "deleted_again": accepted.deleted_again,
            "lacking_records": [one._asdict() for one in lacking],
            "ledgers": await _count(store),
            "next_id": await store.next_ledger_id(),
            "salvageable": [one.ledger_id for one in found],
        }
    finally:
        await store.close()


async def _count(store: TreeStore) -> int:
    total, after = 0, -1
    while page := await store.list_ledgers(after=after):
        total, after = total + len(page), page[-1]
    return total


async def _find(
    store: TreeStore, addresses: dict[BookieId, BookieAddress], ledgers: tuple[int, ...]
) -> tuple[list[Found], dict[BookieId, str]]:
    from buckram.client.maintain.salvage import opened
    from buckram.config import NetConfig
    from buckram.runtime.production import production_runtime

    async with opened(production_runtime(), NetConfig(), store, addresses) as asked:
        found = await (asked.look(list(ledgers)) if ledgers else asked.find())
        return found, asked.silent


@click.command("salvage")
@click.argument("ledgers", nargs=-1, type=click.IntRange(min=0))
@click.option("--bring-back", is_flag=True, help="Make metadata for the ledgers and recover them.")
@click.option("--password", default="", help="The password of the ledgers to be brought back; empty by default.")
@click.option("--digest", type=click.Choice(DIGESTS), help="Digest of the ledgers; default: found by reading them.")
@click.option("--birth", metavar="HEX", help="Birth of the ledger, if bookies hold several that had its id.")
@cluster_options
def salvage(
    ledgers: tuple[int, ...],
    bring_back: bool,
    password: str,
    digest: str | None,
    birth: str | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """List or bring back ledgers that metadata does not know. Bookies hold them.

    A ledger is brought back as one that all its holders keep whole, with its birth, and recovered with the password
    that you give; its custom metadata is lost, and of which stream it was part. A ledger whose deletion is recorded is
    neither listed nor brought back. One that Apache's clients deleted is listed: bring back only what is missing.

    \b
    Examples:
      buckram cluster salvage
      buckram cluster salvage 17 18 --bring-back
    """
    if bring_back and not ledgers:
        raise InvalidArgument("cluster salvage --bring-back: name the ledgers; `buckram cluster salvage` lists them")
    which = _birth(birth)
    shown = run_async(_salvage(cluster_uri(uri), ledgers, bring_back, password.encode(), digest, which))
    if as_json:
        emit(shown)
        return
    rows = [[one["ledger"], one["last_entry"], ", ".join(one["bookies"])] for one in shown["found"]]
    table(("ledger", "last entry", "bookies"), rows)
    for name, why in shown["silent"].items():
        click.echo(f"bookie {name} was not asked: {why}")
    if bring_back:
        click.echo(f"brought back: {', '.join(map(str, shown['brought_back'])) or 'none'}")


def _birth(text: str | None) -> bytes:
    from buckram.types import BIRTH_SIZE

    try:
        birth = bytes.fromhex(text or "")
    except ValueError:
        birth = b"?"
    if text is not None and len(birth) != BIRTH_SIZE:
        raise InvalidArgument(f"--birth {text}: a ledger's birth has {2 * BIRTH_SIZE} hexadecimal digits")
    return birth


async def _salvage(
    uri: str, ledgers: tuple[int, ...], bring_back: bool, password: bytes, digest: str | None, birth: bytes
) -> dict[str, Any]:
    from buckram.client.maintain.salvage import bookie_addresses

    store = await open_tree(uri)
    try:
        addresses = await bookie_addresses(store)
        found, silent = await _find(store, addresses, ledgers)
        known = [one for one in found if not await _is_known(store, one.ledger_id)]
        back = await _bring_back(uri, store, addresses, known, password, digest, birth) if bring_back else []
        history = await store.history()
    finally:
        await store.close()
    return {
        "epoch": history.epoch,
        "salvageable": [one.ledger_id for one in known if one.ledger_id not in back],
        "found": [
            {
                "ledger": one.ledger_id,
                "last_entry": one.last_entry,
                "bookies": sorted(one.holders),
                "births": sorted({birth.hex() for birth in one.births.values()}),
            }
            for one in known
        ],
        "brought_back": back,
        "silent": silent,
    }


async def _is_known(store: TreeStore, ledger_id: int) -> bool:
    from buckram.errors import NoSuchLedger

    try:
        await store.read_ledger(ledger_id)
    except NoSuchLedger:
        return False
    return True


async def _bring_back(
    uri: str,
    store: TreeStore,
    addresses: dict[BookieId, BookieAddress],
    found: list[Found],
    password: bytes,
    digest: str | None,
    birth: bytes,
) -> list[int]:
    from buckram.client.maintain.salvage import opened
    from buckram.client.shared.arguments import digest_type
    from buckram.config import NetConfig
    from buckram.runtime.production import production_runtime

    runtime, back = production_runtime(), []
    kind = None if digest is None else digest_type(digest)
    async with opened(runtime, NetConfig(), store, addresses) as asked, connected(uri) as client:
        for one in found:
            await asked.bring_back(one, password, kind, birth)
            async with client.recover(one.ledger_id, password=password):
                back.append(one.ledger_id)
    return back


@click.command("collect")
@metadata_option
@yes_option
@json_option
def collect(uri: str | None, yes: bool, as_json: bool) -> None:
    """Let bookies delete, once, what metadata does not list.

    This is for more at once than they do unasked, or for the first time after a restore.

    \b
    Example:
      buckram cluster collect --yes
    """
    where = cluster_uri(uri)
    confirm_loss(
        f"Let the bookies of {where} delete every ledger that its metadata does not know?",
        yes,
        f"bookies go on keeping what the metadata in {where} does not know",
    )
    history = run_async(_collect(where))
    if as_json:
        emit({"epoch": history.epoch})
    else:
        click.echo("each bookie does so in its next round of collection, once")


async def _collect(uri: str) -> History:
    import random

    from buckram.metadata.maintain.acceptance import allow_collection

    store = await open_tree(uri)
    try:
        await allow_collection(store, random.SystemRandom())
        return await store.history()
    finally:
        await store.close()
