"""Reading a stream in full at the end of a life, from every kind of start.

Not here: comparing what was read with the whole life (`final_checks.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from buckram.errors import BuckramError
from simulator.engine.checkers.judge import describe
from simulator.streams.facts import ReaderSession, StreamHistory
from simulator.streams.reading import ReaderActor, uid_of


class _Start(NamedTuple):
    """A kind of start and its value, the first offset that must be read, and the options of the reader."""

    kind: str
    value: int
    first: int
    options: dict[str, object]


class Auditor(ReaderActor):
    """Reads a stream without a writer: in full, and from every kind of start. The right answers are known."""

    async def audit(self, stream: str, history: StreamHistory) -> None:
        """Read the stream as code of the client's process, and keep its content in `history.final`."""
        assert history.head is not None
        found = await self._read_exactly(stream, history, "earliest", history.head.earliest, start="earliest")
        history.final = {offset: history.known_records[offset].ident for offset in found}
        history.final_earliest = history.head.earliest
        for kind, wanted, first, options in self._starts(history):
            await self._read_exactly(stream, history, f"{kind} {wanted}", first, most=5, **options)
        for offset in self.rng.sample(found, min(3, len(found))):
            record = await self.ns.get(stream, offset)
            self.report.check(
                "start",
                self.facts.ident_of(record) == history.final[offset] and record.offset == offset,
                "get({}) of {} is {!r}",
                offset,
                stream,
                record,
            )

    def _starts(self, history: StreamHistory) -> list[_Start]:
        """Return random starts of each kind."""
        assert history.head is not None
        assert history.final is not None
        earliest, end, rng = history.head.earliest, history.head.end, self.rng
        offsets = list(history.final)
        starts = [_Start("latest", 0, end, {"start": "latest"})]
        for offset in [rng.randrange(earliest, end + 1) for _ in range(3)]:
            starts.append(_Start("offset", offset, offset, {"start": offset}))
        for offset in rng.sample(offsets, min(4, len(offsets))):
            time = (history.known_records[offset].time or 0) + rng.choice((0, 0, 1))
            first = next((o for o in offsets if (history.known_records[o].time or 0) >= time), end)
            starts.append(_Start("time", time, first, {"start_time": time}))
        txids = [(o, txid) for o in offsets if (txid := history.known_records[o].txid) is not None]
        for _, known in rng.sample(txids, min(3, len(txids))):
            wanted = max(0, known + rng.choice((-1, 0, 1)))
            first = next((o for o, txid in txids if txid >= wanted), end)
            starts.append(_Start("txid", wanted, first, {"start_txid": wanted}))
        return starts

    async def _read_exactly(
        self, stream: str, history: StreamHistory, what: str, first: int, *, most: int = 1 << 60, **options: object
    ) -> list[int]:
        """Read to the end, or at least `most` records, and check that these are all records from `first` on."""
        assert history.head is not None
        for left in (2, 1, 0):
            reading: ReaderSession = self.rules.new_reader(self.host, "audit", follow=False, skip=False)
            reader = self.ns.read(stream, **options)  # type: ignore[arg-type]  # the starts above
            found: list[int] = []
            try:
                await reader.open()
                self.rules.reader_opened(reading, uid_of(reader), first)
                while len(found) < most and (batch := await reader.next_batch()) is not None:
                    self.rules.records_read(reading, batch.records())
                    found += range(batch.first_offset, batch.next_offset)
                break
            except BuckramError as error:
                self.note(f"{what}: {describe(error)}: {error}")
                if not left or not error.retryable:
                    raise
            finally:
                reading.done = True
                await reader.close()
        end = history.head.end
        expected = range(first, end if len(found) < most else first + len(found))
        self.report.check(
            "start",
            found == list(expected),
            "{} from {} has {} to {}, expected was {} to {}",
            stream,
            what,
            found[:1],
            found[-1:],
            first,
            end,
        )
        return found


__all__ = ["Auditor"]
