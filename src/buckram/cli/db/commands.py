"""`buckram db`: commands that make, show, copy, verify and drop databases, and print what happened to their rows.

Names are NAMESPACE/DATABASE. Not here: statements and their output (`cli/db/shell.py`), serving (`cli/db/serve.py`).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.db.serve import serve
from buckram.cli.db.shell import shell
from buckram.cli.namespace import policy_option
from buckram.cli.shared import completion, values
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, confirm_loss, connected, run_async, watch_async, yes_option
from buckram.cli.shared.output import emit, table
from buckram.core.db.changes import Change
from buckram.core.streams.names import stream_name
from buckram.errors import InvalidArgument
from buckram.serve.json_views.databases import database_json, database_shown, leader_of, plain
from buckram.state.db.commits.database_log import is_database

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.state.db.transfer import Verified
    from buckram.streams.info import StreamInfo

_at_option = click.option(
    "--at",
    metavar="TIME|OFFSET",
    help=f"The state below this offset, or of this time: {values.MOMENTS}; default the newest.",
)

_PAGE = 1000


@click.group()
def db() -> None:
    """Create, query and serve SQL databases with a replicated log. The tables are SQLite's; every commit is in the log
    before it is anywhere else."""


db.add_command(shell)
db.add_command(serve)


@db.command("create")
@click.argument("name")
@click.option("--cdc", is_flag=True, help="Keep what transactions do to rows, for `buckram db changes`.")
@policy_option
@cluster_options
def create(name: str, cdc: bool, settings: tuple[str, ...], uri: str | None, as_json: bool) -> None:
    """Create an empty database. The settings are those of its log.

    \b
    Examples:
      buckram db create shop/main --set ensemble=3/3/2
      buckram db create shop/orders --cdc
    """
    full, chosen = stream_name(name), values.policy(settings)

    async def main() -> None:
        async with connected(uri) as client:
            await client.namespace(full.namespace).create_database(full.stream, cdc=cdc, **chosen)

    run_async(main())
    if as_json:
        emit({"database": str(full), "created": True, "cdc": cdc})
    else:
        print(f"database {full} created")


@db.command("list")
@click.argument("namespace", default="default", shell_complete=completion.namespaces)
@cluster_options
def list_databases(namespace: str, uri: str | None, as_json: bool) -> None:
    """List the databases of a namespace, with their leaders.

    \b
    Example:
      buckram db list shop
    """

    async def main() -> list[StreamInfo]:
        async with connected(uri) as client:
            return await _databases(client, namespace)

    found = run_async(main())
    if as_json:
        emit({"databases": [database_json(info) for info in found]})
    else:
        table(("DATABASE", "LEADER", "OFFSET"), [(info.name, leader_of(info) or "", info.end) for info in found])


async def _databases(client: Client, namespace: str) -> list[StreamInfo]:
    found: list[StreamInfo] = []
    ns, after = client.namespace(namespace), ""
    while page := await ns.list(after=after, limit=_PAGE):
        infos = [await ns.info(bare) for bare in page]
        found += filter(is_database, infos)
        after = page[-1]
    return found


@db.command("show")
@click.argument("name", shell_complete=completion.streams)
@cluster_options
def show(name: str, uri: str | None, as_json: bool) -> None:
    """Show who leads a database, who follows, and how far each is. Also which earlier states a fork can have, and the
    newest backup that was made by its policy.

    \b
    Example:
      buckram db show shop/main
    """
    full = stream_name(name)

    async def main() -> dict[str, Any]:
        async with connected(uri) as client:
            return await database_shown(client.namespace(full.namespace), full.stream)

    found = run_async(main())
    if as_json:
        emit(found)
        return
    leads = f"{found['leader']} leads" if found["leader"] else "no leader"
    print(f"database {found['database']}: {leads}, offset {found['offset']}")
    for one in found["followers"]:
        print(f"  {one['id']} follows, offset {one['offset']}")
    print(f"  states from offset {found['earliest']} on can be forked")
    for row in found["snapshots"]:
        print(f"  snapshot at offset {row['offset']}: {row['bytes']} bytes, {values.iso(row['time'])}")
    if (kept := found["backup"]) is not None:
        print(f"  backup at {kept['place']}, {kept['file']}: offset {kept['offset']}, {values.iso(kept['time'])}")
    if found["backup_trouble"]:
        print(f"  the last attempt to make a backup failed: {found['backup_trouble']}")


@db.command("fork")
@click.argument("source", shell_complete=completion.streams)
@click.argument("name")
@_at_option
@policy_option
@cluster_options
def fork(source: str, name: str, at: str | None, settings: tuple[str, ...], uri: str | None, as_json: bool) -> None:
    """Make the database NAME of SOURCE as it was at a moment.

    NAME may be there if nothing is in it, as after a fork that was killed: it is filled.

    \b
    Examples:
      buckram db fork shop/main shop/yesterday --at 2026-11-24T12:00:00Z
      buckram db fork shop/main shop/test --at 10m
    """
    origin, full, chosen = stream_name(source), stream_name(name), values.policy(settings)

    async def main() -> int:
        async with connected(uri) as client:
            offset, time = values.offset_or_moment("--at", at, client.services.clocks.now())
            ns = client.namespace(full.namespace)
            return await ns.fork_database(str(origin), full.stream, offset=offset, time=time, **chosen)

    offset = run_async(main())
    if as_json:
        emit({"database": str(full), "source": str(origin), "offset": offset})
    else:
        print(f"database {full}: {origin} at offset {offset}")


@db.command("backup")
@click.argument("name", shell_complete=completion.streams)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@_at_option
@cluster_options
def backup(name: str, file: Path, at: str | None, uri: str | None, as_json: bool) -> None:
    """Write a database into FILE, a database of SQLite's. Others go on writing; the file appears when it is complete.

    \b
    Example:
      buckram db backup shop/main main.db
    """
    full = stream_name(name)

    async def main() -> tuple[int, int]:
        async with connected(uri) as client:
            offset, time = values.offset_or_moment("--at", at, client.services.clocks.now())
            ns = client.namespace(full.namespace)
            return await ns.backup_database(full.stream, str(file), offset=offset, time=time)

    offset, size = run_async(main())
    if as_json:
        emit({"database": str(full), "file": str(file), "offset": offset, "bytes": size})
    else:
        print(f"{file}: database {full} at offset {offset}, {size} bytes")


@db.command("restore")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("name")
@policy_option
@cluster_options
def restore(file: Path, name: str, settings: tuple[str, ...], uri: str | None, as_json: bool) -> None:
    """Make the database NAME of FILE, a database of SQLite's. FILE may be a backup.

    NAME may be there if nothing is in it, as after a restore that was killed: it is filled.

    \b
    Example:
      buckram db restore main.db shop/copy
    """
    full, chosen = stream_name(name), values.policy(settings)

    async def main() -> None:
        async with connected(uri) as client:
            await client.namespace(full.namespace).restore_database(str(file), full.stream, **chosen)

    run_async(main())
    if as_json:
        emit({"database": str(full), "file": str(file)})
    else:
        print(f"database {full} has what is in {file}")


@db.command("verify")
@click.argument("name", shell_complete=completion.streams)
@cluster_options
@click.pass_context
def verify(context: click.Context, name: str, uri: str | None, as_json: bool) -> None:
    """Read all retained data of a database and compare every digest. SQLite checks the pages. Exit code 1 if it has
    faults.

    The digests are that of the log and those of servers that hold a replica, each after the transactions that it had at
    its last report; `equal` tells whether all of them match the log's there.

    \b
    Example:
      buckram db verify shop/main
    """
    full = stream_name(name)

    from buckram.state.db.commits.replica_reports import compare_replicas

    async def main() -> tuple[Verified, dict[str, str]]:
        async with connected(uri) as client:
            ns = client.namespace(full.namespace)
            report = await ns.verify_database(full.stream)
            digests, differing = await compare_replicas(client, ns, full)
            return replace(report, faults=(*report.faults, *differing)), {"log": report.digest, **digests}

    report, digests = run_async(main())
    if as_json:
        emit(
            {
                "database": str(full),
                "equal": not report.faults,
                "digests": digests,
                "offset": report.offset,
                "transactions": report.groups,
                "digest": report.digest,
                "faults": list(report.faults),
            }
        )
    else:
        for fault in report.faults:
            print(fault)
        what = f"database {full}: {report.groups} transactions up to offset {report.offset}, digest {report.digest}"
        print(what if not report.faults else f"database {full} has faults")
    if report.faults:
        context.exit(Exit.FAILED)


@db.command("drop")
@click.argument("name", shell_complete=completion.streams)
@yes_option
@cluster_options
def drop(name: str, yes: bool, uri: str | None, as_json: bool) -> None:
    """Delete a database with its log and its snapshots.

    \b
    Example:
      buckram db drop shop/copy --yes
    """
    full = stream_name(name)
    confirm_loss(f"Drop database {full}?", yes, f"database {full} is not dropped")

    async def main() -> None:
        async with connected(uri) as client:
            ns = client.namespace(full.namespace)
            if not is_database(await ns.info(full.stream)):
                raise InvalidArgument(f"{full} is no database: it is not dropped")
            await ns.delete(full.stream, purpose="database")

    run_async(main())
    if as_json:
        emit({"database": str(full), "dropped": True})
    else:
        print(f"database {full} dropped")


# -- changes: what transactions did to rows ---------------------------------------------------------------


@click.command("changes")
@click.argument("name", shell_complete=completion.streams)
@click.option("--from", "first", type=click.IntRange(min=0), help="The first offset; default the oldest that is kept.")
@click.option("--follow", is_flag=True, help="Wait for more at the end, until Ctrl-C.")
@cluster_options
def changes(name: str, first: int | None, follow: bool, uri: str | None, as_json: bool) -> None:
    """Print what committed transactions did to rows, in order. The database has to be made with --cdc.

    With --json blobs are {"base64": TEXT}. A program that was stopped goes on with --from and the offset after the last
    one that it has seen.

    \b
    Examples:
      buckram db changes shop/main
      buckram db changes shop/main --from 1200 --follow --json
    """
    full = stream_name(name)

    async def main() -> None:
        async with connected(uri) as client:
            async for change in client.namespace(full.namespace).database_changes(full.stream, first, follow=follow):
                if as_json:
                    emit({key: plain(value) for key, value in asdict(change).items()})
                else:
                    print(_line(change), flush=True)

    (watch_async if follow else run_async)(main())


def _line(change: Change) -> str:
    begin = f"{change.offset} {values.iso(int(change.time * 1e6))} {change.operation}"
    if change.sql is not None:
        return f"{begin} {' '.join(change.sql.split())}"
    row, old, new = change.key or {"rowid": change.rowid}, change.old, change.new
    if old is None or new is None:
        return f"{begin} {change.table} {_shown(new or old or row)}"
    changed = {name: new[name] for name in new if repr(old[name]) != repr(new[name])}
    return f"{begin} {change.table} {_shown(row)}: {_shown(changed)}"


def _shown(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())


db.add_command(changes)
