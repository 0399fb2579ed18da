"""`buckram stream fork`: a new stream with the records of another one below an offset."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from buckram.cli.namespace import policy_option
from buckram.cli.shared import completion, values
from buckram.cli.shared.options import connected, json_option, metadata_option, run_async
from buckram.cli.shared.output import counted, emit
from buckram.core.streams.names import stream_name

if TYPE_CHECKING:
    from buckram.streams.maintain.fork import StreamFork


@click.command("fork")
@click.argument("source", shell_complete=completion.streams)
@click.argument("name")
@click.option(
    "--at",
    metavar="OFFSET|TIME",
    help=f"The records below this offset, or from before a time: {values.MOMENTS}; default all.",
)
@policy_option
@metadata_option
@json_option
def fork(source: str, name: str, at: str | None, settings: tuple[str, ...], uri: str | None, as_json: bool) -> None:
    """Make a stream of the records of another below an offset.

    NAME becomes a stream in the same namespace as SOURCE. Both go on by themselves.

    They share the segments that are whole below the offset: these are stored once, and deleted when neither stream
    needs them. The records of the segment in which the offset lies are copied. Whoever writes SOURCE is not disturbed.

    \b
    Examples:
      buckram stream fork shop/orders shop/orders-repaired --at 120000
      buckram stream fork shop/orders shop/yesterday --at 1d
    """
    origin, full, chosen = stream_name(source), stream_name(name), values.policy(settings)

    async def main() -> StreamFork:
        async with connected(uri) as client:
            offset, time = values.offset_or_moment("--at", at, client.services.clocks.now())
            ns = client.namespace(origin.namespace)
            return await ns.fork_stream(origin.stream, str(full), offset=offset, time=time, **chosen)

    made = run_async(main())
    if as_json:
        emit(dataclasses.asdict(made))
        return
    print(f"stream {made.stream}: {made.source} at offset {made.offset}, from offset {made.earliest} on")
    print(f"  {counted(made.shared_segments, 'segment')} shared ({counted(made.shared_bytes, 'byte')}), ", end="")
    print(f"{counted(made.copied_bytes, 'byte')} copied")
    if not made.producers:
        print("  sequences of idempotent producers as of that offset are not known: producers begin anew there")


__all__ = ["fork"]
