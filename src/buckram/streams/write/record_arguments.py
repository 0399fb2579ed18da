"""Checks of the arguments of append, and their conversion to columns. It is stateless and writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import gt
from types import NoneType
from typing import TypeVar

from buckram.core.streams.names import check_producer, utf8_size
from buckram.core.streams.records.record_format import NO_TXID, Columns, HeaderList, HeadersInput, headers_size
from buckram.errors import InvalidArgument, RecordTooLarge, TxidOutOfOrder
from buckram.types import MAX_TIME, MIN_TIME, Buffer

T = TypeVar("T")
MAX_RECORD_BYTES = 4 * 1024 * 1024
"""The most bytes that value, key and headers of a record may have together; less where network frames are smaller."""
_PLAIN = frozenset((bytes, NoneType))


def one(
    stream: str,
    limit: int,
    value: Buffer | None,
    key: Buffer | None,
    headers: HeadersInput | None,
    timestamp: int | None,
    txid: int | None,
    producer: str | None,
    sequence: int | None,
    start: int | None,
) -> Columns:
    """Return the columns of one record. Raises InvalidArgument, or RecordTooLarge above `limit` bytes."""
    columns = Columns([value if type(value) is bytes else as_bytes("value", value)])
    size = len(value) if value is not None else 0
    if key is not None:
        columns.keys = [as_bytes("key", key)]
        size += len(key)
    if headers:
        pairs = as_headers(headers)
        columns.headers = [pairs]
        size += headers_size(pairs)
    if timestamp is not None:
        columns.timestamps = [as_time(timestamp)]
    if txid is not None:
        columns.txids = [as_txid(txid)]
    if producer is not None or sequence is not None or start is not None:
        _identify(columns, producer, sequence, start)
    if size > limit:
        raise RecordTooLarge(stream, size, limit)
    columns.size = size
    return columns


def many(
    stream: str,
    limit: int,
    values: Iterable[Buffer | None],
    keys: Iterable[Buffer | None] | None,
    headers: Iterable[HeadersInput | None] | None,
    timestamps: Iterable[int | None] | None,
    txids: Iterable[int | None] | None,
    producer: str | None,
    sequence: int | None,
    start: int | None,
) -> tuple[Columns, list[int]]:
    """Return the columns of consecutive records and the bytes of each. Raises InvalidArgument or RecordTooLarge."""
    if isinstance(values, bytes | bytearray | memoryview | str) or not isinstance(values, Iterable):
        raise InvalidArgument(f"append_many takes a sequence of values, not one {type(values).__name__}")
    columns = Columns(_binary("value", values))
    count = len(columns.values)
    if keys is not None:
        columns.keys = _same_length("keys", _binary("key", keys), count)
    if headers is not None:
        columns.headers = _same_length("headers", [as_headers(row) if row else () for row in headers], count)
    if timestamps is not None:
        times = _same_length("timestamps", list(timestamps), count)
        columns.timestamps = [None if time is None else as_time(time) for time in times]
    if txids is not None:
        found = [NO_TXID if txid is None else as_txid(txid) for txid in _same_length("txids", list(txids), count)]
        columns.txids = found
        check_order(stream, found, NO_TXID)
    if producer is not None or sequence is not None or start is not None:
        _identify(columns, producer, sequence, start)
    sizes = columns.sizes()
    largest = max(sizes, default=0)
    if largest > limit:
        raise RecordTooLarge(stream, largest, limit)
    columns.size = sum(sizes)
    return columns, sizes


def check_order(stream: str, txids: Sequence[int], last: int) -> int:
    """Return the last of these txids, or `last` if there is none. TxidOutOfOrder if one is less than one before it."""
    given = [txid for txid in txids if txid != NO_TXID]
    if not given:
        return last
    if given[0] < last:
        raise TxidOutOfOrder(stream, given[0], last)
    if any(map(gt, given, given[1:])):
        before, txid = next((a, b) for a, b in pairwise(given) if a > b)
        raise TxidOutOfOrder(stream, txid, before)
    return given[-1]


def _identify(columns: Columns, producer: str | None, sequence: int | None, start: int | None) -> None:
    if (producer is None) is not (sequence is None):
        raise InvalidArgument("an idempotent append needs both: producer= (an id) and sequence= (the next number)")
    if start is not None and (producer is None or type(start) is not int or not 0 <= start <= 2**63 - 1):
        raise InvalidArgument(f"start {start!r}: needs an int from 0 to 2**63-1, and producer= and sequence=")
    if producer is None or sequence is None:
        return
    check_producer(producer)
    count = len(columns)
    if type(sequence) is not int or not 0 <= sequence <= 2**63 - 1 - count:
        raise InvalidArgument(f"sequence {sequence!r}: needs an int from 0 to 2**63-1")
    columns.producers = [producer] * count
    columns.sequences = list(range(sequence, sequence + count))


def _binary(what: str, items: Iterable[Buffer | None]) -> list[bytes | None]:
    if not isinstance(items, Iterable):
        raise InvalidArgument(f"append_many: {what}s are a sequence, not {type(items).__name__}")
    found = list(items)
    if _PLAIN.issuperset(map(type, found)):
        return found  # type: ignore[return-value]  # The line above checked that all are bytes or None.
    return [as_bytes(what, item) for item in found]


def _same_length(what: str, column: list[T], count: int) -> list[T]:
    if len(column) != count:
        raise InvalidArgument(f"append_many: {len(column)} {what} for {count} values; give one for each")
    return column


def as_bytes(what: str, item: Buffer | None) -> bytes | None:
    """Return a value or key as bytes. InvalidArgument names it as `what`."""
    if item is None or type(item) is bytes:
        return item
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)  # Copied, because the caller may change its buffer before the record is sent.
    raise InvalidArgument(f"a {what} must be bytes, bytearray, memoryview or None, not {type(item).__name__}")


def as_headers(headers: HeadersInput) -> HeaderList:
    """Return headers as pairs of a name and bytes. Raises InvalidArgument."""
    try:
        pairs = [(name, value) for name, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise InvalidArgument(f"headers {headers!r}: need a mapping of names to bytes, or pairs of both") from None
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, bytes) or utf8_size(name) < 0:
            raise InvalidArgument(f"header {name!r}: {value!r}: names are str, values are bytes")
    return tuple(pairs)


def as_time(time: int) -> int:
    """Check a timestamp in microseconds UTC. Raises InvalidArgument."""
    if type(time) is not int:
        raise InvalidArgument(f"timestamp {time!r}: needs an int, microseconds since 1970 (UTC)")
    if not MIN_TIME <= time <= MAX_TIME:
        raise InvalidArgument(f"timestamp {time}: {no_time(time)}")
    return time


def no_time(time: int) -> str:
    """Return why a number is no timestamp, and what a valid one looks like."""
    if time < MIN_TIME:
        return f"is before the year 1 (less than {MIN_TIME}): give microseconds since 1970 (UTC)"
    such = f": as nanoseconds it is {time // 1000} microseconds" if MIN_TIME <= time // 1000 <= MAX_TIME else ""
    return f"is after the year 9999 (more than {MAX_TIME}): give microseconds since 1970 (UTC){such}"


def as_txid(txid: int) -> int:
    """Check a txid. Raises InvalidArgument."""
    if type(txid) is not int or not 0 <= txid < 2**63:
        raise InvalidArgument(f"txid {txid!r}: needs an int from 0 to 2**63-1")
    return txid
