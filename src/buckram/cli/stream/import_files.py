"""`buckram stream import`: rows of Parquet, JSON lines or CSV become records of a stream."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from buckram.cli.shared import completion, values
from buckram.cli.shared.options import connected, json_option, metadata_option, run_async
from buckram.cli.shared.output import counted, emit, progress, remark
from buckram.core.streams.external.imports import FORMATS, TIME_UNITS, Columns
from buckram.core.streams.names import stream_name
from buckram.errors import InvalidArgument, StreamExists

if TYPE_CHECKING:
    from buckram.streams.maintain.imports import ImportReport


@click.command("import")
@click.argument("name", shell_complete=completion.streams)
@click.option("--from", "url", metavar="URL", required=True, help="A file, a directory, or a URL of fsspec.")
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="What the files are.")
@click.option("--value", default="", metavar="COL", help="Column of the value; default value, or the line of JSON.")
@click.option("--key", default="", metavar="COL", help="Column of the key; default key, if there is one.")
@click.option("--time", default="", metavar="COL", help="Column of the event time; default timestamp.")
@click.option("--headers", default="", metavar="COL", help="Column of the headers, in Parquet; default headers.")
@click.option("--time-unit", type=click.Choice(tuple(TIME_UNITS)), default="us", help="Of times that are numbers.")
@click.option("--run", default="", metavar="NAME", help="Import the same source once more, under this name.")
@click.option("--rate", metavar="SIZE", help="The most bytes to write in a second, such as 50MiB.")
@metadata_option
@json_option
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

    May be killed at any time, and repeated: it goes on where it was, and takes files that came after the others. A row
    that is no record is refused with file and line, and nothing of its range is imported.

    \b
    Examples:
      buckram stream import shop/orders --from /data/orders --format jsonl --key customer
      buckram stream import shop/orders --from s3://lake/orders --format parquet --value body --time placed_at
    """
    from buckram.streams.maintain.import_sources import ImportSource
    from buckram.streams.maintain.imports import import_files, plan_import
    from buckram.streams.shared.metadata import StreamStore

    full, columns = stream_name(name), Columns(value, key, time, headers, time_unit)
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
