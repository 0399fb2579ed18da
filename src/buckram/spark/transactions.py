"""What makes a Spark write happen once: who a task is, which step its ledgers belong to, and the one publishing.

A streaming query is known by its id and the batch's number, which tasks find in their TaskContext and carry to the
driver in their messages. The rules of transactions are core/streams/transactions, the step itself is
streams/write/bulk.
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
        """As Spark tells it to this task."""
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
        """For the custom metadata of its ledgers: so people find out where one came from."""
        said = {"query": self.query, "batch": self.batch, "run": self.run} if self.query else {}
        said |= {"partition": self.partition, "attempt": self.attempt, "task": self.task}
        return {f"buckram.spark.{name}": str(value).encode() for name, value in said.items()}


@dataclass
class Part(WriterCommitMessage):
    """What one task has written: sealed ledgers in order, or few rows that the driver writes (small_parts.py).
    `skipped`: nothing, because nothing was to be written; then `seen` says what it was given, if it looked."""

    attempt: Attempt
    ledgers: tuple[SealedLedger, ...] = ()
    small: bytes = b""
    rows: int = 0
    """Of `small`."""
    skipped: bool = False
    seen: Tally | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose step it is, as far as options say. `application` is empty where the query's id stands for it."""

    stream: str
    application: str = ""
    place: str = ""
    new_epoch: bool = False

    def of_batch(self, query: str, batch: int) -> StepId:
        """The step of one micro-batch."""
        return StepId(self.application or query, batch, query, self.place, self.new_epoch)


def place_of(checkpoint: str) -> str:
    """A mark of where a checkpoint is: the same for all ways to write one path; empty for none."""
    path = re.sub(r"^file:/+", "/", checkpoint.strip()).rstrip("/")
    if path and not re.match(r"^(/|[a-zA-Z][a-zA-Z0-9+.-]*:)", path):
        path = os.path.join(os.getcwd(), path)
    return hashlib.sha256(path.encode()).hexdigest()[:16] if path else ""


async def open_step(client: Client, stream: str, step: StepId) -> Bulk:
    """NoSuchStream, MetadataUnavailable."""
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
    """All parts of a write by their partitions. StreamError when one is missing: then nothing may be published."""
    found = sorted((part for part in parts if isinstance(part, Part)), key=lambda part: part.attempt.partition)
    numbers = [part.attempt.partition for part in found]
    if len(found) != len(parts) or numbers != list(range(len(parts))):
        raise StreamError(
            stream, f"there are {len(parts)} tasks, and messages of partitions {numbers}: nothing was published"
        )
    return found


def batch_of(stream: str, parts: Sequence[Part], batch: int) -> str:
    """The query whose batch this is; StreamError for messages of another one."""
    said = dict.fromkeys((part.attempt.query, part.attempt.batch) for part in parts)
    query, told = next(iter(said))
    if len(said) != 1 or told != batch or not query:
        raise StreamError(stream, f"batch {batch}: its tasks say that they are {list(said)}; nothing was published")
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
    """Publish the parts in their order, once. What was published before is success, and these ledgers are dropped.

    `compared`: a streaming query's batch that was published before must have the same rows (replay.py); `checkpoint`
    is where the query's is, if that is a local path.
    """
    ledgers = [ledger for part in parts for ledger in part.ledgers]
    skipped = any(part.skipped for part in parts)
    first = bool(step.query) and step.version == 0  # recorded in any case: later ones must find it
    if not ledgers and not first and not skipped and not any(part.small for part in parts):
        return  # no rows at all
    bulk = await open_step(client, stream, step)
    if not bulk.foreseen(seal_live=seal_live):
        # Theirs or, after a lost reply, these: those that are listed have no intent any more and are left alone.
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
        # What of it is published after all, in spite of this error, is left alone.
        await _drop(bulk, [ledger for ledger in everything if ledger not in ledgers])
        raise


async def _drop(bulk: Bulk, ledgers: Sequence[SealedLedger]) -> None:
    """Now, if that is quickly done; else by the janitor."""
    with suppress(BuckramError, TimeoutError):
        async with asyncio.timeout(LOSERS_S):
            await bulk.abort([ledger.ledger for ledger in ledgers])


async def _compare(
    client: Client, bulk: Bulk, stream: str, step: StepId, parts: Sequence[Part], checkpoint: str
) -> None:
    """A batch that is published already has the rows that it had then: ReplayDiffers."""
    done = await bulk.published()
    if done is None or any(part.skipped and part.seen is None for part in parts):
        return
    rows = sum(part.rows + sum(ledger.records for ledger in part.ledgers) for part in parts if not part.skipped)
    seen = Tally()
    for part in parts:
        seen = seen.plus(part.seen or Tally())
    # Tasks that wrote, because the batch was published beside them, have only counted.
    whole = seen if all(part.skipped for part in parts) else None
    await compare(
        client, stream, step.query, step.version, done, rows=rows + seen.rows, seen=whole, checkpoint=checkpoint
    )


__all__ = ["Attempt", "Identity", "Part", "batch_of", "in_order", "open_step", "place_of", "publish"]
