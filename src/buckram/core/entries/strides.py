"""Checks a field of consecutive records of equal size, column by column, without a step of Python per record.

`at` is where the field begins in the first record, `stride` the distance to the next record. A field that lies beyond
the data is not equal.
"""

from __future__ import annotations

_CYCLE = bytes(range(256))
_RUNS = b"".join(bytes((byte,)) * 256 for byte in range(256))


def all_equal(data: bytes | bytearray, at: int, stride: int, count: int, value: bytes) -> bool:
    """Return whether the field holds `value` in each of `count` records."""
    span = (count - 1) * stride + 1
    for i in range(len(value)):  # noqa: SIM110 - a generator would be one call more
        if data[at + i : at + i + span : stride] != value[i : i + 1] * count:
            return False
    return True


def count_up(data: bytes | bytearray, at: int, stride: int, count: int, first: int) -> bool:
    """Return whether the field, a big-endian i64, holds first, first + 1, first + 2, ..."""
    low, span, last = first & 255, (count - 1) * stride + 1, first + count - 1
    if data[at + 7 : at + 7 + span : stride] != (_CYCLE * (count // 256 + 2))[low : low + count]:
        return False
    if first >> 16 == last >> 16:  # the usual case: of the seven bytes above only the lowest changes, in known places
        high, low = (first >> 16).to_bytes(6, "big", signed=True), first & 65535
        runs = _RUNS[low : low + count]
        return data[at + 6 : at + 6 + span : stride] == runs and all_equal(data, at, stride, count, high)
    done = 0
    while done < count:  # they change once in 256 records
        size = min(256 - (first + done & 255), count - done)
        high = (first + done >> 8).to_bytes(7, "big", signed=True)
        if not all_equal(data, at + done * stride, stride, size, high):
            return False
        done += size
    return True
