"""`buckram upgrade-check`: whether bookies can be upgraded to this release, and what to know first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from buckram.cli.cluster.health_report import look_once
from buckram.cli.shared.exits import Exit
from buckram.cli.shared.options import cluster_options, cluster_uri, read_toml, run_async
from buckram.cli.shared.output import emit, table
from buckram.config import SECTIONS, load
from buckram.core.cluster.problems import RELEASES, Problem, release_problems, series
from buckram.errors import BuckramError, ConfigError, CorruptStore

_ALLOWED = ("auditor-missing", "autorecovery-disabled")
"""Errors that do not stand against an upgrade: copies need not be made while bookies restart in turn."""


@dataclass(slots=True)
class UpgradeFindings:
    """Findings of the check. A problem delays the upgrade; a note is information to have before it."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bookies: dict[str, str] = field(default_factory=dict)
    directories: list[dict[str, Any]] = field(default_factory=list)


@click.command("upgrade-check")
@click.option(
    "--data",
    "directories",
    multiple=True,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Directory of a bookie on this machine; repeatable.",
)
@click.option(
    "--config", "files", multiple=True, type=click.Path(), metavar="FILE.toml", help="Settings of a bookie; repeatable."
)
@cluster_options
def upgrade_check(directories: tuple[str, ...], files: tuple[str, ...], uri: str | None, as_json: bool) -> None:
    """Check whether bookies can be upgraded to this release. This is the release of the command. Nothing is changed.

    Run the new release's command, before the first bookie is stopped and again after each. It asks whether every ledger
    has its copies and every bookie runs, which releases they run, and, on a bookie's machine, whether this release
    reads its directory (--data) and its settings (--config). Exit code 1 if anything prevents the upgrade.

    \b
    Example:
      buckram upgrade-check --data /disk1/bookie --config /etc/buckram/bookie.toml
    """
    from buckram.bookie.report import release

    found, own = UpgradeFindings(), release()
    _settings(found, files)
    _directories(found, directories)
    try:
        run_async(_cluster(found, uri, own))
    except BuckramError as error:
        found.problems.append(Problem("cluster", uri or "", str(error), "make sure that it can be reached"))
    if not found.problems:
        found.notes.append("back up the metadata before the first bookie: `buckram cluster backup FILE`")
    if as_json:
        emit(
            {
                "ready": not found.problems,
                "release": own,
                "problems": [one.as_json() for one in found.problems],
                "notes": found.notes,
                "bookies": [{"id": bookie, "release": version or None} for bookie, version in found.bookies.items()],
                "directories": found.directories,
            }
        )
    else:
        _print(found, own)
    if found.problems:
        raise click.exceptions.Exit(Exit.FAILED)


def _settings(found: UpgradeFindings, files: Sequence[str]) -> None:
    for name in files:
        try:
            document = read_toml(name)
            for section in SECTIONS:
                load(section, document, os.environ)
        except ConfigError as error:
            found.problems.append(Problem("settings", name, str(error), "correct it before the bookie starts again"))


def _directories(found: UpgradeFindings, directories: Sequence[str]) -> None:
    from buckram.bookie.storage.superblock import FORMAT, NAME, decode

    for name in directories:
        path = Path(name) / NAME
        try:
            present = decode(path.read_bytes(), str(path)).format
        except FileNotFoundError:
            do = "name the directory of `bookie run --data`"
            found.problems.append(
                Problem("directory", name, f"it has no file {NAME!r}, so it is no bookie's directory", do)
            )
        except (OSError, CorruptStore, ValueError) as error:
            do = "this release cannot start there; see docs/reference/storage.md"
            found.problems.append(Problem("directory", name, str(error), do))
        else:
            found.directories.append({"directory": name, "format": present, "written": FORMAT})
            if present != FORMAT:
                found.notes.append(
                    f"{name} has format {present} and gets format {FORMAT} at the first start; releases that know no "
                    f"more than format {present} do not read it any more"
                )


async def _cluster(found: UpgradeFindings, uri: str | None, own: str) -> None:
    from buckram.core.health.states import Severity

    health = await look_once(cluster_uri(uri))
    errors = [one for one in health.findings if one.state.severity is Severity.ERROR and one.state.name not in _ALLOWED]
    found.problems += [Problem(one.state.name, one.where, one.why, one.do) for one in errors]
    for bookie in health.facts.bookies:
        found.bookies[bookie.id] = "" if bookie.report is None else bookie.report.version
    found.problems += release_problems(found.bookies, own if series(own) in RELEASES else RELEASES[-1])
    releases = sorted({version for version in found.bookies.values() if version})
    if len(releases) > 1:
        found.notes.append(f"bookies run {' and '.join(releases)}: they work together; complete the upgrade soon")


def _print(found: UpgradeFindings, own: str) -> None:
    print(f"{'ready' if not found.problems else 'NOT READY'} for release {own}")
    if found.bookies:
        table(("BOOKIE", "RELEASE"), [(bookie, version or "not said") for bookie, version in found.bookies.items()])
    for row in found.directories:
        print(f"{row['directory']}: format {row['format']}, this release writes {row['written']}")
    for one in found.problems:
        print(f"{one.what} {one.where}: {one.why}\n  {one.do}")
    for note in found.notes:
        print(f"note: {note}")
