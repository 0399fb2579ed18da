"""Bulk writing: many processes write and close ledgers, which then become segments in one compare-and-set.

    ledger = await bulk.create_ledger()        in any process, any number of them
    await ledger.append_many(...) ; done = await ledger.close()
    await bulk.publish([done, ...])            once; publishing the same version again gives the same result

The transaction (application, version) makes it safe to publish again after a lost reply, and to run a job again. Not
here: the rules of transactions (`core/streams/metadata/transactions.py`), Spark's use of all this
(`spark/sink/transactions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from buckram.client.ledger_client import LedgerClient
from buckram.client.shared.handles import NotCopied
from buckram.client.write.engine import LedgerAppender
from buckram.core.streams.metadata.changes import MAX_BULK_SEGMENTS, HeadStep, LiveMoved, check_publishable, published
from buckram.core.streams.metadata.head import Head, Summary, Transaction
from buckram.core.streams.metadata.insertions import InsertedLedger, Insertion
from buckram.core.streams.metadata.purposes import Purpose
from buckram.core.streams.metadata.transactions import StepId, check_known, check_target, newest, settled
from buckram.core.streams.names import StreamName, check_name, owner_of
from buckram.core.streams.policy import Policy
from buckram.core.streams.records.codecs import codec_number
from buckram.core.streams.records.record_format import (
    NO_MAX,
    NO_MIN,
    NO_SNAPSHOT,
    NO_TXID,
    Columns,
    HeadersInput,
    encode,
)
from buckram.core.streams.records.schemas import RecordSchemas
from buckram.errors import (
    InvalidArgument,
    InvalidSegment,
    NoSuchKey,
    NoSuchLedger,
    OpenSegment,
    StreamError,
    VersionConflict,
)
from buckram.streams.shared.ledgers import Intent, bulk_purpose, discard, listing_op, make_ledger, read_intent
from buckram.streams.shared.metadata import StreamStore, look_twice
from buckram.streams.shared.recovery import recover_segment, summarise
from buckram.streams.write import record_arguments as records
from buckram.streams.write.append_queue import RecordCursor
from buckram.streams.write.insertion import ANSWER_S, ask_writer
from buckram.streams.write.lease import AppendClock
from buckram.types import Buffer, CheckVersion, KeyOp, LedgerId

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_BYTES = 256 * 1024
_GROUP_BYTES = 4 * 1024 * 1024
_CHECKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class SealedLedger:
    """A closed ledger that can be published. It has plain numbers only, so it can be sent to the publishing process."""

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


class CheckedLedger(NamedTuple):
    """A ledger that may be listed: its contents, and the intent that goes when it is listed."""

    ledger: LedgerId
    summary: Summary
    intent: Intent


class BulkLedger(NotCopied):
    """One ledger of a bulk step, with one writer. `close` returns what `publish` takes."""

    def __init__(self, stream: str, ledger: LedgerAppender, policy: Policy, clock: AppendClock, frame: int) -> None:
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
        """Append consecutive records and return how many the ledger holds once they are acknowledged.

        Raises RecordTooLarge or InvalidArgument before anything is sent.
        """
        columns, sizes = records.many(
            self._stream, self._limit, values, keys, headers, timestamps, None, None, None, None
        )
        if sizes:
            await self._ledger.append_many(self._entries(columns, sizes))
        return self._totals.records

    def arrow_entries(self, batch: pa.RecordBatch) -> Iterator[list[bytes]]:
        """Encode a record batch as the next entries of this ledger, in groups of about 4 MiB.

        `append_entries` must store the groups in this order. Columns: `value` (binary or string; null is the delete
        marker), and optionally `key`, `timestamp` and `headers`. It may run outside the event loop. After
        RecordTooLarge or InvalidArgument the ledger must be abandoned.
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
        """Append a group from `arrow_entries`. Calls may overlap; groups are stored in the order of the calls."""
        await self._ledger.append_many(entries)

    async def append_arrow(self, batch: pa.RecordBatch) -> int:
        """Append the rows of a record batch (see arrow_entries); returns how many records the ledger then holds."""
        for entries in self.arrow_entries(batch):
            await self.append_entries(entries)
        return self._totals.records

    async def abandon(self) -> None:
        """Stop writing without closing the ledger, which then cannot be published."""
        await self._ledger.abandon()

    def _entries(self, columns: Columns, sizes: list[int]) -> list[bytes]:
        cut = RecordCursor(columns, sizes)
        entries: list[bytes] = []
        while cut.done < len(cut.ends):
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
        """Close the ledger and return its totals. `publish` deletes a ledger without records instead of listing it.

        It waits, for a bounded time, until all copies are stored (Writer.replicated), because the process may end as
        soon as it has reported the ledger, and no process would send the missing copies then.
        """
        await self._ledger.close()
        await self._ledger.replicated()
        totals = self._totals
        return SealedLedger(self.ledger_id, totals.records, self._ledger.length, totals.lowest, totals.highest)


class Bulk(NotCopied):
    """A bulk step of one stream; from `ns.bulk(name, application=..., version=...)`."""

    def __init__(
        self,
        client: LedgerClient,
        streams: StreamStore,
        name: StreamName,
        head: Head,
        policy: Policy,
        step: StepId,
        acting_for: Purpose = Purpose.RECORDS,
    ) -> None:
        """Begin a step. `acting_for`: purpose of the stream, needed to write one that is not for records."""
        version = step.version
        if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 2**63:
            raise InvalidArgument(f"version {version!r} of transaction {step.application!r}: needs an int from 0 on")
        self.stream, self.application, self.version = str(name), check_name("application", step.application), version
        self.uid, self.policy = head.uid, policy
        if step.query:
            step = step._replace(history=client.services.identities.history_mark)
        self._client, self._streams, self._name, self._step = client, streams, name, step
        self._head, self._acting_for = head, acting_for

    @property
    def schemas(self) -> RecordSchemas | None:
        """Schema of the stream's values at the opening of this step, with all versions; None if it has none."""
        return RecordSchemas.of(self._head.properties)

    @property
    def purpose(self) -> str:
        """Purpose in the intents and owner marks of this step's ledgers."""
        return bulk_purpose(self.application, self.version)

    def foreseen(self, *, seal_live: bool = False, beside_writer: bool = False) -> bool:
        """Return whether this step must be written, by the head at its opening; False if it was published before.

        Raises what `publish` would raise: OpenSegment, StaleTransaction, CheckpointReset, StreamEnded; and UnknownQuery
        if this is a later batch of a query whose first batch the stream does not know, or the first one of a fork that
        has to have a stream of its own; BatchesLost if those before it may have gone with a restore.
        """
        live, owner = seal_live or beside_writer, self._acting_for
        if not check_publishable(self.stream, self._head, self._step, seal_live=live, acting_for=owner):
            return False
        check_known(self.stream, self._head.transactions, self._step, self._head.came)
        return True

    def also(self, *, was: str = "", targets: Sequence[str] = (), planned: int = 0) -> None:
        """Add to the id of a streaming query's step: `was`, `targets` and `planned` of StepId."""
        step = self._step
        self._step = step._replace(was=was or step.was, targets=tuple(targets), planned=planned or step.planned)

    def check_target(self, stream: str, other: Bulk | None) -> None:
        """UnknownQuery: this step's query wrote to the further stream before, and nothing is left of that there.

        `other` is the step of that stream; None if it is not there.
        """
        check_target(stream, None if other is None else other._head.transactions, self._step, self._head.transactions)

    async def published(self) -> Transaction | None:
        """Return the transaction that published this version, or None if it was not published."""
        done = self._newest((await self._streams.read(self._name)).head)
        return done if done is not None and done.version == self.version else None

    def _newest(self, head: Head) -> Transaction | None:
        found = newest(head.transactions, self.application, self._step.query)
        return None if found is None else found[1]

    async def lists(self, ledger: LedgerId) -> bool:
        """Return whether a ledger is among the stream's newest segments.

        If one of this step is not, after `publish`, another process published the step, or many segments followed it.
        """
        head = (await self._streams.read(self._name)).head
        return any(row.ledger == ledger for row in head.tail)

    async def create_ledger(self, marks: Mapping[str, bytes] | None = None) -> BulkLedger:
        """Make a ledger for records of this step; it has an intent and an owner mark before its first entry.

        `marks` is added to its custom metadata. Raises NotEnoughBookies or MetadataUnavailable.
        """
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

    async def publish(
        self, ledgers: Sequence[SealedLedger], *, seal_live: bool = False, beside_writer: bool = False
    ) -> Transaction:
        """List the ledgers as segments, in this order, and record the transaction, in one compare-and-set of the head.

        Returns the offsets that they got, or the recorded ones if this version was published before. OpenSegment: a
        writer has the stream. With `seal_live` that writer is fenced and its segment sealed in the same step. With
        `beside_writer` it is asked to list the ledgers behind its segment, and goes on behind them; OpenSegment then
        says that it did not within ANSWER_S seconds. After OpenSegment, StaleTransaction, InvalidSegment or StreamEnded
        nothing was published; after MetadataUnavailable it may have been, and publishing again is safe.
        """
        both = await publish_together([(self, ledgers)], seal_live=seal_live, beside_writer=beside_writer)
        return both[0]

    async def publish_if(
        self, conditions: Sequence[CheckVersion], ledgers: Sequence[SealedLedger], *, seal_live: bool = False
    ) -> Transaction:
        """Publish as `publish` does if `conditions` hold in the same multi; VersionConflict: nothing was published."""
        return (await publish_together([(self, ledgers)], conditions=conditions, seal_live=seal_live))[0]

    async def _fenced(self) -> tuple[LedgerId, Summary] | None:
        """Fence the live writer and return its segment; None if there is none, or the step will not be published."""
        head = (await self._streams.read(self._name)).head
        if head.open_segment is None or not self._may_publish(head):
            return None
        return head.open_segment.ledger, await recover_segment(
            self._client, self._name, head.uid, head.open_segment.ledger
        )

    def _may_publish(self, head: Head) -> bool:
        """Return whether the step can be published by this head; no writer is fenced for one that cannot."""
        try:
            return settled(self.stream, head.transactions, self._step, head.came) is None
        except StreamError:
            return False  # The change of the head raises the reason.

    async def _beside(self, checked: Sequence[CheckedLedger], within_s: float) -> Transaction | None:
        """Ask the writer to publish the step; None if that was not done within `within_s` seconds, or not by it."""
        rows = tuple(InsertedLedger(ledger, summary) for ledger, summary, _ in checked)
        nonce = f"{self._client.services.runtime.rng.getrandbits(64):016x}"
        wanted = Insertion(self._step, rows, nonce)
        return await ask_writer(self._streams, self._name, self.uid, wanted, self.published, within_s=within_s)

    async def _check(self, ledger: SealedLedger) -> CheckedLedger:
        """Check that the ledger exists, is closed, was made for this stream, and holds as many records as announced.

        Another process has closed it a moment ago: a server of the metadata store that lags may not know that yet.
        """
        sync = self._streams.keys.sync
        return await look_twice(lambda _: self._looked_at(ledger), sync, (InvalidSegment, NoSuchLedger))

    async def _looked_at(self, ledger: SealedLedger) -> CheckedLedger:
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
        return CheckedLedger(ledger.ledger, summary, intent)

    async def _discard_empty(self, ledger: LedgerId) -> None:
        intent = await read_intent(self._streams, self.uid, ledger)
        if intent is not None:
            await discard(self._client, self._streams, self.uid, intent)

    async def abort(self, ledgers: Iterable[LedgerId]) -> None:
        """Delete ledgers of this step that will not be published. Published ones have no intent and are left alone."""
        for ledger in ledgers:
            intent = await read_intent(self._streams, self.uid, ledger)
            if intent is not None:
                await discard(self._client, self._streams, self.uid, intent)


# -- publishing -------------------------------------------------------------------------------------------

Share = tuple[Bulk, Sequence[SealedLedger]]
"""A stream's step and its ledgers in order, of a step that is published to several streams together."""


async def publish_together(
    shares: Sequence[Share],
    *,
    conditions: Sequence[CheckVersion] = (),
    seal_live: bool = False,
    beside_writer: bool = False,
) -> list[Transaction]:
    """Do what Bulk.publish does for several streams in one multi: the records of all become visible, or of none.

    `beside_writer` is of use for one stream alone: several writers cannot do one step together.

    The first stream decides whether the step was published before. Returns the transaction of each stream. Raises what
    Bulk.publish raises, StreamError if a stream has the version already and the first one has not or the other way
    round, and ValueTooLarge if the heads of so many streams do not fit into one request of the metadata store.
    """
    first = shares[0][0]
    _check_shares(shares)
    if beside_writer and (seal_live or conditions):
        raise InvalidArgument(f"stream {first.stream}: beside_writer goes with neither seal_live nor conditions")
    done = await _recorded(shares)
    if done is None:
        checked: list[list[CheckedLedger]] = []
        for bulk, ledgers in shares:
            wanted, found = [ledger for ledger in ledgers if ledger.records], list[CheckedLedger]()
            for begin in range(0, len(wanted), _CHECKED_AT_ONCE):
                found += await asyncio.gather(*map(bulk._check, wanted[begin : begin + _CHECKED_AT_ONCE]))
            checked.append(found)
        await first._client.services.clocks.ensure()
        bulks, beside = [bulk for bulk, _ in shares], beside_writer and len(shares) == 1
        done = await _publish(bulks, checked, conditions, seal_live=seal_live, beside_writer=beside)
    for bulk, ledgers in shares:
        for ledger in ledgers:
            if not ledger.records:
                await bulk._discard_empty(ledger.ledger)
    return done


def _check_shares(shares: Sequence[Share]) -> None:
    names = [bulk.stream for bulk, _ in shares]
    if len(set(names)) < len(names):
        raise InvalidArgument(f"publish: a stream comes twice among {', '.join(names)}")
    ledgers = [ledger for _, some in shares for ledger in some]
    for ledger in ledgers:
        if not isinstance(ledger, SealedLedger):
            raise InvalidArgument(f"publish: {ledger!r} is no SealedLedger, which BulkLedger.close gives")
    if len(ledgers) > MAX_BULK_SEGMENTS:
        raise InvalidArgument(
            f"stream {names[0]}: {len(ledgers)} ledgers in one step, the limit is {MAX_BULK_SEGMENTS}; write "
            "fewer, larger ones"
        )


async def _recorded(shares: Sequence[Share]) -> list[Transaction] | None:
    """Return what this version was published as in each stream; None if the first stream does not have it."""
    found: list[Transaction] = []
    for bulk, _ in shares:
        done = await bulk.published()
        if done is None and not found:
            return None
        if done is None:
            raise _apart(shares[0][0], bulk.stream)
        found.append(done)
    return found


def _apart(bulk: Bulk, stream: str) -> StreamError:
    return StreamError(
        stream,
        f"and {bulk.stream} do not agree: only one of them has version {bulk.version} of application "
        f"{bulk.application}, so the two were not published together; nothing was published now",
    )


async def _publish(
    bulks: Sequence[Bulk],
    checked: Sequence[list[CheckedLedger]],
    conditions: Sequence[CheckVersion],
    *,
    seal_live: bool,
    beside_writer: bool,
) -> list[Transaction]:
    streams, loop = bulks[0]._streams, asyncio.get_running_loop()
    until = loop.time() + ANSWER_S
    ops: list[KeyOp] = [*conditions]
    for bulk, found in zip(bulks, checked, strict=True):
        ops += [listing_op(streams, bulk.uid, intent) for *_, intent in found]
    while True:
        lives = [await bulk._fenced() if seal_live else None for bulk in bulks]

        def changes(
            heads: Sequence[Head], lives: Sequence[tuple[LedgerId, Summary] | None] = lives
        ) -> list[HeadStep] | None:
            return _steps(bulks, checked, heads, lives, seal_live=seal_live)

        try:
            names = [(bulk._name, bulk.uid) for bulk in bulks]
            heads = await streams.change_together(names, changes, extra=lambda _: ops)
            return [_of_step(bulks[0], bulk, head) for bulk, head in zip(bulks, heads, strict=True)]
        except OpenSegment:
            if not beside_writer or loop.time() >= until:
                raise
            inserted = await bulks[0]._beside(checked[0], until - loop.time())
            if inserted is not None:
                return [inserted]
        except LiveMoved:
            continue  # A writer has rolled or begun since the head was read; its new segment must be fenced.
        except (NoSuchKey, VersionConflict) as error:
            done = await _recorded([(bulk, ()) for bulk in bulks])
            if done is not None:
                return done
            if any(error.key == condition.key for condition in conditions):
                raise
            every = [(bulk, found[0].ledger) for bulk, found in zip(bulks, checked, strict=True) if found]
            bulk, ledger = every[0] if every else (bulks[0], -1)
            raise InvalidSegment(
                bulk.stream, ledger, f"it or another one of this step was discarded or published before ({error})"
            ) from error


def _steps(
    bulks: Sequence[Bulk],
    checked: Sequence[list[CheckedLedger]],
    heads: Sequence[Head],
    lives: Sequence[tuple[LedgerId, Summary] | None],
    *,
    seal_live: bool,
) -> list[HeadStep] | None:
    """Return the next heads; None if the first stream has the step already."""
    found: list[HeadStep] = []
    for bulk, ledgers, head, live in zip(bulks, checked, heads, lives, strict=True):
        _, _, query, place, new_epoch, was, targets, planned, history = bulk._step
        step = published(
            bulk.stream,
            head,
            [(ledger, summary) for ledger, summary, _ in ledgers],
            bulk.application,
            bulk.version,
            bulk._client.services.clocks.now(),
            seal_live=seal_live,
            live=live,
            query=query,
            place=place,
            new_epoch=new_epoch,
            was=was,
            targets=targets,
            planned=planned,
            history=history,
            acting_for=bulk._acting_for,
        )
        if step is None and not found:
            return None
        if step is None:
            raise _apart(bulks[0], bulk.stream)
        found.append(step)
    return found


def _of_step(first: Bulk, bulk: Bulk, head: Head) -> Transaction:
    done = bulk._newest(head)
    if done is None or done.version != bulk.version:
        raise _apart(first, bulk.stream)  # Another process has published the step without this stream.
    return done
