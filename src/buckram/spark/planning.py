"""What to read: options that belong together, limits of a micro-batch, and how work is cut into partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from buckram.errors import InvalidArgument
from buckram.spark.options import LedgerRange, Position, Role, given_names, values

MIB = 1024 * 1024
MAX_PARTITIONS = 5_000
LEAST_PARTITION_BYTES = 4 * MIB
"""A task costs some milliseconds: smaller pieces are cut only when minPartitions or maxPartitionBytes says so."""
_SELECTORS = ("subscribe", "subscribePattern", "streams", "path")
_LEDGER_OPTIONS = ("ledgers", "ledger", "firstEntry", "lastEntry", "password")
_STREAM_OPTIONS = (
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "includeHeaders",
    "minPartitions",
    "failOnDataLoss",
)


# -- options that belong together -------------------------------------------------------------------------


def reads_ledgers(given: Mapping[str, str]) -> bool:
    """Whether the options ask for ledgers; InvalidArgument when they ask for nothing, or for both."""
    names = given_names(given)
    selectors = [name for name in _SELECTORS if name in names]
    ledgers = [name for name in ("ledgers", "ledger") if name in names]
    if len(selectors) + len(ledgers) > 1:
        both = " and ".join(f'"{name}"' for name in (*selectors, *ledgers))
        raise InvalidArgument(f'options {both}: give one of them ("path" is what load(...) gives)')
    if not selectors and not ledgers:
        raise InvalidArgument(
            'nothing says what to read: option("subscribe", "NAMESPACE/STREAM"), "subscribePattern", '
            'load("NAMESPACE/STREAM"), or option("ledgers", "all") for ledgers'
        )
    foreign = [name for name in (_STREAM_OPTIONS if ledgers else _LEDGER_OPTIONS) if name in names]
    if foreign:
        what = "streams" if ledgers else "ledgers"
        raise InvalidArgument(f'option "{foreign[0]}" is for reading {what}; leave it out here')
    return bool(ledgers)


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Which entries of which ledgers. `ledgers` is None for all; entries are inclusive."""

    metadata: str
    ledgers: tuple[LedgerRange, ...] | None
    first_entry: int = 0
    last_entry: int | None = None
    partition_bytes: int = 64 * MIB
    password: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LedgerOptions:
        """InvalidArgument for an unknown option or a bad value."""
        found = values(given, "read")
        return cls(
            found["metadata"],
            found["ledgers"] if "ledgers" in found else found["ledger"],
            found["firstEntry"],
            found.get("lastEntry"),
            found["maxPartitionBytes"],
            found["password"],
        )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Which records of which streams; `streams` or `pattern`. Times in microseconds UTC."""

    metadata: str
    streams: tuple[str, ...]
    pattern: str | None
    starting: Position
    ending: Position
    starting_time: int | None = None
    ending_time: int | None = None
    fail_on_loss: bool = True
    headers: bool = False
    partition_bytes: int = 64 * MIB
    min_partitions: int = 1
    max_offsets: int | None = None
    max_bytes: int | None = None
    cursor: str | None = None
    local_reads: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str], role: Role) -> StreamOptions:
        """InvalidArgument for an unknown option or a bad value, or for two that exclude each other."""
        found = values(given, role)
        for offsets, time in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
            if offsets in found and time in found:
                raise InvalidArgument(f'options "{offsets}" and "{time}" exclude each other: give one of them')
        streams = found.get("subscribe") or found.get("streams") or found.get("path") or ()
        starting = found.get("startingOffsets", Position("earliest" if role == "read" else "latest"))
        ending = found.get("endingOffsets", Position("latest"))
        for name, position in (("startingOffsets", starting), ("endingOffsets", ending)):
            foreign = [stream for stream in position.offsets if streams and stream not in streams]
            if foreign:
                raise InvalidArgument(f'option "{name}" names {foreign[0]}, which is not among the streams to read')
        return cls(
            found["metadata"],
            streams,
            found.get("subscribePattern"),
            starting,
            ending,
            _microseconds(found.get("startingTimestamp")),
            _microseconds(found.get("endingTimestamp")),
            found["failOnDataLoss"],
            found["includeHeaders"],
            found["maxPartitionBytes"],
            found.get("minPartitions", 1),
            found.get("maxOffsetsPerTrigger"),
            found.get("maxBytesPerTrigger"),
            found.get("cursor"),
            found["localReads"],
        )


def _microseconds(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


def resolve(position: Position, stream: str, earliest: int, end: int) -> int:
    """The offset that a position means for a stream; not checked against what is there."""
    offset = position.offsets.get(stream)
    if offset is None:
        return earliest if position.word == "earliest" else end
    return {-2: earliest, -1: end}.get(offset, offset)


# -- offsets of micro-batches -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one stream has for a micro-batch: offsets start..end - 1."""

    stream: str
    start: int
    end: int


def share(limit: int, backlogs: Sequence[Backlog], turn: int = 0) -> dict[str, int]:
    """How many of `limit` records (or bytes) each stream may give, by its part of all records that wait; together not
    more than `limit`.

    At least one where any wait. Where more streams wait than that allows, `turn`, which grows with what was read, says
    with which one this batch begins, so that it is everybody's turn.
    """
    shares = dict.fromkeys((b.stream for b in backlogs), 0)
    waiting = [b for b in backlogs if b.end > b.start]
    if len(waiting) >= limit:
        begin = turn % len(waiting) if waiting else 0
        return shares | {b.stream: 1 for b in (waiting[begin:] + waiting[:begin])[:limit]}
    total = sum(b.end - b.start for b in waiting)
    shares |= {b.stream: max(1, limit * (b.end - b.start) // total) for b in waiting}
    over = sum(shares.values()) - limit
    for stream in sorted(shares, key=lambda stream: -shares[stream]):
        if over <= 0:
            break
        less = min(over, shares[stream] - 1)
        shares[stream], over = shares[stream] - less, over - less
    return shares


# -- cutting ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extent:
    """Offsets first..stop - 1 of one segment that are wanted, and about how many bytes they have."""

    stream: str
    ledger: int
    first: int
    stop: int
    bytes: int


def piece_bytes(total: int, partition_bytes: int, min_partitions: int, cores: int) -> int:
    """How large a partition shall be: as asked for, but so that every core and `min_partitions` have one."""
    size = min(partition_bytes, max(LEAST_PARTITION_BYTES, -(-total // max(1, cores))))
    if min_partitions > 1:
        size = min(size, total // min_partitions)
    return max(1, size, -(-total // MAX_PARTITIONS))


def cuts(extent: Extent, size: int) -> list[int]:
    """The offsets, from first to stop, at which the extent is cut into pieces of about `size` bytes."""
    count = extent.stop - extent.first
    pieces = min(count, max(1, -(-extent.bytes // size)))
    return [extent.first + count * k // pieces for k in range(pieces + 1)]


def enough(extents: Sequence[Extent], size: int, min_partitions: int) -> int:
    """A size of pieces, `size` or less, that gives `min_partitions`, if there are as many records."""
    while size > 1 and sum(len(cuts(extent, size)) - 1 for extent in extents) < min_partitions:
        size = size * 3 // 4
    return size


def pack(sizes: Sequence[tuple[str, int]], size: int, min_partitions: int) -> list[range]:
    """Put neighbours together up to about `size` bytes: ranges of indices into `sizes` (stream, bytes). Small streams
    share a partition, else each would cost a task.

    Never fewer partitions than `min_partitions`, if there are as many pieces.
    """
    found: list[range] = []
    begin, filled, spare = 0, 0, len(sizes) - min_partitions
    for at, (_, weight) in enumerate(sizes):
        joins = at > begin and filled + weight <= size and spare > 0
        if joins:
            spare -= 1
            filled += weight
        else:
            if at > begin:
                found.append(range(begin, at))
            begin, filled = at, weight
    if len(sizes) > begin:
        found.append(range(begin, len(sizes)))
    return found


# -- ledgers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """A ledger's readable entries 0..last_entry and the bytes in them (0 if unknown)."""

    ledger: int
    last_entry: int
    length: int


@dataclass(frozen=True, slots=True)
class LedgerSlice:
    """One partition's work: entries first..last of a ledger, both inclusive."""

    ledger: int
    first: int
    last: int


def ledger_slices(extents: Iterable[LedgerExtent], options: LedgerOptions) -> list[LedgerSlice]:
    """Cut the wanted entries into pieces of about `partition_bytes`, at most MAX_PARTITIONS in all."""
    wanted = [(e, options.first_entry, _clip(e.last_entry, options.last_entry)) for e in extents]
    wanted = [(e, first, last) for e, first, last in wanted if first <= last]
    total = sum(_bytes(e, first, last) for e, first, last in wanted)
    size = max(options.partition_bytes, -(-total // max(1, MAX_PARTITIONS - len(wanted))))
    found = []
    for extent, first, last in wanted:
        count = last - first + 1
        pieces = min(count, max(1, -(-_bytes(extent, first, last) // size)))
        for n in range(pieces):
            found.append(LedgerSlice(extent.ledger, first + count * n // pieces, first + count * (n + 1) // pieces - 1))
    return found


def _clip(last: int, limit: int | None) -> int:
    return last if limit is None else min(last, limit)


def _bytes(extent: LedgerExtent, first: int, last: int) -> int:
    return extent.length * (last - first + 1) // (extent.last_entry + 1)
