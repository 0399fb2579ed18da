"""The blocking face of bulk steps: ledgers that become segments in one compare-and-set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from buckram.client.shared.handles import NotCopied
from buckram.core.streams.records.record_format import HeadersInput
from buckram.streams.write.bulk import Bulk as _Bulk
from buckram.streams.write.bulk import BulkLedger as _BulkLedger
from buckram.sync.calls.records import BulkCalls, BulkLedgerCalls
from buckram.sync.thread import LoopThread
from buckram.types import Buffer, LedgerId


class BulkLedger(BulkLedgerCalls, NotCopied):
    """See the async one. One writer."""

    def __init__(self, thread: LoopThread, ledger: _BulkLedger) -> None:
        super().__init__(thread, ledger)
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
        return self._thread.run(lambda: self._handle.append_many(rows, keys=names, headers=labels, timestamps=times))


class Bulk(BulkCalls, NotCopied):
    """See the async one: `ns.bulk(stream, application=..., version=...)`."""

    def __init__(self, thread: LoopThread, bulk: _Bulk) -> None:
        super().__init__(thread, bulk)
        self.stream = bulk.stream
        """NAMESPACE/STREAM."""
        self.application = bulk.application
        """Application whose step it is."""
        self.version = bulk.version
        """The number of the step; each is published once."""

    def create_ledger(self, marks: Mapping[str, bytes] | None = None) -> BulkLedger:
        """Return a ledger for records of this step. `marks`: further keys of its custom metadata."""

        async def create() -> BulkLedger:
            return BulkLedger(self._thread, await self._handle.create_ledger(marks))

        return self._thread.run(create)

    def abort(self, ledgers: Iterable[LedgerId]) -> None:
        """Delete ledgers of this step that will not be published."""
        wanted = list(ledgers)
        self._thread.run(lambda: self._handle.abort(wanted))
