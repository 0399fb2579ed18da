"""`buckram job`: scrub, compact, orphans, import-kafka, on Spark; export, import, replicate and verify need none.

This file is also what spark-submit takes: `buckram job file`. Under spark-submit the session is the one that it
configures; else one for this machine is started, or --master is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buckram.spark.jobs.reports import BadReplica

F = TypeVar("F", bound=Callable[..., Any])
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


_STREAM_JOBS = ("export", "import", "verify")
"""Subcommands of `buckram stream` that are also offered as jobs."""


class _Jobs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_STREAM_JOBS, "replicate"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "replicate":
            from buckram.cli.replicate import once

            return once
        if cmd_name not in _STREAM_JOBS:
            return super().get_command(ctx, cmd_name)
        from buckram.cli.stream.commands import stream

        return stream.get_command(ctx, cmd_name)


@click.group(cls=_Jobs)
def job() -> None:
    """Run maintenance, imports and exports on Spark.

    Each job may be stopped and run again; bookies are read no faster than --rate.
    """


def _on_spark(command: F) -> F:
    from buckram.cli.shared.options import json_option, metadata_option

    for option in (
        click.option(
            "--cores",
            type=click.IntRange(1),
            default=2,
            show_default=True,
            help="Cores of this machine, without --master.",
        ),
        click.option("--master", metavar="URL", help="A Spark cluster, spark://HOST:PORT; default this machine."),
    ):
        command = option(command)
    return metadata_option(json_option(command))


def _yes(command: F) -> F:
    from buckram.cli.shared.options import yes_option

    return yes_option(command)


def _common(command: F) -> F:
    for option in (
        click.option(
            "--run", "run", metavar="NAME", help="Name of this run; an earlier run of this name is continued."
        ),
        click.option("--table", metavar="NAME", help="Add what was found to this table."),
        click.option("--report", metavar="FOLDER", help="Add what was found to Parquet files in this folder."),
    ):
        command = option(command)
    return _on_spark(command)


_rate = click.option(
    "--rate", metavar="SIZE", help="Maximum bytes read from one bookie per second, such as 50MB; default no limit."
)
_streams = click.option("--stream", "streams", multiple=True, metavar="NAME", help="Only this stream; repeatable.")


@contextlib.contextmanager
def _session(
    name: str, master: str | None, cores: int, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    from buckram.errors import ConfigError
    from buckram.extras import needs

    try:
        from pyspark.sql import SparkSession as Sessions
    except ImportError:
        raise ConfigError(needs("a job runs on Spark and", "spark")) from None
    if _SUBMITTED in os.environ:
        session = Sessions.builder.appName(name).getOrCreate()
    else:
        from buckram.spark.session import local_session

        chosen = {**(settings or {}), **({} if master is None else {"spark.master": master})}
        session = local_session(name, cores=cores, settings=chosen)
    try:
        yield session
    finally:
        session.stop()


@contextlib.contextmanager
def _progress(title: str, *, show: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a progress display at a terminal."""
    from buckram.cli.shared.output import progress

    seen = 0
    with contextlib.ExitStack() as stack:
        advance: Callable[[int], None] | None = None

        def report_progress(done: int, total: int) -> None:
            nonlocal advance, seen
            if advance is None:
                advance = stack.enter_context(progress(title, total, show=show))
            advance(done - seen)
            seen = done

        yield report_progress


def _bytes(what: str, text: str | None) -> int | None:
    from buckram.cli.shared import values

    return None if text is None else values.size(what, text)


@job.command("scrub")
@click.option("--ledger", "ledgers", type=click.IntRange(0), multiple=True, help="Only this ledger; repeatable.")
@_streams
@_rate
@_common
def scrub_command(
    ledgers: tuple[int, ...],
    streams: tuple[str, ...],
    rate: str | None,
    report: str | None,
    table: str | None,
    run: str | None,
    master: str | None,
    cores: int,
    uri: str | None,
    as_json: bool,
) -> None:
    """Verify every replica on its bookie, and list the bad ones.

    Each bad one is listed with the command that repairs it.

    Exit code 1 if a replica is bad or could not be read.

    \b
    Examples:
      buckram job scrub
      buckram job scrub --stream shop/orders --rate 50MB --report /srv/audits --run november
    """
    from buckram.cli.shared.exits import Exit
    from buckram.cli.shared.options import cluster_uri
    from buckram.cli.shared.output import emit

    with _session("buckram scrub", master, cores) as session, _progress("ledgers", show=not as_json) as progress:
        from buckram.spark.jobs.scrub import ScrubSettings, scrub

        found = scrub(
            session,
            cluster_uri(uri),
            ledgers=ledgers or None,
            streams=streams or None,
            report=report,
            table=table,
            run=run,
            settings=ScrubSettings(bytes_per_s=_bytes("--rate", rate)),
            progress=progress,
        )
    if as_json:
        emit({**dataclasses.asdict(found), "healthy": found.healthy})
    else:
        print(
            f"read {found.replicas} replicas of {found.ledgers} ledgers: {found.entries} entries, "
            f"{found.bytes / 1e6:.1f} MB in {found.seconds:.1f} s"
        )
        if found.growing:
            print(f"{found.growing} ledgers are not closed; what can still grow was not read")
        _print_bad([*found.bad, *found.unknown])
    if not found.healthy:
        raise click.exceptions.Exit(Exit.FAILED)


def _print_bad(bad: list[BadReplica]) -> None:
    from buckram.cli.shared.output import table

    if not bad:
        print("all of them are good")
        return
    rows = [(one.ledger, one.bookie, one.kind, one.detail, one.repair) for one in bad]
    table(("LEDGER", "BOOKIE", "STATE", "WHAT", "REPAIR WITH"), rows)


@job.command("compact")
@_streams
@click.option("--target", metavar="SIZE", help="Maximum size of a new segment; default the stream's roll_bytes.")
@_rate
@_common
def compact_command(
    streams: tuple[str, ...],
    target: str | None,
    rate: str | None,
    report: str | None,
    table: str | None,
    run: str | None,
    master: str | None,
    cores: int,
    uri: str | None,
    as_json: bool,
) -> None:
    """Make few large segments of many small ones. Offsets stay; writers and readers are not disturbed.

    The old ledgers are deleted by the janitor an hour later. Exit code 1 if something could not be compacted.

    \b
    Example:
      buckram job compact --stream shop/orders --target 256MiB --rate 50MB
    """
    from buckram.cli.shared import output
    from buckram.cli.shared.exits import Exit
    from buckram.cli.shared.options import cluster_uri

    with _session("buckram compact", master, cores) as session, _progress("bytes", show=not as_json) as progress:
        from buckram.spark.jobs.compact import compact

        found = compact(
            session,
            cluster_uri(uri),
            streams=streams or None,
            target_bytes=_bytes("--target", target),
            bytes_per_s=_bytes("--rate", rate),
            report=report,
            table=table,
            run=run,
            progress=progress,
        )
    if as_json:
        output.emit(dataclasses.asdict(found))
    else:
        rows = [(one.stream, one.segments, one.made, one.bytes, one.put_off) for one in found.streams if one.segments]
        if rows:
            output.table(("STREAM", "SEGMENTS", "BECAME", "BYTES", "PUT OFF"), rows)
        else:
            print("nothing to compact")
        for problem in found.problems:
            output.remark(f"put off: {problem}")
    if found.problems:
        raise click.exceptions.Exit(Exit.FAILED)


@job.command("orphans")
@click.option("--delete", is_flag=True, help="Delete those that are safe to delete.")
@click.option(
    "--rate", type=float, metavar="N", help="With --delete, maximum ledgers deleted per second; default no limit."
)
@_yes
@_common
def orphans_command(
    delete: bool,
    rate: float | None,
    yes: bool,
    report: str | None,
    table: str | None,
    run: str | None,
    master: str | None,
    cores: int,
    uri: str | None,
    as_json: bool,
) -> None:
    """List orphans like `stream orphans`, for very many ledgers.

    Orphans are ledgers that were made for a stream and have no place in it.

    \b
    Example:
      buckram job orphans --delete --yes
    """
    from buckram.cli.shared import output
    from buckram.cli.shared.exits import Exit
    from buckram.cli.shared.options import cluster_uri, confirm

    if delete:
        confirm("Delete all orphans that are safe to delete?", yes, "no orphan is deleted")
    with _session("buckram orphans", master, cores) as session, _progress("ledgers", show=not as_json) as progress:
        from buckram.spark.jobs.orphans import orphans

        found = orphans(
            session,
            cluster_uri(uri),
            delete=delete,
            deletes_per_s=rate,
            report=report,
            table=table,
            run=run,
            progress=progress,
        )
    if as_json:
        shown = [{**dataclasses.asdict(one), "safe": one.safe} for one in found.orphans]
        output.emit({**dataclasses.asdict(found), "orphans": shown})
    else:
        rows = [(one.ledger, one.stream, one.reason, "yes" if one.safe else "no") for one in found.orphans]
        output.table(("LEDGER", "STREAM", "STATE", "SAFE TO DELETE"), rows)
        print(f"{found.ledgers} ledgers, {len(found.orphans)} orphans, {len(found.deleted)} deleted")
        for problem in found.problems:
            output.remark(f"put off: {problem}")
    if found.problems:
        raise click.exceptions.Exit(Exit.FAILED)


@job.command("import-kafka")
@click.argument("name")
@click.option("--from", "url", metavar="URL", required=True, help="kafka://HOST:PORT[,HOST:PORT...]/TOPIC")
@click.option(
    "--per-partition", is_flag=True, help="Import each partition into a stream of its own: NAME-0, NAME-1 and so on."
)
@click.option(
    "--kafka-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings of Kafka's clients, NAME=VALUE a line: security.protocol, sasl.jaas.config and so on.",
)
@click.option("--range", "range_records", type=click.IntRange(1), help="Maximum records of one transaction.")
@click.option(
    "--rate", metavar="SIZE", help="Maximum bytes written per second, averaged over ranges; default no limit."
)
@click.option("--run", default="", metavar="NAME", help="Import the same topic once more, under this name.")
@click.option(
    "--skip-deleted", is_flag=True, help="Continue after records that Kafka deleted before they were imported."
)
@click.option(
    "--jars",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Jars of Spark's connector for Kafka, or a folder of them; repeatable. By default Maven's, fetched by Spark.",
)
@_on_spark
def import_kafka_command(
    name: str,
    url: str,
    per_partition: bool,
    kafka_config: Path | None,
    range_records: int | None,
    rate: str | None,
    run: str,
    skip_deleted: bool,
    jars: tuple[Path, ...],
    master: str | None,
    cores: int,
    uri: str | None,
    as_json: bool,
) -> None:
    """Import a topic of Kafka into a stream. It is made if it does not exist. Each committed record once.

    It ends at what the topic had when it began. May be killed at any time, and repeated: it goes on where it stopped.
    Each record keeps its value, key, headers, time and the order in its partition, and says in the header kafka.origin
    where it was: TOPIC/PARTITION/OFFSET.

    \b
    Examples:
      buckram job import-kafka shop/orders --from kafka://10.0.0.7:9092/orders
      buckram job import-kafka shop/orders --from kafka://k1:9093/orders --per-partition --kafka-config tls.properties
    """
    from buckram.cli.shared import output
    from buckram.cli.shared.options import cluster_uri
    from buckram.core.streams.external.imports import RANGE_RECORDS, kafka_source
    from buckram.core.streams.names import stream_name

    kafka_source(url)
    stream_name(name)
    settings = _connector(jars)
    speed = _bytes("--rate", rate)
    with (
        _session("buckram import-kafka", master, cores, settings) as session,
        _progress("records", show=not as_json) as progress,
    ):
        from buckram.spark.jobs.import_kafka import import_kafka
        from buckram.spark.jobs.kafka_topic import read_config

        found = import_kafka(
            session,
            cluster_uri(uri),
            url,
            name,
            per_partition=per_partition,
            config=None if kafka_config is None else read_config(kafka_config),
            range_records=range_records or RANGE_RECORDS,
            bytes_per_s=speed,
            skip_deleted=skip_deleted,
            run=run,
            progress=progress,
        )
    if as_json:
        output.emit(dataclasses.asdict(found))
        return
    for one in found.streams:
        count, size = output.counted(one.records, "record"), output.counted(one.bytes, "byte")
        print(
            f"stream {one.stream}: {count}, {size} of {output.counted(one.partitions, 'partition')} of {found.source}"
        )


def _connector(paths: Sequence[Path]) -> dict[str, str]:
    """Return the settings that give Spark its connector for Kafka. A session of spark-submit has its own."""
    from buckram.errors import ConfigError

    jars = [jar for path in paths for jar in (sorted(path.glob("*.jar")) if path.is_dir() else [path])]
    for jar in jars or paths:
        if not jar.is_file():
            raise ConfigError(f"--jars {jar}: there is no such jar")
    if jars:
        return {"spark.jars": ",".join(str(jar.absolute()) for jar in jars)}
    try:
        from pyspark import __version__
    except ImportError:
        return {}  # _session says so
    from buckram.spark.jobs.kafka_topic import coordinates

    return {"spark.jars.packages": coordinates(__version__)}


@job.command("file")
def file_command() -> None:
    """Print the path of the file to give to spark-submit.

    \b
    Example:
      spark-submit --master spark://host:7077 $(buckram job file) scrub --metadata zk://zk1:2181/ledgers
    """
    print(Path(__file__).resolve())


if __name__ == "__main__":
    # spark-submit puts this file's folder first on the path, where `bench` or `metadata` would be found by accident.
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if place != here]
    from buckram.cli.app import run as run_command

    raise SystemExit(run_command(["job", *sys.argv[1:]]))
