"""The protobuf encoding of metadata records, written by hand: varints and length-delimited fields.

Writing it by hand gives full control over the bytes: the order of fields, and fields that are present although zero.

Not here: the wire protocol v3, which uses generated classes (`core/wire/v3.py`), and the text format
(`core/wire/protobuf_text.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

_MASK = (1 << 64) - 1
_MAX_FIELD = (1 << 29) - 1
_SHORT = tuple(bytes((number,)) for number in range(0x80))


class WireError(ValueError):
    """The bytes are not protobuf; callers turn this into the typed error of their record."""


def varint(number: int) -> bytes:
    """Encode in base 128, least significant group first; a negative int32 or int64 takes ten bytes."""
    if 0 <= number < 0x200000:  # Nearly all numbers are that small: the loop takes five times as long.
        if number < 0x80:
            return _SHORT[number]
        if number < 0x4000:
            return bytes((number & 0x7F | 0x80, number >> 7))
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    number &= _MASK
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def int_field(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def bytes_field(field: int, body: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(body)) + body


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return the unsigned 64-bit number at `offset` and the offset after it. Raises WireError."""
    number = shift = 0
    while True:
        if offset >= len(data):
            raise WireError("the record ends within a number")
        byte = data[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _MASK, offset
        shift += 7
        if shift >= 70:
            raise WireError("a number has more than ten bytes")


def signed(number: int) -> int:
    """Return a 64-bit pattern as int64."""
    return number - (1 << 64) if number >> 63 else number


def text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise WireError(f"{body[:40]!r} is not UTF-8") from None


def walk(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Return every field in order, an int64 for varints and bytes for length-delimited ones; others are skipped."""
    offset, end = 0, len(data)
    while offset < end:
        tag = data[offset]
        # Nearly every number of a record has one byte: a call for each would take half of the time.
        if tag < 0x80:
            offset += 1
        else:
            tag, offset = read_varint(data, offset)
        field, kind = tag >> 3, tag & 7
        if not 0 < field <= _MAX_FIELD:
            raise WireError(f"field number {field} is not between 1 and {_MAX_FIELD}")
        if kind == 0 or kind == 2:
            if offset < end and (number := data[offset]) < 0x80:
                offset += 1
            else:
                number, offset = read_varint(data, offset)
                number = number if kind else signed(number)
            if kind == 0:
                yield field, number
                continue
            size = number
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise WireError(f"wire type {kind} is not known")
        if size > end - offset:
            raise WireError("the record ends within a field")
        if kind == 2:
            yield field, bytes(data[offset : offset + size])
        offset += size


class Fields:
    """The fields of one message. A field with a foreign wire type counts as unknown, as in protobuf."""

    __slots__ = ("_bytes", "_ints")

    def __init__(self, data: bytes) -> None:
        self._ints: dict[int, int] = {}
        self._bytes: dict[int, list[bytes]] = {}
        for field, value in walk(data):
            if isinstance(value, int):
                self._ints[field] = value
            else:
                self._bytes.setdefault(field, []).append(value)

    def all_bytes(self, field: int) -> list[bytes]:
        return self._bytes.get(field, [])

    def last_bytes(self, field: int) -> bytes | None:
        values = self._bytes.get(field)
        return values[-1] if values else None

    def last_int(self, field: int) -> int | None:
        return self._ints.get(field)
