"""Bulk writing: ledgers are written and closed by many hands, then become segments in one compare-and-set.

    ledger = await bulk.create_ledger()        anywhere, any number of them
    await ledger.append_many(...) ; done = await ledger.close()
    await bulk.publish([done, ...])            once; the same version again gives the same result

The transaction (application, version) makes `publish` safe when its reply is lost and a job safe to run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from buckram.client.client import Client
from buckram.client.write.engine import LedgerAppender
from buckram.core.streams.changes import MAX_BULK_SEGMENTS, LiveMoved, Step, check_publishable, published
from buckram.core.streams.codecs import codec_number
from buckram.core.streams.head import Head, Summary, Transaction
from buckram.core.streams.names import StreamName, check_name, owner_of
from buckram.core.streams.policy import Policy
from buckram.core.streams.record_format import NO_MAX, NO_MIN, NO_SNAPSHOT, NO_TXID, Columns, HeadersInput, encode
from buckram.core.streams.transactions import StepId, check_known, newest, settled
from buckram.errors import InvalidArgument, InvalidSegment, NoSuchKey, StreamError, VersionConflict
from buckram.seams import KeyOp
from buckram.streams.shared import records
from buckram.streams.shared.ledgers import Intent, bulk_purpose, discard, listing, make_ledger, read_intent
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.recovery import recover_segment, summarise
from buckram.streams.write.append_queue import RecordCursor
from buckram.types import Buffer, LedgerId

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 256 * 1024
_GROUP_BYTES = 4 * 1024 * 1024
_CHECKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class SealedLedger:
    """A closed ledger that is ready to be published; plain numbers, so it can be sent to whoever publishes."""

    ledger: LedgerId
    records: int
    bytes: int
    min_timestamp: int
    max_timestamp: int


@dataclass(slots=True)
class _Totals:
    records: int = 0
    lowest: int = field(default=NO_MIN)
    highest: int = field(default=NO_MAX)


class BulkLedger:
    """One ledger of a bulk write. One writer; `close` gives what `publish` takes."""

    def __init__(
        self, stream: str, ledger: LedgerAppender, policy: Policy, clock: Callable[[], int], frame: int
    ) -> None:
        self.ledger_id = ledger.ledger_id
        self._stream, self._ledger, self._clock = stream, ledger, clock
        self._compression = codec_number(policy.compression)
        self._limit = min(records.MAX_RECORD_BYTES, frame - 2 * _BATCH_BYTES)
        self._totals = _Totals()

    async def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[HeadersInput | None] | None = None,
        timestamps: Iterable[int | None] | None = None,
    ) -> int:
        """Append records in a row; how many the ledger has when they are stored. RecordTooLarge, InvalidArgument."""
        columns, sizes = records.many(
            self._stream, self._limit, values, keys, headers, timestamps, None, None, None, None
        )
        if sizes:
            await self._ledger.append_many(self._entries(columns, sizes))
        return self._totals.records

    def arrow_entries(self, batch: pa.RecordBatch) -> Iterator[list[bytes]]:
        """Cut a record batch into the next entries of this ledger, in groups of about 4 MiB, to be stored in this order
        by `append_entries`. Columns `value` (binary or string; null is the delete marker), and `key`, `timestamp`,
        `headers` where they are there. Needs no loop. RecordTooLarge, InvalidArgument: this ledger is of no use then.
        """
        from buckram.streams.write.arrow_write import Rows

        rows, totals = Rows(self._stream, batch, self._clock()), self._totals

        def encode(rows: Rows, start: int, stop: int) -> bytes:
            payload, header = rows.encode(
                start,
                stop,
                first=totals.records,
                lowest=totals.lowest,
                highest=totals.highest,
                compression=self._compression,
            )
            totals.records += header.records
            totals.lowest, totals.highest = header.min_timestamp, header.max_timestamp
            return payload

        return rows.entries(encode, self._limit, _GROUP_BYTES)

    async def append_entries(self, entries: Sequence[bytes]) -> None:
        """Store entries of `arrow_entries`; calls may overlap and are stored in their order."""
        await self._ledger.append_many(entries)

    async def append_arrow(self, batch: pa.RecordBatch) -> int:
        """Append the rows of a record batch (see arrow_entries); how many the ledger has when they are stored."""
        for entries in self.arrow_entries(batch):
            await self.append_entries(entries)
        return self._totals.records

    async def abandon(self) -> None:
        """Stop writing without sealing; the ledger is nobody's then."""
        await self._ledger.abandon()

    def _entries(self, columns: Columns, sizes: list[int]) -> list[bytes]:
        cut = RecordCursor(columns, sizes)
        entries: list[bytes] = []
        while cut.left:
            stop, size = cut.next_part(_BATCH_BYTES)
            part = cut.part(stop, size)
            cut.done = stop
            entries.append(self._encode(part))
        return entries

    def _encode(self, columns: Columns) -> bytes:
        totals = self._totals
        payload, header = encode(
            columns,
            first=totals.records,
            append_time=self._clock(),
            lowest=totals.lowest,
            highest=totals.highest,
            compression=self._compression,
        )
        totals.records += header.records
        totals.lowest, totals.highest = header.min_timestamp, header.max_timestamp
        return payload

    async def close(self) -> SealedLedger:
        """Seal the ledger. One without records is not worth publishing: `publish` leaves it out and deletes it.

        Waits for all its copies, a bounded time (Writer.replicated): its process may end when it has told of it.
        """
        await self._ledger.close()
        await self._ledger.replicated()
        totals = self._totals
        return SealedLedger(self.ledger_id, totals.records, self._ledger.length, totals.lowest, totals.highest)


class Bulk:
    """A bulk step of one stream; from `ns.bulk(name, application=..., version=...)`."""

    def __init__(
        self, client: Client, streams: StreamStore, name: StreamName, head: Head, policy: Policy, step: StepId
    ) -> None:
        version = step.version
        if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 2**63:
            raise InvalidArgument(f"version {version!r} of transaction {step.application!r}: needs an int from 0 on")
        self.stream, self.application, self.version = str(name), check_name("application", step.application), version
        self.uid, self.policy = head.uid, policy
        self._client, self._streams, self._name, self._step = client, streams, name, step
        self._head = head

    @property
    def purpose(self) -> str:
        """What intents and owner marks of this step's ledgers say."""
        return bulk_purpose(self.application, self.version)

    def foreseen(self, *, seal_live: bool = False) -> bool:
        """Whether there is anything to do, as of when this step was opened: False, it was published before. Raises what
        `publish` would: OpenSegment, StaleTransaction, CheckpointReset, StreamEnded; and UnknownQuery, where a query's
        first batch is not here."""
        if not check_publishable(self.stream, self._head, self._step, seal_live=seal_live):
            return False
        check_known(self.stream, self._head.transactions, self._step)
        return True

    async def published(self) -> Transaction | None:
        """What this version was published as; None if it was not. StaleTransaction is `publish`'s to raise."""
        done = self._newest((await self._streams.read(self._name)).head)
        return done if done is not None and done.version == self.version else None

    def _newest(self, head: Head) -> Transaction | None:
        found = newest(head.transactions, self.application, self._step.query)
        return None if found is None else found[1]

    async def create_ledger(self, marks: Mapping[str, bytes] | None = None) -> BulkLedger:
        """A ledger for records of this step: with an intent and an owner mark before its first entry. `marks`: what
        else its custom metadata says."""
        services = self._client.services
        ledger, _ = await make_ledger(
            self._client,
            self._streams,
            self._name,
            self.uid,
            self.policy,
            epoch=self._head.epoch,
            purpose=self.purpose,
            query=self._step.query,
            marks=marks,
        )
        return BulkLedger(self.stream, ledger, self.policy, services.clocks.now, services.net.max_frame_bytes)

    async def publish(self, ledgers: Sequence[SealedLedger], *, seal_live: bool = False) -> Transaction:
        """Make the ledgers segments, in this order, and record the transaction, in one compare-and-set.

        The offsets they got; the recorded ones when this version was published before. OpenSegment: a writer has an
        open segment; with `seal_live` it is fenced and its segment sealed in the same step. StaleTransaction,
        InvalidSegment, StreamEnded: nothing was published.
        """
        for ledger in ledgers:
            if not isinstance(ledger, SealedLedger):
                raise InvalidArgument(f"publish: {ledger!r} is no SealedLedger, which BulkLedger.close gives")
        if len(ledgers) > MAX_BULK_SEGMENTS:
            raise InvalidArgument(
                f"stream {self.stream}: {len(ledgers)} ledgers in one step, the limit is {MAX_BULK_SEGMENTS}; write "
                "fewer, larger ones"
            )
        done = await self.published()
        if done is None:
            wanted = [ledger for ledger in ledgers if ledger.records]
            checked: list[tuple[LedgerId, Summary, Intent]] = []
            for begin in range(0, len(wanted), _CHECKED_AT_ONCE):
                checked += await asyncio.gather(*map(self._check, wanted[begin : begin + _CHECKED_AT_ONCE]))
            done = await self._publish(checked, seal_live=seal_live)
        for ledger in ledgers:
            if not ledger.records:
                await self._discard_empty(ledger.ledger)
        return done

    async def _publish(self, checked: list[tuple[LedgerId, Summary, Intent]], *, seal_live: bool) -> Transaction:
        segments = [(ledger, summary) for ledger, summary, _ in checked]
        ops: list[KeyOp] = [listing(self._streams, self.uid, intent) for *_, intent in checked]
        clocks = self._client.services.clocks
        await clocks.ensure()
        while True:
            head = (await self._streams.read(self._name)).head
            live: tuple[LedgerId, Summary] | None = None
            if seal_live and head.open_segment is not None and self._may_publish(head):
                ledger = head.open_segment.ledger
                live = ledger, await recover_segment(self._client, self._name, ledger)

            def step(head: Head, live: tuple[LedgerId, Summary] | None = live) -> Step | None:
                _, _, query, place, new_epoch = self._step
                return published(
                    self.stream,
                    head,
                    segments,
                    self.application,
                    self.version,
                    clocks.now(),
                    seal_live=seal_live,
                    live=live,
                    query=query,
                    place=place,
                    new_epoch=new_epoch,
                )

            try:
                head = await self._streams.change(self._name, step, uid=self.uid, extra=lambda _: ops)
                done = self._newest(head)
                assert done is not None, "it was recorded in this step or found to be"
                return done
            except LiveMoved:
                continue  # a writer rolled or began meanwhile: fence that one
            except (NoSuchKey, VersionConflict) as error:
                done = await self.published()
                if done is not None:
                    return done
                ledger = checked[0][0] if checked else -1
                raise InvalidSegment(
                    self.stream, ledger, f"it or another one of this step was discarded or published before ({error})"
                ) from error

    def _may_publish(self, head: Head) -> bool:
        """Nobody is fenced for a step that is not going to be published."""
        try:
            return settled(self.stream, head.transactions, self._step) is None
        except StreamError:
            return False  # the change says why

    async def _check(self, ledger: SealedLedger) -> tuple[LedgerId, Summary, Intent]:
        """It exists, is closed, was made for this stream, and its last entry counts as it was told."""
        metadata = await self._client.metadata(ledger.ledger)
        owner = owner_of(metadata.custom_metadata)
        if owner is None or owner[1] != self.uid:
            raise InvalidSegment(self.stream, ledger.ledger, "was not made for this stream; use bulk.create_ledger()")
        if not metadata.closed:
            raise InvalidSegment(self.stream, ledger.ledger, "is not closed; close it before publishing")
        intent = await read_intent(self._streams, self.uid, ledger.ledger)
        if intent is None or intent.discard:
            raise InvalidSegment(self.stream, ledger.ledger, "was published or discarded before")
        async with self._client.open(ledger.ledger) as reader:
            summary = await summarise(self._name, reader)
        if summary.records != ledger.records or summary.last_txid != NO_TXID or summary.snapshot != NO_SNAPSHOT:
            raise InvalidSegment(
                self.stream, ledger.ledger, f"holds {summary.records} records, {ledger.records} were announced"
            )
        return ledger.ledger, summary, intent

    async def _discard_empty(self, ledger: LedgerId) -> None:
        intent = await read_intent(self._streams, self.uid, ledger)
        if intent is not None:
            await discard(self._client, self._streams, self.uid, intent)

    async def abort(self, ledgers: Iterable[LedgerId]) -> None:
        """Delete ledgers of this step that will not be published; those that were are left alone."""
        for ledger in ledgers:
            intent = await read_intent(self._streams, self.uid, ledger)
            if intent is not None:
                await discard(self._client, self._streams, self.uid, intent)
