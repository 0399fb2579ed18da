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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from buckram.core.streams.names import stream_name
from buckram.core.streams.transactions import StepId
from buckram.errors import BuckramError, StreamError
from buckram.spark.replay import Tally, compare
from buckram.spark.small_parts import with_small_parts
from buckram.streams.write.bulk import Bulk, SealedLedger

if TYPE_CHECKING:
    from buckram.client.client import Client

QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
LOSERS_S = 10.0


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


async def open_step(client: Client, stream: str, step: StepId) -> Bulk:
    """Open the bulk step of a stream. Raises NoSuchStream or MetadataUnavailable."""
    name = stream_name(stream)
    return await client.namespace(name.namespace).bulk(
        name.stream,
        application=step.application,
        version=step.version,
        query=step.query,
        place=step.place,
        new_epoch=step.new_epoch,
    )


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
    checkpoint: str = "",
    compared: bool = True,
) -> None:
    """Publish the parts in their order, once. If the step was published before, their ledgers are deleted instead.

    `compared`: check that a repeated batch of a streaming query has the rows that were published (`replay.py`);
    `checkpoint` is the query's checkpoint if that is a local path. Raises ReplayDiffers, StreamError, and what
    Bulk.publish raises.
    """
    ledgers = [ledger for part in parts for ledger in part.ledgers]
    skipped = any(part.skipped for part in parts)
    first = bool(step.query) and step.version == 0  # It is recorded even without rows, for checks of later batches.
    if not ledgers and not first and not skipped and not any(part.small for part in parts):
        return  # There are no rows.
    bulk = await open_step(client, stream, step)
    if not bulk.foreseen(seal_live=seal_live):
        # Another run published the step, or this one did and the reply was lost. Listed ledgers have no intent any
        # more, so _drop leaves them alone.
        await _drop(bulk, ledgers)
        if step.query and compared:
            await _compare(client, bulk, stream, step, parts, checkpoint)
        return
    if skipped:
        raise StreamError(stream, "could not be written when the tasks began, and can be now: run the batch again")
    everything = await with_small_parts(client, bulk, [(part.ledgers, part.small) for part in parts])
    try:
        await bulk.publish(everything, seal_live=seal_live)
    except BuckramError:
        # Ledgers that were published in spite of the error have no intent any more and are left alone.
        await _drop(bulk, [ledger for ledger in everything if ledger not in ledgers])
        raise


async def _drop(bulk: Bulk, ledgers: Sequence[SealedLedger]) -> None:
    """Delete ledgers that will not be published, within LOSERS_S; the janitor deletes the others."""
    with suppress(BuckramError, TimeoutError):
        async with asyncio.timeout(LOSERS_S):
            await bulk.abort([ledger.ledger for ledger in ledgers])


async def _compare(
    client: Client, bulk: Bulk, stream: str, step: StepId, parts: Sequence[Part], checkpoint: str
) -> None:
    """Raise ReplayDiffers if the batch that was published has other rows, as far as that can be decided."""
    done = await bulk.published()
    if done is None or any(part.skipped and part.seen is None for part in parts):
        return
    rows = sum(part.rows + sum(ledger.records for ledger in part.ledgers) for part in parts if not part.skipped)
    seen = Tally()
    for part in parts:
        seen = seen.plus(part.seen or Tally())
    # Tasks that wrote rows while another run published the batch have a number of rows but no tally.
    whole = seen if all(part.skipped for part in parts) else None
    await compare(
        client, stream, step.query, step.version, done, rows=rows + seen.rows, seen=whole, checkpoint=checkpoint
    )


__all__ = ["Attempt", "Identity", "Part", "batch_of", "in_order", "open_step", "checkpoint_place", "publish"]
