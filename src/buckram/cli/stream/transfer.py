"""`buckram stream import`, `fork`, `offload`, `export`, `check` and `verify`: records from elsewhere and to there.

`import` makes records of rows of Parquet, JSON lines or CSV, `fork` makes a stream of another one's records, `offload`
and `export` make files of segments, and `check` and `verify` tell whether those are right.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from buckram.cli.namespace import policy_option
from buckram.cli.shared import completion, values
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, connected, run_async
from buckram.cli.shared.output import counted, emit, progress, remark
from buckram.cli.stream.janitor import janitor_places
from buckram.core.streams.external.imports import FORMATS, TIME_UNITS, ImportColumns
from buckram.core.streams.names import stream_name
from buckram.errors import AccessRefused, InvalidArgument, StreamExists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from buckram.cluster import Client
    from buckram.core.streams.metadata.head import Head, Segment
    from buckram.core.streams.policy import Policy
    from buckram.streams.maintain.fork import StreamFork
    from buckram.streams.maintain.history.export import ExportReport
    from buckram.streams.maintain.history.verify import VerifyReport
    from buckram.streams.maintain.imports import ImportReport
    from buckram.streams.maintain.offload import OffloadReport, StreamCheck

_rate_option = click.option(
    "--rate", metavar="SIZE", help="Maximum bytes read per second, such as 50MiB; default no limit."
)


# -- import -----------------------------------------------------------------------------------------------


@click.command("import")
@click.argument("name", shell_complete=completion.streams)
@click.option("--from", "url", metavar="URL", required=True, help="Source: a file, a directory, or a URL of fsspec.")
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="Format of the files.")
@click.option("--value", default="", metavar="COL", help="Column of the value; default `value`, or the line of JSON.")
@click.option("--key", default="", metavar="COL", help="Column of the key; default `key`, if there is one.")
@click.option("--time", default="", metavar="COL", help="Column of the event time; default `timestamp`.")
@click.option("--headers", default="", metavar="COL", help="Column of the headers, in Parquet; default `headers`.")
@click.option(
    "--time-unit",
    type=click.Choice(tuple(TIME_UNITS)),
    default="us",
    show_default=True,
    help="Unit of times that are numbers.",
)
@click.option("--run", default="", metavar="NAME", help="Import the same source once more, under this name.")
@click.option("--rate", metavar="SIZE", help="Maximum bytes written per second, such as 50MiB; default no limit.")
@cluster_options
def import_(
    name: str,
    url: str,
    kind: str,
    value: str,
    key: str,
    time: str,
    headers: str,
    time_unit: str,
    run: str,
    rate: str | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Import files into a stream, made if it does not exist. Each row is imported once.

    It may be killed at any time, and repeated: it goes on where it was, and takes files that came after the others. A
    row that is no record is refused with file and line, and nothing of its range is imported.

    \b
    Examples:
      buckram stream import shop/orders --from /data/orders --format jsonl --key customer
      buckram stream import shop/orders --from s3://lake/orders --format parquet --value body --time placed_at
    """
    from buckram.streams.maintain.import_sources import ImportSource
    from buckram.streams.maintain.imports import import_files, plan_import
    from buckram.streams.shared.metadata import StreamStore

    full, columns = stream_name(name), ImportColumns(value, key, time, headers, time_unit)
    pace = values.pace(rate)
    if url.startswith("kafka://"):
        raise InvalidArgument(f"--from {url[:100]}: topics are imported on Spark, by `buckram job import-kafka`")
    source = ImportSource(values.place(url or "."))

    async def main() -> ImportReport:
        async with connected(uri) as client:
            streams, ns = StreamStore(client.services.store), client.namespace(full.namespace)
            if not await ns.exists(full.stream):
                with suppress(StreamExists):
                    await ns.create(full.stream)
            work = await plan_import(streams, full, source, kind, columns, run=run)
            with progress("bytes", work.bytes, show=not as_json) as advance:
                return await import_files(client, streams, work, source, pace=pace, progress=advance)

    report = run_async(main())
    if as_json:
        emit(dataclasses.asdict(report))
        return
    size = f"{counted(report.records, 'record')}, {counted(report.bytes, 'byte')}"
    print(f"stream {full}: {counted(report.files, 'file')} of {report.source} ({size})")
    if report.known:
        print(f"  {counted(report.known, 'file')} imported before")
    if report.ignored:
        remark(f"{counted(report.ignored, 'file')} of other kinds left out")


# -- fork -------------------------------------------------------------------------------------------------


@click.command("fork")
@click.argument("source", shell_complete=completion.streams)
@click.argument("name")
@click.option(
    "--at",
    metavar="OFFSET|TIME",
    help=f"The records below this offset, or from before a time: {values.MOMENTS}; default all.",
)
@policy_option
@cluster_options
def fork(source: str, name: str, at: str | None, settings: tuple[str, ...], uri: str | None, as_json: bool) -> None:
    """Make a stream of the records of another below an offset.

    NAME becomes a stream in the same namespace as SOURCE. Both go on by themselves.

    They share the segments that are whole below the offset: these are stored once, and deleted when neither stream
    needs them. The records of the segment in which the offset lies are copied. The writer of SOURCE is not disturbed.
    It may be killed at any time, and repeated.

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
        print("  the sequences of idempotent producers at that offset are unknown: producers start anew there")


# -- segments as files elsewhere --------------------------------------------------------------------------


@click.command("offload")
@click.argument("name", shell_complete=completion.streams)
@click.option(
    "--to", "location", metavar="URL", help="Destination: a directory or a URL of fsspec; default the policy's."
)
@click.option("--before", type=click.IntRange(min=0), help="Only segments that end at or below this offset.")
@click.option("--before-time", metavar="TIME", help=f"Only what was appended before: {values.MOMENTS}.")
@_rate_option
@cluster_options
def offload(
    name: str,
    location: str | None,
    before: int | None,
    before_time: str | None,
    rate: str | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Move sealed segments to Parquet files outside the cluster. They are read as before, and free bookies' disks.

    Each file is read back and compared before it takes the place of a ledger, which the janitor deletes an hour later.
    It may be killed at any time, and repeated. The segment with the newest producers' table stays on bookies.

    \b
    Example:
      buckram stream offload shop/orders --to s3://lake/history --before-time 7d
    """
    from buckram.streams.maintain.offload import offload_planned, plan_offload
    from buckram.streams.shared.metadata import StreamStore

    full = stream_name(name)
    if before is not None and before_time is not None:
        raise InvalidArgument("give one of --before and --before-time")
    pace = values.pace(rate)

    async def main() -> OffloadReport:
        async with connected(uri) as client:
            streams = StreamStore(client.services.store)
            time = None if before_time is None else await values.past_moment(client, "--before-time", before_time)

            def wanted(_: Head, rows: Sequence[Segment], __: Policy) -> list[Segment]:
                return [row for row in rows if _is_before(row, before, time)]

            work = await plan_offload(streams, full, to=location, wanted=wanted)
            if location is None:
                await _check_policy_place(client, full.namespace, work.policy.offload_to)
            with progress("bytes", work.bytes, show=not as_json) as advance:
                return await offload_planned(client, streams, work, pace=pace, progress=advance)

    report = run_async(main())
    if as_json:
        emit(dataclasses.asdict(report))
    else:
        size = f"{counted(report.records, 'record')}, {counted(report.bytes, 'byte')}"
        print(f"stream {full}: {counted(report.segments, 'segment')} offloaded to {report.location} ({size})")
        if report.kept:
            remark("the segment with the newest producers' table stays on bookies")
    if report.put_off:
        remark(f"put off: {counted(report.put_off, 'segment')} changed meanwhile; offload again")
        raise click.exceptions.Exit(Exit.FAILED)


async def _check_policy_place(client: Client, namespace: str, location: str) -> None:
    """Raise InvalidArgument if others may set policies, and the operator has not listed the place that this one
    names."""
    from buckram.metadata.records.security import SecurityStore

    places = janitor_places()[1]
    if not places.listed:
        try:
            if not (await SecurityStore(client.services.store).acl()).grants:
                return
        except AccessRefused:  # Whoever may not see grants is held to his own, and acts for himself.
            return
    try:
        places.check_policy(namespace, location)
    except InvalidArgument as error:
        raise InvalidArgument(f"{error}; --to {location} has it there this once") from None


def _is_before(row: Segment, offset: int | None, time: int | None) -> bool:
    if row.summary is None:
        return False
    return (offset is None or row.end <= offset) and (time is None or row.summary.last_append < time)


@click.command("export")
@click.argument("name", shell_complete=completion.streams)
@click.option("--to", "location", metavar="URL", required=True, help="Destination: a directory or a URL of fsspec.")
@click.option("--prune", is_flag=True, help="Delete exported files whose records are all truncated.")
@_rate_option
@cluster_options
def export(name: str, location: str, prune: bool, rate: str | None, uri: str | None, as_json: bool) -> None:
    """Copy sealed segments to Parquet files outside the cluster. The stream keeps them, too.

    Only what is not there yet is copied, so repeat it as often as you like. Files and table are those of an offload.
    It may be killed at any time.

    \b
    Example:
      buckram stream export shop/orders --to s3://lake/tables
    """
    from buckram.streams.maintain.history.export import export_stream, plan_export
    from buckram.streams.shared.metadata import StreamStore

    full = stream_name(name)
    pace = values.pace(rate)

    async def main() -> ExportReport:
        async with connected(uri) as client:
            streams = StreamStore(client.services.store)
            work = await plan_export(streams, full, values.place(location))
            with progress("bytes", work.bytes, show=not as_json) as advance:
                return await export_stream(client, streams, work, prune=prune, pace=pace, progress=advance)

    report = run_async(main())
    if as_json:
        emit(dataclasses.asdict(report))
        return
    size = f"{counted(report.records, 'record')}, {counted(report.bytes, 'byte')}"
    print(f"stream {full}: {counted(report.segments, 'segment')} exported to {report.location} ({size})")
    if report.table:
        print(f"  table {report.table}")
    if report.missed:
        remark(f"{counted(report.missed, 'record')} were truncated before they were exported")


@click.command("check")
@click.argument("name", shell_complete=completion.streams)
@click.option("--adopt", is_flag=True, help="First mark ledgers in its list that have no owner as its own.")
@cluster_options
def check(name: str, adopt: bool, uri: str | None, as_json: bool) -> None:
    """Check that a stream's segments are there and are in order. All files of its history are read, too.

    The copies on bookies are not read: `buckram ledger check` and `buckram job scrub` do that. Exit code 1 if something
    is wrong.

    Servers read and delete no ledger that was not made for the stream. --adopt, for administrators, is for ledgers of
    other software that somebody put into the list: it gives the stream those whose records name no owner.

    \b
    Examples:
      buckram stream check shop/orders
      buckram stream check shop/imported --adopt
    """
    from buckram.streams.maintain.offload import check_stream
    from buckram.streams.maintain.segment_list_repair import adopt_ledgers
    from buckram.streams.shared.metadata import StreamStore

    full = stream_name(name)

    async def main() -> StreamCheck:
        async with connected(uri) as client:
            streams = StreamStore(client.services.store)
            adopted = await adopt_ledgers(client, streams, full) if adopt else []
            found = await check_stream(client, streams, full)
            found.adopted += adopted
            return found

    found = run_async(main())
    if as_json:
        emit(dataclasses.asdict(found))
    else:
        read = f"{counted(found.records, 'record')} in {counted(found.bytes, 'byte')}"
        print(f"stream {full}: {counted(found.segments, 'segment')}, {found.history} of them history ({read})")
        if found.adopted:
            print(f"  adopted: {counted(len(found.adopted), 'ledger')} ({', '.join(map(str, found.adopted))})")
        for problem in found.problems:
            print(f"  {problem}")
    if found.problems:
        raise click.exceptions.Exit(Exit.FAILED)


@click.command("verify")
@click.argument("a", shell_complete=completion.streams)
@click.argument("b", shell_complete=completion.streams)
@click.option("--other-metadata", metavar="URI", help="The cluster of stream B; default the same one.")
@click.option("--rate", metavar="SIZE", help="Maximum bytes compared per second, such as 50MiB; default no limit.")
@cluster_options
def verify(a: str, b: str, other_metadata: str | None, rate: str | None, uri: str | None, as_json: bool) -> None:
    """Compare a stream, record by record, with another one.

    B is a stream, or the place that A was exported or offloaded to.

    Two streams are compared from where both begin, and must end at the same offset. Files are compared as far as they
    go. Exit code 1 if there is a difference; the first one is reported.

    \b
    Examples:
      buckram stream verify shop/orders shop/orders --other-metadata zk://zk2:2181/ledgers
      buckram stream verify shop/orders s3://lake/tables
    """
    from buckram.streams.maintain.history.verify import files_side, stream_side
    from buckram.streams.maintain.history.verify import verify as compare

    name = stream_name(a)
    pace = values.pace(rate)
    is_place = "://" in b or b.startswith(("/", "./", "../"))
    if is_place and other_metadata is not None:
        raise InvalidArgument(f"--other-metadata: {b} is a place for files, which belongs to no cluster; leave it out")
    other = None if is_place else stream_name(b)

    async def main() -> VerifyReport:
        async with connected(uri) as client, connected(other_metadata or uri) as second:
            left = await stream_side(client, name)
            right = await (files_side(client, name, values.place(b)) if other is None else stream_side(second, other))
            total = max(max(left.end, right.end) - max(left.first, right.first), 0)
            with progress("records", total, show=not as_json) as advance:
                return await compare(left, right, pace=pace, progress=advance)

    report = run_async(main())
    if as_json:
        emit(report.as_json())
    elif report.difference is None:
        print(f"{report.a} and {report.b} are equal: {counted(report.records, 'record')} up to {report.next_offset}")
    else:
        found = report.difference
        what = f"column {found.column}: {found.a} and {found.b}" if found.column else f"{found.a} and {found.b}"
        print(f"{report.a} and {report.b} differ first at offset {found.offset}: {what}")
    if not report.equal:
        raise click.exceptions.Exit(Exit.FAILED)
