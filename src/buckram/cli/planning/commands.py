"""`buckram plan`: when the cluster is full, what a change would do, and how many bookies a load needs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from buckram.cli.planning.history import Sample
from buckram.cli.planning.outlook import Outlook, PlannedChange, outlook, svg
from buckram.cli.planning.sizing import Load, Sizing, sizing
from buckram.cli.shared import values
from buckram.cli.shared.options import cluster_options, connected, json_option, run_async
from buckram.cli.shared.output import emit, remark, table
from buckram.cli.shared.serving import service_log, stoppable
from buckram.config import HealingConfig, StoreConfig
from buckram.core.ledgers.quorum import Quorum
from buckram.errors import InvalidArgument

RESERVED, COPY_RATE = StoreConfig().reserved_bytes, HealingConfig().copy_bytes_per_s


@click.group()
def plan() -> None:
    """Predict when disks are full, and size clusters for a load. A change can be assumed before it is made."""


# -- the history ------------------------------------------------------------------------------------------------------


@plan.command("record")
@click.option("--every", metavar="TIME", help="Repeat at this interval, such as 10m, until Ctrl-C; default once.")
@cluster_options
def record(every: str | None, uri: str | None, as_json: bool) -> None:
    """Add the space of all bookies to the usage history. That is the stream system/usage; it is kept for 400 days.

    Several may run: a sample that is younger than half of --every is enough for all of them.

    \b
    Example:
      buckram plan record --every 10m
    """
    pause = None if every is None else max(values.duration("--every", every), 1.0)

    def told(found: Sample) -> None:
        total = sum(one.total_bytes for one in found.bookies.values())
        free = sum(one.free_bytes for one in found.bookies.values())
        if as_json:
            emit({"time": found.wall_s, "bookies": len(found.bookies), "total_bytes": total, "free_bytes": free})
        else:
            print(f"{len(found.bookies)} bookies, {free / 1e9:,.1f} of {total / 1e9:,.1f} GB free", flush=True)

    async def main() -> None:
        from buckram.cli.planning.recording import keep_recording
        from buckram.cli.planning.recording import record as record_once

        async with connected(uri) as client:
            if pause is None:
                found = await record_once(client)
                assert found is not None
                told(found)
                return
            await stoppable(keep_recording(client, pause, told))

    with service_log("warning"):
        run_async(main())


# -- when it is full --------------------------------------------------------------------------------------------------


@plan.command("full")
@click.option(
    "--since",
    default="90d",
    show_default=True,
    metavar="TIME",
    help=f"Use the history from this time on: {values.MOMENTS}.",
)
@click.option("--add", "added", multiple=True, metavar="RACK=N", help="Assume N more bookies in RACK; repeatable.")
@click.option("--bookie-size", metavar="SIZE", help="Disk size of each added bookie, such as 4TB.")
@click.option("--rebalance", is_flag=True, help="Assume that old copies are moved to added bookies.")
@click.option("--copies", metavar="NOW:THEN", help="Assume another number of copies, such as 3:2.")
@click.option("--reserve", metavar="SIZE", help="Reserve of each bookie ([store] reserved_bytes); default 512 MiB.")
@click.option(
    "--history",
    "file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Read samples from a file instead of the usage history.",
)
@click.option(
    "--picture", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw the forecast into this file."
)
@cluster_options
def full(
    since: str,
    added: tuple[str, ...],
    bookie_size: str | None,
    rebalance: bool,
    copies: str | None,
    reserve: str | None,
    file: str | None,
    picture: str | None,
    uri: str | None,
    as_json: bool,
) -> None:
    """Predict the days until each rack is full, by the usage history. The load goes on, or changes as options say.

    \b
    Examples:
      buckram plan full --picture full.svg
      buckram plan full --add /rack-1=2 --add /rack-2=2 --bookie-size 4TB --rebalance
      buckram plan full --copies 3:2
    """
    change = _change(added, bookie_size, rebalance, copies)
    reserved = RESERVED if reserve is None else values.size("--reserve", reserve)
    begin = values.moment("--since", since, int(time.time() * values.US))
    samples = _read_file(file) if file is not None else run_async(_history(uri, begin))
    found = outlook(samples, reserved, change)
    if picture is not None:
        Path(picture).write_text(svg(found), encoding="utf-8")
    if as_json:
        emit(_outlook_json(found, picture))
        return
    _print_outlook(found)
    if picture is not None:
        remark(f"drawn: {picture}")


async def _history(uri: str | None, begin_us: int) -> list[Sample]:
    from buckram.cli.planning.recording import history

    async with connected(uri) as client:
        return await history(client, begin_us / 1e6)


def _read_file(name: str) -> list[Sample]:
    from buckram.cli.planning.history import decode_sample

    found = []
    with Path(name).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                found.append(decode_sample(f"{name}, line {number}", line))
    return found


def _change(added: Sequence[str], bookie_size: str | None, rebalance: bool, copies: str | None) -> PlannedChange | None:
    racks: dict[str, int] = {}
    for one in added:
        rack, equals, count = one.rpartition("=")
        if not equals or not rack or not (count.isascii() and count.isdigit()) or not 0 < int(count[:9]) <= 10_000:
            raise InvalidArgument(f"--add {one[:60]!r}: needs RACK=N such as /rack-1=2, N from 1 to 10000")
        racks[rack] = racks.get(rack, 0) + int(count)
    if bool(racks) != (bookie_size is not None):
        raise InvalidArgument("--add and --bookie-size go together: give both, or none")
    if rebalance and not racks:
        raise InvalidArgument("--rebalance moves copies to bookies that are added: name them with --add")
    factor = 1.0
    if copies is not None:
        now, colon, then = copies.partition(":")
        if not (colon and now.isascii() and now.isdigit() and then.isascii() and then.isdigit()):
            raise InvalidArgument(f"--copies {copies[:40]!r}: needs NOW:THEN such as 3:2")
        if not 0 < int(now[:3]) <= 100 or not 0 < int(then[:3]) <= 100:
            raise InvalidArgument(f"--copies {copies[:40]!r}: each needs 1 to 100")
        factor = int(then) / int(now)
    if not racks and factor == 1.0:
        return None
    return PlannedChange(
        racks, 0 if bookie_size is None else values.size("--bookie-size", bookie_size), factor, rebalance
    )


def _outlook_json(found: Outlook, picture: str | None) -> dict[str, Any]:
    return {
        "known": found.known,
        "history_days": round(found.span_s / 86_400, 3),
        "days_until_first_rack_is_full": found.first_days,
        "days_until_all_are_full": found.days,
        "racks": [
            {
                "rack": one.rack,
                "bookies": one.bookies,
                "total_bytes": one.total_bytes,
                "usable_bytes": one.usable_bytes,
                "used_bytes": one.used_bytes,
                "bytes_per_day": round(one.per_day),
                "bytes_per_day_range": [round(one.low), round(one.high)],
                "days_until_full": one.days,
                "days_until_full_range": [one.soonest_days, one.latest_days],
            }
            for one in found.racks
        ],
        "assumed": list(found.assumed),
        "picture": picture,
    }


def _print_outlook(found: Outlook) -> None:
    rows = [
        (
            one.rack,
            one.bookies,
            round(one.used_bytes / 1e9, 1),
            round(one.usable_bytes / 1e9, 1),
            f"{one.per_day / 1e9:+,.2f}" if found.known else "",
            _days(one.days) if found.known else "not known",
            f"{_days(one.soonest_days)} to {_days(one.latest_days)}" if found.known else "",
        )
        for one in found.racks
    ]
    table(("RACK", "BOOKIES", "USED GB", "OF GB", "GB/DAY", "FULL IN DAYS", "MAY BE"), rows)
    print(f"\nfrom {found.span_s / 86_400:.1f} days of history; assumed:")
    for one in found.assumed:
        print(f"  {one}")
    if not found.known:
        print(
            "The history is too short for a rate: it needs an hour, and days are better. It is recorded by "
            "`buckram plan record --every 10m`.",
            file=sys.stderr,
        )


def _days(days: float | None) -> str:
    return "never" if days is None else f"{days:,.0f}" if days >= 10 else f"{days:.1f}"


# -- how many ---------------------------------------------------------------------------------------------------------


@plan.command("size")
@click.option("--rate", required=True, metavar="SIZE", help="Payload written per second, such as 50MB.")
@click.option("--keep", required=True, metavar="TIME", help="Time for which payload is kept, such as 7d.")
@click.option(
    "--ensemble", default="3/3/2", show_default=True, metavar="E/QW/QA", help="Ensemble and quorums of the ledgers."
)
@click.option("--bookie-size", required=True, metavar="SIZE", help="Disk size of one bookie, such as 4TB.")
@click.option(
    "--bookie-rate", required=True, metavar="SIZE", help="Bytes that one bookie takes per second, such as 100MB."
)
@click.option(
    "--lose", type=click.IntRange(0, 1000), default=1, show_default=True, help="Number of bookies that may be lost."
)
@click.option("--racks", type=click.IntRange(0, 1000), default=0, help="Number of racks; --lose then counts racks.")
@click.option(
    "--fill",
    type=click.FloatRange(0.05, 1.0),
    default=0.8,
    show_default=True,
    help="Share of each disk that is filled.",
)
@click.option(
    "--copy-rate",
    metavar="SIZE",
    help="Bytes copied per second ([healing] copy_bytes_per_s); default that of the setting.",
)
@json_option
def size(
    rate: str,
    keep: str,
    ensemble: str,
    bookie_size: str,
    bookie_rate: str,
    lose: int,
    racks: int,
    fill: float,
    copy_rate: str | None,
    as_json: bool,
) -> None:
    """Compute the bookies for a rate, a retention and a loss. Exit code 1 where no number is enough.

    \b
    Example:
      buckram plan size --rate 50MB --keep 7d --bookie-size 4TB --bookie-rate 100MB --lose 1 --racks 3
    """
    load = Load(
        values.size("--rate", rate),
        values.duration("--keep", keep),
        Quorum.parse(ensemble),
        values.size("--bookie-size", bookie_size),
        values.size("--bookie-rate", bookie_rate),
        lose,
        racks,
        fill,
        COPY_RATE if copy_rate is None else values.size("--copy-rate", copy_rate),
    )
    found = sizing(load)
    if as_json:
        emit(_sizing_json(found))
    else:
        _print_sizing(found)
    if found.problems:
        raise click.exceptions.Exit(1)


def _sizing_json(found: Sizing) -> dict[str, Any]:
    return {
        "bookies": found.bookies,
        "needs": [{"what": one.what, "bookies": one.bookies, "why": one.why} for one in found.needs],
        "stored_bytes": round(found.stored_bytes),
        "full": round(found.full, 4),
        "full_after_loss": round(found.full_after_loss, 4),
        "repair_s": round(found.repair_s, 1),
        "problems": list(found.problems),
        "assumed": list(found.assumed),
    }


def _print_sizing(found: Sizing) -> None:
    print(f"{found.bookies} bookies")
    table(("FOR", "BOOKIES", "WHY"), [(one.what, one.bookies, one.why) for one in found.needs])
    print(f"\ndisks {found.full:.0%} full, {found.full_after_loss:.0%} after the loss;")
    print(f"the copies of one lost bookie are made again in {found.repair_s / 3600:,.1f} hours; assumed:")
    for one in found.assumed:
        print(f"  {one}")
    for one in found.problems:
        print(f"NOT ENOUGH: {one}", file=sys.stderr)
