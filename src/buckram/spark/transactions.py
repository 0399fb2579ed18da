"""What makes a Spark write happen exactly once: the identity of a task, the step of its ledgers, and the publishing.

A batch of a streaming query is identified by the query's id and the batch's number. Tasks find both in their
TaskContext and pass them to the driver in their messages. Not here: the rules of transactions
(`core/streams/transactions.py`), the compare-and-set (`streams/write/bulk.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from buckram.core.streams.names import stream_name
from buckram.core.streams.transactions import StepId
from buckram.errors import BuckramError, InvalidArgument, NoSuchStream, StreamError, StreamExists
from buckram.spark.replay import Tally, compare
from buckram.spark.small_parts import with_small_parts
from buckram.streams.write.bulk import Bulk, SealedLedger, publish_together

if TYPE_CHECKING:
    from buckram.client.client import Client

QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
LOSERS_S = 10.0
MOST_STREAMS = 100
"""The most streams of one batch: the heads of all change in one request of the metadata store."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one task. `query` and `run` are empty and `batch` is -1 outside streaming queries."""

    query: str = ""
    batch: int = -1
    run: str = ""
    partition: int = 0
    attempt: int = 0
    task: int = 0

    @classmethod
    def here(cls) -> Attempt:
        """Return the attempt that this process runs, from Spark's TaskContext."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return cls()
        query = context.getLocalProperty(QUERY_ID) or ""
        batch = context.getLocalProperty(BATCH_ID)
        return cls(
            query,
            int(batch) if query and batch else -1,
            context.getLocalProperty(RUN_ID) or "",
            context.partitionId(),
            context.attemptNumber(),
            context.taskAttemptId(),
        )

    def marks(self) -> dict[str, bytes]:
        """Return the custom metadata of its ledgers, by which an operator can find out where a ledger came from."""
        fields = {"query": self.query, "batch": self.batch, "run": self.run} if self.query else {}
        fields |= {"partition": self.partition, "attempt": self.attempt, "task": self.task}
        return {f"buckram.spark.{name}": str(value).encode() for name, value in fields.items()}


@dataclass
class Part(WriterCommitMessage):
    """What one task has written: closed ledgers in order, or few rows that the driver writes (`small_parts.py`).

    `skipped`: the task wrote nothing, because the step was published before or cannot be; `seen` is then the tally of
    its rows, if it made one.
    """

    attempt: Attempt
    ledgers: tuple[SealedLedger, ...] = ()
    small: bytes = b""
    rows: int = 0
    """The number of rows in `small`."""
    skipped: bool = False
    seen: Tally | None = None
    others: dict[str, Part] = field(default_factory=dict)
    """What it has written to other streams than that of the sink, by their full names."""
    began_ns: int = 0
    """When the driver planned its micro-batch, nanoseconds UTC; 0: it is of none."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes, as far as the options say. `application` is empty if the query's id takes its place."""

    stream: str
    application: str = ""
    place: str = ""
    new_epoch: bool = False

    def of_batch(self, query: str, batch: int) -> StepId:
        """Return the step of one micro-batch."""
        return StepId(self.application or query, batch, query, self.place, self.new_epoch)


def checkpoint_place(checkpoint: str) -> str:
    """Return a digest of a checkpoint's location, the same for all spellings of one path; empty for no checkpoint."""
    path = re.sub(r"^file:/+", "/", checkpoint.strip()).rstrip("/")
    if path and not re.match(r"^(/|[a-zA-Z][a-zA-Z0-9+.-]*:)", path):
        path = os.path.join(os.getcwd(), path)
    return hashlib.sha256(path.encode()).hexdigest()[:16] if path else ""


async def open_step(client: Client, stream: str, step: StepId, *, create: bool = False) -> Bulk:
    """Open the bulk step of a stream, which is made if `create` says so. Raises NoSuchStream, MetadataUnavailable."""
    name = stream_name(stream)
    space = client.namespace(name.namespace)
    who = {"application": step.application, "query": step.query, "place": step.place}
    try:
        return await space.bulk(name.stream, version=step.version, new_epoch=step.new_epoch, **who)
    except NoSuchStream:
        if not create:
            raise NoSuchStream(
                stream, f'does not exist; set option "createStream" to true, or `buckram stream create {stream}`'
            ) from None
    with suppress(StreamExists):
        await space.create(name.stream)
    return await space.bulk(name.stream, version=step.version, new_epoch=step.new_epoch, **who)


def beside(step: StepId) -> StepId:
    """Return the step for the other streams of a sink: its own stream alone decides whether it is the query's turn."""
    return step._replace(new_epoch=True)


def check_count(streams: int) -> None:
    """Raise InvalidArgument if a batch is for too many streams."""
    if streams > MOST_STREAMS:
        raise InvalidArgument(
            f'column "stream": one batch has rows for {streams} streams, the limit is {MOST_STREAMS}, since they are '
            "published in one step: use several queries that each take some, or smaller batches"
        )


def of_others(parts: Sequence[Part]) -> dict[str, list[Part]]:
    """Return what all tasks wrote to other streams, by stream, in the order of `parts`."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        for name, one in part.others.items():
            found.setdefault(name, []).append(one)
    return dict(sorted(found.items()))


def in_order(stream: str, parts: Sequence[WriterCommitMessage | None]) -> list[Part]:
    """Return all parts of a write in the order of their partitions.

    Raises StreamError if one is missing or comes twice: nothing may be published then.
    """
    found = sorted((part for part in parts if isinstance(part, Part)), key=lambda part: part.attempt.partition)
    numbers = [part.attempt.partition for part in found]
    if len(found) != len(parts) or numbers != list(range(len(parts))):
        raise StreamError(
            stream, f"there are {len(parts)} tasks, and messages of partitions {numbers}: nothing was published"
        )
    return found


def batch_of(stream: str, parts: Sequence[Part], batch: int) -> str:
    """Return the id of the query that this batch belongs to. StreamError if a message is of another query or batch."""
    found = dict.fromkeys((part.attempt.query, part.attempt.batch) for part in parts)
    query, number = next(iter(found))
    if len(found) != 1 or number != batch or not query:
        raise StreamError(stream, f"batch {batch}: its tasks say that they are {list(found)}; nothing was published")
    return query


async def publish(
    client: Client,
    stream: str,
    step: StepId,
    parts: Sequence[Part],
    *,
    seal_live: bool,
    beside_writer: bool = False,
    checkpoint: str = "",
    compared: bool = True,
) -> None:
    """Publish the parts in their order, once. If the step was published before, their ledgers are deleted instead.

    What the tasks wrote to other streams is published in the same step. `compared`: check that a repeated batch of a
    streaming query has the rows that were published (`replay.py`); `checkpoint` is the query's checkpoint if that is a
    local path. `beside_writer`: a writer that has the stream is asked to publish, unless there are other streams.
    Raises ReplayDiffers, StreamError, and what Bulk.publish raises.
    """
    shares: Mapping[str, Sequence[Part]] = {stream: parts, **of_others(parts)}
    check_count(len(shares))
    ledgers = {name: [ledger for part in some for ledger in part.ledgers] for name, some in shares.items()}
    skipped = any(part.skipped for part in parts)
    first = bool(step.query) and step.version == 0  # It is recorded even without rows, for checks of later batches.
    small = any(part.small for some in shares.values() for part in some)
    if not any(ledgers.values()) and not first and not skipped and not small:
        return  # There are no rows.
    own, alone = await open_step(client, stream, step), beside_writer and len(shares) == 1
    if not own.foreseen(seal_live=seal_live, beside_writer=alone):
        # Another run published the step, or this one did and the reply was lost. Listed ledgers have no intent any
        # more, so _drop leaves them alone.
        bulks = {stream: own, **await _opened(client, step, of_others(parts))}
        for name, bulk in bulks.items():
            await _drop(bulk, ledgers[name])
        if step.query and compared:
            await _compare(client, bulks, step, shares, checkpoint)
        return
    bulks = {name: own if name == stream else await open_step(client, name, beside(step)) for name in shares}
    for name in of_others(parts):
        bulks[name].foreseen(seal_live=seal_live)
    if skipped:
        raise StreamError(stream, "could not be written when the tasks began, and can be now: run the batch again")
    everything: list[tuple[Bulk, list[SealedLedger]]] = []
    try:
        for name, bulk in bulks.items():
            pieces = [(part.ledgers, part.small) for part in shares[name]]
            everything.append((bulk, await with_small_parts(client, bulk, pieces)))
        await publish_together(everything, seal_live=seal_live, beside_writer=alone)
    except BuckramError:
        # Ledgers that were published in spite of the error have no intent any more and are left alone.
        for bulk, written in everything:
            await _drop(bulk, [ledger for ledger in written if ledger not in ledgers[bulk.stream]])
        raise


async def _drop(bulk: Bulk, ledgers: Sequence[SealedLedger]) -> None:
    """Delete ledgers that will not be published, within LOSERS_S; the janitor deletes the others."""
    with suppress(BuckramError, TimeoutError):
        async with asyncio.timeout(LOSERS_S):
            await bulk.abort([ledger.ledger for ledger in ledgers])


async def _opened(client: Client, step: StepId, names: Iterable[str]) -> dict[str, Bulk]:
    """Open the step of other streams of the sink, without those that do not exist."""
    found: dict[str, Bulk] = {}
    for name in names:
        with suppress(NoSuchStream):
            found[name] = await open_step(client, name, beside(step))
    return found


async def _compare(
    client: Client, bulks: Mapping[str, Bulk], step: StepId, shares: Mapping[str, Sequence[Part]], checkpoint: str
) -> None:
    """Raise ReplayDiffers if the batch that was published has other rows, as far as that can be decided."""
    published = {name: await bulk.published() for name, bulk in bulks.items()}
    first = next(iter(published.values()))
    if first is None:
        return
    for name, parts in shares.items():
        if any(part.skipped and part.seen is None for part in parts):
            continue
        # A stream without a record of the batch got no rows of it.
        done = published.get(name) or first._replace(first_offset=0, next_offset=0)
        rows = sum(part.rows + sum(ledger.records for ledger in part.ledgers) for part in parts if not part.skipped)
        seen = Tally()
        for part in parts:
            seen = seen.plus(part.seen or Tally())
        # Tasks that wrote rows while another run published the batch have a number of rows but no tally.
        whole = seen if all(part.skipped for part in parts) else None
        rows += seen.rows
        await compare(client, name, step.query, step.version, done, rows=rows, seen=whole, checkpoint=checkpoint)


__all__ = [
    "Attempt",
    "Identity",
    "Part",
    "batch_of",
    "beside",
    "check_count",
    "checkpoint_place",
    "in_order",
    "of_others",
    "open_step",
    "publish",
]
