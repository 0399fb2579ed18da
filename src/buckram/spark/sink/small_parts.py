"""Tasks with few rows: the rows travel in the task's message, and the driver writes neighbouring tasks to one ledger.

A ledger costs about ten milliseconds of CPU and two writes of metadata, however few rows it has, and 200 rows in 200
tasks would make 200 ledgers. The driver's ledger belongs to the same step as those of the tasks: readers see nothing
of it until it is published with them, and if the driver dies the janitor deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from socket import gethostname
from typing import TYPE_CHECKING

from buckram.errors import BookieError, BuckramError, NotEnoughBookies, StreamError, WriteFailed
from buckram.spark.sink.replay_check import Tally, tally
from buckram.streams.write.bulk import Bulk, SealedLedger

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.cluster import Client

MARKS = {"buckram.spark.driver": b"small parts"}
"""Custom metadata of the driver's ledgers; those of tasks name their partition instead."""


class SmallPart:
    """Keeps the rows of one task for as long as they have at most `most` bytes."""

    def __init__(self, stream: str, most: int) -> None:
        self._stream, self._most = stream, most
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._full = False

    def keep(self, batch: pa.RecordBatch) -> bool:
        """Keep a record batch; returns False, and keeps none from then on, if the rows have too many bytes.

        Raises InvalidArgument for a column that a record cannot have, so that the task fails and not the commit.
        """
        from buckram.streams.write.arrow_write import Rows

        if self._full or self._bytes + batch.nbytes > self._most:
            self._full = True
            return False
        Rows(self._stream, batch, 0)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        return True

    def release(self) -> list[pa.RecordBatch]:
        """Return what was kept, to be written to a ledger, and keep it no longer."""
        found, self._batches = self._batches, []
        return found

    @property
    def rows(self) -> int:
        """The number of rows that are kept."""
        return sum(batch.num_rows for batch in self._batches)

    def message(self) -> bytes:
        """Return the rows as an Arrow IPC stream; empty if there are none."""
        import pyarrow as pa

        if not self._batches:
            return b""
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._batches[0].schema) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        return bytes(out.getvalue())


def tally_of(message: bytes) -> Tally:
    """Return the tally of the rows of a message."""
    import pyarrow as pa

    found = Tally()
    if message:
        for batch in pa.ipc.open_stream(message):
            found = found.plus(tally(batch))
    return found


async def with_small_parts(
    client: Client, bulk: Bulk, parts: Sequence[tuple[Sequence[SealedLedger], bytes]]
) -> list[SealedLedger]:
    """Return all ledgers of the step in the order of `parts`, each of which is ledgers or a message of `SmallPart`.

    Neighbouring messages are written to one new ledger. Raises StreamError if it cannot be written.
    """
    found: list[SealedLedger] = []
    made: list[SealedLedger] = []
    filled = [(ledgers, small) for ledgers, small in parts if ledgers or small]
    try:
        for is_small, group in groupby(filled, key=lambda part: bool(part[1])):
            if is_small:
                made.append(await _written(bulk, [small for _, small in group]))
                found.append(made[-1])
            else:
                found += [ledger for ledgers, _ in group for ledger in ledgers]
    except (WriteFailed, NotEnoughBookies, BookieError) as error:
        with suppress(BuckramError):
            await bulk.abort([ledger.ledger for ledger in made])
        raise unwritable_error(client, bulk.stream, error) from error
    return found


async def _written(bulk: Bulk, messages: Sequence[bytes]) -> SealedLedger:
    import pyarrow as pa

    tables = [pa.ipc.open_stream(message).read_all() for message in messages]
    ledger = await bulk.create_ledger(MARKS)
    try:
        # The messages are joined first, which gives few entries instead of one for each message.
        for batch in pa.concat_tables(tables).combine_chunks().to_batches():
            for entries in ledger.arrow_entries(batch):
                await ledger.append_entries(entries)
        return await ledger.close()
    except BaseException:
        with suppress(BuckramError):
            await ledger.abandon()
            await bulk.abort([ledger.ledger_id])
        raise


def unwritable_error(client: Client, stream: str, error: BuckramError) -> StreamError:
    """Return the error that tells a user why the bookies did not take the rows."""
    readonly = client.services.bookies.readonly
    why = "every executor must reach the bookies"
    if readonly:
        why = f"bookies {', '.join(readonly)} are read-only, mostly for want of space; the others are too few"
    return StreamError(stream, f"cannot be written from host {gethostname()}: {why} ({error})")
