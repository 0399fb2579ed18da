"""The blocking face of bulk steps: ledgers that become segments in one compare-and-set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from buckram.client.shared.handles import NotCopied
from buckram.core.streams.metadata.head import Transaction
from buckram.core.streams.records.record_format import HeadersInput
from buckram.streams.write.bulk import Bulk as _Bulk
from buckram.streams.write.bulk import BulkLedger as _BulkLedger
from buckram.streams.write.bulk import SealedLedger
from buckram.sync.thread import LoopThread
from buckram.types import Buffer, LedgerId

if TYPE_CHECKING:
    import pyarrow as pa


class BulkLedger(NotCopied):
    """See the async one. One writer."""

    def __init__(self, thread: LoopThread, ledger: _BulkLedger) -> None:
        self._thread, self._ledger = thread, ledger
        self.ledger_id = ledger.ledger_id
        """The ledger's id."""

    def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[HeadersInput | None] | None = None,
        timestamps: Iterable[int | None] | None = None,
    ) -> int:
        """Append records in a row; how many the ledger has when they are stored."""
        rows = values if isinstance(values, bytes | bytearray | memoryview | str) else list(values)
        names, labels = None if keys is None else list(keys), None if headers is None else list(headers)
        times = None if timestamps is None else list(timestamps)
        return self._thread.run(lambda: self._ledger.append_many(rows, keys=names, headers=labels, timestamps=times))

    def append_arrow(self, batch: pa.RecordBatch) -> int:
        """Append the rows of an Arrow record batch; how many the ledger has when they are stored."""
        return self._thread.run(lambda: self._ledger.append_arrow(batch))

    def abandon(self) -> None:
        """Stop writing without sealing; the ledger is left without a writer."""
        self._thread.run(self._ledger.abandon)

    def close(self) -> SealedLedger:
        """Seal the ledger; what `publish` takes."""
        return self._thread.run(self._ledger.close)


class Bulk(NotCopied):
    """See the async one: `ns.bulk(stream, application=..., version=...)`."""

    def __init__(self, thread: LoopThread, bulk: _Bulk) -> None:
        self._thread, self._bulk = thread, bulk
        self.stream = bulk.stream
        """NAMESPACE/STREAM."""
        self.application = bulk.application
        """Application whose step it is."""
        self.version = bulk.version
        """The number of the step; each is published once."""

    def published(self) -> Transaction | None:
        """Return the transaction that published this version; None if it was not published."""
        return self._thread.run(self._bulk.published)

    def foreseen(self, *, seal_live: bool = False, beside_writer: bool = False) -> bool:
        """Return whether there was anything to do when this step was opened; raises the errors that `publish` would
        raise."""
        return self._bulk.foreseen(seal_live=seal_live, beside_writer=beside_writer)

    def create_ledger(self, marks: Mapping[str, bytes] | None = None) -> BulkLedger:
        """Return a ledger for records of this step. `marks`: further keys of its custom metadata."""

        async def create() -> BulkLedger:
            return BulkLedger(self._thread, await self._bulk.create_ledger(marks))

        return self._thread.run(create)

    def publish(
        self, ledgers: Sequence[SealedLedger], *, seal_live: bool = False, beside_writer: bool = False
    ) -> Transaction:
        """Make the ledgers segments and record the transaction, in one step; return it with their offsets.

        Nothing was published after OpenSegment (a writer has the stream: `seal_live` fences it, and `beside_writer`
        lets it put the ledgers between its own segments), StaleTransaction, CheckpointReset, UnknownQuery,
        InvalidSegment or StreamEnded.
        """
        return self._thread.run(lambda: self._bulk.publish(ledgers, seal_live=seal_live, beside_writer=beside_writer))

    def abort(self, ledgers: Iterable[LedgerId]) -> None:
        """Delete ledgers of this step that will not be published."""
        wanted = list(ledgers)
        self._thread.run(lambda: self._bulk.abort(wanted))
