"""Idempotent producers: the last sequence of each, for how long it is remembered, and the bytes of its snapshot.

A retry is told apart from a new record by (producer, sequence): a producer's sequences are stored without a gap, so
whatever lies between its first and its last one is stored. Nothing is forgotten silently: of a producer that left the
table a hash stays, so that its late retry at sequence 0 is refused instead of stored twice.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from buckram.core.streams.records.batch import Batch, BinaryColumn
from buckram.core.streams.records.record_format import BodyBuilder, BufferCursor
from buckram.errors import MalformedBatch, OutOfOrderSequence, ProducerForgotten
from buckram.types import Buffer, Offset

MAX_FORGOTTEN = 65_536
UNKNOWN_OFFSET = -1
"""Offset that a repeated append returns when the offset of the first one is no longer known."""


class Last(NamedTuple):
    """A producer's newest record: its sequence, offset and append time (microseconds)."""

    sequence: int
    offset: Offset
    time: int


class ProducerTable:
    """Table of producers and their last sequences, ordered by their last append, the oldest first."""

    def __init__(self) -> None:
        self._known: dict[str, Last] = {}
        self._starts: dict[str, int] = {}
        """First sequence of each producer that did not begin at 0."""
        self._forgotten: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __bool__(self) -> bool:
        """Return whether a snapshot must keep anything of the table."""
        return bool(self._known or self._forgotten)

    def last(self, producer: str) -> Last | None:
        return self._known.get(producer)

    def fresh(self, stream: str, producer: str, first: int, count: int, start: int | None = None) -> int:
        """Return how many of the sequences first .. first + count - 1 are stored already, which the caller leaves out.

        Raises OutOfOrderSequence for a gap, which would make the missing records look like a retry later. `start`: the
        first sequence of a producer that the stream never had (else 0). Raises ProducerForgotten for one that may have
        been forgotten.
        """
        known = self._known.get(producer)
        if known is not None:
            if first > known.sequence + 1:
                why = "append those before it first (start= is only for a producer id that the stream never had)"
                raise OutOfOrderSequence(stream, producer, first, known.sequence + 1, why)
            began = self._starts.get(producer, 0)
            if first < began:
                why = f"this producer began with start={began}, and nothing below was ever stored"
                raise OutOfOrderSequence(stream, producer, first, known.sequence + 1, why)
            return min(known.sequence + 1 - first, count)
        if _hash(producer) in self._forgotten:
            why = "it was forgotten after a long time without a record, so a retry cannot be told from a new record"
        elif len(self._forgotten) >= MAX_FORGOTTEN:
            why = f"unknown, and {MAX_FORGOTTEN} producers were forgotten, so it may have been one of them"
        elif first != (start or 0):
            why = f"a new producer begins at sequence 0, or where it says: start={first}"
            raise OutOfOrderSequence(stream, producer, first, start or 0, why)
        else:
            return 0
        raise ProducerForgotten(stream, producer, first, f"{why}: find out what is stored and use a new producer id")

    def stored(self, producer: str, sequence: int, offset: Offset, time: int, first: int = 0) -> None:
        """Record the producer's newest record; `first` is the sequence at which it begins if it is new."""
        if self._known.pop(producer, None) is None and first:
            self._starts[producer] = first
        self._known[producer] = Last(sequence, offset, time)

    def expire(self, now: int, most: int, keep_us: int) -> None:
        """Forget producers that were idle for `keep_us`, and the longest idle ones above `most`."""
        for producer, known in list(self._known.items()):
            if known.time >= now - keep_us and len(self._known) <= most:
                break
            del self._known[producer]
            self._starts.pop(producer, None)
            if len(self._forgotten) < MAX_FORGOTTEN:
                self._forgotten[_hash(producer)] = None

    def replay(self, batch: Batch) -> None:
        """Add the records of a batch that recovery read back; batches come in order."""
        for offset, pair in enumerate(batch.producers(), batch.first_offset):
            if pair is not None:
                self.stored(*pair, offset, batch.append_time, pair[1])

    # -- the snapshot -------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        body, known = BodyBuilder(), list(self._known.values())
        body.integers("i", [len(known), len(self._forgotten)])
        body.strings([producer.encode() for producer in self._known])
        for column in range(3):
            body.integers("q", [last[column] for last in known])
        body.integers("q", self._forgotten)
        if self._starts:
            body.integers("q", [self._starts.get(producer, 0) for producer in self._known])
        return b"".join(body.parts)

    @classmethod
    def decode(cls, body: Buffer) -> ProducerTable:
        """Parse a snapshot of the table. Raises MalformedBatch for bytes that are none."""
        table, cursor = cls(), BufferCursor(body)
        count, forgotten = cursor.integers("i", 2)
        if not 0 <= count <= len(body) or not 0 <= forgotten <= MAX_FORGOTTEN:
            raise MalformedBatch(f"a snapshot of {count} producers, {forgotten} forgotten, in {len(body)} bytes")
        names = BinaryColumn(*cursor.strings(count), None).rows(0, count)
        columns = [cursor.integers("q", count).tolist() for _ in range(3)]
        hashes = cursor.integers("q", forgotten).tolist()
        starts = cursor.integers("q", count).tolist() if cursor.position < len(body) else []
        cursor.end()
        try:
            table._known = {str(name or b"", "utf-8"): Last(*last) for name, *last in zip(names, *columns, strict=True)}
        except UnicodeDecodeError as error:
            raise MalformedBatch(f"the id of a producer is not UTF-8: {error}") from None
        table._starts = {name: start for name, start in zip(table._known, starts, strict=False) if start}
        table._forgotten = dict.fromkeys(hashes)
        return table


def _hash(producer: str) -> int:
    return int.from_bytes(blake2b(producer.encode(), digest_size=8).digest(), "little", signed=True)
