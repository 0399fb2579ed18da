"""Stored entries and explicit-LAC packets: header, digest, keys.

Stored entry: i64 ledger, i64 entry, i64 LAC, i64 length, digest (0, 4, 8 or 20 bytes), payload. The digest covers
everything but itself. `length` is the ledger's payload bytes including this entry. Big-endian throughout.
Not here: frames and requests (`core/wire`).
"""

from __future__ import annotations

import hashlib
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Protocol

import google_crc32c

from buckram.core.entries.hot import verify_entries
from buckram.core.entries.packed import PackedBodies
from buckram.core.entries.python_twins import OVERHEAD, fields
from buckram.errors import DigestMismatch, InvalidArgument
from buckram.types import Buffer, DigestType, Entry, EntryId, LedgerId

ENTRY_HEADER = struct.Struct(">qqqq")
ENTRY_HEADER_BYTES = 32
MIN_STORED_BYTES = 24
"""The shortest entry that a bookie accepts: ledger, entry, LAC."""
_LAC_HEADER = struct.Struct(">qq")
_U32 = struct.Struct(">I")
_u32 = _U32.unpack_from
_IDS_AND_CRC32C = struct.Struct(">qq16xI")
_U64 = struct.Struct(">Q")
_SIZES = {DigestType.CRC32: 8, DigestType.MAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}
_crc32c: Callable[[int, bytes], int] = google_crc32c.extend
_crc32c_of: Callable[[bytes], int] = google_crc32c.value


def master_key(password: bytes) -> bytes:
    """Return the 20 bytes that bookies compare; the same for every digest type, and also for the empty password."""
    return hashlib.sha1(b"ledger" + password).digest()


def mac_key(password: bytes) -> bytes:
    """Return the key of the HMAC-SHA1, which is never sent."""
    return hashlib.sha1(b"mac" + password).digest()


def _crc32_digest(head: bytes, payload: Buffer) -> bytes:
    return _U64.pack(zlib.crc32(payload, zlib.crc32(head)))


def _crc32c_digest(head: bytes, payload: Buffer) -> bytes:
    # google_crc32c takes bytes only.
    return _U32.pack(_crc32c(_crc32c(0, head), payload if type(payload) is bytes else bytes(payload)))


def _no_digest(head: bytes, payload: Buffer) -> bytes:
    return b""


def _keyed_hmac_sha1(key: bytes) -> DigestFunction:
    # Copies of the two keyed states cost half of what hmac.digest costs per entry.
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha1(bytes(b ^ 0x36 for b in padded))
    outer = hashlib.sha1(bytes(b ^ 0x5C for b in padded))

    def compute(head: bytes, payload: Buffer) -> bytes:
        message = inner.copy()
        message.update(head)
        message.update(payload)
        result = outer.copy()
        result.update(message.digest())
        return result.digest()

    return compute


class DigestFunction(Protocol):
    """Return the digest of an entry's header and payload."""

    def __call__(self, head: bytes, payload: Buffer, /) -> bytes: ...


class Digest:
    """Seals and opens entries of ledgers with one digest type and password.

    `size`: digest bytes. `key`: the ledger's master key. `compute(head, payload)`: the digest of head and payload. A
    ledger whose metadata has no password uses b"". `birth` is the ledger's (core/ledgers/metadata), for requests that
    name it; it does not affect the digest.
    """

    __slots__ = ("birth", "compute", "key", "kind", "size")

    def __init__(self, kind: DigestType, password: bytes, birth: bytes = b"") -> None:
        self.birth = birth
        self.kind = DigestType(kind)
        self.size = _SIZES[self.kind]
        self.key = master_key(password)
        self.compute: DigestFunction
        if self.kind is DigestType.CRC32C:
            self.compute = _crc32c_digest
        elif self.kind is DigestType.CRC32:
            self.compute = _crc32_digest
        elif self.kind is DigestType.MAC:
            self.compute = _keyed_hmac_sha1(mac_key(password))
        else:
            self.compute = _no_digest

    @property
    def overhead(self) -> int:
        """Return the bytes of a stored entry that are not payload."""
        return ENTRY_HEADER_BYTES + self.size

    def seal(self, ledger_id: LedgerId, entry_id: EntryId, lac: EntryId, length: int, payload: Buffer) -> bytes:
        """Return the stored form. Raises InvalidArgument if an id or length does not fit 64 bits."""
        try:
            head = ENTRY_HEADER.pack(ledger_id, entry_id, lac, length)
        except struct.error:
            raise InvalidArgument(
                f"ledger {ledger_id}, entry {entry_id}, LAC {lac}, length {length}: each must fit a signed i64"
            ) from None
        return b"".join((head, self.compute(head, payload), payload))

    def open(self, ledger_id: LedgerId, entry_id: EntryId | None, stored: bytes) -> Entry:
        """Verify and decode an entry; entry_id None accepts any id (reads of the last entry). Raises DigestMismatch."""
        start = ENTRY_HEADER_BYTES + self.size
        if len(stored) < start:
            raise DigestMismatch(ledger_id, f"a stored entry of {len(stored)} bytes, at least {start} are needed")
        head, payload = stored[:ENTRY_HEADER_BYTES], stored[start:]
        ledger, entry, lac, length = ENTRY_HEADER.unpack(head)
        if self.compute(head, payload) != stored[ENTRY_HEADER_BYTES:start]:
            raise DigestMismatch(ledger_id, f"entry {entry_id}: its {self.kind.name} digest does not match its bytes")
        if ledger != ledger_id or (entry_id is not None and entry != entry_id):
            raise DigestMismatch(ledger_id, f"entry {entry_id}: got entry {entry} of ledger {ledger} instead")
        return Entry(ledger, entry, payload, lac, length)

    def open_prefix(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> list[Entry]:
        """Verify consecutive entries from `first` on. Return those before the first bad one, which may be none."""
        entries: list[Entry] = []
        add, make = entries.append, tuple.__new__
        unpack, size, compute = ENTRY_HEADER.unpack_from, self.size, self.compute
        overhead = ENTRY_HEADER_BYTES + size
        fast = self.kind is DigestType.CRC32C
        packed = PackedBodies.of(bodies)
        payloads: list[bytes] = []
        numbers = array("q")
        good = self._good(ledger_id, first, packed, payloads, heads=numbers)
        wanted = first + good
        if good:
            if sys.byteorder == "little":
                numbers.byteswap()
            ids = repeat(ledger_id, good), range(first, wanted)
            fields = zip(*ids, payloads, numbers[2::4], numbers[3::4], strict=True)
            entries += map(make, repeat(Entry), fields)
            packed = packed[good:]
        packet = packed.contiguous()
        for start, end in zip(packed.starts, packed.ends, strict=True):
            if end - start < overhead:
                break
            ledger, entry, lac, length = unpack(packet, start)
            if entry != wanted or ledger != ledger_id:
                break
            head, payload = packet[start : start + ENTRY_HEADER_BYTES], packet[start + overhead : end]
            if fast:
                if _crc32c(_crc32c(0, head), payload) != _u32(packet, start + ENTRY_HEADER_BYTES)[0]:
                    break
            elif compute(head, payload) != packet[start + ENTRY_HEADER_BYTES : start + overhead]:
                break
            add(make(Entry, (ledger, entry, payload, lac, length)))
            wanted += 1
        return entries

    def open_payloads(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> list[bytes]:
        """Return only the payloads of what `open_prefix` returns, which is the fast way to read in bulk."""
        if self.kind is not DigestType.CRC32C:
            return [entry.payload for entry in self.open_prefix(ledger_id, first, bodies)]
        payloads: list[bytes] = []
        add, unpack, crc = payloads.append, _IDS_AND_CRC32C.unpack_from, _crc32c
        packed = PackedBodies.of(bodies)
        self._good(ledger_id, first, packed, payloads)
        wanted = first + len(payloads)
        if payloads:
            packed = packed[len(payloads) :]
        packet = packed.contiguous()
        for start, end in zip(packed.starts, packed.ends, strict=True):
            if end - start < 36:
                break
            ledger, entry, expected = unpack(packet, start)
            payload = packet[start + 36 : end]
            if entry != wanted or ledger != ledger_id or crc(crc(0, packet[start : start + 32]), payload) != expected:
                break
            add(payload)
            wanted += 1
        return payloads

    def open_digests(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> list[int]:
        """Return the digests, as numbers, of what `open_prefix` returns; the payload's CRC32C for an entry without
        digest.
        """
        numbers: list[int] = []
        packed = PackedBodies.of(bodies)
        packed = packed[self._good(ledger_id, first, packed, digests=numbers) :]
        packet, size, overhead = packed.contiguous(), self.size, self.overhead
        for start, end in zip(packed.starts, packed.ends, strict=True):
            if end - start < overhead:
                break
            head, payload = packet[start : start + ENTRY_HEADER_BYTES], packet[start + overhead : end]
            stored = packet[start + ENTRY_HEADER_BYTES : start + overhead]
            ledger, entry, _, _ = ENTRY_HEADER.unpack(head)
            if ledger != ledger_id or entry != first + len(numbers) or self.compute(head, payload) != stored:
                break
            numbers.append(int.from_bytes(stored, "big") if size else _crc32c_of(payload))
        return numbers

    def count_good(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes]) -> int:
        """Return only the number of entries that `open_prefix` returns, for callers that pass the entries on as they
        are.
        """
        packed = PackedBodies.of(bodies)
        good = self._good(ledger_id, first, packed)
        if good < len(packed):
            good += len(self.open_digests(ledger_id, first + good, packed[good:]))
        return good

    def _good(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        packed: PackedBodies,
        payloads: list[bytes] | None = None,
        digests: list[int] | None = None,
        heads: array[int] | None = None,
    ) -> int:
        """Return how many entries from `first` on are verified; their contents are appended to the (empty) sinks.

        `heads` receives four numbers for each entry in the byte order of the wire. May end early, even at once, if the
        entries are not all good or not of one size.
        """
        stride, count = packed.stride, len(packed)
        if self.kind is not DigestType.CRC32C or not stride or count < 2 or first + count > 2**63:
            return 0
        packet, at = packed.packet, packed.starts[0]
        size = packed.ends[0] - at - OVERHEAD
        if size < 0:
            return 0
        good = verify_entries(packet, at, stride, count, size, ledger_id, first, payloads)
        if digests is not None:
            for block in fields(packet, at, stride, good, ENTRY_HEADER_BYTES, "I"):
                digests += block
        if heads is not None:
            for block in fields(packet, at, stride, good, 0, f"{ENTRY_HEADER_BYTES}s"):
                heads.frombytes(b"".join(block))
        return good

    def seal_lac(self, ledger_id: LedgerId, lac: EntryId) -> bytes:
        """Return the explicit-LAC packet: i64 ledger, i64 LAC, digest over both."""
        head = _LAC_HEADER.pack(ledger_id, lac)
        return head + self.compute(head, b"")

    def open_lac(self, ledger_id: LedgerId, packet: bytes) -> EntryId:
        """Return the LAC of a packet. Raises DigestMismatch if it is short, changed, or of another ledger."""
        if len(packet) < 16 + self.size:
            raise DigestMismatch(ledger_id, f"a LAC packet of {len(packet)} bytes, {16 + self.size} are needed")
        head = packet[:16]
        ledger, lac = _LAC_HEADER.unpack(head)
        if self.compute(head, b"") != packet[16 : 16 + self.size]:
            raise DigestMismatch(ledger_id, f"the {self.kind.name} digest of a LAC packet does not match its bytes")
        if ledger != ledger_id:
            raise DigestMismatch(ledger_id, f"got a LAC packet of ledger {ledger} instead")
        return int(lac)


def entry_ids(stored: Buffer) -> tuple[LedgerId, EntryId, EntryId]:
    """Return ledger, entry and LAC of the header, unverified. Raises struct.error below MIN_STORED_BYTES."""
    ledger, entry, lac = _IDS.unpack_from(stored)
    return ledger, entry, lac


_IDS = struct.Struct(">qqq")
