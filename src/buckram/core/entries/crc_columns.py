"""CRC-32C digests of many entries of equal size, checked at once: headers cost neither a call nor an object each.

Why it works: for messages of one size a CRC is linear but for a constant, crc(x ^ y) = crc(x) ^ crc(y) ^ crc(0). So an
entry's digest is a constant, XOR its payload's own CRC, XOR what each byte of its header adds: a function of that byte,
its place and the payload's size. The bytes at one place of all headers are a column. Most columns hold one value
throughout, which goes into the constant; any other goes through a table. Numbers lie in four planes (the first bytes
of all, then the second, ...): a look-up is four `bytes.translate` then, an XOR is one of large integers. Nothing is
summed up over entries: every digest is compared in all of its 32 bits.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from functools import lru_cache

import google_crc32c

HEAD_BYTES = 32
_crc_of = google_crc32c.value


def digests_match(
    data: bytes | bytearray, at: int, stride: int, size: int, payload_crcs: array[int], columns: Iterable[int]
) -> bool:
    """Return whether each of len(payload_crcs) entries, at least one, has the right digest.

    The first entry's header is at `at`, and each next one `stride` bytes after the one before; the digest (big-endian
    u32) follows the header. `payload_crcs` (of "I") are the CRC-32Cs of the payloads of `size` bytes each. Only the
    given columns (places in the header) may differ between entries: all others are read from the first entry only.
    """
    count = len(payload_crcs)
    span = (count - 1) * stride + 1
    common = bytearray(data[at : at + HEAD_BYTES])
    numbers = memoryview(payload_crcs).tobytes()
    order = (3, 2, 1, 0) if sys.byteorder == "little" else (0, 1, 2, 3)
    total = _number([numbers[i::4] for i in order])
    digest = at + HEAD_BYTES
    total ^= _number([data[i : i + span : stride] for i in range(digest, digest + 4)])
    for place in columns:
        column = data[at + place : at + place + span : stride]
        if column != column[:1] * count:
            common[place] = 0
            total ^= _number(map(column.translate, _planes(HEAD_BYTES - 1 - place + size)))
    zeros = bytes(size)
    constant = _crc_of(bytes(common) + zeros) ^ _crc_of(zeros)
    return total == _number([bytes((byte,)) * count for byte in constant.to_bytes(4, "big")])


def _number(planes: Iterable[bytes | bytearray]) -> int:
    return int.from_bytes(b"".join(planes), "little")


@lru_cache(maxsize=256)  # of 1.3 KB each; a size of payloads in use takes five to eight of them
def _planes(behind: int) -> tuple[bytes, bytes, bytes, bytes]:
    """Return what a byte with `behind` bytes after it adds: four tables of 256, one for each byte of the CRC."""
    zeros = bytes(behind)
    nothing = _crc_of(b"\0" + zeros)
    table = [0]
    for bit in range(8):
        adds = _crc_of(bytes((1 << bit,)) + zeros) ^ nothing
        table += [adds ^ number for number in table]
    packed = b"".join([number.to_bytes(4, "big") for number in table])
    return packed[0::4], packed[1::4], packed[2::4], packed[3::4]
