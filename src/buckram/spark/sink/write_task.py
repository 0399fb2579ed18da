"""One attempt of one writing task, in an executor: it turns record batches into closed ledgers.

Each attempt makes its own ledgers, so the attempts of a speculative task do not touch each other. Readers see nothing
until the driver publishes the ledgers; those of a dead attempt have intents, and the janitor deletes them when their
step is decided. A task with few rows makes no ledger: they go to the driver in its message (`small_parts.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from buckram.core.streams.metadata.transactions import StepId
from buckram.core.streams.names import stream_name
from buckram.errors import (
    BookieError,
    BuckramError,
    InvalidArgument,
    NoSuchStream,
    NotEnoughBookies,
    StreamError,
    WriteFailed,
)
from buckram.spark.shared.clients import Connection, connection, prepare_process
from buckram.spark.shared.typed_values import encoded_rows
from buckram.spark.sink.replay_check import Tally, tally
from buckram.spark.sink.small_parts import SmallPart, unwritable_error
from buckram.spark.sink.transactions import Attempt, Part, check_count, foreseen_step, open_target
from buckram.streams.write.bulk import Bulk, BulkLedger, SealedLedger

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.cluster import Client

GROUPS_AHEAD = 3
"""The number of groups of entries (about 4 MiB each) in flight while the next one is encoded."""
LEDGER_S = 3600.0
"""A ledger is closed after this time, because the janitor takes an application for dead that makes no ledgers."""
CLEANUP_S = 5.0


def write_task(
    uri: str,
    stream: str,
    step: StepId,
    attempt: Attempt,
    batches: Iterator[pa.RecordBatch],
    *,
    segment_bytes: int | None,
    small_bytes: int,
    seal_live: bool,
    beside_writer: bool = False,
    by_stream: bool = False,
    create: bool = False,
) -> Part:
    """Write all rows in their order and return what the driver needs to publish them.

    `by_stream`: each row goes to the stream that its column `stream` names, which is made if `create` says so; where
    the column is null, to `stream`. Nothing is written for a step that is published already or cannot be published; the
    driver then decides or raises.
    """
    prepare_process()
    link = connection(uri)
    rows = _rows_by_stream(batches, stream) if by_stream else ((stream, batch) for batch in batches)
    try:
        bulk, needed = link.run(
            lambda client: foreseen_step(client, stream, step, seal_live=seal_live, beside_writer=beside_writer)
        )
    except NoSuchStream:
        raise
    except StreamError:
        return Part(attempt, skipped=True)  # The driver raises it once, instead of each task four times.
    rows = encoded_rows(uri, rows, {stream: bulk.schemas})
    if not needed:
        # The step is repeated. For a streaming query the driver compares the rows, since an older checkpoint can lead
        # to another batch of the same number.
        return _counted(attempt, stream, rows) if attempt.query else Part(attempt, skipped=True)
    written = {stream: _Rows(link, bulk, attempt, segment_bytes, small_bytes)}
    try:
        for name, batch in rows:
            if name not in written:
                check_count(len(written) + 1)
                try:
                    other = link.run(
                        partial(open_target, own=bulk, stream=name, step=step, seal_live=seal_live, create=create)
                    )
                except StreamError:
                    _discard(written)
                    return Part(attempt, skipped=True, others={name: Part(attempt, skipped=True)})
                written[name] = _Rows(link, other, attempt, segment_bytes, small_bytes)
            written[name].add(batch)
        parts = {name: one.part() for name, one in written.items()}
        return replace(parts.pop(stream), others=parts)
    except (WriteFailed, NotEnoughBookies, BookieError) as error:
        _discard(written)
        raise unwritable_error(link.client, stream, error) from error
    except BaseException:
        _discard(written)
        raise


def _rows_by_stream(batches: Iterator[pa.RecordBatch], stream: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each stream that the column `stream` names, without the column; null stands for `stream`."""
    import pyarrow.compute as pc

    for batch in batches:
        place = batch.schema.names.index("stream")
        rest = batch.remove_column(place)
        names = pc.fill_null(batch.column(place), stream)
        for given in pc.unique(names).to_pylist():
            try:
                name = str(stream_name(given))
            except InvalidArgument as error:
                raise InvalidArgument(f'column "stream" has {given!r}: {error}') from None
            yield name, rest.filter(pc.equal(names, given))


def _counted(attempt: Attempt, stream: str, rows: Iterable[tuple[str, pa.RecordBatch]]) -> Part:
    """Return the part of a task of a batch that was published before: the tally of its rows for each stream."""
    seen = {stream: Tally()}
    for name, batch in rows:
        seen[name] = seen.get(name, Tally()).plus(tally(batch))
    parts = {name: Part(attempt, skipped=True, seen=one) for name, one in seen.items()}
    return replace(parts.pop(stream), others=parts)


def _discard(written: Mapping[str, _Rows]) -> None:
    for rows in written.values():
        rows.discard()


class _Rows:
    """Rows that one attempt writes to one stream: few rows for its message, or ledgers."""

    def __init__(
        self, link: Connection, bulk: Bulk, attempt: Attempt, segment_bytes: int | None, small_bytes: int
    ) -> None:
        size = segment_bytes or bulk.policy.roll_bytes
        self._attempt = attempt
        self._small = SmallPart(bulk.stream, min(small_bytes, size))
        self._task = _Task(link, bulk, attempt, size)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a record batch, or keep it while there are few rows."""
        if batch.num_rows and not self._small.keep(batch):
            for earlier in self._small.release():
                self._task.add(earlier)
            self._task.add(batch)

    def part(self) -> Part:
        """Close the ledgers and return the part for the driver."""
        return Part(self._attempt, tuple(self._task.close()), self._small.message(), self._small.rows)

    def discard(self) -> None:
        """Delete what was written."""
        self._task.discard_all()


class _Task:
    """The ledgers of one attempt."""

    def __init__(self, link: Connection, bulk: Bulk, attempt: Attempt, segment_bytes: int) -> None:
        self._link, self._bulk, self._attempt, self._segment_bytes = link, bulk, attempt, segment_bytes
        self._ledger: BulkLedger | None = None
        self._bytes, self._until = 0, 0.0
        self._sealed: list[SealedLedger] = []
        self._sent: deque[Future[None]] = deque()

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode a record batch and start to send it; waits while GROUPS_AHEAD groups are in flight."""
        if self._ledger is not None and (
            self._bytes >= self._segment_bytes or self._link.thread.loop.time() >= self._until
        ):
            self._seal()
        ledger = self._ledger or self._begin()
        for entries in ledger.arrow_entries(batch):
            self._bytes += sum(map(len, entries))
            while len(self._sent) >= GROUPS_AHEAD:
                self._sent.popleft().result()
            self._sent.append(self._link.thread.start(partial(ledger.append_entries, entries)))

    def close(self) -> Sequence[SealedLedger]:
        """Close the last ledger and return all ledgers in order."""
        self._seal()
        return self._sealed

    def _begin(self) -> BulkLedger:
        marks = self._attempt.marks()
        self._ledger = self._link.run(lambda _: self._bulk.create_ledger(marks))
        self._bytes, self._until = 0, self._link.thread.loop.time() + LEDGER_S
        return self._ledger

    def _seal(self) -> None:
        ledger = self._ledger
        if ledger is None:
            return
        while self._sent:
            self._sent.popleft().result()
        self._sealed.append(self._link.run(lambda _: ledger.close()))
        self._ledger = None

    def discard_all(self) -> None:
        """Discard all ledgers of this attempt, within CLEANUP_S; the driver does not know them."""
        ledgers = [sealed.ledger for sealed in self._sealed]
        open_one = self._ledger

        async def clean(_: Client) -> None:
            async with asyncio.timeout(CLEANUP_S):
                if open_one is not None:
                    await open_one.abandon()
                    ledgers.append(open_one.ledger_id)
                await self._bulk.abort(ledgers)

        with suppress(BuckramError, TimeoutError):
            self._link.run(clean)
        for future in self._sent:
            future.cancel()
