"""`buckram replicate`: run, status, promote, reconcile. Namespaces of one cluster as mirrors in another one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.context_file import cluster_of_context
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import confirm_loss, connected, json_option, run_async, yes_option
from buckram.cli.shared.output import counted, emit, remark, table
from buckram.cli.shared.serving import notify_ready, service_log, stoppable
from buckram.core.streams.names import check_name
from buckram.errors import ReplicationRefused
from buckram.metadata.default import VARIABLE as METADATA

if TYPE_CHECKING:
    from buckram.replication.object_differences import KeptObjects, MissingObjects
    from buckram.replication.promotion import Promotion
    from buckram.replication.reconciling import StreamDifference
    from buckram.replication.run import Replication
    from buckram.replication.status import NamespaceStatus

_SOURCE = click.option("--from", "source", metavar="URI", required=True, help="The cluster to copy from.")
_TARGET = click.option("--to", "target", metavar="URI", required=True, help="The cluster to copy to.")
_RATE = click.option("--rate", metavar="SIZE", help="Maximum bytes copied per second, such as 50MiB; default no limit.")
_SKIP = click.option(
    "--skip-truncated",
    is_flag=True,
    help="Begin a mirror anew where the source truncated records before they were copied.",
)
_KEEP = click.option(
    "--keep-diverged",
    is_flag=True,
    help="Where the source went back, keep aside what only the mirror has, and begin it anew.",
)
_ON = click.option(
    "--on",
    "uri",
    metavar="URI",
    envvar=METADATA,
    callback=cluster_of_context,
    help="The cluster to ask; default BUCKRAM_METADATA, else the context's.",
)
_OTHER = click.option(
    "--other", default="", metavar="URI", help="URI of the other cluster, if it is not at the recorded one."
)


def _say_if_unasked(other: str) -> None:
    """Say why the other cluster is not looked for."""
    from buckram.replication.status import has_login

    if not other and has_login(os.environ):
        remark("credentials are set, and are not sent to a recorded address: name the other cluster with --other")


@click.group()
def replicate() -> None:
    """Replicate namespaces to another cluster, and fail over. Records are copied continuously; a promotion makes the
    copies writable when the other cluster is lost."""


@replicate.command("run")
@click.argument("places", nargs=-1, required=True, metavar="NAMESPACE|NAMESPACE/STREAM...")
@_SOURCE
@_TARGET
@click.option("--once", "ends", is_flag=True, help="End when everything that is there now is copied.")
@_RATE
@_SKIP
@_KEEP
@click.option("--listen", metavar="HOST:PORT", help="Serve metrics for Prometheus there; port 0 picks a free one.")
@json_option
def run(
    places: tuple[str, ...],
    source: str,
    target: str,
    ends: bool,
    rate: str | None,
    skip_truncated: bool,
    keep_diverged: bool,
    listen: str | None,
    as_json: bool,
) -> None:
    """Copy streams with their offsets, until Ctrl-C. With --once it ends when all is there. Each record once.

    A whole namespace is copied with its databases, machines, objects and grants. May be killed at any time, and run
    again: it goes on after the last record that the target has. The target holds mirrors, which refuse other writers
    until they are promoted.

    \b
    Examples:
      buckram replicate run --from zk://a:2181/ledgers --to zk://b:2181/ledgers shop
      buckram replicate run --from zk://a:2181/ledgers --to zk://b:2181/ledgers shop/orders logs --once
    """
    if ends:
        _once(places, source, target, rate, skip_truncated, keep_diverged, as_json)
        return
    with service_log("warning"):
        run_async(_follow(places, source, target, rate, skip_truncated, keep_diverged, listen, as_json))


@click.command("replicate")
@click.argument("places", nargs=-1, required=True, metavar="NAMESPACE|NAMESPACE/STREAM...")
@_SOURCE
@_TARGET
@_RATE
@_SKIP
@_KEEP
@json_option
def once(**given: Any) -> None:
    """Copy streams into another cluster as they are now. It is `buckram replicate run --once`.

    \b
    Example:
      buckram job replicate --from zk://a:2181/ledgers --to zk://b:2181/ledgers shop
    """
    _once(**given)


def _once(
    places: Sequence[str],
    source: str,
    target: str,
    rate: str | None,
    skip_truncated: bool,
    keep_diverged: bool,
    as_json: bool,
) -> None:
    async def main() -> Replication:
        from buckram.replication.run import Replication
        from buckram.replication.sides import side_of

        async with connected(source) as one, connected(target) as two:
            work = await Replication.prepare(
                await side_of(one),
                await side_of(two),
                places,
                pace=values.pace(rate),
                skip_truncated=skip_truncated,
                keep_diverged=keep_diverged,
            )
            await stoppable(work.once())
            return work

    work = run_async(main())
    found = [copying for _, copying in sorted(work.streams.items())]
    objects = [copying for _, copying in sorted(work.objects.items())]
    failed = sum(not copying.done for copying in found) + sum(not copying.done for copying in objects)
    for copying in found:
        if as_json and len(found) > 1:
            emit(copying.as_json())
        elif copying.trouble:
            remark(f"{copying.copy.name}: {copying.trouble}")
        elif not as_json:
            moved = counted(copying.copy.records, "record")
            print(f"{copying.copy.name}: {moved} copied, the mirror ends at offset {copying.copy.copied}")
            if copying.kept:
                print(f"  what only the mirror had is kept in {copying.kept}")
    for one in objects:
        if as_json and (one.copy.objects or one.copy.removed or one.trouble) and len(found) > 1:
            emit(one.as_json())
        elif one.trouble:
            remark(f"objects of {one.copy.name.namespace}: {one.trouble}")
        elif not as_json and (one.copy.objects or one.copy.removed):
            moved = f"{counted(one.copy.objects, 'object')} copied, {one.copy.removed} removed"
            print(f"objects of {one.copy.name.namespace}: {moved}")
            if one.kept:
                print(f"  what only the mirror had is kept in the namespace {one.kept}")
    if as_json:
        records, size = sum(one.copy.records for one in found), sum(one.copy.bytes for one in found)
        total: dict[str, Any] = {"streams": len(found), "failed": failed, "records": records, "bytes": size}
        total["objects"] = sum(one.copy.objects for one in objects)
        total["object_bytes"] = sum(one.copy.bytes for one in objects)
        single = found[0].as_json() if len(found) == 1 else {}
        emit({**total, "first_offset": None, "next_offset": None, **single})
    if failed:
        raise click.exceptions.Exit(Exit.FAILED)


async def _follow(
    places: Sequence[str],
    source: str,
    target: str,
    rate: str | None,
    skip_truncated: bool,
    keep_diverged: bool,
    listen: str | None,
    as_json: bool,
) -> None:
    from buckram.addresses import parse_address
    from buckram.replication.run import Replication
    from buckram.replication.sides import side_of
    from buckram.replication.status import show_replication
    from buckram.runtime.net.http_server import serve_http
    from buckram.runtime.net.tcp import TcpNetwork
    from buckram.runtime.process.stats import PrometheusStats
    from buckram.serve.cluster_exporter import Exporter

    address = None if listen is None else parse_address(listen, "--listen")
    async with connected(source, service="replication") as one, connected(target) as two:
        here, there = await side_of(one), await side_of(two)
        work = await Replication.prepare(
            here,
            there,
            places,
            pace=values.pace(rate),
            skip_truncated=skip_truncated,
            keep_diverged=keep_diverged,
        )

        async def shown(stats: PrometheusStats) -> None:
            await show_replication(work, here, there, stats)

        exporter = Exporter(shown, 5.0)

        async def both() -> None:
            looking = asyncio.ensure_future(exporter.run()) if address is not None else None
            try:
                await work.follow()
            finally:
                if looking is not None:
                    looking.cancel()

        listener = None if address is None else await serve_http(TcpNetwork(), address, exporter.answer)
        try:
            ended = stoppable(both())
            port = None if listener is None else listener.port
            if as_json:
                emit({"source": here.cluster, "target": there.cluster, "metrics_port": port, "pid": os.getpid()})
            else:
                remark(f"replicating {', '.join(places)} to cluster {there.cluster}; Ctrl-C ends it")
            notify_ready()
            await ended
        finally:
            if listener is not None:
                await listener.close()


@replicate.command("status")
@click.argument("namespaces", nargs=-1, shell_complete=completion.namespaces)
@_ON
@_OTHER
@json_option
def status(namespaces: tuple[str, ...], uri: str | None, other: str, as_json: bool) -> None:
    """Show which namespaces are replicated, and how far behind. The lag is in records, bytes and seconds.

    Lags are exact where both clusters can be reached. Otherwise the last recorded ones are shown.

    \b
    Examples:
      buckram replicate status --on zk://b:2181/ledgers
      buckram replicate status shop --on zk://b:2181/ledgers --json
    """

    async def main() -> list[NamespaceStatus]:
        from buckram.replication.sides import side_of
        from buckram.replication.status import replicated_namespaces, status_of

        async with connected(uri) as client:
            side = await side_of(client)
            names = namespaces or await replicated_namespaces(side)
            _say_if_unasked(other)
            found = [await status_of(side, check_name("namespace", name), other) for name in names]
            for name, one in zip(names, found, strict=True):
                if one is None:
                    await side.namespaces.get(name)
                    raise ReplicationRefused(name, "it is not replicated; `buckram replicate run` begins it")
            return [one for one in found if one is not None]

    found = run_async(main())
    if as_json:
        emit({"namespaces": [one.as_json() for one in found]})
        return
    for one in found:
        reached = "" if one.reached else ", which cannot be reached"
        print(f"{one.namespace}: {one.link.state}, epoch {one.link.epoch}; other side {one.link.cluster}{reached}")
    rows = [
        (lag.stream, lag.copied, _shown(lag.source_end), _shown(lag.records), _shown(lag.bytes), _shown(lag.seconds))
        for one in found
        for lag in one.streams
    ]
    if rows:
        table(("STREAM", "COPIED", "SOURCE_END", "LAG_RECORDS", "LAG_BYTES", "LAG_S"), rows)
    for one in found:
        if one.objects is not None:
            print(f"objects of {one.namespace}: {_told_objects(one.objects)}")
            if one.objects.trouble:
                print(f"  not copied since {values.iso(one.objects.since)}: {one.objects.trouble}")
        for lag in one.streams:
            if lag.trouble:
                print(f"{lag.stream}: not copied since {values.iso(lag.since)}: {lag.trouble}")
    if not found:
        print("nothing is replicated from or to this cluster")


def _told_objects(found: MissingObjects) -> str:
    if found.missing is None:
        known = f"copied up to version {_shown(found.copied_version)} of {_shown(found.source_version)} that is known"
        return f"{known}; what the other side has beyond is not known"
    missing = f"{counted(found.missing, 'object')} ({found.bytes} bytes) of the other side are missing here"
    return f"{missing}, {found.undeleted} that were deleted there are still here"


def _shown(value: float | None) -> float | str:
    return "" if value is None else value


@replicate.command("promote")
@click.argument("namespace", shell_complete=completion.namespaces)
@_ON
@_OTHER
@click.option("--force", is_flag=True, help="Promote even while the other side is alive; its writers are fenced first.")
@yes_option
@json_option
def promote(namespace: str, uri: str | None, other: str, force: bool, yes: bool, as_json: bool) -> None:
    """Make the mirrors of a namespace writable. Reports records and objects of the other side that were not copied.

    The other side takes no records from then on, or as soon as a replication meets it again if it cannot be reached
    now. Records that it has and that were not copied stay there: `buckram replicate reconcile` says which.

    \b
    Examples:
      buckram replicate promote shop --on zk://b:2181/ledgers
      buckram replicate promote shop --on zk://b:2181/ledgers --force --yes
    """
    check_name("namespace", namespace)
    if force:
        confirm_loss(
            f"Promote {namespace} here? Records that were not copied stay in the other cluster only.",
            yes,
            f"{namespace} was not promoted",
        )

    async def main() -> Promotion:
        from buckram.replication.promotion import promote as promoted
        from buckram.replication.sides import read_link, side_of
        from buckram.replication.status import other_side

        async with connected(uri) as client:
            side = await side_of(client)
            link = await read_link(side, namespace)
            if link is None:
                return await promoted(side, namespace, None)
            _say_if_unasked(other)
            async with other_side(link, other) as source:
                return await promoted(side, namespace, source, force=force)

    found = run_async(main())
    if as_json:
        emit(found.as_json())
        return
    print(f"{namespace}: promoted here, epoch {found.epoch}")
    for one in found.streams:
        if one.differs is not None:
            known = f"the other side went back and has other records from offset {one.differs} on"
        elif one.source_end is None:
            known = "what the other side has beyond is not known"
        elif one.missing:
            known = f"{counted(one.missing, 'record')} ({one.end} to {one.source_end - 1}) are only on the other side"
        elif one.compared:
            known = "every record that is known was copied"
        else:
            known = "no record is known to be missing, but nothing was compared with the other side"
        print(f"  {one.stream}: goes on at offset {one.end}; {known}{'' if one.exact else ', unknown beyond'}")
        if one.lacks_state:
            print("    its state is not here: no snapshot of it had been copied yet")
        for step in one.unfinished:
            print(f"    transaction {step} was not copied as a whole")
    if found.objects is not None:
        print(f"  objects: {_told_objects(found.objects)}")
        for name in found.objects.names[:20]:
            print(f"    {name} was not copied")
    for stream in found.only_there:
        print(f"  {stream}: only on the other side")
    if not found.fenced:
        print("  the other side could not be reached; its writers are refused when a replication meets it again")


@replicate.command("reconcile")
@click.argument("namespace", shell_complete=completion.namespaces)
@_ON
@click.option(
    "--other", default="", metavar="URI", help="URI of the promoted cluster, if it is not at the recorded one."
)
@click.option("--dry-run", is_flag=True, help="Only report which records only this side has, and change nothing else.")
@_RATE
@yes_option
@json_option
def reconcile(
    namespace: str, uri: str | None, other: str, dry_run: bool, rate: str | None, yes: bool, as_json: bool
) -> None:
    """Make a mirror of the side that a promotion replaced. It tells which records only this side has, and keeps them.

    They are copied, with their offsets, into streams NAME.kept-EPOCH of the same namespace, and objects into the
    namespace NAMESPACE.kept-EPOCH. Then the streams and objects are deleted here, and `buckram replicate run` in the
    other direction makes them anew.

    \b
    Examples:
      buckram replicate reconcile shop --on zk://a:2181/ledgers --other zk://b:2181/ledgers --dry-run
      buckram replicate reconcile shop --on zk://a:2181/ledgers --other zk://b:2181/ledgers --yes
    """
    check_name("namespace", namespace)
    found, objects = run_async(_reconciled(namespace, uri, other, None, rate))
    if not dry_run:
        kept = sum(one.records for one in found)
        things = f" and {counted(objects.objects, 'object')}" if objects is not None else ""
        confirm_loss(
            f"Keep {counted(kept, 'record')}{things} aside and delete {counted(len(found), 'stream')} here?",
            yes,
            f"{namespace} was not reconciled",
        )
        run_async(_reconciled(namespace, uri, other, found, rate))
    if as_json:
        streams = [one.as_json() for one in found]
        shown = None if objects is None else objects.as_json()
        emit({"namespace": namespace, "reconciled": not dry_run, "streams": streams, "objects": shown})
        return
    for one in found:
        if one.records:
            where = f"{'would be ' if dry_run else ''}kept in {one.kept}"
            print(f"{one.stream}: {counted(one.records, 'record')} ({one.first} to {one.end - 1}) only here, {where}")
            if one.others:
                print(f"  the other side has other records at {one.others} of these offsets, which stay there")
        elif not one.state:
            print(f"{one.stream}: no record is only here")
        if one.state:
            where = f"{'would be ' if dry_run else ''}kept in {one.kept}"
            print(f"{one.stream}: commands below {one.first} are only in its state here, which is {where}")
    if objects is not None and objects.objects:
        where = f"{'would be ' if dry_run else ''}kept in the namespace {objects.kept}"
        print(f"objects: {counted(objects.objects, 'object')} ({objects.bytes} bytes) only here, {where}")
    elif objects is not None:
        print("objects: no object is only here")


async def _reconciled(
    namespace: str, uri: str | None, other: str, found: Sequence[StreamDifference] | None, rate: str | None
) -> tuple[list[StreamDifference], KeptObjects | None]:
    """Return the differences; if `found` is given they are reconciled, provided that they are still the same."""
    from buckram.replication.reconciling import differences, differing_objects
    from buckram.replication.reconciling import reconcile as reconciled
    from buckram.replication.sides import read_link, side_of
    from buckram.replication.status import other_side

    async with connected(uri) as client:
        old = await side_of(client)
        link = await read_link(old, namespace)
        if link is None and not other:
            raise ReplicationRefused(
                namespace, "it is not replicated in this cluster, so there is nothing to reconcile"
            )
        _say_if_unasked(other)
        async with other_side(link, other) as new:
            if new is None:
                raise ReplicationRefused(
                    namespace,
                    "the promoted cluster cannot be reached; name it with --other, or wait until it can be reached",
                )
            if found is None:
                return await differences(old, new, namespace), await differing_objects(old, new, namespace)
            await reconciled(old, new, namespace, found, values.pace(rate))
            return list(found), None
