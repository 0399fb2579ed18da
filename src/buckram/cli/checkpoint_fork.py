"""`buckram checkpoint verify` and `fork`: whether a checkpoint is whole, and copies as of a batch."""

from __future__ import annotations

import dataclasses

import click

from buckram.cli import values
from buckram.cli.exits import Exit
from buckram.cli.object import split
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import counted, emit
from buckram.errors import InvalidArgument
from buckram.spark.checkpoint_check import CheckpointCheck, check_checkpoint
from buckram.spark.checkpoint_fork import CheckpointFork, fork_checkpoint


@click.command("verify")
@click.argument("name")
@metadata_option
@json_option
def verify(name: str, uri: str | None, as_json: bool) -> None:
    """Check that all files that Spark needs are there and whole. If not, name them and exit with code 1.

    Checked are offsets and commits for gaps, the state of every partition as of the last batch, and the digests of all
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
@click.option("--batch", type=click.IntRange(min=0), help="As of this batch; default is the last one that was done.")
@click.option("--streams", is_flag=True, help="Fork the streams that the query reads, too.")
@click.option("--stream", "names", multiple=True, metavar="SOURCE=NAME", help="With --streams: the name of a fork.")
@metadata_option
@json_option
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


__all__ = ["fork", "verify"]
