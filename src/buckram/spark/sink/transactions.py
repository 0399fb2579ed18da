"""Identity of a Spark writer, reports of its tasks, and publishing a batch to streams in one step.

A batch of a streaming query is identified by the query's id and the batch's number. Tasks find both in their
TaskContext and pass them to the driver in their messages. Not here: whether a batch is published at all
(`exactly_once.py`), the compare-and-set (`streams/write/bulk.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from buckram.core.streams.metadata.head import Transaction
from buckram.core.streams.metadata.transactions import StepId
from buckram.core.streams.names import stream_name
from buckram.errors import BuckramError, InvalidArgument, NoSuchStream, StreamError, StreamExists
from buckram.spark.sink.replay_check import Tally, published_tally
from buckram.spark.sink.small_parts import with_small_parts
from buckram.streams.shared.metadata import look_twice
from buckram.streams.write.bulk import Bulk, SealedLedger, publish_together

if TYPE_CHECKING:
    from buckram.cluster import Client
    from buckram.spark.shared.clients import Connection

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
    """Report of one task: its closed ledgers in order, or few rows that the driver writes (`small_parts.py`).

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
    """Parts that it has written to other streams than that of the sink, by their full names."""
    began_ns: int = 0
    """When the driver planned its micro-batch, nanoseconds UTC; 0: it is of none."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of the writer by the options. `application` is empty if the query's id takes its place."""

    stream: str
    application: str = ""
    place: str = ""
    new_epoch: bool = False
    was: str = ""
    """Digest of the place as earlier releases wrote it; empty if it is the same."""

    def of_batch(self, query: str, batch: int) -> StepId:
        """Return the step of one micro-batch."""
        return StepId(self.application or query, batch, query, self.place, self.new_epoch, self.was)


async def open_step(client: Client, stream: str, step: StepId, *, create: bool = False) -> Bulk:
    """Open the bulk step of a stream, which is made if `create` says so. Raises NoSuchStream, MetadataUnavailable."""
    name = stream_name(stream)
    space = client.namespace(name.namespace)
    who = {"application": step.application, "query": step.query, "place": step.place}
    try:
        return _knowing(step, await space.bulk(name.stream, version=step.version, new_epoch=step.new_epoch, **who))
    except NoSuchStream:
        if not create:
            raise NoSuchStream(
                stream, f'does not exist; set option "createStream" to true, or `buckram stream create {stream}`'
            ) from None
    with suppress(StreamExists):
        await space.create(name.stream)
    return _knowing(step, await space.bulk(name.stream, version=step.version, new_epoch=step.new_epoch, **who))


def _knowing(step: StepId, bulk: Bulk) -> Bulk:
    bulk.also(was=step.was, planned=step.planned)
    return bulk


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


async def foreseen_step(
    client: Client,
    stream: str,
    step: StepId,
    *,
    seal_live: bool = False,
    beside_writer: bool = False,
    create: bool = False,
) -> tuple[Bulk, bool]:
    """Open a step, and return it with what `Bulk.foreseen` says. Raises what both raise.

    A server of the metadata store that lags does not know the query's last batch yet, or still has a writer that has
    left: what would refuse the step is looked at again, with everything that was written before.
    """

    async def look(again: bool) -> tuple[Bulk, bool]:
        bulk = await open_step(client, stream, step, create=create and again)
        return bulk, bulk.foreseen(seal_live=seal_live, beside_writer=beside_writer)

    return await look_twice(look, client.services.store.sync, (StreamError,))


class StreamStep:
    """One step of a stream and of the further streams that its rows name, on the driver: `Kept` of `exactly_once.py`.

    `beside_writer`: a writer that has the stream is asked to publish, unless there are other streams.
    """

    def __init__(
        self,
        link: Connection,
        stream: str,
        step: StepId,
        parts: Sequence[Part],
        *,
        seal_live: bool,
        beside_writer: bool,
    ) -> None:
        self._link, self._stream, self._step, self._seal_live = link, stream, step, seal_live
        self._shares: Mapping[str, Sequence[Part]] = {stream: parts, **of_others(parts)}
        check_count(len(self._shares))
        self._beside_writer = beside_writer and len(self._shares) == 1
        self._own: Bulk
        self._bulks: dict[str, Bulk] = {}

    offsets = True

    def foreseen(self) -> bool:
        live, beside_writer = self._seal_live, self._beside_writer
        self._own, needed = self._link.run(
            lambda client: foreseen_step(client, self._stream, self._step, seal_live=live, beside_writer=beside_writer)
        )
        if needed:
            self._own.also(was=self._step.was, targets=self._others())
            self._link.run(self._open_targets)
        return needed

    def discard(self) -> None:
        # Listed ledgers have no intent any more, so _drop leaves them alone.
        for name, bulk in self._link.run(self._opened).items():
            ledgers = self._ledgers(name)
            self._link.run(lambda _, bulk=bulk, ledgers=ledgers: _drop(bulk, ledgers))  # type: ignore[misc]

    def records(self) -> Mapping[str, Transaction]:
        async def read(client: Client) -> dict[str, Transaction]:
            found = {name: await bulk.published() for name, bulk in (await self._opened(client)).items()}
            return {name: done for name, done in found.items() if done is not None}

        return self._link.run(read)

    def tally(self, name: str, done: Transaction) -> Tally | None:
        return self._link.run(lambda client: published_tally(client, name, done))

    def publish(self) -> bool:
        # A stream decides anew by itself when it changes, but another process may have published other rows.
        return self._link.run(self._publish)

    def _ledgers(self, name: str) -> list[SealedLedger]:
        return [ledger for part in self._shares[name] for ledger in part.ledgers]

    def _others(self) -> list[str]:
        return [name for name in self._shares if name != self._stream]

    async def _opened(self, client: Client) -> dict[str, Bulk]:
        """Open the steps of all streams, without those that do not exist."""
        found = {self._own.stream: self._own}
        for name in self._others():
            with suppress(NoSuchStream):
                found[name] = await open_step(client, name, beside(self._step))
        return found

    async def _open_targets(self, client: Client) -> None:
        self._bulks = {self._own.stream: self._own}
        for name in self._others():
            self._bulks[name] = await open_target(client, self._own, name, self._step, seal_live=self._seal_live)

    async def _publish(self, client: Client) -> bool:
        everything: list[tuple[Bulk, list[SealedLedger]]] = []
        try:
            for name, bulk in self._bulks.items():
                pieces = [(part.ledgers, part.small) for part in self._shares[name]]
                everything.append((bulk, await with_small_parts(client, bulk, pieces)))
            await publish_together(everything, seal_live=self._seal_live, beside_writer=self._beside_writer)
            last = [(bulk, one.ledger) for bulk, written in everything for one in written if one.records][-1:]
            if all([await bulk.lists(ledger) for bulk, ledger in last]):
                return True
        except BuckramError:
            await self._drop_small(everything)
            raise
        await self._drop_small(everything)
        return False

    async def _drop_small(self, everything: Sequence[tuple[Bulk, Sequence[SealedLedger]]]) -> None:
        """Delete the ledgers made of small parts. Published ones have no intent any more, and stay."""
        for bulk, written in everything:
            made = self._ledgers(bulk.stream)
            await _drop(bulk, [ledger for ledger in written if ledger not in made])


async def open_target(
    client: Client, own: Bulk, stream: str, step: StepId, *, seal_live: bool = False, create: bool = False
) -> Bulk:
    """Open the step of a further stream of the sink, whose own step is `own`, and check that it can be written.

    Raises UnknownQuery if the query wrote to it before and the stream knows nothing of that, and what `foreseen_step`
    does; it looks again for the same reason.
    """

    async def look(again: bool) -> Bulk:
        found: Bulk | None = None
        with suppress(NoSuchStream):
            found = await open_step(client, stream, beside(step))
        own.check_target(stream, found)
        found = found or await open_step(client, stream, beside(step), create=create and again)
        found.foreseen(seal_live=seal_live)
        return found

    return await look_twice(look, client.services.store.sync, (StreamError,))


async def _drop(bulk: Bulk, ledgers: Sequence[SealedLedger]) -> None:
    """Delete ledgers that will not be published, within LOSERS_S; the janitor deletes the others."""
    with suppress(BuckramError, TimeoutError):
        async with asyncio.timeout(LOSERS_S):
            await bulk.abort([ledger.ledger for ledger in ledgers])
