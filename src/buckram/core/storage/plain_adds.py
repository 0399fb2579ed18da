"""Takes the plain adds of a received chunk at once: checks, index records and replies without an object for each run.

What an add costs a bookie is the way of its run through a dozen calls; where runs are single entries, that is the price
of each entry. `take_adds` (v2) and `take_v3_adds` go through the frames of a chunk once. Each run of neighbours is
compared with its ledger's record, gets its index record, moves `last` and `lac` on, and its replies are laid down. The
store then logs one slice, and group commit, accounting and answers see one piece for the chunk.

A run is plain if the record alone decides that it is stored. That is so of complete ADD frames without recovery, with
the key of a ledger that is admitted, neither fenced, deleted nor in limbo, whose index is the active segment's, with
ids above its last one; nobody waits for the ledger (long polls, requests about it that wait for metadata), and neither
the connection (the birth that it named) nor a gate (`allowed`) has anything to say against it. The functions stop at
the first run that is not plain, and change nothing for it: the caller sends that run the usual way
(`bookie/service/entries/adds.py:AddPath.add`), and comes back for what is behind it. So nothing is refused, and nobody
is woken, here.

What is promised, however they end:

* A record is touched last of all: replies, reframed bytes and the index record have their memory by then. Where memory
  is short, the run is not plain. An index never names bytes that are not logged, because the caller has a slice of the
  log's block open and only moves its end (`bookie/storage/log/group_commit.py:GroupCommit.begin_slice`).
* Results are numbers in `counts`, which the caller has as well: nothing is allocated behind the last record.
* Replies say OK, and leave after the commit only. If it fails, their codes are replaced
  (`core/wire/adds.py:refused_acks`, `core/wire/adds_v3.py:refused_v3_replies`).

These are the reference of the compiled twins in `core/entries/_take_adds.c`; `taking.py` chooses. Both find the same
runs as `scan_adds` and `scan_v3_adds`, stop at the same places, and write the same bytes.

Not here: which connection and bookie may use it (`bookie/service/entries/adds.py`, `bookie/service/rate_limiter.py`,
`bookie/service/security/entry_access.py`), and who calls it in which order (`core/wire/server_protocol.py`).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

from buckram.core.entries.entry import MIN_STORED_BYTES
from buckram.core.entries.python_twins import ADD
from buckram.core.storage.segment_format import EVEN, RUN_RECORD
from buckram.core.wire.adds import ACK, ACK_BYTES, ADD_HEADER, FRAME_OVERHEAD, RECOVERY_ADD, AddRun, ack_frames
from buckram.core.wire.adds_v3 import (
    OK_REPLY,
    USUAL_ADD,
    ledger_of_replies,
    number_of,
    scan_v3_adds,
    v3_add_replies,
    v3_reply,
)
from buckram.core.wire.protobuf import varint
from buckram.errors import Code
from buckram.types import EntryId, LedgerId

OFFSET, ENTRIES, RUNS, REPLY_BYTES, STORED_BYTES = range(5)
"""Places in `counts`: where it stopped in the chunk; entries and runs that were taken; bytes of their replies, from the
beginning of `replies`; bytes of their frames as they are stored."""
COUNTS = 5

_MIN_PACKET = FRAME_OVERHEAD - 4 + MIN_STORED_BYTES
_ADD_BITS = 0xFFFF0000 | RECOVERY_ADD
_PREFIX = struct.Struct(">II20s")
_IDS = struct.Struct(">qqq")
_RUN_BYTES = RUN_RECORD.size


class RunIndex(Protocol):
    """The index of one ledger in one segment (`bookie/storage/segments/index.py:LedgerIndex`)."""

    segment: int
    last: EntryId
    runs: bytearray
    bytes: int


class AddedLedger(Protocol):
    """The record of a ledger (`bookie/storage/ledger_table.py:LedgerRecord`)."""

    master_key: bytes
    fenced: bool
    tombstone: bool
    admitted: bool
    limbo: bool
    birth: bytes
    lac: EntryId
    last: EntryId

    @property
    def active_index(self) -> RunIndex | None: ...


def _plain_index(
    record: AddedLedger | None,
    ledger_id: LedgerId,
    entry: EntryId,
    key: bytes,
    segment: int,
    named: Mapping[LedgerId, bytes],
    waiting: Mapping[LedgerId, object],
    undecided: Mapping[LedgerId, object],
    allowed: Mapping[LedgerId, bytes] | None,
) -> RunIndex | None:
    """Return the index that a run beginning with `entry` goes to; None if the run is not plain."""
    if (
        record is None
        or record.fenced
        or record.tombstone
        or not record.admitted
        or record.limbo
        or entry <= record.last
        or record.master_key != key
        or ((waiting or undecided) and (ledger_id in waiting or ledger_id in undecided))
        or (named and named.get(ledger_id, record.birth) != record.birth)
        or (allowed is not None and allowed.get(ledger_id) != named.get(ledger_id, b""))
    ):
        return None
    index = record.active_index
    return None if index is None or index.segment != segment or entry <= index.last else index


def take_adds(
    chunk: bytes,
    offset: int,
    max_packet: int,
    max_run_bytes: int,
    room: int,
    base: int,
    segment: int,
    ledgers: Mapping[LedgerId, AddedLedger],
    named: Mapping[LedgerId, bytes],
    waiting: Mapping[LedgerId, object],
    undecided: Mapping[LedgerId, object],
    allowed: Mapping[LedgerId, bytes] | None,
    replies: bytearray,
    counts: array[int],
) -> None:
    """Take v2 ADD frames from chunk[offset] on, at most `room` bytes; what was taken is in `counts`.

    The first of them is at `base` in the file of log `segment`. `ledgers`: the records in memory. `named`: births that
    the connection named. `waiting`, `undecided`: ledgers whose adds are not plain. `allowed`: ledgers that a gate lets
    pass, each with the birth that the connection has to mean (b"" if it names none); None without a gate. `replies` is
    empty. `counts` has COUNTS numbers of eight bytes.
    """
    size = min(len(chunk), offset + max(room, 0))
    stop = size - ADD.size
    begin, base = offset, base - offset
    find, pack, ack, unpack = ledgers.get, RUN_RECORD.pack, ACK.pack, ADD.unpack_from
    header = follows = run_ledger = cap = runs = entries = 0
    key = b""
    while offset <= stop:
        length, its_header, its_key, ledger_id, entry, lac = unpack(chunk, offset)
        end = offset + 4 + length
        if entry == follows and ledger_id == run_ledger and its_header == header and end <= cap and its_key == key:
            offset = _take_rest(chunk, offset, cap, max_packet, ledgers[ledger_id], replies)
            entries, key = len(replies) // ACK_BYTES, b""  # which no frame has: what is next begins a run
            continue
        if end > size or its_header & _ADD_BITS != ADD_HEADER or length < _MIN_PACKET or length > max_packet:
            break
        record = find(ledger_id)
        index = _plain_index(record, ledger_id, entry, its_key, segment, named, waiting, undecided, allowed)
        if record is None or index is None:
            break
        try:
            replies += ack(24, ADD_HEADER, 0, ledger_id, entry)
            index.runs += pack(entry, 1, EVEN, base + offset, end - offset)
        except MemoryError:
            break
        index.bytes += end - offset
        index.last = record.last = entry
        if lac > record.lac:
            record.lac = lac
        header, key, run_ledger, follows = its_header, its_key, ledger_id, entry + 1
        cap = min(size, offset + max_run_bytes)
        runs += 1
        entries += 1
        offset = end
    counts[OFFSET], counts[ENTRIES], counts[RUNS] = offset, entries, runs
    counts[REPLY_BYTES], counts[STORED_BYTES] = entries * ACK_BYTES, offset - begin


def _take_rest(chunk: bytes, offset: int, cap: int, max_packet: int, record: AddedLedger, replies: bytearray) -> int:
    """Take the frames from `offset` on that continue the run whose first frame was just taken; `cap` is where it ends
    at the latest. Returns where it ended."""
    index = record.active_index
    assert index is not None
    at, begin = len(index.runs) - _RUN_BYTES, offset
    first, _, even, _, size = RUN_RECORD.unpack_from(index.runs, at)
    run_length, header, key, ledger_id, _, _ = ADD.unpack_from(chunk, offset - size)
    entry, top, unpack, stop = first + 1, record.lac, ADD.unpack_from, cap - ADD.size
    while offset <= stop:
        length, its_header, its_key, its_ledger, its_entry, lac = unpack(chunk, offset)
        end = offset + 4 + length
        if its_entry != entry or its_ledger != ledger_id or its_header != header or end > cap or its_key != key:
            break
        if length != run_length:
            if length < _MIN_PACKET or length > max_packet:
                break
            even = 0
        if lac > top:
            top = lac
        entry += 1
        offset = end
    try:
        replies += ack_frames(ledger_id, first + 1, entry - first - 1)
    except MemoryError:
        return begin
    _lengthen(record, index, entry - first, even, offset - begin, top)
    return offset


def _lengthen(record: AddedLedger, index: RunIndex, count: int, even: int, more: int, top: EntryId) -> None:
    """Make the run that was taken last one of `count` entries and `more` bytes more; this needs no memory."""
    at = len(index.runs) - _RUN_BYTES
    first, _, _, place, size = RUN_RECORD.unpack_from(index.runs, at)
    RUN_RECORD.pack_into(index.runs, at, first, count, even, place, size + more)
    index.bytes += more
    index.last = record.last = first + count - 1
    if top > record.lac:
        record.lac = top


# -- the protobuf wire ------------------------------------------------------------------------------------------


def take_v3_adds(
    chunk: bytes,
    offset: int,
    max_packet: int,
    max_run_bytes: int,
    room: int,
    base: int,
    segment: int,
    ledgers: Mapping[LedgerId, AddedLedger],
    named: Mapping[LedgerId, bytes],
    waiting: Mapping[LedgerId, object],
    undecided: Mapping[LedgerId, object],
    allowed: Mapping[LedgerId, bytes] | None,
    replies: bytearray,
    counts: array[int],
    frames: bytearray,
) -> None:
    """Take v3 ADD frames of the usual shape, as `take_adds`; they are laid down in `frames` as v2 frames, which are
    what is stored. `frames` has as many bytes as the rest of the chunk, or `room`."""
    match, ids, find, pack, prefix = USUAL_ADD.match, _IDS.unpack_from, ledgers.get, RUN_RECORD.pack, _PREFIX.pack_into
    size, room = len(chunk), min(room, len(frames))
    last_ledger = key = b""
    follows = runs = entries = done = replied = left = 0
    while (found := match(chunk, offset)) is not None:
        head, header_length, txn, message_length, ledger_bytes, entry_bytes, its_key, body_length = found.groups()
        start = found.end()
        length = int.from_bytes(head, "big")
        end = offset + 4 + length
        stored = end - start
        framed = stored + FRAME_OVERHEAD
        if (
            end > size
            or length > max_packet
            or stored < MIN_STORED_BYTES
            or header_length[0] != 5 + len(txn)
            or _length(body_length) != stored
            or _length(message_length) != end - found.end(4)
            or done + framed > room
        ):
            break
        ledger_id, entry, lac = ids(chunk, start)
        if entry == follows and left > 0 and ledger_bytes == last_ledger and its_key == key:
            end, rest = scan_v3_adds(chunk, offset, max_packet + 4, left, 1)
            if not rest or not _take_v3_rest(rest[0], find(ledger_id), room, replies, frames, done):
                break
            done, entries, replied = done + rest[0].end, entries + rest[0].count, len(replies)
            offset, key = end, b""
            continue
        record = find(ledger_id)
        index = _plain_index(record, ledger_id, entry, its_key, segment, named, waiting, undecided, allowed)
        if record is None or index is None or number_of(entry_bytes) != entry:
            break
        digits, ledger = _ledger_parts(ledger_id)
        if digits != ledger_bytes and number_of(ledger_bytes) != ledger_id:
            break
        try:
            prefix(frames, done, framed - 4, ADD_HEADER, its_key)
            frames[done + FRAME_OVERHEAD : done + framed] = chunk[start:end]
            number = entry_bytes if len(entry_bytes) == 1 or entry_bytes[-1] else varint(entry)
            replies += v3_reply(txn, number, ledger, OK_REPLY)
            index.runs += pack(entry, 1, EVEN, base + done, framed)
        except MemoryError:
            break
        index.bytes += framed
        index.last = record.last = entry
        if lac > record.lac:
            record.lac = lac
        last_ledger, key, follows, left = ledger_bytes, its_key, entry + 1, max_run_bytes - framed
        runs += 1
        entries += 1
        done += framed
        replied = len(replies)
        offset = end
    counts[OFFSET], counts[ENTRIES], counts[RUNS] = offset, entries, runs
    counts[REPLY_BYTES], counts[STORED_BYTES] = replied, done


def _take_v3_rest(
    rest: AddRun, record: AddedLedger | None, room: int, replies: bytearray, frames: bytearray, done: int
) -> bool:
    """Add entries to the run that was taken last, all of them; return False if there is no room for them."""
    index = None if record is None else record.active_index
    if record is None or index is None or done + rest.end > room:
        return False
    size = RUN_RECORD.unpack_from(index.runs, len(index.runs) - _RUN_BYTES)[4]
    try:
        frames[done : done + rest.end] = rest.chunk
        replies += v3_add_replies(rest, Code.OK)
    except MemoryError:
        return False
    _lengthen(record, index, 1 + rest.count, EVEN if rest.stride == size else 0, rest.end, rest.lac)
    return True


@lru_cache(maxsize=4096)
def _length(digits: bytes) -> int:
    return number_of(digits)


@lru_cache(maxsize=8192)
def _ledger_parts(ledger_id: LedgerId) -> tuple[bytes, bytes]:
    """Return a ledger's id as a varint, and what replies to its adds have up to the entry."""
    return varint(ledger_id), ledger_of_replies(ledger_id, Code.OK)
