"""`buckram metadata` shows what the metadata store holds; `buckram cluster move-metadata` moves it to another store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from buckram.cli.cluster.metadata_backup import open_tree
from buckram.cli.shared.options import cluster_options, cluster_uri, confirm, json_option, run_async, yes_option
from buckram.cli.shared.output import counted, emit, print_ledger, progress
from buckram.serve.json_views.ledgers import ledger_json

if TYPE_CHECKING:
    from buckram.metadata.maintain.migration import Moved


# -- buckram metadata -------------------------------------------------------------------------------------


@click.group()
def metadata() -> None:
    """Show what the metadata store holds."""


@metadata.command("show")
@click.argument("ledger_id", type=click.IntRange(min=0))
@cluster_options
def show(ledger_id: int, uri: str | None, as_json: bool) -> None:
    """Show a ledger's record as the metadata store has it. Version, format and fragments are shown, too.

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


# -- buckram cluster move-metadata ------------------------------------------------------------------------


@click.command("move-metadata")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--abandon", is_flag=True, help="Give up a move that was interrupted, and use FROM again.")
@yes_option
@json_option
def move_metadata(source: str, target: str, abandon: bool, yes: bool, as_json: bool) -> None:
    """Move a cluster's metadata to another store, of any kind. Both are compared key by key.

    The bookies have to be stopped, or read-only; exit code 2 names those that are not. Meanwhile clients refuse both
    stores; afterwards they refuse FROM, and the cluster goes on at TO. After an
    interruption the same command goes on where it was. TO has to be empty.

    \b
    Examples:
      buckram cluster move-metadata sqlite:///srv/buckram/metadata.db etcd://etcd1:2379/buckram
      buckram cluster move-metadata zk://zk1:2181/ledgers etcd://etcd1:2379/buckram
    """
    from buckram.metadata.uri import parse

    here, there = str(parse(source)), str(parse(target))  # without passwords
    if abandon:
        run_async(_abandon(source, target))
        if as_json:
            emit({"from": here, "to": there, "abandoned": True})
        else:
            click.echo(f"{here} is used again; the copy in {there} is not")
        return
    confirm(f"Move the metadata in {here} to {there}?", yes, "nothing is moved")
    done = run_async(_move(source, target, show=not as_json))
    if as_json:
        emit({"from": here, "to": there, **asdict(done)})
        return
    what = f"{counted(done.ledgers, 'ledger')}, {counted(done.keys, 'key')} of cluster {done.instance_id}"
    click.echo(f"{what} {'were moved before' if done.again else 'are moved and compared'}, epoch {done.epoch}")
    click.echo(f"now start the bookies with --metadata {there}, and give it to all clients")


async def _move(source: str, target: str, *, show: bool) -> Moved:
    import random

    from buckram.metadata.maintain.migration import move

    with contextlib.ExitStack() as shown:
        advance: Callable[[int], None] = lambda count: None  # noqa: E731 - until it is known how many there are

        def started(total: int) -> None:
            nonlocal advance
            advance = shown.enter_context(progress("keys", total, show=show))

        async with contextlib.AsyncExitStack() as opened:
            here = await open_tree(source)
            opened.push_async_callback(here.close)
            there = await open_tree(target)
            opened.push_async_callback(there.close)
            return await move(here, there, random.SystemRandom(), started, lambda count: advance(count))


async def _abandon(source: str, target: str) -> None:
    from buckram.metadata.maintain.migration import abandon

    async with contextlib.AsyncExitStack() as opened:
        here = await open_tree(source)
        opened.push_async_callback(here.close)
        there = await open_tree(target)
        opened.push_async_callback(there.close)
        await abandon(here, there)
