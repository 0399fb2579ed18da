"""`buckram placement`: where bookies are, where copies go and why, and which ledgers break their policy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.ledger.entries import LEDGER
from buckram.cli.shared import completion
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, connected, password_option, run_async
from buckram.cli.shared.output import counted, emit, table
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.explain import placement_states
from buckram.core.placement.topology import LEVELS, RackMap, Topology, parse_lines
from buckram.errors import AccessRefused, BuckramError, InvalidArgument, MalformedRecord, NoSuchBookie

if TYPE_CHECKING:
    from buckram.client.maintain.placement import Explained, Misplaced
    from buckram.client.maintain.repair_report import RepairReport
    from buckram.cluster import Client
    from buckram.core.placement.explain import Shortage


@click.group()
def placement() -> None:
    """Show and set where copies are, by region, zone and rack."""


# -- explain ----------------------------------------------------------------------------------------------------------


@placement.command("explain")
@click.argument("ledger_id", type=LEDGER, required=False, metavar="[LEDGER]")
@click.option("--new", is_flag=True, help="Explain a ledger that would be created now; none is created.")
@click.option("--namespace", "name", help="With --new, apply the policy of this namespace.")
@cluster_options
def explain(ledger_id: int | None, new: bool, name: str | None, uri: str | None, as_json: bool) -> None:
    """Explain why each bookie is a member of a ledger or is not. Also whether the placement is met.

    Exit code 1 when it is not.

    \b
    Example:
      buckram placement explain 7
      buckram placement explain --new --namespace shop
    """
    if (ledger_id is None) is not new or (name is not None and not new):
        raise InvalidArgument("name a ledger, or give --new, and --namespace only with --new")
    found = run_async(_explain(uri, ledger_id, name))
    if as_json:
        emit({"ledger": ledger_id, "fragments": [_explained_json(one) for one in found]})
    else:
        for one in found:
            what = "a new ledger" if new else f"ledger {ledger_id} from entry {one.first_entry}"
            print(f"{what}, placement `{one.policy}`: {'broken' if one.short else 'met'}")
            rows = [("+" if r.taken else "-", r.bookie, r.location, r.why) for r in one.reasons]
            table(("", "bookie", "location", "why"), rows)
    if any(one.short for one in found):
        raise click.exceptions.Exit(Exit.FAILED)


async def _explain(uri: str | None, ledger_id: int | None, name: str | None) -> list[Explained]:
    from buckram.client.maintain.placement import explain_ledger, explain_new
    from buckram.core.placement.policy import PlacementPolicy
    from buckram.core.streams.policy import merged

    async with connected(uri) as client:
        if ledger_id is not None:
            return await explain_ledger(client.services, ledger_id)
        policy, quorum = client.services.bookies.policy, Quorum(3, 3, 2)
        if name is not None:
            settings = merged((await client.namespaces.get(name)).policy)
            quorum = settings.quorum
            policy = PlacementPolicy.parse(settings.placement) if settings.placement else policy
        return [await explain_new(client.services, quorum, policy)]


def _explained_json(one: Explained) -> dict[str, Any]:
    return {
        "first_entry": one.first_entry,
        "placement": str(one.policy),
        "met": not one.short,
        "broken": [str(breach) for breach in one.short],
        "bookies": [{"bookie": r.bookie, "location": r.location, "taken": r.taken, "why": r.why} for r in one.reasons],
    }


# -- check ------------------------------------------------------------------------------------------------------------


@placement.command("check")
@click.option("--fix", is_flag=True, help="Move members of ledgers that can be repaired, with all their entries.")
@password_option
@cluster_options
def check(fix: bool, password: str, uri: str | None, as_json: bool) -> None:
    """List ledgers whose bookies break their placement. Exit code 1 while there are any.

    The placement is the one a ledger was made with, else that of this command (BUCKRAM_CLIENT_PLACEMENT). With --fix
    a new member has all its entries before it takes the place of the old one, so there are never fewer copies. The
    open end of a ledger stays as it is until it is closed. Too few hosts, racks, zones or regions are reported, too; a
    ledger that is as good as a new one would be is not listed for them.

    \b
    Example:
      buckram placement check --fix
    """
    found = run_async(_check(uri, fix, password))
    for error in found.unreadable:
        print(error, file=sys.stderr)
    if as_json:
        emit(
            {
                "ledgers": found.ledgers,
                "broken": [one.ledger_id for one, _, left in found.rows if left],
                "found": [_misplaced_json(one, done, left) for one, done, left in found.rows],
                "unreadable": [str(error) for error in found.unreadable],
                "short": [asdict(one) for one in found.short],
            }
        )
    else:
        _print_check(found, fix)
    if found.unreadable or any(left for _, _, left in found.rows):
        raise click.exceptions.Exit(Exit.FAILED)


Row = tuple["Misplaced", "RepairReport | str | None", bool]
"""Ledger, result of its repair, and whether it still breaks its placement."""


@dataclass(slots=True)
class PlacementFindings:
    """Result of a check of all ledgers."""

    ledgers: int = 0
    rows: list[Row] = field(default_factory=list)
    unreadable: list[MalformedRecord] = field(default_factory=list)
    short: list[Shortage] = field(default_factory=list)
    """Requirements that no choice of bookies can meet: not a fault of a ledger, and no move mends them."""


async def _check(uri: str | None, fix: bool, password: str) -> PlacementFindings:
    from buckram.client.maintain.placement import Shapes, judged

    checked, broken = PlacementFindings(), list["Misplaced"]()
    async with connected(uri) as client:
        bookies = client.services.bookies
        shapes: Shapes = {(Quorum(3, 3, 2), str(bookies.policy)): bookies.policy}
        async for _, found in judged(client.services, shapes):
            checked.ledgers += 1
            if isinstance(found, MalformedRecord):
                checked.unreadable.append(found)
            elif found is not None:
                broken.append(found)
        checked.rows = [await _mended(client, one, password) if fix else (one, None, True) for one in broken]
        lacking = [one for (quorum, _), policy in shapes.items() for one in bookies.shortages(quorum, policy)]
        checked.short = list(dict.fromkeys(lacking))
        await _note(client, checked)
    return checked


async def _note(client: Client, checked: PlacementFindings) -> None:
    """Publish the remaining misplaced ledgers, so that `status` does not show the auditor's older result."""
    from buckram.healing.auditing.ledger_walk import Checked as Counted
    from buckram.healing.overview import PLACEMENT
    from buckram.healing.status_store import HealingStatusStore

    left = sum(left for _, _, left in checked.rows)
    counted_ones = Counted(checked.ledgers, unreadable=len(checked.unreadable), misplaced=left, complete=True)
    at_ms = client.services.runtime.clock.wall_us() // 1000
    with suppress(AccessRefused):  # who may read alone
        await HealingStatusStore(client.services.store).say_checked(PLACEMENT, {**asdict(counted_ones), "at_ms": at_ms})


async def _mended(client: Client, one: Misplaced, password: str) -> Row:
    from buckram.client.maintain.placement import judge

    try:
        report = await client.repair(one.ledger_id, password=password, move=True)
        left = judge(client.services, one.ledger_id, await client.metadata(one.ledger_id))
    except BuckramError as error:
        return one, str(error), True
    return one, report, left is not None


def _print_check(checked: PlacementFindings, fix: bool) -> None:
    from buckram.core.health.state_table import TABLE

    rows = checked.rows
    for one, done, left in rows:
        state = "open" if one.open else "closed"
        print(f"ledger {one.ledger_id} ({state}), placement `{one.policy}`:{'' if left else ' fixed'}")
        for first, broken in one.fragments:
            for breach in broken:
                print(f"  {'' if left else 'was: '}from entry {first}: {breach}")
        if done is None:
            continue
        if isinstance(done, str):
            print(f"  not fixed: {done}")
            continue
        for change in done.replaced:
            print(f"  from entry {change.first_entry}: {change.new} instead of {change.old}")
        for problem in done.problems:
            print(f"  left: {problem}")
    for short, lack in zip(checked.short, placement_states(checked.short, 0), strict=True):
        print(f"{lack.where}: {lack.why}\n  {TABLE[lack.name].cure.format(level=short.level)}")
    left_over = sum(left for _, _, left in rows)
    if not rows:
        best = "meets its placement" if not checked.short else "meets its placement as far as it can"
        print(f"every ledger{' that can be read' if checked.unreadable else ''} {best}")
    elif fix:
        print(f"{counted(len(rows) - left_over, 'ledger')} fixed, {left_over} left")
    else:
        print(f"{counted(len(rows), 'ledger')} to fix: `buckram placement check --fix`")


def _misplaced_json(one: Misplaced, done: RepairReport | str | None, left: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "ledger": one.ledger_id,
        "placement": str(one.policy),
        "open": one.open,
        "broken": [
            {"first_entry": first, "level": b.level, "members": b.members, "found": b.found, "needed": b.needed}
            for first, broken in one.fragments
            for b in broken
        ],
        "left": left,
    }
    if isinstance(done, str):
        shown["problems"] = [done]
    elif done is not None:
        shown["problems"] = done.problems
        shown["replaced"] = [{"first_entry": c.first_entry, "old": c.old, "new": c.new} for c in done.replaced]
    return shown


# -- topology ---------------------------------------------------------------------------------------------------------


@placement.group("topology")
def topology() -> None:
    """Show and set where bookies are. A location set here overrides the bookie's own; running clients follow at
    once."""


@topology.command("show")
@cluster_options
def show(uri: str | None, as_json: bool) -> None:
    """Show location and labels of each bookie, and their source.

    \b
    Example:
      buckram placement topology show
    """
    _print_topology(*run_async(_seen(uri)), as_json)


@topology.command("set")
@click.argument("bookie_id", shell_complete=completion.bookies)
@click.argument("path", required=False)
@click.option(
    "--label", "labels", multiple=True, help="Group that the bookie serves; repeatable. Replaces earlier labels."
)
@click.option("--remove", is_flag=True, help="Remove the setting; the bookie's own location applies again.")
@cluster_options
def set_location(
    bookie_id: str, path: str | None, labels: tuple[str, ...], remove: bool, uri: str | None, as_json: bool
) -> None:
    """Set where a bookie is. PATH is /rack, /region/rack, /region/zone/rack, or levels by name such as /zone=a/rack=r1.

    \b
    Example:
      buckram placement topology set bookie-1 /eu/r1
    """
    if (path is None) is not remove:
        raise InvalidArgument("give a PATH, or --remove")
    _print_topology(*run_async(_set(uri, bookie_id, path, labels)), as_json)


@topology.command("load")
@click.argument("file", type=click.Path(dir_okay=False))
@cluster_options
def load(file: str, uri: str | None, as_json: bool) -> None:
    """Read all locations from a file. Each line is BOOKIE PATH [LABEL ...]; they replace all earlier settings.

    \b
    Example:
      buckram placement topology load racks.txt
    """
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidArgument(f"{file}: {why}; name a text file with BOOKIE PATH in each line") from None
    _print_topology(*run_async(_load(uri, file, lines)), as_json)


async def _seen(uri: str | None) -> tuple[Topology, RackMap, list[str]]:
    from buckram.metadata.records.topology import read_rack_map

    async with connected(uri) as client:
        ours = await read_rack_map(client.services.store)
        return client.services.bookies.topology, ours, await _known(client)


async def _set(
    uri: str | None, bookie: str, path: str | None, labels: tuple[str, ...]
) -> tuple[Topology, RackMap, list[str]]:
    from buckram.metadata.records.topology import change_rack_map

    async with connected(uri) as client:
        known = await _known(client)
        if bookie not in known and path is not None:
            raise NoSuchBookie(bookie)
        ours = await change_rack_map(client.services.store, lambda kept: kept.placed(bookie, path, labels or None))
        await client.services.bookies.refresh()
        return client.services.bookies.topology, ours, known


async def _load(uri: str | None, file: str, lines: Sequence[str]) -> tuple[Topology, RackMap, list[str]]:
    from buckram.metadata.records.topology import change_rack_map

    async with connected(uri) as client:
        known = await _known(client)
        wanted = parse_lines(lines, file, known)
        ours = await change_rack_map(client.services.store, lambda kept: wanted)
        await client.services.bookies.refresh()
        return client.services.bookies.topology, ours, known


async def _known(client: Client) -> list[str]:
    """Return every bookie that has a cookie or is registered."""
    there = client.services.bookies.bookies
    return sorted(dict.fromkeys((*await client.services.store.known_bookies(), *there.writable, *there.readonly)))


def _print_topology(where: Topology, ours: RackMap, known: Sequence[str], as_json: bool) -> None:
    bookies = sorted(dict.fromkeys((*known, *where.locations, *ours.paths)))
    if as_json:
        emit({"bookies": [_located(bookie, where, ours) for bookie in bookies]})
        return
    rows = []
    for bookie in bookies:
        location, labels = where.location(bookie), ", ".join(where.labelled(bookie))
        rows.append((bookie, *(getattr(location, level) or "-" for level in LEVELS), labels, _source(bookie, ours)))
    table(("bookie", *LEVELS, "labels", "set by"), rows)


def _located(bookie: str, where: Topology, ours: RackMap) -> dict[str, Any]:
    location = where.location(bookie)
    levels = {level: getattr(location, level) for level in LEVELS}
    return {"bookie": bookie, **levels, "labels": where.labelled(bookie), "set_by": _source(bookie, ours)}


def _source(bookie: str, ours: RackMap) -> str:
    return "topology" if bookie in ours.paths else "bookie"
