"""The job `compact`: many small segments of streams become few large ones, and Spark's tasks copy them.

Offsets, times and keys stay the same, and readers and writers are not disturbed. A task copies one run of segments into
a new ledger; the driver lists it in the place of the run, in one compare-and-set. The ledger of a task that dies has an
intent, and the janitor deletes it. Not here: the copy itself (`streams/maintain/compaction.py`).
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from buckram.core.streams.compaction import CompactionRun
from buckram.core.streams.names import stream_name
from buckram.errors import BuckramError, InvalidArgument, NoSuchEntry, NoSuchLedger, NoSuchStream, StreamPurpose
from buckram.runtime.net.pace import Pace
from buckram.spark.jobs.executor_tasks import Driver, Progress, Row, connected, driver, in_task, parallelism, spread
from buckram.spark.jobs.reports import RUN, open_report, run_name
from buckram.streams.maintain.compaction import Compactable, Copied, copy_run, plan_compaction, replace_run
from buckram.streams.maintain.orphans import all_streams
from buckram.streams.shared.metadata import StreamStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buckram.cluster import Client
    from buckram.spark.shared.cluster_uri import ClusterUri

SCHEMA = (
    "run string, stream string, first_offset long, next_offset long, segments int, bytes long, ledger long, "
    "state string, detail string"
)
_TASK_SCHEMA = "number int, copied binary, gone boolean, error string"
_ROUND = 64
"""The number of runs that are copied before they are listed. With more of them, more runs would change meanwhile."""


@dataclass(slots=True)
class StreamCompaction:
    """Report of one stream: `segments` were replaced by `made` new ones; `put_off` runs changed meanwhile."""

    stream: str
    segments: int = 0
    made: int = 0
    bytes: int = 0
    put_off: int = 0


@dataclass(slots=True)
class CompactReport:
    """Report of one run of the job. `problems` are streams or runs that failed, with the reason; run the job again."""

    run: str
    streams: list[StreamCompaction] = field(default_factory=list)
    segments: int = 0
    made: int = 0
    bytes: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    cluster: ClusterUri
    work: Compactable
    run: CompactionRun
    bytes_per_s: float | None


def compact(
    session: SparkSession,
    metadata: str,
    *,
    streams: Sequence[str] | None = None,
    target_bytes: int | None = None,
    bytes_per_s: float | None = None,
    report: str | None = None,
    table: str | None = None,
    run: str | None = None,
    progress: Progress = lambda done, total: None,
) -> CompactReport:
    """Compact these streams, or all.

    `target_bytes` is the most that a new segment holds, default each stream's roll_bytes. `bytes_per_s` limits the copy
    rate of all tasks together, and so what a bookie reads and writes. `report` or `table`: where rows of SCHEMA are
    added. `run`: a name of this run in the report. `progress` is called with the bytes copied and their total. Raises
    NoSuchStream, InvalidArgument, MetadataUnavailable.
    """
    if bytes_per_s is not None and bytes_per_s < 1:
        raise InvalidArgument(f"bytes_per_s = {bytes_per_s}: needs at least 1, or None for no limit")
    found, began = CompactReport(run_name("compact", run)), time.monotonic()
    with driver(metadata) as home, open_report(session, SCHEMA, report, table) as kept:
        work = home.run(partial(_plan, names=streams, target_bytes=target_bytes, found=found))
        tasks = _tasks(home.cluster, work, bytes_per_s, parallelism(session))
        done, total = 0, sum(task.run.bytes for task in tasks)
        progress(done, total)
        by_stream = {str(one.name): StreamCompaction(str(one.name)) for one in work}
        for batch in _rounds(tasks):
            rows = _round(session, home, batch, by_stream, found)
            if report is not None or table is not None:
                kept.add(session.createDataFrame(rows, SCHEMA))
            done += sum(task.run.bytes for task in batch)
            progress(done, total)
    found.streams = list(by_stream.values())
    found.segments, found.made = (sum(getattr(s, what) for s in found.streams) for what in ("segments", "made"))
    found.bytes, found.seconds = sum(s.bytes for s in found.streams), round(time.monotonic() - began, 3)
    return found


async def _plan(
    client: Client, names: Sequence[str] | None, target_bytes: int | None, found: CompactReport
) -> list[Compactable]:
    streams = StreamStore(client.services.store)
    chosen = [name async for name in all_streams(streams)] if names is None else [stream_name(name) for name in names]
    work: list[Compactable] = []
    for name in chosen:
        try:
            work.append(await plan_compaction(streams, name, target_bytes=target_bytes))
        except StreamPurpose:
            if names is not None:
                raise
        except InvalidArgument:
            raise
        except BuckramError as error:
            if isinstance(error, NoSuchStream) and names is None:
                continue  # The stream was deleted since it was listed.
            if names is not None:
                raise
            found.problems.append(f"{name}: {error}")
    return work


def _tasks(cluster: ClusterUri, work: Sequence[Compactable], bytes_per_s: float | None, width: int) -> list[_Task]:
    runs = [(one, run) for one in work for run in one.runs]
    rate = None if bytes_per_s is None else bytes_per_s / max(1, min(width, len(runs)))
    return [_Task(number, cluster, one, run, rate) for number, (one, run) in enumerate(runs)]


def _rounds(tasks: Sequence[_Task]) -> Iterator[Sequence[_Task]]:
    for begin in range(0, len(tasks), _ROUND):
        yield tasks[begin : begin + _ROUND]


def _round(
    session: SparkSession,
    home: Driver,
    batch: Sequence[_Task],
    streams: dict[str, StreamCompaction],
    found: CompactReport,
) -> list[Row]:
    """Copy all runs of the round, then list the copies one after another. Returns rows of SCHEMA."""
    rows: list[Row] = []
    by_number = {task.number: task for task in batch}
    for result in spread(session, batch, _copy, _TASK_SCHEMA).collect():
        task = by_number[result["number"]]
        name, stream = str(task.work.name), streams[str(task.work.name)]
        state, detail, ledger = "put off", result["error"], None
        if result["copied"] is not None:
            copied: Copied = pickle.loads(result["copied"])
            ledger = copied.row.ledger
            try:
                replaced = home.run(partial(_replace, work=task.work, copied=copied))
                detail = "" if replaced else "the segments changed meanwhile"
            except BuckramError as error:
                replaced, detail = False, str(error)
                found.problems.append(f"{name}: {error}")
            if replaced:
                state = "replaced"
                stream.segments += len(task.run.rows)
                stream.made += 1
                stream.bytes += task.run.bytes
        elif not result["gone"]:
            state = "failed"
            found.problems.append(f"{name}: {result['error']}")
        stream.put_off += state == "put off"
        rows.append(
            {
                RUN: found.run,
                "stream": name,
                "first_offset": task.run.base,
                "next_offset": task.run.end,
                "segments": len(task.run.rows),
                "bytes": task.run.bytes,
                "ledger": ledger,
                "state": state,
                "detail": detail,
            }
        )
    return rows


async def _replace(client: Client, work: Compactable, copied: Copied) -> bool:
    return await replace_run(client, StreamStore(client.services.store), work, copied)


def _copy(task: _Task) -> list[Row]:
    """Copy one run, in an executor; returns a row of _TASK_SCHEMA."""

    async def main() -> bytes:
        async with connected(task.cluster) as client:
            streams = StreamStore(client.services.store)
            made = await copy_run(client, streams, task.work, task.run, pace=Pace(task.bytes_per_s))
            return pickle.dumps(made)

    row: Row = {"number": task.number, "copied": None, "gone": False, "error": ""}
    try:
        row["copied"] = in_task(main)
    except BuckramError as error:
        row["gone"], row["error"] = isinstance(error, NoSuchLedger | NoSuchEntry | NoSuchStream), str(error)
    return [row]
