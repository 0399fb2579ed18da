"""Planted bugs of readers and cursors: starts, ends of segments, truncation, visibility."""

from __future__ import annotations

from typing import Any

from buckram.core.streams.records.batch import Batch
from buckram.streams.read import batch_source as source
from buckram.streams.read import locate, reader
from buckram.streams.read.batch_source import StreamSource
from buckram.streams.read.cursors import Cursor, _decode, _get
from buckram.streams.read.reader import StreamReader
from buckram.streams.write import engine, roll
from buckram.streams.write.segment import SegmentWriter
from simulator.streams.mutants.base import Mutant, plant

_segment_close = SegmentWriter.close


async def _fencing_end(client: Any, name: Any, head: Any) -> int:
    segment = head.open_segment
    if segment is None:
        return int(head.end)
    async with client.recover(segment.ledger) as opened:
        return int((await locate.readable_reach(name, opened, segment)).end)


def _always_skip(self: StreamSource) -> bool:
    earliest = self.follower.head.earliest
    if self.position >= earliest:
        return False
    self.position = earliest
    return True


async def _next_entry(name: Any, opened: Any, segment: Any, offset: int, last: int) -> int:
    relative = offset - segment.base
    if relative <= 0:
        return 0
    return await locate.first_entry(name, opened, last, lambda header: header.first >= relative)


def _whole_batch(self: Batch, first: int, stop: int | None = None) -> Batch:
    return self


async def _time_late(client: Any, streams: Any, name: Any, head: Any, time: int) -> int:
    """Return an offset that is one record too late."""
    return 1 + await _offset_at_time(client, streams, name, head, time)


async def _txid_late(client: Any, streams: Any, name: Any, head: Any, txid: int) -> int:
    """Return an offset that is one record too late."""
    return 1 + await _offset_of_txid(client, streams, name, head, txid)


_offset_of_txid, _offset_at_time = locate.offset_of_txid, locate.offset_at_time


async def _commit_what_was_read(self: StreamReader, offset: int | None = None) -> int:
    """Commit the position of what was fetched, not of what was delivered."""
    await self.open()
    assert self._cursor is not None
    assert self._source is not None
    await self._cursor.move(self._source.position)
    return self._source.position


async def _move_anywhere(self: Cursor, offset: int) -> None:
    key = await self._key()
    found = await _get(self._streams, key)
    if found is None:
        await self._create(key, offset)
    elif _decode(key, found.value)[0] != offset:
        await self._streams.keys.set(key, self._encode(offset), found.version)


async def _finish_without_marks(segment: SegmentWriter) -> Any:
    await segment.flush()
    return await segment.close()


def _no_idle(self: SegmentWriter) -> None:
    self._timer = None


async def _ended_means_end(self: StreamSource, segment: Any) -> None:
    """Take the end of an open segment's ledger for the end of the stream."""
    await self._leave_segment()
    self.stop = self.position


async def _known_to_the_list(client: Any, name: Any, head: Any) -> int:
    return int(head.end)


MUTANTS = (
    Mutant(
        "reader-fences",
        "20",
        "a reader recovers the open ledger to find its end",
        plant(
            (locate, "known_end", _fencing_end),
            (reader, "known_end", _fencing_end),
        ),
    ),
    Mutant(
        "skips-silently",
        "17",
        "a reader whose position was truncated goes on without an error",
        plant((StreamSource, "_check_truncation", _always_skip)),
        scenarios=("truncated-under-readers",),
        lives=lambda plan: plan.truncator,
    ),
    Mutant(
        "next-entry",
        "10",
        "a start in the middle of an entry begins with the next entry",
        plant((source, "entry_of_offset", _next_entry)),
    ),
    Mutant(
        "whole-batch",
        "11",
        "a start in the middle of an entry gives the whole entry",
        plant((Batch, "between", _whole_batch)),
    ),
    Mutant(
        "time-late",
        "start",
        "a start by time begins one record too late",
        plant((reader, "offset_at_time", _time_late)),
    ),
    Mutant(
        "txid-late", "10", "a start by txid begins one record too late", plant((reader, "offset_of_txid", _txid_late))
    ),
    Mutant(
        "commit-ahead",
        "23",
        "a commit covers records that were fetched and not delivered",
        plant((StreamReader, "commit", _commit_what_was_read)),
        seeds=150,
    ),
    Mutant(
        "cursor-back",
        "23",
        "a cursor moves to the offset of the last commit, even if it is lower",
        plant((Cursor, "move", _move_anywhere)),
        scenarios=("shared-cursor",),
    ),
    Mutant(
        "no-marks",
        "13",
        "a segment ends without marks",
        plant((roll, "finish", _finish_without_marks), (engine, "finish", _finish_without_marks)),
    ),
    Mutant(
        "no-idle-mark",
        "13, 14",
        "an idle writer does not make its last records readable",
        plant((SegmentWriter, "_idle", _no_idle)),
    ),
    Mutant(
        "ended-means-end",
        "17",
        "a follower takes the end of a ledger for the end of the stream",
        plant((StreamSource, "_segment_ended", _ended_means_end)),
        drills=("roll",),
    ),
    Mutant(
        "list-end",
        "13",
        "the records of the open segment do not count as readable",
        plant((reader, "known_end", _known_to_the_list)),
        scenarios=("reading-live",),
        seeds=5,
    ),
)
