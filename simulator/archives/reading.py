"""Readers of streams and forks, also of those that are moved, truncated and deleted meanwhile, and with cursors."""

from __future__ import annotations

from typing import Any

from buckram.core.streams.metadata.head import HISTORY
from buckram.errors import BuckramError, CursorMoved, NoSuchCursor, OffsetOutOfRange, OffsetTruncated
from buckram.streams.read.reader import StreamReader
from simulator.archives.model import Stream, label_of
from simulator.archives.stage import Actor
from simulator.engine.checkers.judge import describe

CURSORS = ("slow", "fast")


class ReaderActor(Actor):
    """Reads from some offset, from the earliest one, or from a cursor that it moves."""

    first_s, pause_s = 1.0, 0.8

    async def act(self) -> None:
        stream = self.choose(forks=0.6)
        if stream is None:
            return
        self.at_work(stream)
        options: dict[str, Any] = {"start": "earliest"}
        kind = self.rng.random()
        if kind < 0.4:
            options = {"cursor": self.rng.choice(CURSORS)}
        elif kind < 0.7:
            options = {"start": self.rng.randrange(stream.earliest, max(stream.top, stream.earliest) + 1)}
        reader = self.ns.read(
            self.short(stream), on_truncated="skip" if self.rng.random() < 0.5 else "error", **options
        )
        try:
            position = await reader.open()
            await self._read(reader, position, cursor="cursor" in options)
        except (OffsetTruncated, OffsetOutOfRange, NoSuchCursor) as error:
            self.note(f"{stream.name}: {describe(error)}: {error}")
        finally:
            await reader.close()

    async def _read(self, reader: StreamReader, position: int, *, cursor: bool) -> None:
        source = reader._source
        assert source is not None
        stream = self.model.streams[source.follower.head.uid]
        left, tries, begun = self.rng.choice((3, 20, 200)), 3, self._state(stream)
        while left > 0:
            try:
                batch = await reader.next_batch()
            except BuckramError as error:
                if not error.retryable or not tries:
                    raise
                tries -= 1
                await self.nap(0.3)
                continue
            if batch is None:
                break
            if batch.first_offset != position:
                skipped = batch.first_offset > position and batch.first_offset in stream.earliest_offsets
                text = "{} reads offset {} of {} after {}"
                self.report.check("once", skipped, text, self.host, batch.first_offset, stream.name, position)
            position = take(self, stream, batch.first_offset, batch.records())
            left -= len(batch)
            if cursor and self.rng.random() < 0.5:
                await self._commit(reader, stream, position)
            await self.nap(0.1)
        if begun != self._state(stream):
            self.report.situation("read under changes")

    @staticmethod
    def _state(stream: Stream) -> object:
        return None if stream.head is None else [row.ledger for row in stream.head.tail]

    async def _commit(self, reader: StreamReader, stream: Stream, position: int) -> None:
        try:
            done = await reader.commit()
        except CursorMoved:
            return
        self.report.check("cursors", done == position, "commit at {} of {} returns {}", position, stream.name, done)


def take(actor: Actor, stream: Stream, first: int, records: list[Any]) -> int:
    """Judge the records of a batch, and return the offset after them."""
    report, offset = actor.report, first
    for record in records:
        report.check(
            "once", record.offset == offset, "{} of {} is in the place of {}", record.offset, stream.name, offset
        )
        actor.stage.note(stream, offset, label_of(record.value), f"the reader {actor.host}")
        offset += 1
    if first < stream.at and stream.source is not None and stream.source.removed:
        report.situation("fork read after its source was deleted")
    if any(row.kind == HISTORY and row.base < offset and first < row.end for row in stream.rows()):
        report.situation("history read")
    return offset


__all__ = ["CURSORS", "ReaderActor", "take"]
