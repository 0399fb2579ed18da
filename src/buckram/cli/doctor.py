"""`buckram doctor`: everything that is wrong with a cluster, and the mending of what can be mended without a loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from buckram.cli.exits import Exit
from buckram.cli.options import cluster_uri, json_option, metadata_option, run_async
from buckram.cli.output import counted, emit, table
from buckram.core.cluster.problem import Problem
from buckram.errors import BuckramError

if TYPE_CHECKING:
    from buckram.client.client import Client
    from buckram.healing.doctor import Finding, Patient
    from buckram.metadata.store import TreeStore


@dataclass(slots=True)
class Examined:
    """What the doctor found; after a fix, what is still there."""

    bookies: list[Patient] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    done: list[tuple[Problem, str]] = field(default_factory=list)
    """Problems about which something was done, and what."""
    failed: dict[Problem, str] = field(default_factory=dict)
    """Problems whose fix failed, and why."""

    def because(self, problem: Problem) -> str:
        """Why a fix left a problem."""
        return self.failed.get(problem, "it could lose data, or needs somebody to decide or to do something")


@click.command()
@click.option("--fix", is_flag=True, help="Mend what can be mended without losing anything.")
@metadata_option
@json_option
def doctor(fix: bool, uri: str | None, as_json: bool) -> None:
    """Look at everything: metadata, bookies, disks, clocks, healing, streams; and say what is wrong and what to do.

    It reads every ledger's record and asks every bookie. With --fix it removes leftovers and orphans; what could lose
    data, or needs somebody to decide, is left and said. Exit code 1 while something is wrong.

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
    if found.findings:
        raise click.exceptions.Exit(Exit.FAILED)


async def _examine(uri: str, fix: bool) -> Examined:
    from buckram.cli.cluster_history import open_tree
    from buckram.client.client import connect
    from buckram.healing.doctor import Finding, mend

    store = await open_tree(uri)
    try:
        found = await _metadata(store)
        try:
            async with connect(store) as client:
                await _look(client, found)
                if fix:
                    done, failed = await mend(found.findings)
                    found = await _metadata(store)
                    found.done, found.failed = done, failed
                    await _look(client, found)
        except BuckramError as error:
            problem = Problem("client", uri, f"no program can use the cluster now: {error}", "see the other problems")
            found.findings.append(Finding(problem))
        return found
    finally:
        await store.close()


async def _metadata(store: TreeStore) -> Examined:
    from buckram.healing.doctor import Finding
    from buckram.metadata.checkup import examine

    checkup = await examine(store)
    return Examined(
        findings=[Finding(Problem("metadata", one.node, one.found, one.advice)) for one in checkup.problems]
    )


async def _look(client: Client, found: Examined) -> None:
    """What needs a client: the bookies and what they say, healing, clocks, streams."""
    from buckram.healing import doctor
    from buckram.healing.leftovers import findings_of_leftovers
    from buckram.views.status import look

    store = client.services.store
    status = await look(client)
    registered = await store.bookies()
    found.bookies = await doctor.ask_patients(client, registered)
    found.findings += [doctor.Finding(one) for one in status.problems]
    found.findings += doctor.findings_of_healing(status.healing)
    found.findings += await doctor.findings_of_bookies(client, registered, found.bookies)
    found.findings += [doctor.Finding(one) for one in await doctor.clock_problems(client)]
    found.findings += await findings_of_leftovers(store)
    found.findings += await doctor.findings_of_streams(client)


def _json(found: Examined, fix: bool) -> dict[str, Any]:
    problems = [one.problem.as_json() for one in found.findings]
    refused = [one.problem.as_json() | {"because": found.because(one.problem)} for one in found.findings]
    return {
        "healthy": not problems,
        "problems": problems,
        "fixed": [problem.as_json() | {"done": said} for problem, said in found.done],
        "refused": refused if fix else [],
        "bookies": [
            {
                "id": one.bookie,
                "state": "readonly" if one.readonly else "writable",
                "version": one.report.version if one.report else None,
                "sync_us": one.figures.get("sync_us") or None,
                "open_files": one.report.open_files if one.report else None,
                "most_files": one.report.most_files if one.report else None,
            }
            for one in found.bookies
        ],
    }


def _print(found: Examined, fix: bool) -> None:
    rows = []
    for one in found.bookies:
        state, report = "readonly" if one.readonly else "writable", one.report
        files = f"{report.open_files}/{report.most_files}" if report is not None else ""
        sync_us = one.figures.get("sync_us", 0)
        release = report.version if report is not None else "does not say"
        rows.append((one.bookie, state, release, round(sync_us / 1000, 2) if sync_us else "", files))
    if rows:
        table(("BOOKIE", "STATE", "RELEASE", "SYNC MS", "FILES"), rows)
        print()
    for problem, said in found.done:
        print(f"fixed: {problem.what} {problem.where}: {said}")
    for finding in found.findings:
        problem = finding.problem
        print(f"{problem.what} {problem.where}: {problem.why}\n  {problem.do}")
        if fix:
            print(f"  not fixed: {found.because(problem)}")
    fixable = sum(finding.fix is not None for finding in found.findings)
    if not found.findings:
        print("nothing is wrong")
    else:
        can = f"; `buckram doctor --fix` mends {fixable} of them" if fixable and not fix else ""
        print(f"{counted(len(found.findings), 'problem')}{can}")
