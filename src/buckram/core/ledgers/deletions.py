"""Ledgers that were deleted on purpose: sets of ids, in buckets of consecutive ones, as compact bytes. Pure.

A deletion is a decision, and it is never forgotten: a bookie that was away for a year finds it. Ids are given in
ascending order, so an old bucket becomes a few long intervals around what still lives. A bucket's bytes are the shorter
of its intervals and its bitmap, and each set has one encoding only. A bookie's own memory of deletions is files of a
line of JSON and its checksum.

Not here: recording deletions with the removal of the metadata (`metadata/tree/removals.py`), deleting the ledgers on
bookies (`bookie/garbage/gc_limits.py`), when a bookie's files are written (`bookie/trust/witness_memory.py`).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping

from buckram.errors import MalformedRecord
from buckram.types import MAX_LEDGER_ID, LedgerId

BUCKET = 1 << 14
"""Ids of one bucket: a bitmap of them has 2 KB."""

MOST_BYTES = BUCKET // 8 + 1
"""No bucket's value is longer."""

_INTERVALS, _BITMAP = 1, 2

_RUN = re.compile("1+")

_VARINT_BITS = 7

_LONGEST = BUCKET.bit_length()


class Deleted:
    """The deleted ids of one bucket. A value: nothing changes it."""

    __slots__ = ("_bits",)

    def __init__(self, bits: int = 0) -> None:
        self._bits = bits

    def __contains__(self, ledger_id: LedgerId) -> bool:
        return bool(self._bits >> (ledger_id % BUCKET) & 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deleted) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __repr__(self) -> str:
        return f"Deleted({', '.join(f'{first}-{last}' for first, last in self.intervals())})"

    def and_these(self, ledgers: Iterable[LedgerId]) -> Deleted:
        """Return the set with these ids of the bucket, too."""
        bits = self._bits
        for one in ledgers:
            bits |= 1 << (one % BUCKET)
        return Deleted(bits)

    def __or__(self, other: Deleted) -> Deleted:
        return Deleted(self._bits | other._bits)

    def __sub__(self, other: Deleted) -> Deleted:
        return Deleted(self._bits & ~other._bits)

    def places(self) -> list[int]:
        """Return the places of the deleted ids in their bucket, ascending."""
        return [place for first, last in self.intervals() for place in range(first, last + 1)]

    def intervals(self) -> list[tuple[int, int]]:
        """Return the first and last place of each run of deleted ids, ascending."""
        places = bin(self._bits)[:1:-1]
        return [(run.start(), run.end() - 1) for run in _RUN.finditer(places)]

    def encode(self) -> bytes:
        """Return the set as bytes; b"" for the empty one."""
        bits = self._bits
        if not bits:
            return b""
        bitmap = bytes((_BITMAP,)) + bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        runs = (bits & ~(bits << 1)).bit_count()
        if 1 + 2 * runs > len(bitmap):
            return bitmap  # an interval has two bytes at least
        parts, at = bytearray((_INTERVALS,)), 0
        for first, last in self.intervals():
            _put(parts, first - at)
            _put(parts, last - first)
            at = last + 1
        return bytes(parts) if len(parts) <= len(bitmap) else bitmap


NONE_DELETED = Deleted()


def bucket_of(ledger_id: LedgerId) -> int:
    """Return the number of the bucket that has this id."""
    return ledger_id // BUCKET


def deletions_folder(own: str) -> str:
    """Return the key below Buckram's own ones that has a child for each bucket."""
    return f"{own}/deleted"


def told_folder(own: str) -> str:
    """Return the key below Buckram's own ones under which bookies report, by bucket, deletions that they saw, while
    restored metadata wait to be accepted.
    """
    return f"{own}/deleted-since"


def told_key(own: str, bucket: int) -> str:
    """Return the key in which bookies report the deletions that they saw in the bucket with this number."""
    return f"{told_folder(own)}/{bucket:015d}"


def deletions_key(own: str, bucket: int) -> str:
    """Return the key that holds the bucket with this number."""
    return f"{deletions_folder(own)}/{bucket:015d}"


def decode_deleted(key: str, value: bytes) -> Deleted:
    """Return the set that a key's value holds. Raises MalformedRecord for what `Deleted.encode` cannot have written.

    Another encoding of a legal set is refused, too: a value that this code cannot have written deletes no ledger.
    """
    try:
        found = _decoded(value)
    except (ValueError, IndexError) as error:
        raise MalformedRecord(f"{key}: not a set of deleted ledgers ({error}); restore it from a backup") from None
    if found.encode() != value:
        raise MalformedRecord(
            f"{key}: a set of deleted ledgers in a form that Buckram never writes; restore it from a backup"
        )
    return found


def _decoded(value: bytes) -> Deleted:
    if not value:
        return Deleted()
    if len(value) > MOST_BYTES:
        raise ValueError(f"{len(value)} bytes, the limit is {MOST_BYTES}")
    if value[0] == _BITMAP:
        return Deleted(int.from_bytes(value[1:], "little"))
    if value[0] != _INTERVALS:
        raise ValueError(f"form {value[0]} is not known")
    bits, at, place = 0, 1, 0
    while at < len(value):
        gap, at = _take(value, at)
        length, at = _take(value, at)
        first, place = place + gap, place + gap + length + 1
        if place > BUCKET:
            raise ValueError(f"place {place - 1} is beyond the bucket")
        bits |= ((1 << (length + 1)) - 1) << first
    return Deleted(bits)


def _put(parts: bytearray, number: int) -> None:
    while number >= 1 << _VARINT_BITS:
        parts.append(number & 0x7F | 0x80)
        number >>= _VARINT_BITS
    parts.append(number)


def _take(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + _VARINT_BITS
        if byte < 0x80:
            return number, at
        if shift > _LONGEST:
            raise ValueError("a number is too long")


# -- a file of a bookie's memory ------------------------------------------------------------------------------

_VERSION = 1


def encode_file(next_id: LedgerId, buckets: Mapping[int, Deleted]) -> bytes:
    """Return the content of a file with the next id and the deleted ids of each bucket."""
    sets = {str(bucket): buckets[bucket].encode().hex() for bucket in sorted(buckets)}
    line = json.dumps({"version": _VERSION, "next_id": next_id, "deleted": sets}, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


def decode_file(name: str, content: bytes) -> tuple[LedgerId, dict[int, Deleted]]:
    """Read what `encode_file` wrote. MalformedRecord for anything else."""
    line, _, checksum = content.partition(b"\n")
    try:
        if checksum != b"%08x\n" % zlib.crc32(line):
            raise ValueError("its checksum does not match")
        found = json.loads(line)
        version, next_id = found["version"], found["next_id"]
        if version != _VERSION or type(next_id) is not int or not 0 <= next_id <= MAX_LEDGER_ID:
            raise ValueError(f"version {version!r} with next id {next_id!r}")
        sets = {int(bucket): bytes.fromhex(value) for bucket, value in found["deleted"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedRecord(f"{name}: no memory of deletions ({error}); remove the file") from None
    return next_id, {bucket: decode_deleted(f"{name}, bucket {bucket}", value) for bucket, value in sets.items()}
