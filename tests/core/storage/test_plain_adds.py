"""Plain adds of a chunk: taken as the usual way would, alike by both twins, and never half."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.bookie.storage.ledger_table import LedgerRecord
from buckram.bookie.storage.segments.index import LedgerIndex
from buckram.core.entries import hot
from buckram.core.entries.entry import Digest
from buckram.core.storage import plain_adds, taking
from buckram.core.storage.plain_adds import COUNTS, ENTRIES, OFFSET, REPLY_BYTES, RUNS, STORED_BYTES
from buckram.core.wire.adds import AddRun, frame_add, refused_acks, scan_adds
from buckram.core.wire.adds_v3 import refused_v3_replies, scan_v3_adds
from buckram.core.wire.messages import Add
from buckram.core.wire.server_protocol import encode_add_replies
from buckram.core.wire.v3 import encode_request
from buckram.errors import Code
from buckram.types import DigestType

built = pytest.mark.skipif(not hot.COMPILED, reason="the compiled twins were not built here")
DIGEST = Digest(DigestType.CRC32C, b"")
KEY, OTHER_KEY = b"k" * 20, b"l" * 20
BIRTH, OTHER_BIRTH = b"b" * 16, b"c" * 16
SEGMENT, BASE, LIMIT = 7, 5000, 1 << 20
LEDGERS = (0, 5, 1 << 14, (1 << 40) + 3)
UNKNOWN = 99
V3 = pytest.mark.parametrize("v3", [False, True])


class World:
    """Records, and what else decides whether their adds are plain."""

    def __init__(self, spoilt: dict[str, int] | None = None, *, gate: bool = False, start: int = -1) -> None:
        spoilt = spoilt or {}
        self.records: dict[int, LedgerRecord] = {}
        for ledger in LEDGERS:
            record = LedgerRecord(ledger, KEY, admitted=True, birth=BIRTH, last=start, lac=start)
            record.active_index = LedgerIndex(SEGMENT, record)
            self.records[ledger] = record
        self.named: dict[int, bytes] = {LEDGERS[0]: BIRTH}
        self.waiting: dict[int, object] = {}
        self.undecided: dict[int, object] = {}
        self.allowed: dict[int, bytes] | None = None
        if gate:
            self.allowed = {ledger: self.named.get(ledger, b"") for ledger in LEDGERS}
        for what, ledger in spoilt.items():
            self._spoil(what, ledger)

    def _spoil(self, what: str, ledger: int) -> None:
        record = self.records[ledger]
        if what in ("fenced", "tombstone", "limbo"):
            setattr(record, what, True)
        elif what == "unadmitted":
            record.admitted = False
        elif what == "untouched":
            record.active_index = None
        elif what == "older segment":
            record.active_index = LedgerIndex(SEGMENT - 1, record)
        elif what == "polled":
            self.waiting[ledger] = object()
        elif what == "undecided":
            self.undecided[ledger] = object()
        elif what == "other birth":
            self.named[ledger] = OTHER_BIRTH
        elif what == "refused" and self.allowed is not None:
            self.allowed.pop(ledger, None)
        elif what == "allowed for another birth" and self.allowed is not None:
            self.allowed[ledger] = OTHER_BIRTH

    def is_plain(self, run: AddRun) -> bool:
        """The rule, once more, as `AddPath.add` has it, with the gate's."""
        record, name = self.records.get(run.ledger_id), self.named.get(run.ledger_id)
        return (
            record is not None
            and not (record.fenced or record.tombstone or record.limbo)
            and record.admitted
            and record.master_key == run.master_key
            and run.first > record.last
            and name in (None, record.birth)
            and run.ledger_id not in (self.waiting.keys() | self.undecided.keys())
            and record.active_index is not None
            and record.active_index.segment == SEGMENT
            and not run.recovery
            and (self.allowed is None or self.allowed.get(run.ledger_id) == (name or b""))
        )

    def insert(self, run: AddRun, place: int) -> None:
        record = self.records[run.ledger_id]
        index = record.active_index
        assert index is not None
        index.insert(run.first, run.count, place, run.end - run.start, even=run.stride > 0)
        index.bytes += run.end - run.start
        record.last, record.lac = run.last, max(record.lac, run.lac)

    def state(self) -> list[object]:
        return [
            (one.last, one.lac, one.active_index and (
                bytes(one.active_index.runs), one.active_index.last, one.active_index.bytes, one.active_index.overlay))
            for one in self.records.values()
        ]  # fmt: skip


class Taken:
    """One call: what it says, and what it laid down."""

    def __init__(
        self, world: World, twin: Any, chunk: bytes, offset: int = 0, room: int = 1 << 30, *, v3: bool,
        max_packet: int = LIMIT - 4, max_run: int = 1 << 16,
    ) -> None:  # fmt: skip
        replies, self.counts = bytearray(), array("q", bytes(8 * COUNTS))
        frames = bytearray(max(0, len(chunk) - offset))
        given = (chunk, offset, max_packet, max_run, room, BASE, SEGMENT, world.records, world.named, world.waiting)
        if v3:
            twin.take_v3_adds(*given, world.undecided, world.allowed, replies, self.counts, frames)
        else:
            twin.take_adds(*given, world.undecided, world.allowed, replies, self.counts)
        self.replies = bytes(replies[: self.counts[REPLY_BYTES]])
        stored = self.counts[STORED_BYTES]
        self.stored = bytes(frames[:stored]) if v3 else chunk[offset : self.counts[OFFSET]]
        assert len(self.stored) == stored


def usual_way(world: World, chunk: bytes, offset: int, room: int, max_packet: int, max_run: int, *, v3: bool) -> Any:
    """What the runs of the chunk do, one after the other, as far as they are plain: (offset, entries, runs, replies,
    stored bytes)."""
    if not v3:
        chunk = chunk[: offset + max(room, 0)]
    entries = runs = 0
    replies = stored = b""
    while True:
        end, found = (scan_v3_adds if v3 else scan_adds)(chunk, offset, max_packet + 4, max_run, 1)
        if not found or not world.is_plain(found[0]):
            return offset, entries, runs, replies, stored
        (run,) = found
        if v3 and len(stored) + run.end - run.start > room:
            head = run.split(1)[0] if run.count > 1 else run
            if head.end - head.start > room - len(stored):
                return offset, entries, runs, replies, stored
            end = offset + 4 + int.from_bytes(chunk[offset : offset + 4], "big")
            (run,) = scan_v3_adds(chunk[:end], offset, max_packet + 4)[1]
            room = -1
        world.insert(run, BASE + len(stored))
        replies += encode_add_replies(run)
        stored += run.chunk[run.start : run.end]
        entries, runs, offset = entries + run.count, runs + 1, end


ADDS = st.tuples(
    st.sampled_from([*LEDGERS, *LEDGERS, UNKNOWN]),
    st.sampled_from([0, 0, 0, 0, 1, -3, 120, 1 << 20]),  # from where the ledger was
    st.sampled_from([1, 1, 1, 2, 5, 30]),
    st.sampled_from([0, 1, 40, 40, 40, 300]),
    st.integers(-1, 9),
    st.sampled_from([KEY] * 12 + [OTHER_KEY]),
    st.sampled_from([0] * 12 + [2, 4, 6]),
    st.sampled_from([0] * 8 + [1]),  # the last one has another size
)
SPOILT = st.dictionaries(
    st.sampled_from([
        "fenced", "tombstone", "limbo", "unadmitted", "untouched", "older segment", "polled", "undecided",
        "other birth", "refused", "allowed for another birth",
    ]),
    st.sampled_from(LEDGERS), max_size=2,
)  # fmt: skip


@lru_cache(maxsize=10_000)
def sealed(ledger: int, entry: int, lac: int, size: int) -> bytes:
    return DIGEST.seal(ledger, entry, lac, 7, bytes(size))


def chunk_of(adds: list[Any], txn: int, *, v3: bool) -> bytes:
    frames: list[bytes] = []
    following: dict[int, int] = {}
    for ledger, gap, count, size, lac, key, flags, odd in adds:
        first = max(0, following.get(ledger, 0) + gap)
        for entry in range(first, first + count):
            body = sealed(ledger, entry, lac, size + (odd if entry == first + count - 1 else 0))
            if v3:
                txn += 1
                add = Add(ledger, entry, key, body, recovery=bool(flags & 2), high_priority=bool(flags & 4))
                frames.append(encode_request(add, txn))
            else:
                frames.append(frame_add(key, body, flags))
        following[ledger] = first + count
    return b"".join(frames)


CASES = given(
    st.lists(ADDS, max_size=8),
    SPOILT,
    st.booleans(),
    st.sampled_from([1, 120, 16_300, 1 << 33, 2**63]),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 255)), max_size=2),
    st.sampled_from([0, 0, 1, 50, 200]),
    st.sampled_from([1 << 30, 1 << 30, 0, -5, 100, 2000]),
    st.sampled_from([1 << 16, 1 << 16, 300, 1]),
    st.sampled_from([LIMIT - 4, LIMIT - 4, 90, 130]),
)


def differing(adds: list[Any], txn: int, bent: list[tuple[int, int]], cut: int, *, v3: bool) -> bytes:
    chunk = bytearray(chunk_of(adds, txn, v3=v3))
    for place, change in bent:
        if place < len(chunk):
            chunk[place] ^= change
    return bytes(chunk[: max(0, len(chunk) - cut)])


@V3
@settings(max_examples=soak(400, 80))
@CASES
def test_they_do_what_the_usual_way_does(
    v3: bool, adds: list[Any], spoilt: dict[str, int], gate: bool, txn: int, bent: list[tuple[int, int]], cut: int,
    room: int, max_run: int, max_packet: int,
) -> None:  # fmt: skip
    chunk = differing(adds, txn, bent, cut, v3=v3)
    expected, world = World(spoilt, gate=gate), World(spoilt, gate=gate)
    wanted = usual_way(expected, chunk, 0, room, max_packet, max_run, v3=v3)
    taken = Taken(world, plain_adds, chunk, room=room, v3=v3, max_run=max_run, max_packet=max_packet)
    got = taken.counts[OFFSET], taken.counts[ENTRIES], taken.counts[RUNS], taken.replies, taken.stored
    assert got == wanted
    assert world.state() == expected.state()


@built
@V3
@settings(max_examples=soak(2000, 120))
@CASES
def test_the_twins_are_alike(
    v3: bool, adds: list[Any], spoilt: dict[str, int], gate: bool, txn: int, bent: list[tuple[int, int]], cut: int,
    room: int, max_run: int, max_packet: int,
) -> None:  # fmt: skip
    chunk = differing(adds, txn, bent, cut, v3=v3)
    worlds = World(spoilt, gate=gate), World(spoilt, gate=gate)
    one, other = (
        Taken(world, twin, chunk, room=room, v3=v3, max_run=max_run, max_packet=max_packet)
        for world, twin in zip(worlds, (plain_adds, taking), strict=True)
    )
    assert (one.counts, one.replies, one.stored) == (other.counts, other.replies, other.stored)
    assert worlds[0].state() == worlds[1].state()


@built
@V3
@given(st.binary(max_size=300))
def test_anything_is_taken_alike(v3: bool, chunk: bytes) -> None:
    one, other = (Taken(World(), twin, chunk, v3=v3) for twin in (plain_adds, taking))
    assert one.counts == other.counts
    assert not one.counts[ENTRIES]


@V3
@pytest.mark.parametrize("what", [
    "fenced", "tombstone", "limbo", "unadmitted", "untouched", "older segment", "polled", "undecided", "other birth",
    "refused", "allowed for another birth",
])  # fmt: skip
def test_each_reason_stops_it_at_the_run(what: str, v3: bool) -> None:
    adds = [(ledger, 0, 1, 40, 0, KEY, 0, 0) for ledger in LEDGERS]
    chunk, one = chunk_of(adds, 500, v3=v3), chunk_of(adds[:1], 500, v3=v3)
    for twin in (plain_adds, taking):
        world = World({what: LEDGERS[1]}, gate=True)
        untouched = World({what: LEDGERS[1]}, gate=True).records[LEDGERS[1]]
        taken = Taken(world, twin, chunk, v3=v3)
        assert (taken.counts[OFFSET], taken.counts[ENTRIES]) == (len(one), 1)
        assert world.records[LEDGERS[1]].last == untouched.last


@V3
def test_an_id_that_is_not_above_the_last_stops_it(v3: bool) -> None:
    chunk = chunk_of([(5, 3, 1, 40, 0, KEY, 0, 0)], 500, v3=v3)
    for twin, (start, taken) in itertools.product((plain_adds, taking), ((3, 0), (2, 1))):
        assert Taken(World(start=start), twin, chunk, v3=v3).counts[ENTRIES] == taken


# -- what fails in the middle ---------------------------------------------------------------------------------------


class Short(bytearray):
    """A run list without memory for more."""

    def __iadd__(self, other: object) -> Any:
        raise MemoryError


def _short_of_runs(world: World, ledger: int) -> Callable[[], None]:
    """Let the index of a ledger have no memory; return what ends that."""
    index = world.records[ledger].active_index
    assert index is not None
    usual, index.runs = index.runs, Short(index.runs)
    view = memoryview(index.runs)  # which the compiled twin cannot make longer either

    def end() -> None:
        view.release()
        index.runs = usual

    return end


@V3
@pytest.mark.parametrize("twin", [plain_adds, taking], ids=["python", "chosen"])
def test_without_memory_for_its_index_a_run_is_untouched_and_the_others_are_whole(twin: Any, v3: bool) -> None:
    adds = [(ledger, 0, 1, 40, 3, KEY, 0, 0) for ledger in LEDGERS]
    chunk, before = chunk_of(adds, 500, v3=v3), chunk_of(adds[:2], 500, v3=v3)
    world, expected = World(), World()
    end = _short_of_runs(world, LEDGERS[2])
    taken = Taken(world, twin, chunk, v3=v3)
    end()
    wanted = usual_way(expected, before, 0, 1 << 30, LIMIT, 1 << 16, v3=v3)
    assert (taken.counts[OFFSET], taken.counts[ENTRIES], taken.replies) == (wanted[0], 2, wanted[3])
    assert world.state() == expected.state()
    assert taken.stored == wanted[4]


# -- replies of another code ---------------------------------------------------------------------------------------


@V3
@settings(max_examples=soak(200, 30))
@given(st.lists(ADDS, min_size=1, max_size=6), st.sampled_from([1, 120, 16_300, 1 << 33]), st.sampled_from(list(Code)))
def test_prepared_replies_get_another_code(v3: bool, adds: list[Any], txn: int, code: Code) -> None:
    chunk = chunk_of([(ledger, gap, count, 5, 0, KEY, 0, 0) for ledger, gap, count, *_ in adds], txn, v3=v3)
    _, runs = (scan_v3_adds if v3 else scan_adds)(chunk, 0, LIMIT)
    prepared = b"".join(encode_add_replies(run) for run in runs)
    refused = b"".join(encode_add_replies(run, code) for run in runs)
    assert (refused_v3_replies if v3 else refused_acks)(prepared, code) == refused
