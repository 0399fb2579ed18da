"""Following a machine's log: the newest snapshot, then every record as it is acknowledged.

Not here: becoming the leader (`state/machine/replica.py`), what a record does (`core/machine/fold.py`).
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from buckram.core.machine.fold import Fold
from buckram.core.streams.metadata.changes import check_usable
from buckram.errors import ReplicaStopped, SnapshotDamaged, StateLost
from buckram.state.machine.leader import OnApplied
from buckram.state.machine.snapshots import LogHandle, load_newest
from buckram.streams.read.reader import Range, StreamReader


class Begun(NamedTuple):
    """Result of `load`: the published snapshots that are damaged, and the number of log segments still to read."""

    damaged: list[SnapshotDamaged]
    segments: int


async def load(place: LogHandle, fold: Fold) -> Begun:
    """Restore the newest good snapshot if it is newer than the state.

    Raises StateLost, ReplicaStopped (the state's own restore failed), NoSuchStream, ReadFailed, MetadataUnavailable.
    """
    head = (await place.streams.read(place.name)).head
    check_usable(str(place.name), head)
    found, damaged = await load_newest(place, head, fold.state.fault)
    if found is None:
        if fold.applied:
            fold.reset()
    elif found.row.offset > fold.applied:
        try:
            fold.restore(found.header, found.sessions, found.chunks)
        except Exception as error:
            text = f"restore() of the snapshot at offset {found.row.offset} failed with {error!r}"
            raise ReplicaStopped(str(place.name), found.row.offset, text) from error
    return Begun(damaged, sum(segment.base >= fold.applied for segment in head.tail))


async def tail(place: LogHandle, fold: Fold, on_applied: OnApplied) -> None:
    """Apply the records of the log, for ever. It may be cancelled at any time.

    Raises OffsetTruncated (load a snapshot), ReplicaStopped, StateLost (the log was ended), ReadFailed.
    """
    room = fold.state.room
    reader = StreamReader(
        place.client,
        place.streams,
        place.name,
        Range(start=fold.applied, follow=True),
        on_open=lambda reader: None,
        on_closed=lambda reader: None,
    )
    try:
        while (batch := await reader.next_batch()) is not None:
            try:
                for offset, value in enumerate(batch.values(), batch.first_offset):
                    while (full := room()) is not None:
                        on_applied()
                        await full
                    fold.apply(offset, value)
            finally:
                on_applied()
            await asyncio.sleep(0)  # Other tasks have their turn, also while very much is applied.
    finally:
        await reader.close()
    raise StateLost(str(place.name), "its log was ended; no command can follow")
