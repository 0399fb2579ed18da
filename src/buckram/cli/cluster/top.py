"""`buckram top`: what bookies and streams do now, again and again."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.shared import values
from buckram.cli.shared.options import cluster_options, connected, run_async, watch_async
from buckram.cli.shared.output import emit, table
from buckram.cli.shared.stdout import clear_screen
from buckram.core.cluster.bookie_report import BookieReport, parse_report
from buckram.core.wire.messages import FREE_DISK_SPACE, REPORT, BookieInfoReply, GetBookieInfo
from buckram.errors import AccessRefused, BuckramError, Code, MetadataUnavailable
from buckram.streams.shared.namespaces import all_namespaces

if TYPE_CHECKING:
    from buckram.cluster import Client

_MOST_STREAMS = 200
"""Maximum streams that are shown, in the order of their names."""
_AT_ONCE = 32
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Stream:
    """The end of a stream, and how far its slowest cursor is behind it (None: it has no cursor)."""

    end: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """Sample of everything at one moment; `at_s` by the loop's clock."""

    at_s: float
    bookies: dict[str, tuple[str, int | None, BookieReport]] = field(default_factory=dict)
    """State, free bytes and report of each bookie by id."""
    streams: dict[str, Stream] = field(default_factory=dict)


@click.command()
@click.option("--every", default="2s", show_default=True, metavar="TIME", help="Interval; rates are averages over it.")
@click.option("--once", is_flag=True, help="Print one screen and end.")
@cluster_options
def top(every: str, once: bool, uri: str | None, as_json: bool) -> None:
    """Show what bookies and streams do now, again and again.

    Entries and bytes per second, free space, lag of cursors. Ctrl-C ends it.

    \b
    Examples:
      buckram top
      buckram top --once --json
    """
    pause = max(values.duration("--every", every), 0.1)

    async def main() -> None:
        async with connected(uri) as client:
            before = await _look(client)
            while True:
                await asyncio.sleep(pause)
                try:
                    now = await _look(client)
                except MetadataUnavailable as error:
                    print(f"the metadata store cannot be asked: {error}", file=sys.stderr, flush=True)
                    continue
                _show(_rates(before, now), as_json, live=not once)
                if once:
                    return
                before = now

    (run_async if once else watch_async)(main())


async def _look(client: Client) -> Look:
    store = client.services.store
    registered = await store.bookies()
    known = sorted({*await store.known_bookies(), *registered.writable, *registered.readonly})
    look = Look(asyncio.get_running_loop().time())
    found = await asyncio.gather(*(bookie_report(client, one, registered.state_of(one)) for one in known))
    look.bookies.update(zip(known, found, strict=True))
    names: list[tuple[str, str]] = []
    async for namespace in all_namespaces(client.namespaces):
        if len(names) >= _MOST_STREAMS:
            break
        with suppress(AccessRefused):  # It is not for whoever looks.
            some = await client.namespace(namespace).list(limit=_MOST_STREAMS - len(names))
            names += [(namespace, stream) for stream in some]
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        for (namespace, name), stream in zip(
            part, await asyncio.gather(*(_stream(client, *one) for one in part)), strict=True
        ):
            if stream is not None:
                look.streams[f"{namespace}/{name}"] = stream
    return look


async def bookie_report(client: Client, bookie: str, state: str) -> tuple[str, int | None, BookieReport]:
    """State, free bytes and report of a bookie; state "silent" for one that does not answer."""
    if state == "down":
        return state, None, BookieReport()
    try:
        reply = await client.services.pool.call(bookie, GetBookieInfo(REPORT | FREE_DISK_SPACE))
        if isinstance(reply, BookieInfoReply) and reply.code is Code.OK:
            report = parse_report(bookie, reply.report) if reply.report else BookieReport()
            return state, reply.free_bytes, report
    except BuckramError:
        return "silent", None, BookieReport()
    return state, None, BookieReport()


async def _stream(client: Client, namespace: str, name: str) -> Stream | None:
    """Return a stream's end and lag; None if it is gone or cannot be read now."""
    place = client.namespace(namespace)
    try:
        end = (await place.info(name)).end
        cursors = await place.cursors(name)
    except BuckramError:
        return None
    return Stream(end, max((one.lag for one in cursors), default=None))


def _rates(before: Look, now: Look) -> dict[str, Any]:
    """Return the rates in the form that `--json` prints. Rates of a bookie restarted meanwhile count from its start."""
    seconds = max(now.at_s - before.at_s, 1e-3)

    def rate(had: int, has: int) -> float:
        return round((has - had if has >= had else has) / seconds, 1)

    bookies = []
    for bookie, (state, free, report) in now.bookies.items():
        old = before.bookies[bookie][2] if bookie in before.bookies else report
        bookies.append(
            {
                "id": bookie,
                "state": state,
                "added_entries_per_s": rate(old.added_entries, report.added_entries),
                "added_bytes_per_s": rate(old.added_bytes, report.added_bytes),
                "read_entries_per_s": rate(old.read_entries, report.read_entries),
                "read_bytes_per_s": rate(old.read_bytes, report.read_bytes),
                "connections": report.connections,
                "free_bytes": free,
            }
        )
    streams = [
        {
            "stream": name,
            "records_per_s": rate(before.streams[name].end, one.end) if name in before.streams else 0.0,
            "end": one.end,
            "lag": one.lag,
        }
        for name, one in now.streams.items()
    ]
    return {"seconds": round(seconds, 3), "bookies": bookies, "streams": streams}


def _show(found: dict[str, Any], as_json: bool, *, live: bool) -> None:
    if as_json:
        emit(found)
        return
    if live:
        clear_screen()
    rows = [
        (
            one["id"],
            one["state"],
            f"{one['added_entries_per_s']:,.0f}",
            f"{one['added_bytes_per_s'] / 1e6:,.1f}",
            f"{one['read_entries_per_s']:,.0f}",
            f"{one['read_bytes_per_s'] / 1e6:,.1f}",
            one["connections"],
            "" if one["free_bytes"] is None else f"{one['free_bytes'] / 1e9:,.1f}",
        )
        for one in found["bookies"]
    ]
    table(("BOOKIE", "STATE", "ADDS/S", "MB/S", "READS/S", "MB/S", "CONNECTIONS", "FREE GB"), rows)
    busiest = sorted(found["streams"], key=lambda one: (-one["records_per_s"], -(one["lag"] or 0), one["stream"]))
    if busiest:
        print()
        table(
            ("STREAM", "RECORDS/S", "END", "LAG"),
            [
                (one["stream"], f"{one['records_per_s']:,.0f}", one["end"], "" if one["lag"] is None else one["lag"])
                for one in busiest[:_SHOWN]
            ],
        )
    sys.stdout.flush()
