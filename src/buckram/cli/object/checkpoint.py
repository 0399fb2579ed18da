"""`buckram checkpoint` and `buckram spark-conf`: checkpoints of Spark's queries on a gateway, and the settings with
which Spark keeps them there.

Checkpoints are listed, shown, verified, forked and expired. Not here: what is in a checkpoint, and whether it is whole
(`spark/checkpoints/`).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.object.commands import split
from buckram.cli.shared import completion, values
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, confirm_loss, connected, json_option, run_async, yes_option
from buckram.cli.shared.output import counted, emit, table
from buckram.core.streams.names import check_name
from buckram.errors import InvalidArgument, NoSuchObject
from buckram.runtime.net.security.logins import TOKEN_VARIABLE
from buckram.runtime.net.security.secure_network import tls_of_environment
from buckram.spark.checkpoints.contents import Checkpoint, describe, find
from buckram.spark.checkpoints.fork import CheckpointFork, fork_checkpoint
from buckram.spark.checkpoints.integrity_check import CheckpointCheck, check_checkpoint

if TYPE_CHECKING:
    from buckram.cluster import Client


@click.command("spark-conf")
@click.argument("uri")
@click.option(
    "--fewer-requests",
    is_flag=True,
    help="Half the requests for each file of a checkpoint. A repeated batch then keeps the state files of its first "
    "attempt, which matters only to queries whose results differ from run to run.",
)
@click.option(
    "--token/--no-token",
    default=None,
    help=f"Whether the gateways ask for tokens; default whether {TOKEN_VARIABLE} is set. The token itself is not "
    f"printed: each process takes it from {TOKEN_VARIABLE}.",
)
@click.option(
    "--tls-ca",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For swebhdfs://: the PEM file of the authority that signed the gateways' certificates. Java reads no such "
    "files, so a trust store is made of it. Java then trusts the authorities of FILE and no others. Default "
    "BUCKRAM_CA.",
)
@click.option(
    "--trust-store",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where the trust store goes, a path that must be the same on all machines; default is a file in ~/.cache.",
)
@json_option
def spark_conf(
    uri: str,
    fewer_requests: bool,
    token: bool | None,
    tls_ca: Path | None,
    trust_store: Path | None,
    as_json: bool,
) -> None:
    """Print what spark-defaults.conf needs for files on gateways. URI is webhdfs://HOST:PORT[,HOST:PORT...]/PATH.

    With several gateways paths begin with webhdfs://buckram/, and the client goes on with another gateway when one
    dies. In Python `buckram.spark.configure(builder, URI)` sets the same, and starts a relay between the driver and
    several gateways, which keeps running transfers alive when one dies.

    \b
    Examples:
      buckram spark-conf webhdfs://10.0.0.7:8080/ >> conf/spark-defaults.conf
      buckram spark-conf webhdfs://10.0.0.7:8080,10.0.0.8:8080/default/orders --json
      buckram spark-conf swebhdfs://spark.example.org:8443/ --tls-ca ca.pem --trust-store /etc/spark/gateways.p12
    """
    from buckram.spark.relay.hadoop_settings import OF_ENVIRONMENT, gateways, settings
    from buckram.spark.relay.trust_store import write_trust_store

    wanted = bool(os.environ.get(TOKEN_VARIABLE, "").strip()) if token is None else token
    if tls_ca is None and uri.startswith("swebhdfs:") and (inherited := tls_of_environment(os.environ).ca):
        tls_ca = Path(inherited)
    if trust_store is not None and tls_ca is None:
        raise InvalidArgument("--trust-store is made of the certificates that --tls-ca names; give both")
    settings(uri, trust_store=tls_ca)  # a URI that does not do is refused before anything is written
    made = None if tls_ca is None else write_trust_store(tls_ca, trust_store)
    given = OF_ENVIRONMENT if wanted else ""
    chosen = settings(uri, token=given, trust_store=made, fewer_requests=fewer_requests)
    if as_json:
        emit({"uri": gateways(uri).uri, "settings": chosen})
        return
    width = max(map(len, chosen))
    print(f"# Paths begin with {gateways(uri).root}/, for example {gateways(uri).uri or gateways(uri).root}")
    for name, value in chosen.items():
        print(f"{name.ljust(width)}  {value}")


@click.group()
def checkpoint() -> None:
    """Show, verify and fork checkpoints of Spark on gateways. Spark's streaming queries name them webhdfs://..."""


@click.command("verify")
@click.argument("name")
@cluster_options
def verify(name: str, uri: str | None, as_json: bool) -> None:
    """Check that all files that Spark needs are there and whole. If not, name them and exit with code 1.

    It checks offsets and commits for gaps, the state of every partition as of the last batch, and the digests of all
    these files.

    \b
    Example:
      buckram checkpoint verify shop/queries/orders
    """
    namespace, path = split(name)

    async def main() -> CheckpointCheck:
        async with connected(uri) as client, client.objects(namespace) as objects:
            return await check_checkpoint(objects, path)

    found = run_async(main())
    if as_json:
        shown = dataclasses.asdict(found) | {"checkpoint": f"{namespace}/{found.path}", "whole": not found.problems}
        del shown["path"]
        emit(shown)
    else:
        for problem in found.problems:
            print(problem)
        done = "no batch was done" if found.batch is None else f"batch {found.batch} is done"
        stores, files = counted(found.stores, "state store"), counted(found.files, "file")
        verdict = counted(len(found.problems), "problem") if found.problems else "whole"
        print(f"{name}: {verdict}; {done}, {stores}, {files} of {counted(found.bytes, 'byte')} read")
    if found.problems:
        raise click.exceptions.Exit(Exit.FAILED)


@click.command("fork")
@click.argument("source")
@click.argument("new")
@click.option(
    "--batch", type=click.IntRange(min=0), help="Copy it as of this batch; default the last one that was completed."
)
@click.option("--streams", is_flag=True, help="Fork the streams that the query reads, too.")
@click.option(
    "--stream", "names", multiple=True, metavar="SOURCE=NAME", help="With --streams, the name of a fork; repeatable."
)
@cluster_options
def fork(
    source: str, new: str, batch: int | None, streams: bool, names: tuple[str, ...], uri: str | None, as_json: bool
) -> None:
    """Copy a checkpoint as of a batch for another query.

    SOURCE is copied to NEW, with which the other query goes on. Both are of one namespace.

    With --streams the streams that the query reads are forked at the offsets of that batch, each under its name with
    the last part of NEW behind it: start the query with those names. A stream of another namespace needs a --stream.
    Bytes are shared, not copied. Its sink begins with the next batch, in a stream of its own: a new one, or a fork of
    the one that the query wrote, as of the same batch.

    \b
    Examples:
      buckram checkpoint fork shop/queries/orders shop/queries/orders-v2 --streams
      buckram checkpoint fork shop/queries/orders shop/repair --batch 118 --streams --stream shop/orders=shop/repaired
    """
    namespace, path = split(source)
    space, target = split(new)
    if space != namespace:
        raise InvalidArgument(f"{new}: a fork is in the namespace of its source, {namespace}")
    if names and not streams:
        raise InvalidArgument("--stream names the fork of a stream: add --streams")
    chosen = values.pairs("--stream", names)

    async def main() -> CheckpointFork:
        async with connected(uri) as client, client.objects(namespace) as objects:
            return await fork_checkpoint(client, objects, path, target, batch=batch, streams=streams, names=chosen)

    made = run_async(main())
    if as_json:
        emit(dataclasses.asdict(made))
        return
    print(f"checkpoint {made.checkpoint}: {made.source} after batch {made.batch}, query {made.query}")
    print(f"  {counted(made.files, 'file')} of {counted(made.bytes, 'byte')}")
    for name, forked in made.streams.items():
        print(f"  stream {forked}: {name} at offset {made.offsets[forked]}")
    print("  start the query with this checkpointLocation, these streams, and a sink of its own: a new stream, or a")
    print(f"  fork of the one that it wrote, as of batch {made.batch}")


checkpoint.add_command(verify)
checkpoint.add_command(fork)


async def _now_us(client: Client) -> int:
    """Return the cluster's time, by which the times of objects are recorded."""
    await client.services.clocks.ensure()
    return client.services.clocks.now()


async def _described(client: Client, namespace: str, path: str) -> list[Checkpoint]:
    async with client.objects(namespace) as objects:
        return [await describe(objects, one) for one in sorted([one async for one in find(objects, path)])]


@checkpoint.command("list")
@click.argument("place", default="default", shell_complete=completion.namespaces)
@cluster_options
def list_checkpoints(place: str, uri: str | None, as_json: bool) -> None:
    """List the checkpoints at PLACE and below it.

    PLACE is NAMESPACE or NAMESPACE/PATH. With --json each line is one checkpoint.

    \b
    Example:
      buckram checkpoint list shop
    """
    namespace, _, path = place.partition("/")
    check_name("namespace", namespace)

    async def main() -> tuple[list[Checkpoint], int]:
        async with connected(uri) as client:
            return await _described(client, namespace, path.strip("/")), await _now_us(client)

    found, now = run_async(main())
    if as_json:
        for one in found:
            emit(one.as_json(namespace, now))
        return
    rows = [
        (f"{namespace}/{one.path}", _number(one.batch), one.age_s(now), one.state_bytes, one.bytes, one.query)
        for one in found
    ]
    table(("CHECKPOINT", "BATCH", "AGE_S", "STATE_BYTES", "BYTES", "QUERY"), rows)


@checkpoint.command("show")
@click.argument("name")
@cluster_options
def show(name: str, uri: str | None, as_json: bool) -> None:
    """Show the query, batch, offsets, age and size of a checkpoint. The size is that of its state.

    \b
    Example:
      buckram checkpoint show shop/queries/orders
    """
    namespace, path = split(name)

    async def main() -> tuple[Checkpoint, int]:
        async with connected(uri) as client, client.objects(namespace) as objects:
            return await describe(objects, path), await _now_us(client)

    found, now = run_async(main())
    if as_json:
        emit(found.as_json(namespace, now))
        return
    print(f"{name}: query {found.query or 'unknown'}")
    print(f"  batch {_number(found.batch)} is done, {_number(found.planned)} was begun, {found.age_s(now)} s ago")
    for number, offset in enumerate(found.offsets):
        print(f"  source {number}: {offset}")
    print(f"  state of {found.state_bytes} bytes in {counted(found.state_files, 'file')}")
    print(f"  {found.bytes} bytes in {counted(found.files, 'file')} altogether")


@checkpoint.command("expire")
@click.argument("place", shell_complete=completion.namespaces)
@click.option(
    "--older", required=True, metavar="DURATION", help="Only checkpoints unchanged for this time, such as 30d."
)
@click.option("--dry-run", is_flag=True, help="Only report which, and delete nothing.")
@yes_option
@cluster_options
def expire(place: str, older: str, dry_run: bool, yes: bool, uri: str | None, as_json: bool) -> None:
    """Delete checkpoints whose queries have been idle for long.

    It examines those at PLACE and below it. Each is deleted in one step.

    A query that is started again without its checkpoint begins anew: stop it for good before its checkpoint expires.

    \b
    Examples:
      buckram checkpoint expire shop --older 30d --dry-run
      buckram checkpoint expire shop/queries --older 30d --yes
    """
    namespace, _, path = place.partition("/")
    check_name("namespace", namespace)
    if values.duration("--older", older) <= 0:
        raise InvalidArgument(f"--older {older}: needs more than 0 s, such as 30d")

    async def main() -> tuple[list[Checkpoint], int]:
        async with connected(uri) as client:
            found = await _described(client, namespace, path.strip("/"))
            return found, await values.past_moment(client, "--older", older)

    found, before = run_async(main())
    old = [one for one in found if one.changed <= before]
    if old and not dry_run:
        names = ", ".join(f"{namespace}/{one.path}" for one in old[:5]) + (", ..." if len(old) > 5 else "")
        what = counted(len(old), "checkpoint")
        confirm_loss(f"Delete {what} ({names})?", yes, f"{what} of {place} not deleted")
        old = run_async(_delete(namespace, old, before, uri))
    said: dict[str, Any] = {"place": place, "expired": [f"{namespace}/{one.path}" for one in old]}
    said |= {"bytes": sum(one.bytes for one in old), "kept": len(found) - len(old), "dry_run": dry_run}
    if as_json:
        emit(said)
        return
    for name in said["expired"]:
        print(f"{name}: {'would be deleted' if dry_run else 'deleted'}")
    print(f"{counted(len(old), 'checkpoint')} of {said['bytes']} bytes, {said['kept']} kept")


async def _delete(namespace: str, old: list[Checkpoint], before: int, uri: str | None) -> list[Checkpoint]:
    """Delete those that are still old, and return them."""
    gone = []
    async with connected(uri) as client, client.objects(namespace) as objects:
        for one in old:
            try:
                if (await describe(objects, one.path)).changed <= before:
                    await objects.remove(one.path, recursive=True)
                    gone.append(one)
            except NoSuchObject:
                continue
    return gone


def _number(batch: int | None) -> object:
    return "-" if batch is None else batch
