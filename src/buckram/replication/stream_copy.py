"""StreamCopy: one stream of one cluster into its mirror in another one, from where the mirror ends.

    copying = StreamCopy(source, target, name, pace)
    await copying.run(follow=True)

The mirror's own end is the position, and each record is stored at the offset that it has in the source. So a record is
there once, whatever is killed: the next run fences the writer of the one before and goes on after the last record that
is stored. Entries are taken as they are, with the producers' snapshots between them; a transaction is noted in the
mirror before the first of its records. Not here: settings, cursors and truncation (`replication/mirror_metadata.py`),
all streams of a namespace (`replication/run.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial

from buckram.core.streams.batch_copies import copy_of
from buckram.core.streams.metadata.changes import HeadStep, check_usable, mirrored
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.mirrors import (
    MIRROR,
    check_counterpart,
    mirror_of,
    mirrored_settings,
    mirrored_transactions,
)
from buckram.core.streams.metadata.purposes import purpose_of
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.policy import merged
from buckram.core.streams.records.batch import Batch
from buckram.core.streams.records.positions import PositionMark, PositionVerdict, mark_of, seen
from buckram.core.streams.records.producers import ProducerTable
from buckram.core.streams.records.record_format import NO_SNAPSHOT
from buckram.errors import BuckramError, CorruptEntry, MalformedBatch, NoSuchStream, ReplicationRefused, WriterLost
from buckram.replication.mirror_metadata import Mirroring
from buckram.replication.positions import (
    ComparedStream,
    in_history,
    judged,
    mark_at,
    source_mark,
    went_back,
    write_mark,
)
from buckram.replication.sides import Side
from buckram.replication.snapshot_copy import SnapshotCopy
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.maintain.delete import delete_stream
from buckram.streams.read.batch_source import StreamSource
from buckram.streams.read.history_reader import open_segment
from buckram.streams.read.locate import known_end
from buckram.streams.shared.metadata import new_uid, retry_metadata
from buckram.streams.shared.namespaces import create_stream
from buckram.streams.shared.recovery import load_producers, replayed
from buckram.streams.write.engine import StreamEngine
from buckram.streams.write.opening import open_writer
from buckram.types import History, Offset

FLIGHT_BYTES = 32 * 1024 * 1024
"""Maximum bytes of a stream in flight to the target; as many again may be read ahead."""
IDLE_S = 300.0
"""Idle time after which the mirror of a stream is sealed, seconds; it is opened again when records come."""
_LOOK_S = 1.0
"""Interval at which the mirror's writer is looked at while no records come, seconds."""


_OVERTAKEN = 10
"""Number of times that a run may be overtaken by other processes before it gives up."""


class _Overtaken(Exception):
    """Another process has copied into the mirror since this one looked where it ends."""


class StreamCopy:
    """Copies one stream. `copied`, `copied_time` and `bytes` are its progress; one `run` at a time."""

    def __init__(
        self,
        source: Side,
        target: Side,
        name: StreamName,
        pace: Pace,
        *,
        epoch: int = 0,
        skip_truncated: bool = False,
        into: StreamName | None = None,
        first: int = 0,
        state: bool = False,
    ) -> None:
        """`epoch`: the number of promotions of the namespace. `skip_truncated`: if the source truncated records before
        they were copied, begin the mirror anew behind them, instead of raising ReplicationRefused. `into`: another name
        for the mirror; `first`: the least offset that it is to have; `state`: under another name, too, the mirror of a
        machine's log is one, with the newest snapshot.
        """
        self.name = name
        self._into, self._first, self._state = into or name, first, state or into in (None, name)
        self.copied = 0
        """First offset that the mirror does not have; it has all records below that the source had."""
        self.copied_time = 0
        """The append time of the last record that the mirror has, microseconds UTC; 0: none was copied by this run."""
        self.records = self.bytes = 0
        """Records and stored bytes that this object has copied."""
        self._source, self._target = source, target
        self._pace, self._epoch, self._skip = pace, epoch, skip_truncated
        self._engine: StreamEngine | None = None
        self._flight: deque[tuple[asyncio.Future[None], int, Batch]] = deque()
        self._flight_bytes = 0
        self._uid = ""
        self._mirror_uid = ""
        self._noted: Head | None = None
        """The source's head whose transactions are in the mirror, as far as they are due."""
        self._next_note = 0
        """The offset at which the next transaction of that head is due."""
        self._table: ProducerTable | None = None
        """Producers that the mirror gets when its writer opens."""
        self._fresh = False
        """True if the mirror has no record, so its producers are not known yet."""
        self._history = History()
        """History of the source's metadata when this run began."""
        self._last: Batch | None = None
        """The last batch that this run has stored."""

    async def run(self, *, follow: bool) -> None:
        """Copy what there is; with `follow` until the source is ended, or this is cancelled.

        Raises SourceWentBack if the mirror has records that the source does not have any more, ReplicationRefused,
        MirrorStream and WriterLost for a mirror that was promoted or that somebody else copies into, NoSuchStream, and
        the errors of reading and writing, after which another run goes on.
        """
        for _ in range(_OVERTAKEN):
            try:
                return await self._run(follow=follow)
            except _Overtaken:
                continue  # It goes on behind what the other process has copied.
        raise WriterLost(str(self._into), "other processes copy into it again and again")

    async def _run(self, *, follow: bool) -> None:
        self._history = await retry_metadata(self._source.client.services.store.history)
        self._last = None
        at = await self._source.streams.read(self.name)
        check_usable(str(self.name), at.head)
        self._uid = at.head.uid
        self._flight.clear()
        self._flight_bytes, self._noted, self._table = 0, None, None
        stop = None if follow else await known_end(self._source.client, self.name, at.head)
        try:
            mirror = await self._prepare(at.head)
            self._mirror_uid = mirror.uid
            reading = StreamSource(
                self._source.client,
                self._source.streams,
                self.name,
                at,
                self.copied,
                stop,
                follow=follow,
                skip_truncated=False,
                tables=True,
            )
            keeping = Mirroring(
                self._source, self._target, self.name, self._into, self._uid, mirror, self._pace, self._position
            )
            try:
                if follow and mirror.snapshots is not None and not mirror.ended:
                    # Opening it later would discard a snapshot that is being copied.
                    await self._writer_at(self.copied)
                async with TaskScope(f"mirror {self.name}") as scope:
                    if follow:
                        scope.spawn(keeping.follow(lambda: reading.follower.head, lambda: self.copied), "settings")
                    await self._copy(reading)
                await self._land(0)
                await self._end(reading.follower.head)
                await self._remember()
                await keeping.once((await self._source.streams.read(self.name)).head, self.copied)
            finally:
                await reading.close()
        except BaseException:
            await self._close(sound=False)
            raise
        await self._close(sound=True)

    async def _copy(self, reading: StreamSource) -> None:
        loop = asyncio.get_running_loop()
        moved = loop.time()
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    item = await reading.next_item()
            except TimeoutError:
                await self._land(0)  # It raises the error of the mirror's writer, if that failed meanwhile.
                if loop.time() - moved > IDLE_S and self._engine is not None:
                    await self._close(sound=True)
                    await self._remember()
                continue
            moved = loop.time()
            if item is None:
                return
            if isinstance(item, ProducerTable):
                self._fresh = False
                if self._engine is not None:
                    self._engine.put_producers(item)
                else:
                    self._table = item
                continue
            await self._put(reading.follower.head, item)

    async def _put(self, head: Head, batch: Batch) -> None:
        """Append a batch to the mirror. It waits for room, not until the batch is stored."""
        if self._fresh:
            self._table = await self._producers_before(head, batch)
            self._fresh = False
        await self._note_transactions(head, batch.first_offset)
        engine = await self._writer_at(batch.first_offset)
        try:
            copy = copy_of(batch)
        except MalformedBatch as error:
            raise CorruptEntry(str(self.name), batch.ledger_id, batch.entry_id, str(error)) from None
        await self._pace.take(copy.size)
        await self._land(max(FLIGHT_BYTES - copy.size, 0))
        stored = engine.append_copy(copy)
        self._flight.append((stored, copy.size, batch))
        self._flight_bytes += copy.size
        stored.add_done_callback(self._stored)

    async def _land(self, most: int) -> None:
        """Wait until at most so many bytes are in flight, and note the mirror's progress.

        Raises the errors of appending.
        """
        while self._flight and (self._flight_bytes > most or self._flight[0][0].done()):
            await self._flight[0][0]
            self._note_stored()

    def _stored(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._note_stored()

    def _note_stored(self) -> None:
        """Note the mirror's progress: what is stored now."""
        while self._flight:
            future, size, batch = self._flight[0]
            if not future.done() or future.cancelled() or future.exception() is not None:
                return
            self._flight.popleft()
            self._flight_bytes -= size
            self.copied, self.copied_time, self._last = batch.next_offset, batch.append_time, batch
            self.records += len(batch)
            self.bytes += size

    # -- the mirror ---------------------------------------------------------------------------------------

    async def _prepare(self, head: Head) -> Head:
        """Make the mirror, or find out where it ends and set `copied` to that. Raises ReplicationRefused."""
        try:
            mirror = (await self._target.streams.read(self._into)).head
        except NoSuchStream:
            return await self._create(head)
        mark = mirror.mirror
        own = mark is not None and (mark.state, mark.cluster, mark.uid) == (MIRROR, self._source.cluster, self._uid)
        if mirror.deleting and own:
            # An earlier run was stopped when it began the mirror anew, or another process is deleting it for that.
            return await self._anew(mirror, head)
        check_counterpart(str(self._into), mirror, self._source.cluster, self._uid)
        if mirror.open_segment is not None:
            self.copied = (await self._writer()).next_offset
        else:
            self.copied = mirror.end
        self._fresh = self.copied == mirror.earliest and mirror.producers is None
        mirror = await self._compared((await self._target.streams.read(self._into)).head)
        if head.earliest <= self.copied:
            return mirror
        # A machine's snapshots have the state of the records that its log has lost.
        if not self._skip and head.snapshots is None and mirror.earliest < self.copied:
            raise ReplicationRefused(
                str(self.name),
                f"the source truncated the records {self.copied} to {head.earliest - 1} before they were copied: "
                f"--skip-truncated begins the mirror anew at offset {head.earliest}; what it has is below that",
            )
        await self._close(sound=True)
        if mirror.snapshots is not None:
            return await self._leap(mirror, head)
        return await self._anew(mirror, head)

    async def _compared(self, mirror: Head) -> Head:
        """Return the mirror's head if the source has what was copied, else raise SourceWentBack.

        Both must have the same record before the mirror's end; no more is read while they agree.
        """
        source, target = ComparedStream(self._source, self.name), ComparedStream(self._target, self._into)
        mark = await mark_at(target, mirror, self.copied)
        verdict, now = await judged(source, mark, mirror, self._history)
        if verdict is not PositionVerdict.SAME:
            raise await went_back(source, target, mirror, mark, verdict, now)
        mark = in_history(mark, self._history)
        return mirror if mirror.mark == mark else await write_mark(target, mirror.uid, self._uid, mark)

    def _position(self) -> PositionMark | None:
        """Return the mirror's position, with the last record; None if this run has stored none."""
        last = self._last
        return None if last is None else mark_of(last.next_offset, seen(last.records()[-1]), self._history)

    async def _remember(self) -> None:
        """Record in the mirror which record was copied last, since the mirror's own records may be truncated."""
        mark = self._position()
        if mark is not None:
            await write_mark(ComparedStream(self._target, self._into), self._mirror_uid, self._uid, mark)

    async def _leap(self, mirror: Head, head: Head) -> Head:
        """Have the mirror of a machine's log go on at a snapshot. It keeps what it has until the snapshot is copied."""
        copy = SnapshotCopy(self._source, self._target, self._into, self._uid, mirror.uid, self._pace)
        source = ComparedStream(self._source, self.name)
        await copy.leap(head, lambda offset: source_mark(source, head, offset, self._history))
        mirror = (await self._target.streams.read(self._into)).head
        self.copied = mirror.end
        self._fresh = mirror.producers is None
        return mirror

    async def _anew(self, mirror: Head, head: Head) -> Head:
        with suppress(NoSuchStream):
            owner = purpose_of(str(self._into), mirror)
            await delete_stream(self._target.client, self._target.streams, self._into, uid=mirror.uid, acting_for=owner)
        return await self._create(head)

    async def _create(self, head: Head) -> Head:
        runtime = self._target.client.services.runtime
        first = max(head.earliest, self._first)
        mark = mirror_of(self._source.cluster, head.uid, self._epoch)
        made = Head(
            new_uid(runtime.rng.getrandbits(64)),
            runtime.clock.wall_us(),
            policy=mirrored_settings(head.policy, {}),
            properties=dict(head.properties),
            earliest=first,
            end=first,
            transactions=mirrored_transactions(head.transactions, {}, first),
            snapshots=() if head.snapshots is not None and self._state else None,
            mirror=mark,
            mark=mark_of(first, None, self._history),
        )
        self.copied, self._fresh = first, True
        return (await create_stream(self._target.streams, self._into, made)).head

    async def _writer(self) -> StreamEngine:
        """Return the mirror's writer, and open it if it is not open."""
        if self._engine is None:
            space = await self._target.namespaces.get(self._into.namespace)
            mirror = (await self._target.streams.read(self._into)).head
            self._engine = await open_writer(
                self._target.client,
                self._target.streams,
                self._into,
                lambda head: merged(space.policy, head.policy),
                writer_name=f"replication from {self._source.cluster}",
                takeover=False,
                wait=True,
                linger_ms=0,
                on_closed=lambda _: None,
                mirror_of=self._uid,
                clock=_no_time,
                acting_for=purpose_of(str(self._into), mirror),
            )
            if self._table is not None:
                self._engine.put_producers(self._table)
                self._table = None
        return self._engine

    async def _writer_at(self, offset: Offset) -> StreamEngine:
        """Return the mirror's writer, whose next record has this offset. Raises _Overtaken."""
        began = self._engine is None
        engine = await self._writer()
        if began and engine.next_offset != offset:
            raise _Overtaken
        return engine

    async def _end(self, head: Head) -> None:
        """End the mirror of a stream that was ended, when it has all of its records."""
        if head.ended and self.copied == head.end:
            mirror = (await self._target.streams.read(self._into)).head
            if not mirror.ended:
                await (await self._writer()).end()
                self._engine = None

    async def _close(self, *, sound: bool) -> None:
        """Seal the mirror and let go of it; after an error the next run seals it."""
        engine, self._engine = self._engine, None
        if engine is not None:
            try:
                if sound:
                    await engine.close()
            finally:
                with suppress(BuckramError):
                    await engine.abandon()

    # -- what goes with the records -----------------------------------------------------------------------

    async def _note_transactions(self, head: Head, next_offset: int) -> None:
        """Have the mirror know each transaction before the first of its records."""
        if head is self._noted and next_offset < self._next_note:
            return
        later = [done.first_offset for done in head.transactions.values() if done.first_offset > next_offset]
        await self._target.streams.change(
            self._into, partial(_noting, str(self._into), source=head, next_offset=next_offset), uid=self._mirror_uid
        )
        self._noted, self._next_note = head, min(later, default=2**63)

    async def _producers_before(self, head: Head, batch: Batch) -> ProducerTable | None:
        """Return the producers that the source knew before a mirror's first record; None if they come with later
        records.
        """
        name, source = self.name, self._source
        row = await source.streams.segment_of(head, batch.first_offset)
        if row is not None and NO_SNAPSHOT < batch.header.snapshot < batch.entry_id:
            async with open_segment(source.client, StreamId(name, head.uid), row) as reader:
                return await replayed(name, row, reader, batch.header.snapshot, batch.entry_id - 1)
        if row is None or head.producers is None or head.producers >= row.number:
            return None
        return await load_producers(source.client, source.streams, name, head)


def _no_time() -> int:
    """The clock of a mirror, which adds nothing to the times of its records."""
    return 0


def _noting(name: str, head: Head, *, source: Head, next_offset: int) -> HeadStep | None:
    known = mirrored_transactions(source.transactions, head.transactions, next_offset)
    return mirrored(name, head, source.uid, head.policy, head.properties, known)
