"""`buckram doctor`: everything that is wrong with a cluster, and the mending of what can be mended without a loss."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.cluster.health_report import gathering, last_line, lines_of
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, cluster_uri, run_async
from buckram.cli.shared.output import emit, table

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.core.health.facts import BookieFacts, Noted
    from buckram.core.health.findings import Finding
    from buckram.errors import BuckramError
    from buckram.healing.cleanup import Fixable
    from buckram.health.gathering import Gatherer, Health
    from buckram.metadata.tree.store import TreeStore


@dataclass(slots=True)
class Examined:
    """Result of an examination; after a fix, the remaining findings."""

    health: Health
    fixable: list[Fixable] = field(default_factory=list)
    """Findings that may be fixed now."""
    done: list[tuple[Noted, str]] = field(default_factory=list)
    """Findings that were fixed, each with what was done."""
    failed: dict[str, str] = field(default_factory=dict)
    """Error message by the place of each finding whose fix failed."""

    def because(self, finding: Finding) -> str:
        """Return why a finding remains after a fix."""
        return self.failed.get(finding.where, "it could lose data, or needs a decision or a repair by an operator")


@click.command()
@click.option("--fix", is_flag=True, help="Repair what can be repaired without losing data.")
@cluster_options
def doctor(fix: bool, uri: str | None, as_json: bool) -> None:
    """Examine everything, and report what is wrong and what to do.

    It examines metadata, bookies, disks, clocks, healing and streams.

    It reads every ledger's record and asks every bookie. With --fix it removes leftovers and orphans; what could lose
    data, or needs a decision, is left and reported. Exit code 1 while something is an error.

    \b
    Examples:
      buckram doctor
      buckram doctor --fix --json
    """
    found = run_async(_examine(cluster_uri(uri), fix))
    if as_json:
        emit(_json(found, fix))
    else:
        _print(found, fix)
    if not found.health.healthy:
        raise click.exceptions.Exit(Exit.FAILED)


async def _examine(uri: str, fix: bool) -> Examined:
    from buckram.errors import AccessRefused, MetadataUnavailable
    from buckram.healing.cleanup import mend
    from buckram.health.gathering import refused, unreachable

    try:
        async with gathering(uri) as (store, gatherer), AsyncExitStack() as stack:
            client = await _client_of(store, stack)
            found = await _look(store, gatherer, client)
            if fix and found.fixable:
                done, failed = await mend(found.fixable)
                found = await _look(store, gatherer, client)
                found.done, found.failed = done, failed
            return found
    except AccessRefused as error:
        return Examined(refused(uri, error))
    except MetadataUnavailable as error:
        return Examined(unreachable(uri, error))


async def _client_of(store: TreeStore, stack: AsyncExitStack) -> Client | BuckramError:
    """Return a client, for checks and fixes that need one, or the error for which no client can be opened now."""
    from buckram.cluster import connect
    from buckram.errors import BuckramError

    try:
        return await stack.enter_async_context(connect(store))
    except BuckramError as error:
        return error


async def _look(store: TreeStore, gatherer: Gatherer, client: Client | BuckramError) -> Examined:
    """Examine the cluster's health, all metadata records, and removable leftovers."""
    from buckram.core.health.facts import Noted
    from buckram.core.health.findings import may_remove
    from buckram.errors import BuckramError
    from buckram.healing.cleanup import fixable_of
    from buckram.metadata.maintain.checkup import examine

    health = await gatherer.look()
    if health.facts.unreachable:
        return Examined(health)
    noted = (await examine(store)).problems
    fixable: list[Fixable] = []
    try:
        if isinstance(client, BuckramError):
            raise client
        fixable = await fixable_of(client)
    except BuckramError as error:
        noted.append(Noted("not-asked", "leftovers and orphans", str(error)))
    health = health.with_noted((*noted, *(one.noted for one in fixable)))
    return Examined(health, [one for one in fixable if may_remove(health.facts, one.noted)])


def _json(found: Examined, fix: bool) -> dict[str, Any]:
    from buckram.core.health.findings import finding_of
    from buckram.serve.json_views.status import problems_json

    problems, facts = problems_json(found.health), found.health.facts
    refused = [one.as_json() | {"because": found.because(one)} for one in found.health.findings]
    return {
        **problems,
        "fixed": [finding_of(facts, one).as_json() | {"done": said} for one, said in found.done],
        "refused": refused if fix else [],
        "bookies": [_bookie(one) for one in found.health.facts.bookies if one.state != "down"],
    }


def _bookie(one: BookieFacts) -> dict[str, Any]:
    return {
        "id": one.id,
        "state": one.state,
        "version": one.report.version if one.report else None,
        "sync_us": one.sync_us or None,
        "open_files": one.report.open_files if one.report else None,
        "most_files": one.report.most_files if one.report else None,
    }


def _print(found: Examined, fix: bool) -> None:
    rows = []
    for one in (one for one in found.health.facts.bookies if one.state != "down"):
        report = one.report
        files = f"{report.open_files}/{report.most_files}" if report is not None else ""
        release = report.version if report is not None else "does not say"
        rows.append((one.id, one.state, release, round(one.sync_us / 1000, 2) if one.sync_us else "", files))
    if rows:
        table(("BOOKIE", "STATE", "RELEASE", "SYNC MS", "FILES"), rows)
        print()
    for noted, said in found.done:
        print(f"fixed: {noted.state} {noted.where}: {said}")
    for finding in found.health.findings:
        print(*lines_of(finding), sep="\n")
        if fix:
            print(f"  not fixed: {found.because(finding)}")
    can = f"; `buckram doctor --fix` fixes {len(found.fixable)} of them" if found.fixable and not fix else ""
    print(f"{last_line(found.health.findings)}{can}")
