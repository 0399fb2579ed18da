"""Findings of `buckram doctor` beyond a look at the cluster's health, and the fixes that lose nothing: orphans.

Not here: the look (`health/gathering.py`), reading all records (`metadata/maintain/checkup.py`), leftovers
(`healing/leftovers.py`), what is printed (`cli/cluster/doctor.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from buckram.client.ledger_client import LedgerClient
from buckram.core.health.cluster_states import named
from buckram.core.health.facts import Noted
from buckram.errors import BuckramError
from buckram.streams.maintain.orphans import Orphan, delete_orphan, find_orphans
from buckram.streams.shared.metadata import StreamStore

Fix = Callable[[], Awaitable[str]]
"""A coroutine that mends something and returns what it did. Raises BuckramError."""


@dataclass(frozen=True, slots=True)
class Fixable:
    """A finding with a fix that loses nothing."""

    noted: Noted
    fix: Fix


async def orphans(client: LedgerClient) -> list[Fixable]:
    """Return the ledgers that were made for a stream, have no place in it, and never will."""
    found = [one for one in await find_orphans(client, StreamStore(client.services.store)) if one.safe]
    if not found:
        return []
    where = f"ledgers {named([str(one.ledger) for one in found])}"
    why = f"{len(found)} ledgers were made for streams, are in none, and never will be"
    return [Fixable(Noted("orphans", where, why), lambda: _delete(client, found))]


async def _delete(client: LedgerClient, orphans: list[Orphan]) -> str:
    for one in orphans:
        await delete_orphan(client, one)
    return f"deleted {len(orphans)} orphans"


async def mend(fixable: Iterable[Fixable]) -> tuple[list[tuple[Noted, str]], dict[str, str]]:
    """Carry out every fix. Return the findings, each with what was done about it; and the errors of fixes that failed,
    by the place (`where`) of their finding.
    """
    done, failed = list[tuple[Noted, str]](), dict[str, str]()
    for one in fixable:
        try:
            done.append((one.noted, await one.fix()))
        except BuckramError as error:
            failed[one.noted.where] = str(error)
    return done, failed


__all__ = ["Fix", "Fixable", "mend", "orphans"]
