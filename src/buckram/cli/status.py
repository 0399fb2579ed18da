"""`buckram status`: one screen of bookies, space, ledgers that lack copies with reasons, rates and what is left."""

from __future__ import annotations

import asyncio
import collections
import sys
from typing import TYPE_CHECKING

import click

from buckram.cli import values
from buckram.cli.autorecovery import check_lines
from buckram.cli.exits import Exit
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import counted, emit, table
from buckram.core.cluster.problem import Problem
from buckram.errors import MetadataUnavailable
from buckram.views.status import MOST_LEDGERS, BookieState, Status, look, status_json

if TYPE_CHECKING:
    from buckram.client.client import Client

_CLEAR = "\x1b[2J\x1b[H"


@click.command()
@click.option("--watch", is_flag=True, help="Again and again until Ctrl-C.")
@click.option("--every", default="2s", show_default=True, metavar="TIME", help="With --watch: how often.")
@metadata_option
@json_option
def status(watch: bool, every: str, uri: str | None, as_json: bool) -> None:
    """How the cluster is: bookies, space, and every ledger that lacks copies, with the reason. Exit code 1 if not well.

    \b
    Examples:
      buckram status
      buckram status --watch
    """
    pause = max(values.duration("--every", every), 0.1)

    async def main() -> Status:
        async with connected(uri) as client:
            if watch:
                await _watch(client, pause, as_json)
            found = await look(client)
            _show(found, as_json)
            return found

    if run_async(main()).problems:
        raise click.exceptions.Exit(Exit.FAILED)


async def _watch(client: Client, pause: float, as_json: bool) -> None:
    """Look for ever. While the metadata store is away that is said, and it goes on when it is back."""
    while True:
        try:
            found: Status | None = await look(client)
            away = ""
        except MetadataUnavailable as error:
            found, away = None, str(error)
        if not as_json and sys.stdout.isatty():
            print(_CLEAR, end="")
        if found is not None:
            _show(found, as_json)
        elif as_json:
            do = "see that it runs and can be reached; what is open is written and read meanwhile"
            emit(
                {
                    "healthy": False,
                    "problems": [Problem("metadata store", client.services.store.uri, away, do).as_json()],
                }
            )
        else:
            print(f"the metadata store cannot be asked: {away}")
        sys.stdout.flush()
        await asyncio.sleep(pause)


def _show(found: Status, as_json: bool) -> None:
    if as_json:
        emit(status_json(found))
        return
    for problem in found.problems[:1] if found.healing.brake is not None else ():
        print(f"NOTHING IS COPIED: {problem.why}: {problem.where}\n  {problem.do}\n")
    _show_bookies(found.bookies)
    healing = found.healing
    rate = sum(worker.bytes_per_s for worker in healing.workers)
    workers = f"{counted(len(healing.workers), 'replicator')}, {rate / 1e6:.1f} MB/s"
    print(f"auditor {healing.auditor or 'none'}, {workers}, delay {healing.delay_s:g} s")
    down = [one.id for one in found.bookies if one.state in ("down", "silent")]
    if down and len(down) == len(found.bookies):
        print("no bookie serves: nothing can be read or written")
    if not healing.queue and down:
        are = "is" if len(down) == 1 else "are"
        print(f"no ledger is marked; {', '.join(down)} {are} away, whose ledgers are looked for after the delay")
    elif not healing.queue:
        print("every ledger has all its copies, as far as it is known")
    else:
        if healing.oldest is not None and healing.oldest.age_s is not None:
            print(f"ledger {healing.oldest.ledger} has been marked for longest: for {healing.oldest.age_s:.0f} s")
        print(f"{counted(len(healing.queue), 'ledger')} lack copies, {found.unavailable} of them cannot be read whole")
        table(
            ("LEDGER", "STATE", "MARKED", "ETA", "WHY"),
            [
                (one.ledger, one.state, ago(one.age_s), "" if one.eta_s is None else f"{one.eta_s:.0f} s", one.why)
                for one in healing.queue[:MOST_LEDGERS]
            ],
        )
        if len(healing.queue) > MOST_LEDGERS:
            print(f"and {len(healing.queue) - MOST_LEDGERS} more: `buckram autorecovery status`")
    for line in check_lines(healing):
        print(line)
    for problem in found.problems:
        if not problem.what.startswith(("ledger ", "nothing ")):
            print(f"{problem.what} {problem.where}: {problem.why}\n  {problem.do}")


def _show_bookies(bookies: tuple[BookieState, ...]) -> None:
    """All of a small cluster; of a large one those that are not well, and the fullest."""
    shown = sorted(bookies, key=lambda one: (one.state == "writable", one.free_bytes or 0))[:MOST_LEDGERS]
    rows = [(one.id, one.state, _gb(one.free_bytes), _gb(one.total_bytes)) for one in bookies if one in shown]
    table(("BOOKIE", "STATE", "FREE GB", "OF GB"), rows)
    if len(bookies) > len(shown):
        print(f"and {len(bookies) - len(shown)} more that are writable and have more space")
    states = collections.Counter(one.state for one in bookies)
    free, total = sum(one.free_bytes or 0 for one in bookies), sum(one.total_bytes or 0 for one in bookies)
    counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    print(f"{counted(len(bookies), 'bookie')}: {counts}; {_gb(free)} of {_gb(total)} GB free\n")


def ago(seconds: float | None) -> str:
    """For people: "3 h ago"; empty where it is not known."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _gb(size: int | None) -> float | str:
    return "" if size is None else round(size / 1e9, 1)
