"""Adds of the protobuf wire in bulk: frames of the usual shape become runs without a message object each.

The usual shape is what Apache's client sends for a plain add: header (version, operation, transaction), then ledger,
entry, master key and body, and nothing else. Everything else, recovery adds and deferred sync included, is left to
`core/wire/v3.py`, which gives the same runs. The replies to runs are here, too.

Consecutive frames of a run mostly differ only in transaction, entry and body: they are compared with the frame before
them, and their replies are made by writing columns over copies of one reply.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from buckram.core.entries.entry import MIN_STORED_BYTES, entry_ids
from buckram.core.wire.adds import (
    ADD_HEADER,
    ALL_RUNS,
    HIGH_PRIORITY,
    MAX_RUN_BYTES,
    RECOVERY_ADD,
    AddContext,
    AddRun,
    frame_add,
)
from buckram.core.wire.messages import Add
from buckram.core.wire.protobuf import varint
from buckram.errors import Code
from buckram.types import Buffer, EntryId, LedgerId

_VARINT = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
USUAL_ADD = re.compile(
    rb"(....)\n(.)\x08\x03\x10\x02\x18"
    + _VARINT
    + rb"\xaa\x06"
    + _VARINT
    + rb"\x08"
    + _VARINT
    + rb"\x10"
    + _VARINT
    + rb"\x1a\x14(.{20})\x22"
    + _VARINT,
    re.DOTALL,
)
_PREFIX = struct.Struct(">II20s")
_IDS = struct.Struct(">qqq")
_LONGEST = 10
OK_REPLY = b"\x10\x00\xaa\x06"
"""What a reply of code OK has between its header and the length of its body."""
_TXN_AT = 11
"""The offset of the transaction in a reply."""
_DIGITS = bytes(range(256))
_CONTINUED = bytes(range(128, 256))


def scan_v3_adds(
    chunk: bytes, offset: int, max_frame_bytes: int, max_run_bytes: int = MAX_RUN_BYTES, most_runs: int = ALL_RUNS
) -> tuple[int, list[AddRun]]:
    """Take plain version 3 ADD frames from `offset` on. Returns the offset of the unconsumed rest, and the runs, at
    most `most_runs`.

    Stops before the first frame that is incomplete, of another shape, or malformed; the caller decides about it.
    """
    runs: list[AddRun] = []
    match, unpack = USUAL_ADD.match, _IDS.unpack_from
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
            end > size
            or length > max_packet
            or stored < MIN_STORED_BYTES
            or header_length[0] != 5 + len(txn)
            or number_of(body_length) != stored
            or number_of(message_length) != end - found.end(4)
        ):
            break
        ledger, entry, lac = unpack(chunk, start)
        if ledger < 0 or entry < 0 or number_of(entry_bytes) != entry:
            break
        if (
            run is None
            or entry != run.next
            or ledger_bytes != last_ledger
            or key != last_key
            or run.size >= max_run_bytes
        ):
            if number_of(ledger_bytes) != ledger:
                break
            if run is not None:
                runs.append(run.done())
                if len(runs) >= most_runs:
                    return offset, runs
            run, last_ledger, last_key = _Run(ledger, entry, lac, key), ledger_bytes, key
        elif ledger != run.ledger:
            break
        run.add(chunk[start:end], stored, lac, txn)
        if size - end > end - offset and entry & 127 != 127:
            end = _take_alike(chunk, run, (offset, *found.span(3), *found.span(6), start, end), max_run_bytes)
        offset = end
    if run is not None:
        runs.append(run.done())
    return offset, runs


def _take_alike(chunk: bytes, run: _Run, places: tuple[int, int, int, int, int, int, int], max_run_bytes: int) -> int:
    """Take the next frames that differ from the last one only in transaction, body, and lowest digit of the entry.

    Returns where the next frame begins.

    `places` in the chunk: of that frame, its transaction (from, to), its entry (from, to), its body, its end.
    """
    begin, txn, txn_end, digit, _, body, end = places
    middle = chunk[txn_end:digit]
    if not chunk.startswith(middle, end + txn_end - begin):
        return end  # of another ledger or size, most likely
    head, tail, stride, entry = chunk[begin:txn], chunk[digit + 1 : body], end - begin, run.next - 1
    width = txn_end - txn
    row = _row(txn - begin, width, len(middle), len(tail), end - body)
    most = min((len(chunk) - end) // stride, 127 - (entry & 127), -(-(max_run_bytes - run.size) // (end - body + 28)))
    if most <= 0:
        return end
    ledger, number, top, ids = run.ledger, chunk[digit], run.lac, _IDS.unpack_from
    bodies: list[bytes] = []
    txns: list[bytes] = []
    with memoryview(chunk) as view, view[end : end + most * stride] as rows:
        for its_head, its_txn, its_middle, its_digit, its_tail, stored in row.iter_unpack(rows):
            its_ledger, its_entry, lac = ids(stored)
            number += 1
            entry += 1
            if (
                its_digit != number
                or its_middle != middle
                or its_tail != tail
                or its_head != head
                or its_entry != entry
                or its_ledger != ledger
            ):
                break
            if lac > top:
                top = lac
            bodies.append(stored)
            txns.append(its_txn)
    good = _varints(b"".join(txns), width)
    if good < len(bodies):  # another varint than the one before, of another extent
        del bodies[good:], txns[good:]
        top = max([run.lac, *(ids(stored)[2] for stored in bodies)])
    if bodies:
        run.add_alike(bodies, top, txns)
    return end + good * stride


@lru_cache(maxsize=256)
def _row(head: int, txn: int, middle: int, tail: int, body: int) -> struct.Struct:
    """Return a struct for a frame in pieces of these sizes; the first digit of the entry is before `tail`."""
    return struct.Struct(f"{head}s{txn}s{middle}sB{tail}s{body}s")


def _varints(digits: bytes, width: int) -> int:
    """Return how many of these pieces of `width` bytes are one varint each, up to the first that is not."""
    if digits[width - 1 :: width].isascii() and not any(
        digits[place::width].translate(None, _CONTINUED) for place in range(width - 1)
    ):
        return len(digits) // width
    found = re.match(rb"(?:[\x80-\xff]{%d}[\x00-\x7f])*" % (width - 1), digits)
    return found.end() // width if found else 0


class _Run:
    """A run that grows, as v2 frames in pieces."""

    __slots__ = ("first", "key", "lac", "ledger", "next", "parts", "prefix", "size", "stored", "stride", "txns")

    def __init__(self, ledger: LedgerId, first: EntryId, lac: EntryId, key: bytes) -> None:
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

    def add_alike(self, bodies: list[bytes], lac: EntryId, txns: list[bytes]) -> None:
        """Add entries of the same size as the last one; `lac` is the greatest so far."""
        parts = [self.prefix] * (2 * len(bodies))
        parts[1::2] = bodies
        self.parts += parts
        self.txns += txns
        self.size += (self.stored + 28) * len(bodies)
        self.next += len(bodies)
        self.lac = lac

    def done(self) -> AddRun:
        context = AddContext(3, 3, tuple(self.txns))
        count = len(self.txns)
        chunk = b"".join(self.parts)
        return AddRun(chunk, 0, self.size, self.ledger, self.first, count, self.key, 0, self.lac, self.stride, context)


def number_of(digits: bytes) -> int:
    """Return the number of a varint whose length is known."""
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


def continues(before: Add, add: Add) -> bool:
    """Return whether two adds that came as messages belong to one run."""
    return (
        add.entry_id == before.entry_id + 1
        and add.ledger_id == before.ledger_id
        and add.master_key == before.master_key
        and add.recovery == before.recovery
        and add.high_priority == before.high_priority
        and add.deferred_sync == before.deferred_sync
    )


def reframe(adds: list[Add], context: AddContext) -> AddRun:
    """Return a run of consecutive adds as v2 frames, the only form that storage has."""
    first = adds[0]
    flags = (RECOVERY_ADD if first.recovery else 0) | (HIGH_PRIORITY if first.high_priority else 0)
    frames = [frame_add(add.master_key, add.body, flags) for add in adds]
    chunk = b"".join(frames)
    size = len(frames[0])
    stride = size if all(len(one) == size for one in frames) else 0
    lac = max(entry_ids(add.body)[2] for add in adds)
    return AddRun(
        chunk,
        0,
        len(chunk),
        first.ledger_id,
        first.entry_id,
        len(adds),
        first.master_key,
        flags,
        lac,
        stride,
        context,
        first.deferred_sync,
    )


def v3_add_replies(run: AddRun, code: Code) -> bytes:
    """Return the replies to all entries of a run, in order, in the same bytes as protobuf would write."""
    ledger, middle = ledger_of_replies(run.ledger_id, code), b"\x10" + varint(code) + b"\xaa\x06"
    entry, txns = run.first, run.context.txns
    blocks: list[bytes | bytearray] = []
    while txns:
        count = 128 - (entry & 127)
        blocks.append(_replies(txns[:count], entry, ledger, middle))
        entry += count
        txns = txns[count:]
    return b"".join(blocks)


def ledger_of_replies(ledger_id: LedgerId, code: Code) -> bytes:
    """Return the body of a reply to an add up to the entry's digits."""
    return b"\x08" + varint(code) + b"\x10" + varint(ledger_id) + b"\x18"


def refused_v3_replies(replies: Buffer, code: Code) -> bytes:
    """Return replies to adds of code OK with another code instead."""
    status, replies = varint(code), bytes(replies)
    blocks: list[bytes] = []
    at = 0
    while at < len(replies):
        end = at + 4 + int.from_bytes(replies[at : at + 4], "big")
        behind = at + 6 + replies[at + 5]  # the header
        ledger = b"\x08" + status + replies[behind + 7 : end]
        header = replies[at + 4 : behind]
        rest = b"%b\x10%b\xaa\x06%c%b" % (header, status, len(ledger), ledger)
        blocks += (len(rest).to_bytes(4, "big"), rest)
        at = end
    return b"".join(blocks)


def _replies(txns: tuple[bytes, ...], first: EntryId, ledger: bytes, middle: bytes) -> bytes | bytearray:
    """Return the replies to neighbours that differ in the lowest digit: copies of one, with columns overwritten."""
    width, count = len(txns[0]), len(txns)
    if count == 1:
        return v3_reply(txns[0], varint(first), ledger, middle)
    if len(set(map(len, txns))) > 1:
        return b"".join([v3_reply(txn, varint(entry), ledger, middle) for entry, txn in enumerate(txns, first)])
    number = varint(first)
    one = v3_reply(txns[0], number, ledger, middle)
    size, digits = len(one), b"".join(txns)
    block = bytearray(one * count)
    for place in range(width):
        block[_TXN_AT + place :: size] = digits[place::width]
    block[size - len(number) :: size] = _DIGITS[number[0] : number[0] + count]
    return block


def v3_reply(txn: bytes, number: bytes, ledger: bytes, middle: bytes) -> bytes:
    """Return one reply. `number`: the digits of the entry; `ledger` as of `ledger_of_replies`; `middle`: the code."""
    header, body = len(txn) + 5, len(ledger) + len(number)
    size = 2 + header + len(middle) + 1 + body
    return b"%b\n%c\x08\x03\x10\x02\x18%b%b%c%b%b" % (
        size.to_bytes(4, "big"),
        header,
        txn,
        middle,
        body,
        ledger,
        number,
    )
