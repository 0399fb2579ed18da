"""The job `orphans`: like `buckram stream orphans`, for clusters with very many ledgers.

It reads in the order that makes the answer certain (`streams/maintain/orphans.py`): tasks read ledger metadata and then
intents; after all tasks the driver reads the segment lists.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from buckram.errors import BuckramError, InvalidArgument
from buckram.spark.jobs.executor_tasks import Progress, Row, connected, driver, in_task, spread
from buckram.spark.jobs.reports import RUN, open_report, run_name
from buckram.streams.maintain.orphans import (
    Marked,
    Orphan,
    delete_orphan,
    find_with_intents,
    judge_orphans,
    read_owners,
)
from buckram.streams.shared.metadata import StreamStore
from buckram.types import LedgerId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buckram.cluster import Client
    from buckram.spark.shared.cluster_uri import ClusterUri

SCHEMA = (
    "run string, ledger long, stream string, uid string, reason string, safe boolean, age_s double, deleted boolean"
)
_MARKED_SCHEMA = "ledger long, stream string, uid string, created_ms long, pending boolean"
_LEDGERS_A_TASK = 2000
_TASKS_A_ROUND = 64


@dataclass(slots=True)
class OrphansReport:
    """Report of one run of the job. `ledgers` is the number of all ledgers in the cluster."""

    run: str
    ledgers: int = 0
    orphans: list[Orphan] = field(default_factory=list)
    deleted: list[LedgerId] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Task:
    cluster: ClusterUri
    ledgers: tuple[LedgerId, ...]


def orphans(
    session: SparkSession,
    metadata: str,
    *,
    delete: bool = False,
    deletes_per_s: float | None = None,
    report: str | None = None,
    table: str | None = None,
    run: str | None = None,
    progress: Progress = lambda done, total: None,
) -> OrphansReport:
    """Find all ledgers that were made for a stream and are not in its list; `delete` those that are safe to delete.

    `deletes_per_s` limits the rate of deletions. `report` or `table`: where rows of SCHEMA are added. `run`: a name of
    this run in the report. `progress` is called with the number of ledgers examined and of all ledgers. Raises
    MetadataUnavailable, InvalidArgument.
    """
    if deletes_per_s is not None and deletes_per_s <= 0:
        raise InvalidArgument(f"deletes_per_s = {deletes_per_s}: needs more than 0, or None for no limit")
    found, began = OrphansReport(run_name("orphans", run)), time.monotonic()
    with driver(metadata) as home, open_report(session, SCHEMA, report, table) as kept:
        ledgers = home.run(_all)
        found.ledgers = len(ledgers)
        tasks = [
            _Task(home.cluster, tuple(ledgers[begin : begin + _LEDGERS_A_TASK]))
            for begin in range(0, len(ledgers), _LEDGERS_A_TASK)
        ]
        marked: list[Marked] = []
        pending: dict[LedgerId, None] = {}
        for begin in range(0, len(tasks), _TASKS_A_ROUND):
            for row in spread(
                session, tasks[begin : begin + _TASKS_A_ROUND], _examine_ledgers, _MARKED_SCHEMA
            ).collect():
                marked.append(Marked(row["ledger"], row["stream"], row["uid"], row["created_ms"]))
                if row["pending"]:
                    pending[row["ledger"]] = None
            progress(min((begin + _TASKS_A_ROUND) * _LEDGERS_A_TASK, len(ledgers)), len(ledgers))
        found.orphans = home.run(partial(_judge, marked=marked, pending=pending))
        if delete:
            home.run(partial(_delete, found=found, per_s=deletes_per_s))
        if (report is not None or table is not None) and found.orphans:
            gone = dict.fromkeys(found.deleted)
            rows = [_row(found.run, one, one.ledger in gone) for one in found.orphans]
            kept.add(session.createDataFrame(rows, SCHEMA))
    found.seconds = round(time.monotonic() - began, 3)
    return found


async def _all(client: Client) -> list[LedgerId]:
    return [ledger async for ledger in client.list()]


async def _judge(client: Client, marked: Sequence[Marked], pending: Mapping[LedgerId, None]) -> list[Orphan]:
    return await judge_orphans(client, StreamStore(client.services.store), marked, pending, in_progress=True)


async def _delete(client: Client, found: OrphansReport, per_s: float | None) -> None:
    from buckram.runtime.net.pace import Pace

    pace = Pace(per_s)
    for one in found.orphans:
        if one.safe:
            await pace.take(1)
            try:
                await delete_orphan(client, one)
                found.deleted.append(one.ledger)
            except BuckramError as error:
                found.problems.append(f"ledger {one.ledger}: {error}")


def _examine_ledgers(task: _Task) -> list[Row]:
    """Read the owners of the ledgers, then which of them have an intent, in an executor; rows of _MARKED_SCHEMA."""

    async def main() -> list[Row]:
        async with connected(task.cluster) as client:
            marked = await read_owners(client, task.ledgers)
            pending = await find_with_intents(StreamStore(client.services.store), marked)
        return [
            {
                "ledger": one.ledger,
                "stream": one.stream,
                "uid": one.uid,
                "created_ms": one.created_ms,
                "pending": one.ledger in pending,
            }
            for one in marked
        ]

    return in_task(main)


def _row(run: str, one: Orphan, deleted: bool) -> Row:
    return {
        RUN: run,
        "ledger": one.ledger,
        "stream": one.stream,
        "uid": one.uid,
        "reason": one.reason,
        "safe": one.safe,
        "age_s": one.age_s,
        "deleted": deleted,
    }
