"""`buckram stream janitor` and `orphans`: retention, and what crashes left behind."""

from __future__ import annotations

import dataclasses
import math
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared import values
from buckram.cli.shared.options import cluster_options, confirm, connected, run_async, yes_option
from buckram.cli.shared.output import counted, emit, remark, table
from buckram.cli.shared.serving import service_log, stoppable

if TYPE_CHECKING:
    from buckram.core.streams.external.history import OffloadPlaces
    from buckram.streams.maintain.janitor_report import JanitorReport
    from buckram.streams.maintain.orphans import Orphan


@click.command("janitor")
@click.option("--every", metavar="TIME", help="Repeat at this interval, such as 30s, until Ctrl-C; default once.")
@click.option("--grace", default="3s", show_default=True, help="Time between two looks at what seems to have no owner.")
@click.option(
    "--wait",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Time after which a stream without a writer is checked again, and sealed; 0: never.",
)
@click.option(
    "--orphans/--no-orphans",
    "with_orphans",
    default=True,
    show_default=True,
    help="Look for orphans among all ledgers.",
)
@cluster_options
def janitor(every: str | None, grace: str, wait: str, with_orphans: bool, uri: str | None, as_json: bool) -> None:
    """Carry out retention, free space, remove leftovers of crashes. This is done in all streams of the cluster.

    It also makes the backups of databases that policies ask for, at the places of BUCKRAM_JANITOR_BACKUP_PLACES, and
    keeps history at those of BUCKRAM_JANITOR_OFFLOAD_PLACES only.

    It deletes what a policy names and what no stream can ever list, nothing else. It may be killed at any time;
    several may run at once. `buckram up` runs one by itself. Exit code 1 if something was put off.

    The last records of a writer that died are readable when its segment is sealed. One look cannot tell whether it
    died, so a single run that finds such a stream takes a minute longer (--wait): fit for cron.

    \b
    Example:
      buckram stream janitor --every 1m
    """
    from buckram.cli.shared.exits import Exit
    from buckram.state.db.backups import Backups
    from buckram.streams.maintain.janitor import Janitor, JanitorSettings

    places, history = janitor_places()
    seal_s = values.duration("--wait", wait)
    settings = JanitorSettings(
        grace_s=values.duration("--grace", grace), orphans=with_orphans, seal_s=seal_s if seal_s > 0 else math.inf
    )
    interval = None if every is None else max(values.duration("--every", every), 0.1)

    async def main() -> JanitorReport:
        async with connected(uri) as client:
            worker = Janitor(client, settings, Backups(client, places), history)
            if interval is None:
                return await worker.finish(_waiting) if seal_s > 0 else await worker.clean()
            await stoppable(worker.run(interval, lambda report: _tell(report, as_json)))
            raise click.exceptions.Exit(Exit.OK)

    with nullcontext() if interval is None else service_log("warning"):
        report = run_async(main())
    _tell(report, as_json)
    if report.problems:
        raise click.exceptions.Exit(Exit.FAILED)


def janitor_places() -> tuple[dict[str, str], OffloadPlaces]:
    """Return the places for backups of databases and for history, as an operator has listed them. Raises
    ConfigError."""
    from buckram.config import load
    from buckram.core.db.backups import parse_places
    from buckram.core.streams.external.history import parse_offload_places

    config, _ = load("janitor", None, os.environ)
    return parse_places(config.backup_places), parse_offload_places(config.offload_places)


def _waiting(streams: int) -> None:
    remark(f"{counted(streams, 'stream')} may have lost the writer: looking again in a while (--wait)")


def _tell(report: JanitorReport, as_json: bool) -> None:
    if as_json:
        emit(dataclasses.asdict(report))
        return
    done = [
        f"{value} {name.replace('_', ' ')}"
        for name, value in dataclasses.asdict(report).items()
        if isinstance(value, int) and value and name != "streams"
    ]
    print(f"{counted(report.streams, 'stream')}: {', '.join(done) or 'nothing to do'}", flush=True)
    for problem in report.problems:
        remark(f"put off: {problem}")


@click.command("orphans")
@click.option("--delete", "delete", is_flag=True, help="Delete those that are safe to delete.")
@yes_option
@cluster_options
def orphans(delete: bool, yes: bool, uri: str | None, as_json: bool) -> None:
    """List ledgers made for a stream that have no place in it. It shows which are safe to delete.

    It reads the record of every ledger. One that is in progress may still become a segment; the janitor decides when it
    cannot.

    \b
    Example:
      buckram stream orphans --delete --yes
    """
    if delete:
        confirm("Delete all orphans that are safe to delete?", yes, "no orphan is deleted")
    found, deleted = run_async(_orphans(uri, delete))
    if as_json:
        emit({"orphans": [_orphan_json(one) for one in found], "deleted": deleted})
        return
    rows = [(one.ledger, one.stream, one.reason, "yes" if one.safe else "no", _age(one.age_s)) for one in found]
    table(("LEDGER", "STREAM", "STATE", "SAFE TO DELETE", "AGE"), rows)
    if deleted:
        print(f"{len(deleted)} deleted")


async def _orphans(uri: str | None, delete: bool) -> tuple[list[Orphan], list[int]]:
    from buckram.streams.maintain.orphans import delete_orphan, find_orphans
    from buckram.streams.shared.metadata import StreamStore

    async with connected(uri) as client:
        found = await find_orphans(client, StreamStore(client.services.store), in_progress=True)
        safe = [one for one in found if one.safe] if delete else []
        for one in safe:
            await delete_orphan(client, one)
        return found, [one.ledger for one in safe]


def _orphan_json(one: Orphan) -> dict[str, Any]:
    return {
        "ledger": one.ledger,
        "stream": one.stream,
        "uid": one.uid,
        "reason": one.reason,
        "safe": one.safe,
        "age_s": one.age_s,
    }


def _age(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s"
