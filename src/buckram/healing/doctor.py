"""What `buckram doctor` looks for beyond the metadata check and the status: bookies' own reports, ids used twice, old
marks, orphans, leftovers; and the fixes that lose nothing.

Not here: reading the metadata (`metadata/checkup.py`), leftovers (`healing/leftovers.py`), what is printed
(`cli/doctor.py`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from buckram.client.client import Client
from buckram.client.read.replicas import ask
from buckram.core.cluster.bookie_report import BookieReport, parse_report
from buckram.core.cluster.problem import Problem
from buckram.core.cluster.wall_time import between
from buckram.core.wire.messages import DISK_STATE, REPORT, BookieInfoReply, GetBookieInfo
from buckram.errors import BuckramError, MalformedRecord
from buckram.healing.overview import Overview
from buckram.metadata.wishes import read_wishes
from buckram.streams.maintain.orphans import Orphan, delete_orphan, find_orphans
from buckram.streams.shared.metadata import StreamStore
from buckram.types import BookieId, BookieSet

NEARLY_ALL = 0.9
OLD_MARK_S = 3600.0
_NAMED = 5

Fix = Callable[[], Awaitable[str]]
"""Mends something and says what it did. BuckramError."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, and what mends it without losing anything; None where nothing does, or somebody has to decide."""

    problem: Problem
    fix: Fix | None = None


@dataclass(frozen=True, slots=True)
class Patient:
    """One registered bookie and what it says of itself. `report` is None for one that does not tell (Apache's)."""

    bookie: BookieId
    readonly: bool
    report: BookieReport | None = None
    figures: Mapping[str, int] = field(default_factory=dict)
    """Of its disk, by name (`core/wire/messages.py:BookieInfoReply`)."""


async def ask_patients(client: Client, registered: BookieSet) -> list[Patient]:
    """Ask every registered bookie. One that does not answer is left to the status, which names it."""
    names = sorted({*registered.writable, *registered.readonly})
    return list(await asyncio.gather(*(_patient(client, name, name in registered.readonly) for name in names)))


async def _patient(client: Client, bookie: BookieId, readonly: bool) -> Patient:
    reply = await ask(client.services.pool, bookie, GetBookieInfo(REPORT | DISK_STATE))
    if not isinstance(reply, BookieInfoReply) or reply.report is None:
        return Patient(bookie, readonly)
    try:
        return Patient(bookie, readonly, parse_report(bookie, reply.report), reply.figures)
    except MalformedRecord:
        return Patient(bookie, readonly)


async def findings_of_bookies(client: Client, registered: BookieSet, patients: Iterable[Patient]) -> list[Finding]:
    """Read-only disks, descriptors, releases, ids used twice. Limbo, bad records and slow disks are in the status."""
    wishes = await read_wishes(client.services.store)
    known = {one.bookie: one for one in patients}
    found = [*_used_twice(registered)]
    for one in known.values():
        asked = wishes[one.bookie].asked if one.bookie in wishes else ""
        if one.readonly and not asked:
            found.append(
                Problem(
                    "bookie read-only",
                    one.bookie,
                    "it takes no new entries, and nobody asked it to: its disk is full, or its next file cannot be had",
                    "see its log and `buckram bookie show`; free space, and it turns writable by itself",
                )
            )
        if one.report is not None:
            found += _descriptors(one.bookie, one.report)
    reports = {one.bookie: one.report for one in known.values() if one.report is not None}
    found += _versions(reports)
    return [Finding(one) for one in found]


def _descriptors(bookie: BookieId, report: BookieReport) -> list[Problem]:
    found = []
    if report.most_files and report.open_files >= NEARLY_ALL * report.most_files:
        why = f"{report.open_files} of {report.most_files} files may be open are open"
        found.append(Problem("descriptors", bookie, why, "raise the limit: ulimit -n, or LimitNOFILE= of its service"))
    if report.most_connections and report.connections >= NEARLY_ALL * report.most_connections:
        why = f"{report.connections} of {report.most_connections} connections are in use"
        do = "raise [bookie] max_connections, or the limit of open files; look who connects so often"
        found.append(Problem("connections", bookie, why, do))
    return found


def _versions(reports: Mapping[BookieId, BookieReport]) -> list[Problem]:
    by_version: dict[str, list[BookieId]] = defaultdict(list)
    for bookie, report in reports.items():
        by_version[report.version].append(bookie)
    if len(by_version) < 2:
        return []
    where = "; ".join(f"{version}: {named(bookies)}" for version, bookies in sorted(by_version.items()))
    do = "complete the upgrade, one bookie after the other; until then they work together"
    return [Problem("versions", where, f"bookies run {len(by_version)} releases", do)]


def _used_twice(registered: BookieSet) -> list[Problem]:
    """Two ids at one address, and two ids on copies of one directory."""
    addresses: dict[Hashable, list[BookieId]] = defaultdict(list)
    incarnations: dict[str, list[BookieId]] = defaultdict(list)
    for bookie, info in registered.everybody():
        if info.address is not None:
            addresses[info.address].append(bookie)
        if info.incarnation:
            incarnations[info.incarnation].append(bookie)
    found = []
    for address, bookies in addresses.items():
        if len(bookies) > 1:
            why = f"{len(bookies)} ids are registered at {address}: requests to all but one reach another bookie"
            do = "stop what should not run; a registration of a dead process ends with its session"
            found.append(Problem("address used twice", named(bookies), why, do))
    for incarnation, bookies in incarnations.items():
        if len(bookies) > 1:
            why = f"they run on copies of one directory (incarnation {incarnation})"
            do = (
                "stop the one that was started on the copy, at once, and `buckram bookie decommission` it; what was "
                "written to it since is on no other bookie of that id"
            )
            found.append(Problem("directory used twice", named(bookies), why, do))
    return found


async def clock_problems(client: Client) -> list[Problem]:
    """The clock of this machine and those that bookies tell of. BuckramError."""
    doubt, wrong = await client.services.clocks.doubt(), client.services.clocks.wrong()
    do = "set it right: until then nothing is deleted by age, and writers stamp records with the median"
    found = [Problem("clock", bookie, f"{between(by)} the median of all clocks", do) for bookie, by in wrong.items()]
    return found + ([Problem("clocks", "this machine", doubt, do)] if doubt else [])


def findings_of_healing(found: Overview) -> list[Finding]:
    """Marks that are old, and nobody there who would copy anything."""
    problems = []
    if not found.auditor:
        why = "nobody looks for lost bookies: nothing is copied when one goes"
        problems.append(Problem("autorecovery", "cluster", why, "run it as a service: `buckram autorecovery run`"))
    for one in found.queue:
        if one.age_s is not None and one.age_s >= OLD_MARK_S:
            why = f"it has lacked copies for {one.age_s / 3600:.0f} h: {one.why or one.state}"
            problems.append(Problem("old mark", f"ledger {one.ledger}", why, f"`buckram ledger check {one.ledger}`"))
    return [Finding(one) for one in problems]


async def findings_of_streams(client: Client) -> list[Finding]:
    """Ledgers that were made for a stream, have no place in it, and never will."""
    orphans = [one for one in await find_orphans(client, StreamStore(client.services.store)) if one.safe]
    if not orphans:
        return []
    where = f"ledgers {named([str(one.ledger) for one in orphans])}"
    why = f"{len(orphans)} ledgers were made for streams, are in none, and never will be"
    problem = Problem("orphans", where, why, "`buckram stream orphans --delete`, or a janitor")
    return [Finding(problem, lambda: _delete(client, orphans))]


async def _delete(client: Client, orphans: list[Orphan]) -> str:
    for one in orphans:
        await delete_orphan(client, one)
    return f"deleted {len(orphans)} orphans"


def named(names: list[str]) -> str:
    """Some of the names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


async def mend(findings: Iterable[Finding]) -> tuple[list[tuple[Problem, str]], dict[Problem, str]]:
    """Carry out every fix. -> problems with what was done about them, and those whose fix failed, with the reason."""
    done, failed = list[tuple[Problem, str]](), dict[Problem, str]()
    for one in findings:
        if one.fix is not None:
            try:
                done.append((one.problem, await one.fix()))
            except BuckramError as error:
                failed[one.problem] = str(error)
    return done, failed
