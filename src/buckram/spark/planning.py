"""What to read: the source's options and how ledgers are cut into partitions. Pure; no Spark, no cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from buckram.core.stream_names import stream_name
from buckram.errors import InvalidArgument
from buckram.types import MAX_LEDGER_ID

MIB = 1024 * 1024
DEFAULT_PARTITION_BYTES = 64 * MIB
MAX_PARTITIONS = 5_000
KNOWN_OPTIONS = ("metadata", "ledgers", "streams", "firstentry", "lastentry", "maxpartitionbytes", "password", "path")
_OF_LEDGERS = ("ledgers", "firstentry", "lastentry", "password", "path")


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """Ledger ids from `first` to `last`, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Options:
    """The source's options, checked. `ledgers` is None for all; entries are inclusive. `streams` replaces ledgers."""

    metadata: str
    ledgers: tuple[LedgerRange, ...] | None
    first_entry: int = 0
    last_entry: int | None = None
    partition_bytes: int = DEFAULT_PARTITION_BYTES
    password: str = ""
    streams: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """InvalidArgument for an unknown option or a bad value."""
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(options) - set(KNOWN_OPTIONS))
        if unknown:
            raise InvalidArgument(f"unknown option {unknown[0]!r}; known: {', '.join(KNOWN_OPTIONS)}")
        if not options.get("metadata"):
            raise InvalidArgument('option "metadata" is missing: the URI of the cluster, for example sqlite:///abs/path')
        parts = [part.strip() for part in options.get("streams", "").split(",")]
        streams = tuple(str(stream_name(part)) for part in parts if part)
        if "streams" in options and not streams:
            raise InvalidArgument('option "streams" names none: give NAMESPACE/STREAM, several separated by commas')
        foreign = [name for name in _OF_LEDGERS if streams and name in options]
        if foreign:
            raise InvalidArgument(f'option "{foreign[0]}" is for reading ledgers: leave it out with "streams"')
        ledgers = options.get("ledgers", options.get("path", "all"))
        last = options.get("lastentry")
        size = options.get("maxpartitionbytes", str(DEFAULT_PARTITION_BYTES))
        return cls(
            metadata=options["metadata"],
            ledgers=parse_ledgers(ledgers),
            first_entry=_number("firstEntry", options.get("firstentry", "0"), 0),
            last_entry=None if last is None else _number("lastEntry", last, 0),
            partition_bytes=_number("maxPartitionBytes", size, 1),
            password=options.get("password", ""),
            streams=streams,
        )


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """A ledger's readable entries 0..last_entry and the bytes in them (0 if unknown)."""

    ledger: int
    last_entry: int
    length: int


@dataclass(frozen=True, slots=True)
class Slice:
    """One partition's work: entries first..last of a ledger, both inclusive."""

    ledger: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StreamExtent:
    """One segment's readable offsets first..stop - 1 and the bytes in it (0 if unknown)."""

    stream: str
    first: int
    stop: int
    bytes: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """One partition's work: offsets first..stop - 1 of a stream."""

    stream: str
    first: int
    stop: int


def offset_ranges(extents: Iterable[StreamExtent], partition_bytes: int) -> list[OffsetRange]:
    """Cut segments into pieces of about `partition_bytes`, at most about MAX_PARTITIONS in all."""
    wanted = list(extents)
    size = max(partition_bytes, -(-sum(e.bytes for e in wanted) // MAX_PARTITIONS))
    found: list[OffsetRange] = []
    for extent in wanted:
        count = extent.stop - extent.first
        pieces = min(count, max(1, -(-extent.bytes // size)))
        for n in range(pieces):
            first, stop = (extent.first + count * k // pieces for k in (n, n + 1))
            found.append(OffsetRange(extent.stream, first, stop))
    return found


def parse_ledgers(text: str) -> tuple[LedgerRange, ...] | None:
    """`all`, or ids and ranges separated by commas: `3,5,8-12`. None means all."""
    if text.strip().lower() == "all":
        return None
    ranges = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = _number("ledgers", first, 0)
        high = _number("ledgers", last, 0) if dash else low
        if low > high or high > MAX_LEDGER_ID:
            raise InvalidArgument(f'option "ledgers": range {part.strip()!r} is empty or beyond {MAX_LEDGER_ID}')
        ranges.append(LedgerRange(low, high))
    return tuple(ranges)


def _number(name: str, text: str, minimum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InvalidArgument(f'option "{name}" = {text!r}: needs a whole number of at least {minimum}') from None
    if value < minimum:
        raise InvalidArgument(f'option "{name}" = {value}: must be at least {minimum}')
    return value


def slices(extents: Iterable[LedgerExtent], options: Options) -> list[Slice]:
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
            found.append(Slice(extent.ledger, first + count * n // pieces, first + count * (n + 1) // pieces - 1))
    return found


def _clip(last: int, limit: int | None) -> int:
    return last if limit is None else min(last, limit)


def _bytes(extent: LedgerExtent, first: int, last: int) -> int:
    return extent.length * (last - first + 1) // (extent.last_entry + 1)
