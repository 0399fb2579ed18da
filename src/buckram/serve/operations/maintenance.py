"""Work of the jobs of both servers: each function reports its progress to the job and returns its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buckram.client.ledger_client import LedgerClient
from buckram.errors import InvalidArgument
from buckram.healing.operations.decommission import DecommissionProgress, Departure, decommission, drain
from buckram.serve.operations.jobs import Job
from buckram.types import BookieId


async def drained(client: LedgerClient, bookie: BookieId, job: Job) -> Mapping[str, Any]:
    """Copy everything that a living bookie holds to others."""
    return _left(await drain(client, bookie, lambda progress: told(job, progress, "ledgers")))


async def decommissioned(client: LedgerClient, bookie: BookieId, job: Job) -> Mapping[str, Any]:
    """Copy everything that a stopped bookie held, and forget the bookie then."""
    return _left(await decommission(client, bookie, lambda progress: told(job, progress, "ledgers")))


def told(job: Job, progress: DecommissionProgress, unit: str) -> None:
    """Report the progress of copying to the job."""
    job.progress(progress.done, progress.total, unit, progress.eta_s)


def _left(found: Departure) -> dict[str, Any]:
    """The result of a job. Raises InvalidArgument where ledgers still name the bookie."""
    if found.remaining:
        why = "; ".join(f"ledger {ledger}: {found.reasons.get(ledger)}" for ledger in found.remaining[:10])
        raise InvalidArgument(f"{len(found.remaining)} ledgers still name bookie {found.bookie}: {why}")
    return {"bookie": found.bookie, "ledgers": found.ledgers, "entries_copied": found.entries, "remaining": 0}
