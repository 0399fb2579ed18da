"""`buckram status`: one screen of bookies, space, ledgers that lack copies with reasons, rates and what is left."""

from __future__ import annotations

import asyncio
import collections
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from buckram.cli import values
from buckram.cli.autorecovery import check_lines
from buckram.cli.exits import Exit
from buckram.cli.options import connected, json_option, metadata_option, run_async
from buckram.cli.output import counted, emit, table
from buckram.core.cluster.problem import Problem
from buckram.core.wire.messages import (
    DISK_STATE,
    FREE_DISK_SPACE,
    TOTAL_DISK_CAPACITY,
    BookieInfoReply,
    GetBookieInfo,
    Trouble,
)
from buckram.errors import BuckramError, Code, MetadataUnavailable
from buckram.types import BookieSet

if TYPE_CHECKING:
    from buckram.client.client import Client
    from buckram.healing.overview import Overview

_CLEAR = "\x1b[2J\x1b[H"
_OLD_MARK_S = 3600.0
_MOST = 20
"""So many ledgers are shown; `buckram autorecovery status` shows all."""


@dataclass(frozen=True, slots=True)
class BookieState:
    """One bookie as status shows it. Bytes are None where it does not answer."""

    id: str
    state: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    troubles: tuple[Trouble, ...] = ()
    """What is wrong with its disk or its files, as it says itself."""


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster at one moment."""

    bookies: tuple[BookieState, ...]
    healing: Overview
    problems: tuple[Problem, ...]

    @property
    def unavailable(self) -> int:
        """Ledgers with entries that cannot be read now."""
        return sum(one.unreadable for one in self.healing.queue)


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


async def look(client: Client) -> Status:
    """Everything that status shows, from the metadata store and the bookies themselves."""
    from buckram.healing.overview import overview

    store = client.services.store
    registered = await store.bookies()
    known = sorted({*await store.known_bookies(), *registered.writable, *registered.readonly})
    states = await asyncio.gather(*(_bookie(client, bookie, registered) for bookie in known))
    found = await overview(store, client.services.runtime.clock.wall_us() // 1000)
    return Status(tuple(states), found, tuple(_problems(states, found)))


async def _bookie(client: Client, bookie: str, registered: BookieSet) -> BookieState:
    state = "writable" if bookie in registered.writable else "readonly" if bookie in registered.readonly else "down"
    if state == "down":
        return BookieState(bookie, state)
    try:
        reply = await client.services.pool.call(
            bookie, GetBookieInfo(TOTAL_DISK_CAPACITY | FREE_DISK_SPACE | DISK_STATE)
        )
    except BuckramError:
        return BookieState(bookie, "silent")
    if not isinstance(reply, BookieInfoReply) or reply.code is not Code.OK:
        return BookieState(bookie, state)
    return BookieState(bookie, state, reply.free_bytes, reply.total_bytes, tuple(reply.troubles))


def _problems(bookies: list[BookieState], found: Overview) -> list[Problem]:
    problems: list[Problem] = []
    if found.brake is not None:
        do = "start them again, or say that they are gone for good: `buckram autorecovery proceed`"
        problems.append(Problem("nothing is copied", ", ".join(found.brake.bookies), found.brake.why, do))
    if not found.enabled:
        problems.append(Problem("autorecovery", "cluster", "it is disabled", "buckram autorecovery enable"))
    for one in bookies:
        if one.state == "down":
            do = (
                "start it again; if it is gone for good its copies are made anew, and once no ledger names it: "
                f"`buckram bookie forget {one.id}`"
            )
            problems.append(Problem("bookie", one.id, "it is down: it has a cookie and is not registered", do))
        elif one.state == "silent":
            problems.append(Problem("bookie", one.id, "it is registered and does not answer", "see its log"))
        problems += [Problem(trouble.what, one.id, trouble.why, trouble.action) for trouble in one.troubles]
    if found.queue and not found.auditor and not found.workers:
        problems.append(Problem("autorecovery", "cluster", "nobody runs it", "buckram autorecovery run"))
    for ledger in found.queue:
        do = "" if ledger.state in ("in progress", "queued") else "see the reason; it is tried again by itself"
        why = ledger.why or "it lacks copies"
        if ledger.age_s is not None and ledger.age_s > _OLD_MARK_S:
            why += f"; it has been marked for {ledger.age_s / 3600:.1f} hours"
        problems.append(Problem(f"ledger {ledger.state}", str(ledger.ledger), why, do))
    return problems


def _show(found: Status, as_json: bool) -> None:
    if as_json:
        emit(_json(found))
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
                for one in healing.queue[:_MOST]
            ],
        )
        if len(healing.queue) > _MOST:
            print(f"and {len(healing.queue) - _MOST} more: `buckram autorecovery status`")
    for line in check_lines(healing):
        print(line)
    for problem in found.problems:
        if not problem.what.startswith(("ledger ", "nothing ")):
            print(f"{problem.what} {problem.where}: {problem.why}\n  {problem.do}")


def _show_bookies(bookies: tuple[BookieState, ...]) -> None:
    """All of a small cluster; of a large one those that are not well, and the fullest."""
    shown = sorted(bookies, key=lambda one: (one.state == "writable", one.free_bytes or 0))[:_MOST]
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


def _json(found: Status) -> dict[str, Any]:
    return {
        "healthy": not found.problems,
        "problems": [one.as_json() for one in found.problems],
        "bookies": [
            {"id": one.id, "state": one.state, "free_bytes": one.free_bytes, "total_bytes": one.total_bytes}
            for one in found.bookies
        ],
        "under_replicated": len(found.healing.queue),
        "oldest_mark_s": found.healing.oldest.age_s if found.healing.oldest else None,
        "misplaced": found.healing.checks.get("placementpolicycheck", {}).get("misplaced"),
        "unavailable": found.unavailable,
        "auditor": found.healing.auditor or None,
        "bytes_per_s": sum(worker.bytes_per_s for worker in found.healing.workers),
        "queue": [
            {"ledger": one.ledger, "state": one.state, "why": one.why, "eta_s": one.eta_s, "age_s": one.age_s}
            for one in found.healing.queue[:_MOST]
        ],
    }
