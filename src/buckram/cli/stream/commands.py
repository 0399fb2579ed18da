"""`buckram stream`: the commands create, list, show, set, truncate, delete, end and seal, and how they print a stream.

Not here: records (`cli/stream/write.py`, `cli/stream/read.py`), cursors (`cli/stream/cursor.py`), janitor and orphans
(`cli/stream/janitor.py`), history, imports and forks (`cli/stream/transfer.py`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from buckram.cli.namespace import policy_option, refuse_blanks, refuse_too_large
from buckram.cli.shared import completion, values
from buckram.cli.shared.lazy_group import LazyGroup
from buckram.cli.shared.options import (
    cluster_options,
    confirm,
    confirm_loss,
    connected,
    metadata_of,
    run_async,
    yes_option,
)
from buckram.cli.shared.output import counted, emit, table
from buckram.core.streams.names import DEFAULT_NAMESPACE, check_name, stream_name
from buckram.errors import AccessRefused, InvalidArgument, NoSuchKey, NoSuchNamespace
from buckram.serve.json_views.streams import cursor_json, info_json, segment_json, tiers_json, with_last_append

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.core.streams.metadata.head import Segment
    from buckram.namespace import Namespace
    from buckram.seams import KeyStore, MetadataStore
    from buckram.streams.info import StreamInfo
    from buckram.streams.read.cursors import CursorInfo

_takeover_option = click.option("--takeover", is_flag=True, help="Fence the present writer.")

PARTS = {
    "write": "buckram.cli.stream.write:write",
    "read": "buckram.cli.stream.read:read",
    "tail": "buckram.cli.stream.read:tail",
    "cursor": "buckram.cli.stream.cursor:cursor",
    "janitor": "buckram.cli.stream.janitor:janitor",
    "orphans": "buckram.cli.stream.janitor:orphans",
    "offload": "buckram.cli.stream.transfer:offload",
    "export": "buckram.cli.stream.transfer:export",
    "check": "buckram.cli.stream.transfer:check",
    "verify": "buckram.cli.stream.transfer:verify",
    "import": "buckram.cli.stream.transfer:import_",
    "fork": "buckram.cli.stream.transfer:fork",
}
OFFSET = click.IntRange(min=0)
_PAGE = 1000
_AT_ONCE = 32


@click.group(cls=LazyGroup, parts=PARTS)
def stream() -> None:
    """Create, write, read and manage streams. A stream's name is NAMESPACE/STREAM; without a slash it is in default."""


@stream.command("create")
@click.argument("name", shell_complete=completion.streams)
@policy_option
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a property, which is free text; repeatable.",
)
@click.option("--force", is_flag=True, help="Allow blanks in the name, and an ensemble of more bookies than exist.")
@cluster_options
def create(
    name: str, settings: tuple[str, ...], properties: tuple[str, ...], force: bool, uri: str | None, as_json: bool
) -> None:
    """Create an empty stream. `stream write` does so by itself.

    \b
    Example:
      buckram stream create shop/orders --set retention_s=30d --property owner=billing
    """
    full, chosen, words = stream_name(name), values.policy(settings), values.pairs("--property", properties)
    if not force:
        refuse_blanks(full)

    async def main() -> StreamInfo:
        async with connected(uri) as client:
            if not force:
                await refuse_too_large(client, chosen)
            return await client.namespace(full.namespace).create(full.stream, properties=words, **chosen)

    print_stream(run_async(main()), [], [], as_json)


@stream.command("list")
@click.argument("namespace", required=False, shell_complete=completion.namespaces)
@click.option("--prefix", default="", help="Only streams whose names, without the namespace, begin with this.")
@click.option("--long", "with_state", is_flag=True, help="Show purpose, offsets, segments and writer of each.")
@cluster_options
def list_streams(namespace: str | None, prefix: str, with_state: bool, uri: str | None, as_json: bool) -> None:
    """List the streams of a namespace, or of all, by their full names.

    \b
    Example:
      buckram stream list shop --long
    """

    async def main() -> tuple[list[str], list[StreamInfo]]:
        if not with_state:
            async with metadata_of(uri) as store:
                return await _names(store, namespace, prefix), []
        async with connected(uri) as client:
            names = await _names(client.services.store, namespace, prefix)
            found: list[StreamInfo] = []
            for begin in range(0, len(names), _AT_ONCE):
                found += await asyncio.gather(*(_info(client, one) for one in names[begin : begin + _AT_ONCE]))
            return names, found

    names, infos = run_async(main())
    if as_json:
        emit({"streams": [info_json(info) for info in infos] if with_state else names})
    elif with_state:
        head = ("STREAM", "PURPOSE", "EARLIEST", "END", "SEGMENTS", "LAST APPEND", "WRITER")
        rows = [
            (i.name, i.purpose.value, i.earliest, i.end, i.segments, last_append_text(i.last_append), writer_text(i))
            for i in infos
        ]
        table(head, rows)
    else:
        print("\n".join(names), end="\n" if names else "")


async def _names(store: MetadataStore, namespace: str | None, prefix: str) -> list[str]:
    from buckram.streams.shared.layout import Layout

    layout, keys = Layout(store), store.keys
    if namespace is not None and check_name("namespace", namespace) != DEFAULT_NAMESPACE:
        try:
            await keys.get(layout.namespace(namespace))
        except NoSuchKey:
            raise NoSuchNamespace(namespace) from None
    if namespace is not None:
        return [f"{namespace}/{bare}" for bare in await _all(keys, layout.heads(namespace), prefix)]
    found: list[str] = []
    for name in await _all(keys, layout.namespaces, ""):
        with suppress(AccessRefused):  # It is not for whoever asks, and he has not asked for it.
            found += [f"{name}/{bare}" for bare in await _all(keys, layout.heads(name), prefix)]
    return found


async def _all(keys: KeyStore, parent: str, prefix: str) -> list[str]:
    from buckram.streams.shared.layout import list_names

    found: list[str] = []
    while page := await list_names(keys, parent, prefix, found[-1] if found else "", _PAGE):
        found += page
    return found


async def _info(client: Client, full: str) -> StreamInfo:
    name = stream_name(full)
    ns = client.namespace(name.namespace)
    return await with_last_append(ns, await ns.info(name.stream))


@stream.command("show")
@click.argument("name", shell_complete=completion.streams)
@click.option("--segments", "with_segments", is_flag=True, help="Show every segment, too.")
@cluster_options
def show(name: str, with_segments: bool, uri: str | None, as_json: bool) -> None:
    """Show a stream: offsets, writer, policy, properties and cursors.

    \b
    Example:
      buckram stream show shop/orders --segments
    """
    full = stream_name(name)

    async def main() -> tuple[StreamInfo, list[CursorInfo], list[Segment]]:
        async with connected(uri) as client:
            ns = client.namespace(full.namespace)
            info = await with_last_append(ns, await ns.info(full.stream))
            rows = [row async for row in ns.segments(full.stream)]
            return info, await _cursors(ns, full.stream), rows

    info, cursors, rows = run_async(main())
    print_stream(info, cursors, rows if with_segments else [], as_json, tiers_json(rows))


async def _cursors(ns: Namespace, bare: str) -> list[CursorInfo]:
    found: list[CursorInfo] = []
    while page := await ns.cursors(bare, after=found[-1].name if found else "", limit=_PAGE):
        found += page
    return found


@stream.command("set")
@click.argument("name", shell_complete=completion.streams)
@policy_option
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", help="Set a property; repeatable.")
@click.option("--remove-property", "removed", multiple=True, metavar="KEY", help="Remove a property; repeatable.")
@click.option(
    "--schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The next version of the schema of its values, Avro's JSON of a record (.avsc).",
)
@cluster_options
def set_stream(
    name: str,
    settings: tuple[str, ...],
    properties: tuple[str, ...],
    removed: tuple[str, ...],
    schema: Path | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Change the policy, properties or schema of a stream. `none` takes a setting back to the namespace's.

    A schema may get new fields that are null by default, wider types (int to long or double, float to double) and null
    where there was none; Spark then reads and writes its fields as columns.

    \b
    Examples:
      buckram stream set shop/orders --set retention_bytes=10GiB --set retention_cursors=yes
      buckram stream set shop/orders --schema orders.avsc
    """
    text = None if schema is None else values.text_file("--schema", schema)
    full, chosen = stream_name(name), values.policy(settings)
    words: dict[str, str | None] = {**values.pairs("--property", properties), **dict.fromkeys(removed)}

    async def main() -> StreamInfo:
        async with connected(uri) as client:
            ns = client.namespace(full.namespace)
            if text is not None:
                await ns.set_schema(full.stream, text)
            if words:
                await ns.set_properties(full.stream, words)
            return await ns.set_policy(full.stream, **chosen)

    print_stream(run_async(main()), [], [], as_json)


@stream.command("truncate")
@click.argument("name", shell_complete=completion.streams)
@click.option("--before", type=OFFSET, help="Drop the records below this offset.")
@click.option("--before-time", metavar="TIME", help=f"Drop what was appended before: {values.MOMENTS}.")
@click.option(
    "--keep-bytes", metavar="SIZE", help="Drop the oldest segments that are not needed to keep this many bytes."
)
@click.option("--before-cursors", is_flag=True, help="Drop what every cursor has passed.")
@yes_option
@cluster_options
def truncate(
    name: str,
    before: int | None,
    before_time: str | None,
    keep_bytes: str | None,
    before_cursors: bool,
    yes: bool,
    uri: str | None,
    as_json: bool,
) -> None:
    """Drop the oldest records, exactly. Space follows by whole segments.

    \b
    Example:
      buckram stream truncate shop/orders --before 1000000 --yes
    """
    full = stream_name(name)
    if sum(choice is not None for choice in (before, before_time, keep_bytes)) + before_cursors != 1:
        raise InvalidArgument("give one of --before, --before-time, --keep-bytes and --before-cursors")
    kept = None if keep_bytes is None else values.size("--keep-bytes", keep_bytes)
    confirm_loss(
        f"Drop the oldest records of stream {full}? They cannot be read any more.",
        yes,
        f"stream {full} is not truncated",
    )

    async def main() -> int:
        async with connected(uri) as client:
            time = None if before_time is None else await values.past_moment(client, "--before-time", before_time)
            return await client.namespace(full.namespace).truncate(
                full.stream, before=before, before_time=time, keep_bytes=kept, before_cursors=before_cursors
            )

    earliest = run_async(main())
    if as_json:
        emit({"stream": str(full), "earliest": earliest})
    else:
        print(f"stream {full}: the earliest offset is {earliest}")


@stream.command("delete")
@click.argument("name", shell_complete=completion.streams)
@click.option(
    "--force", is_flag=True, help="Delete it even if its bookies are gone and a live writer cannot be fenced."
)
@click.option("--purpose", default="records", help="Purpose of the stream, needed unless it is records.")
@yes_option
@cluster_options
def delete(name: str, force: bool, purpose: str, yes: bool, uri: str | None, as_json: bool) -> None:
    """Delete a stream with its records, cursors and ledgers. A live writer is fenced.

    The log of a machine or of all objects of a namespace, or the audit trail, takes what it is for along, and is
    deleted only with its purpose, which `stream show` shows: machine, objects, audit. `db drop` deletes a database.

    \b
    Examples:
      buckram stream delete shop/orders --yes
      buckram stream delete shop/inventory --purpose machine --yes
    """
    from buckram.core.streams.metadata.purposes import Purpose, purpose_named

    full, owner = stream_name(name), purpose_named(purpose)
    what = "all its records" if owner is Purpose.RECORDS else f"everything that depends on it ({owner.value})"
    confirm_loss(f"Delete stream {full} and {what}?", yes, f"stream {full} is not deleted")

    async def main() -> None:
        async with connected(uri) as client:
            await client.namespace(full.namespace).delete(full.stream, force=force, purpose=owner.value)

    run_async(main())
    if as_json:
        emit({"stream": str(full), "deleted": True})
    else:
        print(f"stream {full} deleted")


def _closing(name: str, takeover: bool, uri: str | None, as_json: bool, *, end: bool) -> None:
    full = stream_name(name)

    async def main() -> int:
        async with connected(uri) as client:
            opening = client.namespace(full.namespace).writer(full.stream, create=False, takeover=takeover)
            async with opening as writer:
                return await writer.end() if end else writer.next_offset

    offset = run_async(main())
    if as_json:
        emit({"stream": str(full), "end": offset, "ended": end})
    else:
        print(f"stream {full}: {'ended' if end else 'sealed'} at offset {offset}")


@stream.command("end")
@click.argument("name", shell_complete=completion.streams)
@_takeover_option
@yes_option
@cluster_options
def end(name: str, takeover: bool, yes: bool, uri: str | None, as_json: bool) -> None:
    """Mark the end of a stream, which takes no more records.

    Readers that follow it end there. It can never be written again.

    \b
    Example:
      buckram stream end shop/orders --yes
    """
    full = stream_name(name)
    confirm_loss(f"End stream {full}? It can never be written again.", yes, f"stream {full} is not ended")
    _closing(name, takeover, uri, as_json, end=True)


@stream.command("seal")
@click.argument("name", shell_complete=completion.streams)
@_takeover_option
@yes_option
@cluster_options
def seal(name: str, takeover: bool, yes: bool, uri: str | None, as_json: bool) -> None:
    """Seal the segment that a writer left open when it died. The next writer would do the same.

    \b
    Example:
      buckram stream seal shop/orders
    """
    if takeover:
        question = f"Take stream {name} over? Its writer is fenced: its next append fails."
        confirm(question, yes, f"stream {name} is not sealed")
    _closing(name, takeover, uri, as_json, end=False)


# -- output -----------------------------------------------------------------------------------------------


def last_append_text(time_us: int) -> str:
    """Return the time of the last append (microseconds UTC) in ISO form; empty for 0, a stream without records."""
    return values.iso(time_us) if time_us else ""


def writer_text(info: StreamInfo) -> str:
    """Return the writer's name and whether it is gone, "ended" for a stream that has ended, or an empty text."""
    if info.ended or info.writer is None:
        return "ended" if info.ended else ""
    return f"{info.writer.name} (gone)" if info.writer_gone else info.writer.name


def print_stream(
    info: StreamInfo,
    cursors: list[CursorInfo],
    rows: list[Segment],
    as_json: bool,
    tiers: dict[str, dict[str, int]] | None = None,
) -> None:
    """Print a stream with its cursors, these segments, and the contents of each tier if `tiers` is given."""
    if as_json:
        shown = info_json(info) | {"cursors": [cursor_json(found) for found in cursors]}
        shown |= {"tier": tiers} if tiers is not None else {}
        emit(shown | ({"segment_list": [segment_json(row) for row in rows]} if rows else {}))
        return
    state = "ended" if info.ended else f"writer {writer_text(info)}" if info.writer else "no writer"
    segments = counted(info.segments, "segment")
    print(f"stream {info.name}: offsets {info.earliest}..{info.end} (not included), {segments}, {state}")
    if info.purpose.value != "records":
        print(f"  purpose {info.purpose.value}")
    if info.fork is not None:
        print(f"  fork of {info.fork.source} at offset {info.fork.at}")
    if info.last_append:
        print(f"  last append {values.iso(info.last_append)}")
    if tiers is not None and tiers["history"]["segments"]:
        old = tiers["history"]
        size = f"{counted(old['records'], 'record')}, {counted(old['bytes'], 'byte')}"
        print(f"  history: {counted(old['segments'], 'segment')}, {size}")
    print(f"  policy {values.shown_policy(dataclasses.asdict(info.policy))}")
    for key, value in info.properties.items():
        print(f"  {key} = {value}")
    for found in cursors:
        print(f"  cursor {found.name} at {found.offset}, lag {found.lag}")
    for row in rows:
        done = row.summary
        size = f"{counted(done.records, 'record')}, {counted(done.bytes, 'byte')}" if done else "open"
        place = f"ledger {row.ledger}" if row.offloaded is None else f"history at {row.offloaded.location}"
        print(f"  segment {row.number}: {place}, from offset {row.base}, {size}")
