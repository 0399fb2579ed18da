"""Pure functions for planning reads: checked options, limits of a micro-batch, and cutting the work into partitions.

Not here: a single option's value (`options.py`), asking the cluster what there is to read (`stream_planner.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from buckram.core.streams.names import DEFAULT_NAMESPACE
from buckram.errors import InvalidArgument
from buckram.spark.shared.options import STREAM_TABLES, LedgerRange, Position, Role, Times, given_names, values
from buckram.types import EntryId, LedgerId

MIB = 1024 * 1024
MAX_PARTITIONS = 5_000
NO_TIMES = Times()
LEAST_PARTITION_BYTES = 4 * MIB
"""A task costs some milliseconds, so smaller pieces are cut only if minPartitions or maxPartitionBytes demands it."""
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


def table_asked_for(given: Mapping[str, str]) -> str | None:
    """Return the table that the options ask for; None: for records. InvalidArgument if they ask for both."""
    names = given_names(given)
    if "table" not in names:
        return None
    table: str = values(given, "read")["table"]
    selectors = [name for name in _SELECTORS if name in names]
    mine = () if table in STREAM_TABLES else _SELECTORS
    foreign = [name for name in (*mine, *_LEDGER_OPTIONS, *_STREAM_OPTIONS) if name in names]
    if foreign:
        raise InvalidArgument(f'option "{foreign[0]}" is for reading records; leave it out with "table" = "{table}"')
    if len(selectors) > 1:
        raise InvalidArgument(f'options "{selectors[0]}" and "{selectors[1]}": give one of them')
    return table


def streams_of_table(given: Mapping[str, str], table: str) -> StreamOptions | None:
    """Return the streams whose table is asked for, all if the options name none; None for a table not of streams."""
    if table not in STREAM_TABLES:
        return None
    some = any(name in _SELECTORS for name in given_names(given))
    return StreamOptions.parse(given if some else {**given, "subscribePattern": ".+/.+"}, "read")


def reads_ledgers(given: Mapping[str, str]) -> bool:
    """Return whether the options ask for ledgers, not streams. InvalidArgument for neither or both."""
    names = given_names(given)
    selectors = [name for name in _SELECTORS if name in names]
    ledgers = [name for name in ("ledgers", "ledger") if name in names]
    if len(selectors) + len(ledgers) > 1:
        both = " and ".join(f'"{name}"' for name in (*selectors, *ledgers))
        raise InvalidArgument(f'options {both}: give one of them ("path" is what load(...) gives)')
    if not selectors and not ledgers:
        raise InvalidArgument(
            'nothing says what to read: option("subscribe", "NAMESPACE/STREAM"), "subscribePattern", '
            'load("NAMESPACE/STREAM"), or option("ledgers", "all") for ledgers, or option("table", "usage")'
        )
    foreign = [name for name in (_STREAM_OPTIONS if ledgers else _LEDGER_OPTIONS) if name in names]
    if foreign:
        what = "streams" if ledgers else "ledgers"
        raise InvalidArgument(f'option "{foreign[0]}" is for reading {what}; leave it out here')
    return bool(ledgers)


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Ledgers and entries to read. `ledgers` is None for all; `last_entry` is inclusive."""

    metadata: str
    ledgers: tuple[LedgerRange, ...] | None
    first_entry: EntryId = 0
    last_entry: EntryId | None = None
    partition_bytes: int = 64 * MIB
    password: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LedgerOptions:
        """Parse the options. InvalidArgument for an unknown option or a bad value."""
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
    """Streams and records to read; either `streams` or `pattern` is set. Times are in microseconds UTC."""

    metadata: str
    streams: tuple[str, ...]
    pattern: str | None
    starting: Position
    ending: Position
    starting_times: Times = NO_TIMES
    ending_times: Times = NO_TIMES
    fail_on_loss: bool = True
    headers: bool = False
    partition_bytes: int = 64 * MIB
    min_partitions: int = 1
    max_offsets: int | None = None
    max_bytes: int | None = None
    cursor: str | None = None
    local_reads: bool = True
    partition_records: int | None = None
    min_offsets: int = 0
    trigger_delay_s: float = 0.0

    @classmethod
    def parse(cls, given: Mapping[str, str], role: Role) -> StreamOptions:
        """Parse the options. InvalidArgument for an unknown option, a bad value, or two that exclude each other."""
        found = values(given, role)
        for offsets, time in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
            if offsets in found and time in found and found[time].of_all is not None:
                raise InvalidArgument(f'options "{offsets}" and "{time}" exclude each other: give one of them')
        streams = found.get("subscribe") or found.get("streams") or found.get("path") or ()
        starting = found.get("startingOffsets", Position("earliest" if role == "read" else "latest"))
        ending = found.get("endingOffsets", Position("latest"))
        starting_times = found.get("startingTimestamp", NO_TIMES)
        ending_times = found.get("endingTimestamp", NO_TIMES)
        named = {
            "startingOffsets": starting.offsets,
            "endingOffsets": ending.offsets,
            "startingTimestamp": starting_times.of_one,
            "endingTimestamp": ending_times.of_one,
        }
        for name, of_one in named.items():
            foreign = [stream for stream in of_one if streams and stream not in streams]
            if foreign:
                raise InvalidArgument(f'option "{name}" names {foreign[0]}, which is not among the streams to read')
        return cls(
            found["metadata"],
            streams,
            found.get("subscribePattern"),
            starting,
            ending,
            starting_times,
            ending_times,
            found["failOnDataLoss"],
            found["includeHeaders"],
            found["maxPartitionBytes"],
            found.get("minPartitions", 1),
            found.get("maxOffsetsPerTrigger"),
            found.get("maxBytesPerTrigger"),
            found.get("cursor"),
            found["localReads"],
            found.get("maxRecordsPerPartition"),
            found.get("minOffsetsPerTrigger", 0),
            found.get("maxTriggerDelay", 0.0),
        )

    def check_reads(self, streams: Iterable[str]) -> None:
        """Raise InvalidArgument for a stream in a namespace of which these options name none.

        A checkpoint may lie where others write: what it names must not be read, and get a cursor, with the query's
        rights. Other streams of the same namespaces may be of a batch that an earlier run left with other options.
        """
        for stream in streams:
            if not self._may_read(stream):
                raise InvalidArgument(
                    f"the checkpoint names {stream}, and the query's options name no stream of that namespace: whoever "
                    "may write the checkpoint could have the query read anything; if it is right, name the stream, too"
                )

    def _may_read(self, stream: str) -> bool:
        namespace = stream.partition("/")[0]
        if self.pattern is None:
            return any(one.partition("/")[0] == namespace for one in self.streams)
        if "/" not in self.pattern:
            return namespace == DEFAULT_NAMESPACE
        if re.fullmatch(self.pattern, stream):
            return True
        with suppress(re.error):  # A part of a pattern need not be one.
            return re.fullmatch(self.pattern.partition("/")[0], namespace) is not None
        return False


def time_of(times: Times, stream: str) -> int | None:
    """Return the time for a stream, in microseconds UTC; None if there is none."""
    milliseconds = times.of_one.get(stream, times.of_all)
    return None if milliseconds is None else milliseconds * 1000


def resolve(position: Position, stream: str, earliest: int, end: int) -> int:
    """Return the offset that a position means for a stream, without checking that the stream has it."""
    offset = position.offsets.get(stream)
    if offset is None:
        return earliest if position.word == "earliest" else end
    return {-2: earliest, -1: end}.get(offset, offset)


# -- offsets of micro-batches -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Backlog:
    """The records of one stream that a micro-batch could read: offsets from `start` to end - 1."""

    stream: str
    start: int
    end: int


def share_limit(limit: int, backlogs: Sequence[Backlog], turn: int = 0) -> dict[str, int]:
    """Divide `limit` records (or bytes) among the streams, in proportion to the records that wait in each.

    Each stream with waiting records gets at least one. If there are more such streams than `limit`, only some get one,
    beginning at `turn`, which grows with the records read, so that later batches serve the others.
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
    """The wanted offsets of one segment, from `first` to stop - 1, and about how many bytes they have."""

    stream: str
    ledger: LedgerId
    first: int
    stop: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """Size of partitions: about `size` bytes, and at most `most` records, if that is set."""

    size: int
    most: int | None = None
    may_snap: bool = True
    """True if there may be fewer partitions, as cuts between entries avoid reading an entry twice."""

    @property
    def snap(self) -> bool:
        """Return whether each cut moves to the first record of an entry, if slices have many."""
        return self.may_snap and self.most is None

    def weight(self, size: int, records: int) -> int:
        """Return what a piece takes of a partition's `size`, by its bytes or by its records, whichever is more."""
        return size if self.most is None else max(size, -(-records * self.size // self.most))


def most_records(total: int, asked: int | None) -> int | None:
    """Return the most records of a partition: as asked for, unless there were too many partitions."""
    return None if asked is None else max(asked, -(-total // MAX_PARTITIONS))


def piece_bytes(total: int, partition_bytes: int, min_partitions: int, cores: int) -> int:
    """Return the size of partitions in bytes: as asked for, but small enough for all cores and `min_partitions`."""
    size = min(partition_bytes, max(LEAST_PARTITION_BYTES, -(-total // max(1, cores))))
    if min_partitions > 1:
        size = min(size, total // min_partitions)
    return max(1, size, -(-total // MAX_PARTITIONS))


def cut_offsets(extent: Extent, size: int, most: int | None = None) -> list[int]:
    """Return the offsets, from `first` to `stop`, at which the extent is cut into pieces of about `size` bytes.

    `most`: the most records of a piece.
    """
    count = extent.stop - extent.first
    pieces = min(count, max(1, -(-extent.bytes // size), -(-count // most) if most else 1))
    return [extent.first + count * k // pieces for k in range(pieces + 1)]


def size_for_partitions(extents: Sequence[Extent], size: int, min_partitions: int) -> int:
    """Return a size of pieces, at most `size`, that gives `min_partitions`, if there are as many records."""
    while size > 1 and sum(len(cut_offsets(extent, size)) - 1 for extent in extents) < min_partitions:
        size = size * 3 // 4
    return size


def pack_pieces(sizes: Sequence[tuple[str, int]], size: int, min_partitions: int) -> list[range]:
    """Join neighbouring pieces to partitions of about `size` bytes, since each partition costs a task.

    Returns ranges of indices into `sizes`, which has (stream, bytes) of each piece. There are at least `min_partitions`
    partitions, if there are as many pieces.
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
    """A ledger's readable entries, 0 to `last_entry`, and their bytes (0 if unknown)."""

    ledger: LedgerId
    last_entry: EntryId
    length: int


@dataclass(frozen=True, slots=True)
class LedgerSlice:
    """One partition's work: the entries of a ledger from `first` to `last`, both inclusive."""

    ledger: LedgerId
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
