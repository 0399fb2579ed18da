"""Long work on the cluster, each as a job: drain, decommission, repair, rebalance, the check of placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from buckram.client.maintain.placement import judged
from buckram.cluster import Client
from buckram.errors import MalformedRecord
from buckram.healing.operations.rebalance import rebalance
from buckram.health.removal_gate import check_removable
from buckram.serve.gateway.administration.cluster_pages import BOOKIE, bookie_of, refusals
from buckram.serve.gateway.shared import schema
from buckram.serve.gateway.shared.job_pages import JOB
from buckram.serve.gateway.shared.operations import Ask, Handler, Operation
from buckram.serve.operations.jobs import Job, Jobs
from buckram.serve.operations.maintenance import decommissioned, drained, told

_SHOWN = 100
"""Maximum ledgers that are named in the result of a job."""
_REBALANCE = schema.record(
    "dry_run", "rate_bytes_per_s", dry_run=schema.YES_OR_NO, rate_bytes_per_s={**schema.COUNT, "minimum": 1}
)


class MaintenancePages:
    """Jobs that administrators start."""

    title = "Maintenance"

    def __init__(self, client: Client, jobs: Jobs) -> None:
        self._client, self._jobs = client, jobs

    def operations(self) -> Sequence[Operation]:
        return (
            _begun(
                "drainBookie",
                BOOKIE + "/drain",
                "Copy everything that a living bookie holds to others; it is read-only from now on.",
                self._drain,
            ),
            _begun(
                "decommissionBookie",
                BOOKIE + "/decommission",
                "Copy everything that a stopped bookie held, and forget the bookie then.",
                self._decommission,
            ),
            _begun(
                "repairLedger",
                "/v2/ledgers/{ledger}/repair",
                "Copy the missing and bad entries of a ledger from good copies.",
                self._repair,
            ),
            _begun(
                "rebalance",
                "/v2/rebalance",
                "Move closed ledgers until bookies hold about the same; `dry_run` only reports what would be moved.",
                self._rebalance,
                _REBALANCE,
            ),
            _begun(
                "checkPlacement",
                "/v2/placement/check",
                "Find the ledgers whose bookies break their placement.",
                self._placement,
            ),
        )

    async def _drain(self, ask: Ask) -> dict[str, Any]:
        bookie = bookie_of(ask)
        return self._jobs.start(f"drain {bookie}", partial(drained, self._client, bookie)).as_json()

    async def _decommission(self, ask: Ask) -> dict[str, Any]:
        bookie = bookie_of(ask)
        with refusals():
            await check_removable(self._client, bookie)
        return self._jobs.start(f"decommission {bookie}", partial(decommissioned, self._client, bookie)).as_json()

    async def _repair(self, ask: Ask) -> dict[str, Any]:
        ledger = ask.number("ledger")
        await self._client.metadata(ledger)

        async def work(job: Job) -> Mapping[str, Any]:
            report = await self._client.repair(
                ledger, progress=lambda done, total: job.progress(done, total, "copies of entries")
            )
            return {
                "ledger": ledger,
                "healthy": report.healthy,
                "entries_copied": report.entries_copied,
                "bytes_copied": report.bytes_copied,
                "problems": [str(one) for one in report.problems],
            }

        return self._jobs.start(f"repair ledger {ledger}", work).as_json()

    async def _rebalance(self, ask: Ask) -> dict[str, Any]:
        rate, dry_run = ask.body.get("rate_bytes_per_s", 0), ask.body.get("dry_run", False)

        async def work(job: Job) -> Mapping[str, Any]:
            found = await rebalance(
                self._client, lambda progress: told(job, progress, "moves"), rate=rate, dry_run=dry_run
            )
            return {
                "dry_run": dry_run,
                "even": found.even,
                "moves": len(found.moves),
                "entries_copied": found.entries,
                "bytes_copied": found.bytes,
                "failed": {str(ledger): why for ledger, why in list(found.failed.items())[:_SHOWN]},
            }

        return self._jobs.start("rebalance" + (" (dry run)" if dry_run else ""), work).as_json()

    async def _placement(self, ask: Ask) -> dict[str, Any]:
        async def work(job: Job) -> Mapping[str, Any]:
            broken: list[int] = []
            unreadable: list[str] = []
            done = 0
            async for _, found in judged(self._client.services):
                done += 1
                job.progress(done, None, "ledgers")
                if isinstance(found, MalformedRecord):
                    unreadable.append(str(found))
                elif found is not None:
                    broken.append(found.ledger_id)
            return {"ledgers": done, "broken": broken[:_SHOWN], "unreadable": unreadable[:_SHOWN]}

        return self._jobs.start("check placement", work).as_json()


def _begun(name: str, path: str, what: str, handler: Handler, body: schema.Schema | None = None) -> Operation:
    """An operation that begins a job."""
    return Operation(name, "POST", path, f"Begin a job: {what}", "administrator", handler, JOB, 202, body=body)
