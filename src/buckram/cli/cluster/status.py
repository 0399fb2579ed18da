"""`buckram status`: one screen of bookies, space, ledgers that lack copies with reasons, rates and remaining
capacity."""

from __future__ import annotations

import asyncio
import collections
import sys
from typing import TYPE_CHECKING

import click

from buckram.cli.autorecovery import check_lines
from buckram.cli.cluster.health_report import gathering, last_line, lines_of, look_once
from buckram.cli.shared import values
from buckram.cli.shared.context_file import context_in_use
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, cluster_uri, run_async, watch_async
from buckram.cli.shared.output import counted, emit, table
from buckram.cli.shared.stdout import clear_screen
from buckram.serve.json_views.status import MOST_LEDGERS, BookieState, bookie_states, space_of, status_json

if TYPE_CHECKING:
    from buckram.healing.overview import Overview
    from buckram.health.gathering import Gatherer, Health


@click.command()
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--every", default="2s", show_default=True, metavar="TIME", help="Interval of --watch.")
@cluster_options
def status(watch: bool, every: str, uri: str | None, as_json: bool) -> None:
    """Show health: bookies, space, ledgers without copies.

    Every ledger that lacks copies is shown with its reason. Exit code 1 if something is an error; warnings leave it at
    0.

    \b
    Examples:
      buckram status
      buckram status --watch
    """
    pause = max(values.duration("--every", every), 0.1)

    async def main() -> Health:
        found = await look_once(cluster_uri(uri))
        _show(found, as_json, context_in_use())
        return found

    async def watching() -> None:
        async with gathering(cluster_uri(uri)) as (_, gatherer):
            await _watch(gatherer, pause, as_json)

    if watch:
        watch_async(watching())
    elif not run_async(main()).healthy:
        raise click.exceptions.Exit(Exit.FAILED)


async def _watch(gatherer: Gatherer, pause: float, as_json: bool) -> None:
    """Show the health again and again. While the metadata store is away, that is reported, and it goes on
    afterwards."""
    while True:
        found = await gatherer.look()
        if not as_json:
            clear_screen()
        _show(found, as_json, context_in_use())
        sys.stdout.flush()
        await asyncio.sleep(pause)


def _show(found: Health, as_json: bool, context: str | None) -> None:
    if as_json:
        emit({**status_json(found), "context": context})
        return
    if context is not None:
        print(f"context {context}")
    healing = found.healing
    if healing is not None and healing.brake is not None:
        print(f"COPYING IS STOPPED: {healing.brake.why}: {', '.join(healing.brake.bookies)}\n")
    if not found.facts.unreachable:
        _show_bookies(bookie_states(found))
    if healing is not None:
        _show_healing(healing)
    for finding in found.findings:
        print(*lines_of(finding), sep="\n")
    print(last_line(found.findings))


def _show_healing(healing: Overview) -> None:
    rate = sum(worker.bytes_per_s for worker in healing.workers)
    workers = f"{counted(len(healing.workers), 'replicator')}, {rate / 1e6:.1f} MB/s"
    print(f"auditor {healing.auditor or 'none'}, {workers}, delay {healing.delay_s:g} s")
    if healing.queue:
        if healing.oldest is not None and healing.oldest.age_s is not None:
            print(f"ledger {healing.oldest.ledger} has been marked for longest: for {healing.oldest.age_s:.0f} s")
        unreadable = sum(one.unreadable for one in healing.queue)
        print(f"{counted(len(healing.queue), 'ledger')} lack copies, {unreadable} of them cannot be read whole")
        table(
            ("LEDGER", "STATE", "MARKED", "ETA", "WHY"),
            [
                (one.ledger, one.state, ago(one.age_s), "" if one.eta_s is None else f"{one.eta_s:.0f} s", one.why)
                for one in healing.queue[:MOST_LEDGERS]
            ],
        )
        if len(healing.queue) > MOST_LEDGERS:
            print(f"and {len(healing.queue) - MOST_LEDGERS} more: `buckram autorecovery status`")
    for line in check_lines(healing, placement=False):  # that is among the warnings
        print(line)


def _show_bookies(bookies: tuple[BookieState, ...]) -> None:
    """Print all bookies of a small cluster; of a large one those with problems, and the fullest."""
    shown = sorted(bookies, key=lambda one: (one.state == "writable", one.free_bytes or 0))[:MOST_LEDGERS]
    rows = [(one.id, one.state, _gb(one.free_bytes), _gb(one.total_bytes)) for one in bookies if one in shown]
    table(("BOOKIE", "STATE", "FREE GB", "OF GB"), rows)
    if len(bookies) > len(shown):
        print(f"and {len(bookies) - len(shown)} more that are writable and have more space")
    states = collections.Counter(one.state for one in bookies)
    free, total = space_of(bookies)
    shared = len({one.file_system for one in bookies if one.file_system})
    on = ", on one file system" if len(bookies) > 1 and shared == 1 and all(one.file_system for one in bookies) else ""
    counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    print(f"{counted(len(bookies), 'bookie')}: {counts}; {_gb(free)} of {_gb(total)} GB free{on}\n")


def ago(seconds: float | None) -> str:
    """Return a duration as text for people, such as "3 h ago"; empty for None."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _gb(size: int | None) -> float | str:
    return "" if size is None else round(size / 1e9, 1)
