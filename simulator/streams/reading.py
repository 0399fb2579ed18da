"""Readers: with every kind of start, record by record or in batches, following or not, with seeks and cursors."""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.errors import BuckramError, CursorMoved, OffsetOutOfRange, OffsetTruncated
from buckram.streams.read.reader import StreamReader
from simulator.engine.checkers.judge import describe
from simulator.engine.world import Died
from simulator.streams.facts import ReaderSession, StreamHistory
from simulator.streams.stage import Actor, Stage, full

KINDS = ("offset", "earliest", "earliest", "latest", "time", "txid", "cursor")
VISIT_S = 90.0
ENOUGH = 120
"""Maximum number of records that a reader that does not follow reads."""


def uid_of(reader: StreamReader) -> str:
    """Return the uid of the stream that an open reader reads."""
    source = reader._source
    assert source is not None
    return source.follower.head.uid


class ReaderActor(Actor):
    """A host that opens one reader after another. Its cursor may be shared with other hosts."""

    def __init__(self, stage: Stage, host: str) -> None:
        super().__init__(stage, host)
        self.cursor = self.rng.choice((f"c-{host}", "shared"))

    async def run(self) -> None:
        await self.nap(0.5)
        while not self.stage.over and await self.up():
            try:
                await self.inside(self.visit(self.rng.choice(self.plan.streams)), "reader")
            except Died:
                self.note("died")
            self.no_crash()
            await self.nap(2.0)

    async def visit(self, stream: str) -> None:
        """Open a reader and read to its end. A reader that follows may stay open; the ending waits for it."""
        kind, follow = self.rng.choice(KINDS), self.rng.random() < 0.4
        skip = self.rng.random() < 0.5
        options, history, wanted = self._start(stream, kind)
        if history is None:
            return
        reading = self.rules.new_reader(self.host, kind, follow=follow, skip=skip)
        if kind in ("time", "txid"):
            reading.wanted = wanted
        # A session with a metadata server that lags may see an older earliest offset.
        before = history.head.earliest if history.head and not self.stage.plan.pace.lag_s else 0
        reader = self.ns.read(stream, follow=follow, on_truncated="skip" if skip else "error", **options)
        self.maybe_crash(120)
        try:
            async with asyncio.timeout(VISIT_S):
                position = await reader.open()
        except TimeoutError:
            self.report.check("ends", False, "{} could not open a reader of {} in {} s", self.host, stream, VISIT_S)
            return
        except BuckramError as error:
            self._check_error(history, kind, wanted, error)
            return
        reading.history = self.facts.histories.get(uid_of(reader))
        if reading.history is history:
            self._check_position(reading, kind, wanted, position, before)
        self.rules.reader_opened(reading, uid_of(reader), position)
        self.note(f"{stream}: reads from {kind} {wanted} at {position}{', follows' if follow else ''}")
        work = self._tail(reader, reading) if follow else self._read(reader, reading)
        if follow and self.rng.random() < 0.6:
            self.stage.tails.append((self.process, reading))
            self.process.spawn(work, "tail")
        else:
            try:
                async with asyncio.timeout(1.0 + self.rng.random() * 2 if follow else VISIT_S):
                    await work
            except TimeoutError:
                self.report.check("ends", follow, "{} could not read {} in {} s", self.host, stream, VISIT_S)
            reading.done = True
            await reader.close()

    def _start(self, stream: str, kind: str) -> tuple[dict[str, Any], StreamHistory | None, Any]:
        history = self.facts.current.get(full(stream))
        if history is None:
            return {}, None, None
        wanted: Any = None
        options: dict[str, Any] = {}
        if kind == "offset":
            wanted = options["start"] = self.rng.randrange(history.top + 2)
        elif kind == "time":
            times = [seen.time for seen in history.known_records.values() if seen.time is not None]
            wanted = options["start_time"] = (self.rng.choice(times) if times else 0) + self.rng.choice((-1, 0, 1))
        elif kind == "txid":
            wanted = options["start_txid"] = self.rng.randrange(self.stage.txids.get(stream, 0) + 2)
        elif kind == "cursor":
            options["cursor"] = self.cursor
            wanted = self.facts.cursors.get((history.uid, self.cursor))
        else:
            options["start"] = kind
        return options, history, wanted

    def _check_error(self, history: StreamHistory, kind: str, wanted: Any, error: BuckramError) -> None:
        self.note(f"no reader: {describe(error)}: {error}")
        if isinstance(error, OffsetTruncated):
            self.report.check(
                "truncation",
                error.earliest > error.offset and (error.earliest in history.earliest_offsets or history.head_removed),
                "reading at {} is refused: {}",
                wanted,
                error,
            )
        elif isinstance(error, OffsetOutOfRange):
            self.report.check(
                "start", kind == "offset" and wanted >= error.latest, "offset {} is refused: {}", wanted, error
            )

    def _check_position(self, reading: ReaderSession, kind: str, wanted: Any, position: int, before: int) -> None:
        """Check the position right after opening. `before` is the earliest offset before that."""
        history = reading.history
        assert history is not None
        earliest = history.head.earliest if history.head else 0
        if kind == "offset":
            holds = position == wanted or (reading.skip and wanted < position and position in history.earliest_offsets)
        elif kind == "earliest":
            holds = before <= position <= max(earliest, before)
        elif kind == "cursor" and wanted is not None:
            holds = position >= wanted  # the cursor may have moved meanwhile
        else:
            holds = position >= before
        self.report.check(
            "start",
            holds,
            "a reader of {} from {} {} stands at {}, earliest {} to {}",
            history.name,
            kind,
            wanted,
            position,
            before,
            earliest,
        )

    async def _tail(self, reader: StreamReader, reading: ReaderSession) -> None:
        await self._read(reader, reading)
        reading.done = True

    async def _read(self, reader: StreamReader, reading: ReaderSession) -> None:
        """Read to the end. After a retryable error try again, up to five times."""
        tries = 0
        while reading.follow or reading.delivered < ENOUGH or reading.kind == "audit":
            try:
                if self.rng.random() < 0.5:
                    batch = await reader.next_batch()
                    if batch is None:
                        break
                    self.rules.records_read(reading, batch.records())
                else:
                    try:
                        self.rules.records_read(reading, [await anext(reader)])
                    except StopAsyncIteration:
                        break
                await self._between_reads(reader, reading)
            except OffsetTruncated as error:
                history = reading.history
                assert history is not None
                self.report.check(
                    "truncation",
                    not reading.skip and (error.earliest in history.earliest_offsets) and error.offset < error.earliest,
                    "a reader from {} fails: {}",
                    reading.kind,
                    error,
                )
                return
            except BuckramError as error:
                self.note(f"reading failed: {describe(error)}: {error}")
                tries += 1
                if not error.retryable or tries > 5:
                    reading.done = True
                    return
                await asyncio.sleep(0.2)
        else:
            return
        self._check_end(reading)

    def _check_end(self, reading: ReaderSession) -> None:
        self.note(f"{reading.kind} reader ends at {reading.expected}")
        history = reading.history
        if reading.follow and history is not None and history.head is not None and not history.head.deleting:
            # It may have waited for an offset, time or txid that was never appended.
            waited = not reading.delivered and (reading.expected or history.head.end) >= history.head.end
            at_end = waited or reading.expected == history.head.end
            self.report.check(
                "follow",
                history.head.ended and at_end,
                "a reader that follows {} ends at {}, the list says {}",
                history.name,
                reading.expected,
                history.head,
            )

    async def _between_reads(self, reader: StreamReader, reading: ReaderSession) -> None:
        """Sometimes commit, seek or sleep between two reads."""
        roll = self.rng.random()
        if reading.kind == "cursor" and roll < 0.3:
            await self._commit(reader, reading)
        elif roll < 0.02 and reading.history is not None:
            earliest = reading.history.head.earliest if reading.history.head else 0
            offset = self.rng.randrange(earliest, max(reading.expected or 0, earliest) + 1)
            await reader.seek(offset)
            reading.expected, reading.last_time = offset, 0
        elif roll < 0.15:
            await self.nap(0.1)

    async def _commit(self, reader: StreamReader, reading: ReaderSession) -> None:
        assert reading.history is not None
        uid = reading.history.uid
        try:
            committed = await reader.commit()
        except CursorMoved as error:
            kept = self.facts.cursors.get((uid, self.cursor))
            self.report.check(
                "cursor",
                kept is not None and kept >= error.offset,
                "cursor is at {}, but the error says {}",
                kept,
                error,
            )
            return
        kept = self.facts.cursors.get((uid, self.cursor))
        self.report.check(
            "cursor",
            committed == reading.expected and kept is not None and kept >= committed,
            "commit of {} returned {}, the cursor is at {}",
            reading.expected,
            committed,
            kept,
        )
        self.report.situation("cursor went on")


__all__ = ["ReaderActor", "uid_of"]
