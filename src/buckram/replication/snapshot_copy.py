"""SnapshotCopy: the snapshots of a machine's log, a database's among them, for the mirror of that log.

A snapshot is a ledger of its cluster, so that its entries are copied into a ledger of the other one, and it is
published there when the mirror has all records below its offset. Then replicas of the mirror begin with it, and what it
makes superfluous is truncated, as in the source. Not here: the records (`replication/stream_copy.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from buckram.client.write.engine import LedgerAppender
from buckram.core.streams.metadata.changes import HeadStep, check_usable
from buckram.core.streams.metadata.head import Head, SnapshotRow
from buckram.core.streams.metadata.mirrors import check_writable
from buckram.core.streams.metadata.snapshots import is_published, leapt, published
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.policy import merged
from buckram.core.streams.records.positions import PositionMark
from buckram.errors import BuckramError, NoSuchEntry, NoSuchLedger, SnapshotDamaged, WriterLost
from buckram.replication.sides import Side
from buckram.runtime.net.pace import Pace
from buckram.state.machine.settings import MachineSettings
from buckram.state.machine.snapshots import LogHandle, free_space
from buckram.streams.shared.ledgers import SNAPSHOT, Intent, discard, discard_after_error, make_ledger, present_op
from buckram.streams.shared.ownership import opened
from buckram.types import LedgerId, Offset

_KEEP = MachineSettings().keep_snapshots
Change = Callable[[Head], Head | None]
"""A function that returns the mirror's next head; None if it has the snapshot already."""


class SnapshotCopy:
    """Copies the snapshots of one machine's log. `once` may be stopped and repeated."""

    def __init__(self, source: Side, target: Side, into: StreamName, uid: str, mirror_uid: str, pace: Pace) -> None:
        """`uid`: that of the log in the source; `mirror_uid`: that of its mirror `into`."""
        self._source, self._target, self._into, self._pace = source, target, into, pace
        self._uid, self._mirror_uid = uid, mirror_uid
        self._newest = -1
        """The offset of the newest snapshot that the mirror has, as far as this object knows."""
        self._left: Sequence[LedgerId] = ()
        """Ledgers of the snapshots that last left the mirror's head."""

    async def once(self, head: Head, copied: int) -> None:
        """Publish the newest snapshot of the source whose records the mirror has, which are those below `copied`.

        Raises SnapshotDamaged, NotEnoughBookies, MirrorStream, and the errors of reading and writing a ledger.
        """
        rows = [row for row in head.snapshots or () if self._newest < row.offset <= copied]
        if rows:
            await self._newest_of(rows, self._publishing)

    async def leap(self, head: Head, position: Callable[[Offset], Awaitable[PositionMark]]) -> None:
        """Have the mirror go on at the newest snapshot of the source, which truncated records that the mirror lacks.

        Until that is there, the mirror stays as it was. `position` finds the mirror's new position in the source. The
        mirror must have no writer. Raises what `once` raises.
        """

        async def leaping(row: SnapshotRow) -> Change:
            return partial(self._leapt, row, await position(row.offset))

        await self._newest_of([row for row in head.snapshots or () if row.offset > self._newest], leaping)

    async def _newest_of(self, rows: Sequence[SnapshotRow], change: Callable[[SnapshotRow], Awaitable[Change]]) -> None:
        mirror = (await self._target.streams.read(self._into)).head
        check_writable(str(self._into), mirror, self._uid)
        present = max((row.offset for row in mirror.snapshots or ()), default=-1)
        damaged: SnapshotDamaged | None = None
        for row in reversed(rows):
            try:
                if row.offset > present:
                    await self._copy(row, mirror, change)
                self._newest = row.offset
                return
            except SnapshotDamaged as error:  # Or it was replaced meanwhile; the one before may be good.
                damaged = error
        if damaged is not None:
            raise damaged

    async def _copy(self, row: SnapshotRow, mirror: Head, change: Callable[[SnapshotRow], Awaitable[Change]]) -> None:
        target, into = self._target, self._into
        space = await target.namespaces.get(into.namespace)
        policy = merged(space.policy, mirror.policy)
        writer, intent = await make_ledger(
            target.client,
            target.streams,
            into,
            self._mirror_uid,
            policy,
            epoch=mirror.epoch,
            purpose=SNAPSHOT,
        )
        try:
            async with writer:
                found = await self._copy_entries(row, writer)
            if found != row.digest:
                raise SnapshotDamaged(str(into), row.offset, row.ledger, f"its bytes have the digest {found}")
            publishing = await change(row._replace(ledger=writer.ledger_id))
        except BuckramError as error:
            await discard_after_error(target.client, target.streams, self._mirror_uid, intent)
            if isinstance(error, NoSuchLedger | NoSuchEntry):
                raise SnapshotDamaged(str(into), row.offset, row.ledger, str(error)) from error
            raise
        await self._publish(publishing, mirror, intent)

    async def _copy_entries(self, row: SnapshotRow, writer: LedgerAppender) -> str:
        """Copy the entries of a snapshot, and return the digest of all but the last one, which contains it."""
        digest, last = hashlib.sha256(), b""
        async with opened(self._source.client, StreamId(None, self._uid), row.ledger) as reader:
            async for chunk in reader.payload_chunks(0, row.last_entry):
                await self._pace.take(sum(map(len, chunk)))
                for payload in chunk:
                    digest.update(last)
                    last = payload
                await asyncio.gather(*(writer.append(payload) for payload in chunk))
        return digest.hexdigest()

    async def _publishing(self, row: SnapshotRow) -> Change:
        return partial(self._published, row)

    def _published(self, row: SnapshotRow, head: Head) -> Head | None:
        if head.earliest > row.offset or (head.snapshots and head.snapshots[-1].offset >= row.offset):
            return None  # Another process has copied it, or a newer one.
        return published(str(self._into), head, row, _KEEP)

    def _leapt(self, row: SnapshotRow, mark: PositionMark, head: Head) -> Head | None:
        if head.open_segment is not None:
            raise WriterLost(str(self._into), "another replication copies into it")
        return leapt(str(self._into), head, row, mark)

    async def _publish(self, row_in: Change, before: Head, intent: Intent) -> None:
        target, name = self._target, str(self._into)

        def change(head: Head) -> HeadStep | None:
            check_usable(name, head)
            check_writable(name, head, self._uid)
            after = row_in(head)
            return None if after is None else HeadStep(after)

        after = await target.streams.change(
            self._into,
            change,
            uid=self._mirror_uid,
            extra=lambda head: [present_op(target.streams, self._mirror_uid, intent)],
        )
        if not is_published(after, intent.ledger):
            await discard(target.client, target.streams, self._mirror_uid, intent)
            return
        gone = [one.ledger for one in before.snapshots or () if not is_published(after, one.ledger)]
        left, self._left = self._left, gone  # Somebody may be reading those that have left just now.
        await free_space(LogHandle(target.client, target.streams, self._into, self._mirror_uid), left)
