"""Adds of the protobuf wire in bulk: frames of the usual shape become runs without a message object each.

The usual shape is what Apache's client sends for a plain add: header (version, operation, transaction), then ledger,
entry, master key and body, and nothing else. Everything else, recovery adds and deferred sync included, is left to
wire_v3, which gives the same runs. The answers to runs are here, too.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from buckram.core.adds import ADD_HEADER, MAX_RUN_BYTES, AddContext, AddRun
from buckram.core.entry import MIN_STORED_BYTES
from buckram.core.protobuf import varint
from buckram.errors import Code
from buckram.types import EntryId

_VARINT = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_ADD = re.compile(
    rb"(....)\n(.)\x08\x03\x10\x02\x18" + _VARINT + rb"\xaa\x06" + _VARINT + rb"\x08" + _VARINT + rb"\x10" + _VARINT
    + rb"\x1a\x14(.{20})\x22" + _VARINT, re.DOTALL,
)  # fmt: skip
_PREFIX = struct.Struct(">II20s")
_IDS = struct.Struct(">qqq")
_LONGEST = 10


def scan_v3_adds(
    chunk: bytes, offset: int, max_frame_bytes: int, max_run_bytes: int = MAX_RUN_BYTES
) -> tuple[int, list[AddRun]]:
    """Take plain version 3 ADD frames from `offset` on. -> (offset of what is left, runs).

    Stops before the first frame that is incomplete, of another shape, or malformed; the caller decides about it.
    """
    runs: list[AddRun] = []
    match, unpack = _ADD.match, _IDS.unpack_from
    size, max_packet = len(chunk), max_frame_bytes - 4
    run: _Run | None = None
    last_key = last_ledger = b""
    while True:
        found = match(chunk, offset)
        if found is None:
            break
        head, header_length, txn, message_length, ledger_bytes, entry_bytes, key, body_length = found.groups()
        start = found.end()
        length = int.from_bytes(head, "big")
        end = offset + 4 + length
        stored = end - start
        if (
            end > size or length > max_packet or stored < MIN_STORED_BYTES
            or header_length[0] != 5 + len(txn) or _number(body_length) != stored
            or _number(message_length) != end - found.end(4)
        ):
            break
        ledger, entry, lac = unpack(chunk, start)
        if ledger < 0 or entry < 0 or _number(entry_bytes) != entry:
            break
        if (
            run is None or entry != run.next or ledger_bytes != last_ledger or key != last_key
            or run.size >= max_run_bytes
        ):
            if _number(ledger_bytes) != ledger:
                break
            if run is not None:
                runs.append(run.done())
            run, last_ledger, last_key = _Run(ledger, entry, lac, key), ledger_bytes, key
        elif ledger != run.ledger:
            break
        run.add(chunk[start:end], stored, lac, txn)
        offset = end
    if run is not None:
        runs.append(run.done())
    return offset, runs


class _Run:
    """A run that grows: v2 frames in pieces."""

    __slots__ = ("first", "key", "lac", "ledger", "next", "parts", "prefix", "size", "stored", "stride", "txns")

    def __init__(self, ledger: int, first: EntryId, lac: EntryId, key: bytes) -> None:
        self.ledger, self.first, self.next, self.lac, self.key = ledger, first, first, lac, key
        self.parts: list[bytes] = []
        self.txns: list[bytes] = []
        self.prefix = b""
        self.size = self.stride = 0
        self.stored = -1

    def add(self, body: bytes, stored: int, lac: EntryId, txn: bytes) -> None:
        if stored != self.stored:
            self.stride = stored + 28 if self.stored < 0 else 0
            self.stored, self.prefix = stored, _PREFIX.pack(24 + stored, ADD_HEADER, self.key)
        self.parts.append(self.prefix)
        self.parts.append(body)
        self.txns.append(txn)
        self.size += stored + 28
        self.next += 1
        if lac > self.lac:
            self.lac = lac

    def done(self) -> AddRun:
        context = AddContext(3, 3, tuple(self.txns))
        count = len(self.txns)
        chunk = b"".join(self.parts)
        return AddRun(chunk, 0, self.size, self.ledger, self.first, count, self.key, 0, self.lac, self.stride, context)


def _number(digits: bytes) -> int:
    """A varint of which the extent is known."""
    count = len(digits)
    if count == 1:
        return digits[0]
    if count == 2:
        return digits[0] & 127 | digits[1] << 7
    if count == 3:
        return digits[0] & 127 | (digits[1] & 127) << 7 | digits[2] << 14
    number = 0
    for index, digit in enumerate(digits):
        number |= (digit & 127) << 7 * index
    # What is cut off at 64 bits is no id of ours; the general way decides what it is.
    return number if count < _LONGEST else -1


def v3_add_replies(run: AddRun, code: Code) -> bytes:
    """The answers to all entries of a run, in order; the same bytes as protobuf would write."""
    status = varint(code)
    ledger = b"\x08" + status + b"\x10" + varint(run.ledger_id) + b"\x18"
    middle = b"\x10" + status + b"\xaa\x06"
    return b"".join(_replies(run.context.txns, run.first, ledger, middle))


def _replies(txns: tuple[bytes, ...], first: EntryId, ledger: bytes, middle: bytes) -> Iterator[bytes]:
    """One after another; everything but transaction and entry is the same."""
    fixed = 2 + 5 + len(middle) + 1
    for entry, txn in enumerate(txns, first):
        if 1 << 14 <= entry < 1 << 21:
            number = bytes((entry & 127 | 128, entry >> 7 & 127 | 128, entry >> 14))
        else:
            number = varint(entry)
        header, body = len(txn) + 5, len(ledger) + len(number)
        size = fixed + len(txn) + body
        yield b"%b\n%c\x08\x03\x10\x02\x18%b%b%c%b%b" % (
            size.to_bytes(4, "big"), header, txn, middle, body, ledger, number,
        )
