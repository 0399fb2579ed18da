"""`buckram cluster`: commands that make, check and remove a cluster's metadata, and set what its clients follow.

`init`, `check`, `pardon` and `nuke` are about the metadata as a whole, `require` sets what clients insist on, and
`accept-time` confirms clocks that were set. Not here: backups (`cli/cluster/metadata_backup.py`), the move to another
store (`cli/cluster/metadata.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.cluster.health_report import gathering, last_line, lines_of
from buckram.cli.cluster.metadata import move_metadata
from buckram.cli.cluster.metadata_backup import accept_restore, backup, collect, restore, salvage
from buckram.cli.shared import completion
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import (
    cluster_options,
    cluster_uri,
    confirm_loss,
    json_option,
    metadata_option,
    run_async,
    yes_option,
)
from buckram.cli.shared.output import counted, emit, table
from buckram.errors import ConfigError, InvalidArgument
from buckram.serve.json_views.ledgers import STATES

if TYPE_CHECKING:
    from buckram.health.gathering import Health
    from buckram.metadata.maintain.checkup import Checkup
    from buckram.metadata.tree.store import TreeStore

_MANAGERS = ("hierarchical", "longhierarchical", "flat")


@click.group()
def cluster() -> None:
    """Make, check and remove a cluster's metadata."""


@cluster.command("init")
@click.option("--manager", type=click.Choice(_MANAGERS), help="Ledger manager in ZooKeeper; default hierarchical.")
@cluster_options
def init(manager: str | None, uri: str | None, as_json: bool) -> None:
    """Make an empty cluster in a metadata store. If there is one already, it reports that and changes nothing.

    \b
    Examples:
      buckram cluster init --metadata sqlite:///var/lib/buckram/metadata.db
      buckram cluster init --metadata zk://zk1:2181,zk2:2181/ledgers
      buckram cluster init --metadata etcd://etcd1:2379,etcd2:2379/buckram
    """
    where = _with_manager(cluster_uri(uri), manager)
    instance, kept, created = run_async(_init(where))
    if as_json:
        emit({"uri": where, "instance_id": instance, "manager": kept, "created": created})
    else:
        click.echo(f"cluster {instance or 'without instance id'} in {where}{'' if created else ' was there already'}")
        click.echo(f"  ledgers: {kept}")


def _with_manager(uri: str, manager: str | None) -> str:
    """Return the URI that names the ledger manager; raises ConfigError if it names another one."""
    if manager is None:
        return uri
    from dataclasses import replace

    from buckram.metadata.uri import parse
    from buckram.metadata.zookeeper.ledger_managers import MANAGERS
    from buckram.metadata.zookeeper.uri import ZkUri

    parsed = parse(uri)
    if not isinstance(parsed, ZkUri):
        raise InvalidArgument(f"--manager {manager}: only ZooKeeper has ledger managers; leave it out for {uri}")
    if parsed.manager is not None and parsed.manager.name != manager:
        raise InvalidArgument(f"--manager {manager}: {uri} asks for {parsed.manager.name}; leave one of them out")
    return str(replace(parsed, manager=MANAGERS[manager]))


async def _open(uri: str) -> TreeStore:
    from buckram.metadata.tree.store import TreeStore
    from buckram.metadata.uri import open_store

    store = await open_store(uri)
    assert isinstance(store, TreeStore)
    return store


async def _init(uri: str) -> tuple[str, str, bool]:
    from buckram.errors import ClusterNotInitialised, WrongLedgerManager

    store = await _open(uri)
    try:
        try:
            before: str | None = await store.instance_id()
        except (ClusterNotInitialised, WrongLedgerManager):
            before = None  # a cluster without LAYOUT and ledgers can still get the manager
        instance = await store.initialise()
        return instance, await store.ledgers.manager_name(), before is None
    finally:
        await store.close()


@cluster.command("check")
@cluster_options
@click.pass_context
def check(context: click.Context, uri: str | None, as_json: bool) -> None:
    """Read all metadata of a cluster and report problems. It changes nothing.

    Exit code 1 if something is an error; warnings leave it at 0.

    \b
    Example:
      buckram cluster check --metadata zk://zk1:2181/ledgers
    """
    found, health = run_async(_check(cluster_uri(uri)))
    if as_json:
        emit(_as_json(found, health))
    else:
        _print(found, health)
    if not health.healthy:
        context.exit(Exit.FAILED)


async def _check(uri: str) -> tuple[Checkup, Health]:
    from buckram.errors import AccessRefused, MetadataUnavailable
    from buckram.health.gathering import refused, unreachable
    from buckram.metadata.maintain.checkup import Checkup, examine

    try:
        async with gathering(uri) as (store, gatherer):
            health = await gatherer.look()
            if health.facts.unreachable:
                return Checkup(uri), health
            found = await examine(store)
            return found, health.with_noted(tuple(found.problems))
    except AccessRefused as error:
        return Checkup(uri), refused(uri, error)
    except MetadataUnavailable as error:
        return Checkup(uri), unreachable(uri, error)


def _as_json(found: Checkup, health: Health) -> dict[str, object]:
    return {
        "uri": found.uri,
        "instance_id": found.instance_id,
        "manager": found.manager,
        "epoch": found.epoch,
        "writable": found.writable,
        "readonly": found.readonly,
        "cookies": found.cookies,
        "ledgers": {**{STATES[state]: count for state, count in found.ledgers.items()}, "unreadable": found.unreadable},
        "under_replicated": found.under_replicated,
        "away": found.away,
        "healthy": health.healthy,
        "problems": [
            {"node": one.where, "found": one.why, "advice": one.do, **one.as_json()} for one in health.findings
        ],
    }


def _names(bookies: list[str]) -> str:
    return f": {', '.join(sorted(bookies)[:10])}" if bookies else ""


def _print(found: Checkup, health: Health) -> None:
    cookies, under = counted(len(found.cookies), "cookie"), counted(found.under_replicated, "ledger")
    states = ", ".join(f"{count} {STATES[state]}" for state, count in found.ledgers.items())
    table(
        ("what", "found"),
        [
            ("cluster", found.uri),
            ("instance id", found.instance_id or "none"),
            ("ledger manager", found.manager or "unknown"),
            ("epoch", found.epoch or "none yet"),
            ("bookies", f"{len(found.writable)} writable, {len(found.readonly)} read-only, {cookies}"),
            ("ledgers", f"{states}, {found.unreadable} unreadable"),
            ("under-replicated", f"{under} with bookies that are away{_names(found.away)}"),
        ],
    )
    for finding in health.findings:
        click.echo("\n".join(lines_of(finding)))
    click.echo(last_line(health.findings))


@cluster.command("pardon")
@click.argument("bookie_id", shell_complete=completion.bookies)
@metadata_option
@yes_option
@json_option
def pardon(bookie_id: str, uri: str | None, yes: bool, as_json: bool) -> None:
    """Clear the suspicions recorded against a bookie. `buckram cluster check` calls it convicted or suspect.

    It gets new ensembles again. Do so when you know which program runs there and why it misbehaved.

    \b
    Example:
      buckram cluster pardon bookie-3:3181 --yes
    """
    confirm_loss(f"Let bookie {bookie_id} have new ensembles again?", yes, f"bookie {bookie_id} is not pardoned")
    there = run_async(_pardon(cluster_uri(uri), bookie_id))
    if as_json:
        emit({"bookie": bookie_id, "pardoned": there})
    else:
        click.echo(f"bookie {bookie_id} {'is pardoned' if there else 'was not accused of anything'}")


async def _pardon(uri: str, bookie_id: str) -> bool:
    from buckram.core.ledgers.service_info import check_bookie_id
    from buckram.metadata.records.bookie_health import pardon as forget

    check_bookie_id(bookie_id)
    store = await _open(uri)
    try:
        await store.instance_id()
        return await forget(store, bookie_id)
    finally:
        await store.close()


@cluster.command("nuke")
@click.option(
    "--instance-id", metavar="UUID", help="Instance id of the cluster to remove; `buckram cluster check` shows it."
)
@click.option("--force", is_flag=True, help="Remove it whatever its instance id is.")
@metadata_option
@yes_option
@json_option
def nuke(instance_id: str | None, force: bool, uri: str | None, yes: bool, as_json: bool) -> None:
    """Remove all metadata of a cluster: every ledger is lost. The metadata is in ZooKeeper or etcd.

    It is refused while bookies are registered or foreign nodes are below the root.

    \b
    Example:
      buckram cluster nuke --metadata zk://zk1:2181/ledgers --instance-id 0c9a2e4e-5a2f-4d0e-9a3b-0d6d5b6a7c81
    """
    where = cluster_uri(uri)
    if instance_id is None and not force:
        raise InvalidArgument("cluster nuke needs --instance-id UUID of the cluster to remove, or --force")
    _refuse_embedded(where)
    confirm_loss(f"Remove the cluster at {where} with all its ledgers?", yes, f"no ledger of {where} is removed")
    removed = run_async(_nuke(where, instance_id, force))
    if as_json:
        emit({"uri": where, "nodes_removed": removed})
    else:
        click.echo(f"cluster at {where} removed: {counted(removed, 'node')}")


def _refuse_embedded(uri: str) -> None:
    from buckram.metadata.uri import MetadataUri, parse

    parsed = parse(uri)
    if not isinstance(parsed, MetadataUri):
        return
    if parsed.scheme == "sqlite":
        name = Path(parsed.path).name
        raise ConfigError(
            f"{uri}: an embedded cluster is a file: stop its bookies and remove {parsed.path}, {name}-wal, {name}-shm, "
            f"{name}-durable and {name}.sessions beside it, and the bookies' directories"
        )
    raise ConfigError(f"{uri}: there is nothing to remove, such a cluster ends with its process")


async def _nuke(uri: str, instance_id: str | None, force: bool) -> int:
    from buckram.metadata.etcd.store import EtcdStore
    from buckram.metadata.zookeeper.cluster import nuke_cluster
    from buckram.metadata.zookeeper.store import ZooKeeperStore

    store = await _open(uri)
    try:
        if isinstance(store, EtcdStore):
            return await store.nuke(instance_id, force=force)
        assert isinstance(store, ZooKeeperStore)
        return await nuke_cluster(store.session, store.root, instance_id, force=force)
    finally:
        await store.close()


# -- require: what clients insist on ----------------------------------------------------------------------


@click.group()
def require() -> None:
    """Set what clients of a cluster must require. It applies until it is switched off."""


@require.command("identity")
@click.option("--off", is_flag=True, help="Withdraw it: bookies that do not identify themselves may be used again.")
@cluster_options
def identity(off: bool, uri: str | None, as_json: bool) -> None:
    """Refuse bookies that do not identify themselves. Those are Apache's, and bookies of earlier releases.

    Clients read this when they connect and follow it: connections to such a bookie are closed, and it gets no new
    ledgers. Ledgers that only such bookies hold cannot be read meanwhile.

    \b
    Examples:
      buckram cluster require identity --metadata sqlite:///var/lib/buckram/metadata.db
      buckram cluster require identity --off
    """
    where = cluster_uri(uri)
    silent = run_async(_set(where, required=not off))
    if as_json:
        emit({"uri": where, "identity_required": not off, "silent_bookies": silent})
        return
    click.echo(f"{where}: bookies {'need not' if off else 'must'} identify themselves")
    for name in silent:
        click.echo(f"  bookie {name} does not{'' if off else ': clients refuse it until it is upgraded'}")


async def _set(uri: str, *, required: bool) -> list[str]:
    """Set the requirement; return the registered bookies that do not identify themselves."""
    from buckram.core.wire.introduction import answers_introductions
    from buckram.metadata.uri import open_store

    store = await open_store(uri)
    try:
        await store.instance_id()
        await store.require_identity(required)
        seen = await store.bookies()
    finally:
        await store.close()
    registered = {**seen.readonly, **seen.writable}
    return sorted(name for name, info in registered.items() if not answers_introductions(info))


# -- accept-time: clocks that were set --------------------------------------------------------------------


@click.command("accept-time")
@metadata_option
@yes_option
@json_option
def accept_time(uri: str | None, yes: bool, as_json: bool) -> None:
    """Accept clocks that were set. Bookies do so by themselves in an hour, if nothing speaks against it.

    Until then nothing is ended by its age. Run it on a machine whose clock is right: bookies that show the same time
    accept their clocks within seconds, and their clients follow them. What has ended by that time goes then.

    \b
    Example:
      buckram cluster accept-time --yes
    """
    from buckram.core.cluster.wall_time import shown
    from buckram.runtime.production import production_runtime

    where = cluster_uri(uri)
    now = production_runtime().clock.wall_us()
    confirm_loss(
        f"Is the time {shown(now)}?",
        yes,
        f"the time is not accepted (what has ended by {shown(now)} is deleted as soon as bookies accept it)",
    )
    recorded = run_async(_accept(where, now))
    if as_json:
        emit({"accepted_us": now, "accepted": shown(now), "recorded_us": recorded})
        return
    click.echo(f"bookies whose clocks show {shown(now)} accept them within 15 s (`buckram doctor` names the others)")


async def _accept(uri: str, now: int) -> dict[str, Any]:
    """Write it down; what bookies recorded before."""
    from buckram.core.cluster.wall_time import shown
    from buckram.metadata.records.pending_audit_events import leave_note
    from buckram.metadata.records.recorded_time import read_times, write_accepted
    from buckram.metadata.uri import open_store

    store = await open_store(uri)
    try:
        await store.instance_id()
        await write_accepted(store, now)
        await leave_note(store, "accept", "time", detail=shown(now))
        return {bookie: one.time_us for bookie, one in (await read_times(store)).items()}
    finally:
        await store.close()


for command in (require, backup, restore, accept_restore, accept_time, salvage, collect, move_metadata):
    cluster.add_command(command)
