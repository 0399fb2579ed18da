"""Runs of adds on the bookie, and the matching of their answers on the client."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.core.entries.entry import Digest, master_key
from buckram.core.entries.packed import PackedBodies
from buckram.core.wire.acks import AckEvent, AckMatcher
from buckram.core.wire.adds import (
    HIGH_PRIORITY,
    RECOVERY_ADD,
    ack_frames,
    frame_add,
    frame_adds,
    frame_copies,
    scan_adds,
)
from buckram.errors import BuckramError, Code
from buckram.types import DigestType, Slot

pytestmark = pytest.mark.usefixtures("twin")

DIGEST = Digest(DigestType.CRC32C, b"")
KEY = master_key(b"")
LIMIT = 5 * 1024 * 1024


def adds(ledger: int, first: int, count: int, size: int = 10, lac: int = -1, flags: int = 0) -> bytes:
    return frame_adds(DIGEST, KEY, ledger, first, lac, 0, [bytes(size)] * count, flags)[0]


def test_consecutive_ids_of_one_ledger_are_one_run() -> None:
    chunk = adds(7, 5, 3, lac=4) + adds(7, 8, 2, lac=6) + adds(8, 0, 1) + adds(8, 2, 1) + adds(8, 3, 1, flags=6)
    offset, runs = scan_adds(chunk, 0, LIMIT)
    assert offset == len(chunk)
    assert [(r.ledger_id, r.first, r.count, r.lac, r.flags) for r in runs] == [
        (7, 5, 5, 6, 0),
        (8, 0, 1, -1, 0),
        (8, 2, 1, -1, 0),
        (8, 3, 1, -1, 6),
    ]
    assert all(run.master_key == KEY and run.stride == 74 for run in runs)
    assert b"".join(chunk[run.start : run.end] for run in runs) == chunk
    assert (runs[0].last, runs[3].recovery, runs[3].high_priority) == (9, True, True)


def test_a_run_ends_where_the_key_changes_and_at_its_size_limit() -> None:
    other = frame_add(b"k" * 20, DIGEST.seal(7, 1, -1, 1, b"x"))
    _, runs = scan_adds(adds(7, 0, 1) + other, 0, LIMIT)
    assert [run.count for run in runs] == [1, 1]
    chunk = adds(7, 0, 10, size=1000)
    _, runs = scan_adds(chunk, 0, LIMIT, 2200)
    assert [(run.first, run.count) for run in runs] == [(0, 2), (2, 2), (4, 2), (6, 2), (8, 2)]
    _, runs = scan_adds(chunk, 0, LIMIT, 100)
    assert [run.count for run in runs] == [1] * 10


def test_a_detached_run_is_the_same_without_its_chunk() -> None:
    chunk = adds(7, 0, 3) + adds(8, 0, 2)
    _, runs = scan_adds(chunk, 0, LIMIT)
    alone = runs[1].detached()
    assert alone.chunk == adds(8, 0, 2)
    assert (alone.start, alone.end, alone.ledger_id, alone.first, alone.count) == (0, len(alone.chunk), 8, 0, 2)
    assert alone.detached() is alone


def test_frames_of_different_sizes_have_no_stride_and_the_greatest_lac_counts() -> None:
    chunk = adds(7, 0, 1, size=5, lac=9) + adds(7, 1, 1, size=6, lac=3)
    _, runs = scan_adds(chunk, 0, LIMIT)
    assert [(run.count, run.stride, run.lac) for run in runs] == [(2, 0, 9)]


@pytest.mark.parametrize("cut", [1, 3, 4, 27, 51, 52, 73])
def test_an_incomplete_frame_is_left(cut: int) -> None:
    chunk = adds(7, 0, 3)
    offset, runs = scan_adds(chunk[: 148 + cut], 0, LIMIT)
    assert (offset, [run.count for run in runs]) == (148, [2])


def test_what_is_not_a_plain_add_is_left_to_others() -> None:
    good = adds(7, 0, 2)
    stored = DIGEST.seal(7, 2, -1, 1, b"x")
    for other in (
        b"\0\0\0\x14\2\2\0\0" + bytes(60),  # a read
        frame_add(KEY, stored).replace(b"\2\1\0\0", b"\1\1\0\0", 1),  # version 1
        frame_add(KEY, stored[:23]) + bytes(60),  # too short for a LAC
        frame_add(KEY, DIGEST.seal(7, -1, -1, 1, b"x")),  # negative entry id
        frame_add(KEY, DIGEST.seal(-7, 1, -1, 1, b"x")),  # negative ledger id
    ):
        offset, runs = scan_adds(good + other, 0, LIMIT)
        assert (offset, [run.count for run in runs]) == (len(good), [2])
    offset, runs = scan_adds(good, 0, 60)
    assert (offset, runs) == (0, [])


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**62), st.integers(1, 600), st.sampled_from(list(Code)))
@settings(max_examples=60)
def test_acks_of_a_run_are_the_acks_of_its_entries(ledger: int, first: int, count: int, code: Code) -> None:
    one_by_one = b"".join(ack_frames(ledger, first + i, 1, code) for i in range(count))
    assert ack_frames(ledger, first, count, code) == one_by_one


class Sink:
    """Counts what was said of each entry."""

    name: tuple[int, bytes] | None = None

    def __init__(self, ledger: int) -> None:
        self.ledger = ledger
        self.said: dict[tuple[int, int], list[Code | None]] = {}

    def acked(self, slot: Slot, bookie_id: str, first: int, last: int) -> None:
        raise AssertionError("the matcher only reports events")

    def add_failed(self, slot: Slot, bookie_id: str, first: int, last: int, error: BuckramError) -> None:
        raise AssertionError("the matcher only reports events")


def note(events: list[AckEvent]) -> None:
    for sink, slot, first, last, code, ledger in events:
        assert isinstance(sink, Sink)
        assert first <= last
        assert ledger == (-1 if code is Code.OK else sink.ledger)
        for entry in range(first, last + 1):
            sink.said.setdefault((slot, entry), []).append(code)
    events.clear()


def test_whole_batches_in_order() -> None:
    matcher, sink, events = AckMatcher(), Sink(7), list[AckEvent]()
    for i in range(3):
        matcher.expect(ack_frames(7, i * 10, 10), [(sink, 1, i * 10, i * 10 + 9)], 1.0)
    stream = ack_frames(7, 0, 30)
    assert matcher.take(stream[:500], 0, events) == 17 * 28
    assert matcher.take(stream, 17 * 28, events) == len(stream)
    assert events == [(sink, 1, 0, 29, Code.OK, -1)]
    assert matcher.idle


def test_another_packet_between_acks_keeps_the_order() -> None:
    matcher, sink, events = AckMatcher(), Sink(7), list[AckEvent]()
    matcher.expect(ack_frames(7, 0, 10), [(sink, 0, 0, 9)], 1.0)
    read = b"\0\0\0\x18\2\2\0\0" + bytes(20)
    stream = ack_frames(7, 0, 4) + read + ack_frames(7, 4, 6)
    offset = matcher.take(stream, 0, events)
    assert offset == 4 * 28
    assert matcher.take(stream, offset + 28, events) == len(stream)
    note(events)
    assert sink.said == {(0, entry): [Code.OK] for entry in range(10)}


def test_an_error_in_the_middle_and_an_unknown_answer() -> None:
    matcher, sink, events = AckMatcher(), Sink(7), list[AckEvent]()
    matcher.expect(ack_frames(7, 0, 6), [(sink, 0, 0, 5)], 1.0)
    stream = ack_frames(7, 0, 2) + ack_frames(7, 2, 2, Code.FENCED) + ack_frames(7, 4, 2)
    assert matcher.take(stream, 0, events) == len(stream)
    assert events == [(sink, 0, 0, 1, Code.OK, -1), (sink, 0, 2, 3, Code.FENCED, 7), (sink, 0, 4, 5, Code.OK, -1)]
    assert matcher.take(stream, 0, []) == 0
    assert matcher.idle


def test_overdue_adds_are_given_up_once_and_late_answers_are_unknown() -> None:
    matcher, sink, events = AckMatcher(), Sink(7), list[AckEvent]()
    matcher.expect(ack_frames(7, 0, 4), [(sink, 0, 0, 3)], 1.0)
    matcher.expect(ack_frames(7, 4, 4), [(sink, 0, 4, 7)], 2.0)
    matcher.take(ack_frames(7, 0, 2), 0, events)
    note(events)
    assert matcher.expire(0.9) == []
    note(matcher.expire(1.0))
    assert matcher.expire(1.5) == []
    assert matcher.take(ack_frames(7, 2, 2), 0, events) == 0
    assert matcher.take(ack_frames(7, 4, 4), 0, events) == 4 * 28
    note(events)
    assert matcher.idle
    assert sink.said == {(0, e): [None if e in (2, 3) else Code.OK] for e in range(8)}


@given(st.randoms(use_true_random=False))
@settings(max_examples=soak(150, 60), deadline=None)
def test_any_order_and_any_chunking_report_every_entry_once(rng: random.Random) -> None:
    matcher, events = AckMatcher(), list[AckEvent]()
    sinks = [Sink(ledger) for ledger in range(rng.randint(1, 4))]
    next_id = [0] * len(sinks)
    expected: dict[tuple[int, int, int], Code | None] = {}
    answers: list[tuple[int, int, Code]] = []
    pending = b""

    def answer(amount: int) -> None:
        nonlocal pending
        for _ in range(min(amount, len(answers))):
            ledger, entry, code = answers.pop(0)
            pending += ack_frames(ledger, entry, 1, code)
        cut = rng.randint(0, len(pending))
        taken = matcher.take(pending[:cut], 0, events)
        assert cut - taken < 28
        pending = pending[taken:]
        note(events)

    for _ in range(rng.randint(1, 12)):
        acks, runs = b"", []
        for _ in range(rng.randint(1, 4)):
            ledger, count = rng.randrange(len(sinks)), rng.randint(1, 6)
            first = next_id[ledger]
            next_id[ledger] += count
            acks += ack_frames(ledger, first, count)
            runs.append((sinks[ledger], ledger, first, first + count - 1))
            for entry in range(first, first + count):
                code = Code.OK if rng.random() < 0.8 else rng.choice([Code.FENCED, Code.IO_ERROR, Code.READ_ONLY])
                expected[ledger, ledger, entry] = code
                at = len(answers) if rng.random() < 0.7 else rng.randint(0, len(answers))
                answers.insert(at, (ledger, entry, code))
        matcher.expect(acks, runs, 5.0)
        answer(rng.randint(0, 8))
    if rng.random() < 0.3:
        while answers:
            ledger, entry, _ = answers.pop()
            expected[ledger, ledger, entry] = None
        assert matcher.take(pending, 0, events) == len(pending)
        note(events)
        note(matcher.give_up())
    else:
        while answers:
            answer(len(answers))
        assert matcher.take(pending, 0, events) == len(pending)
        note(events)
    assert matcher.idle
    said = {(s.ledger, slot, entry): codes for s in sinks for (slot, entry), codes in s.said.items()}
    assert said == {key: [code] for key, code in expected.items()}


@pytest.mark.parametrize("sizes", [[10] * 700, [10, 11, 10], [0], [0, 0]])
@pytest.mark.parametrize("cut", [slice(None), slice(1, None), slice(0, -1)])
def test_copies_get_new_headers_and_are_the_same_entries(sizes: list[int], cut: slice) -> None:
    payloads = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    stored = [DIGEST.seal(7, n, n - 1, 0, payload) for n, payload in enumerate(payloads)]
    packet = b"before" + b"".join(frame_add(master_key(b"old"), body, 1) for body in stored)
    packed = PackedBodies.parse_frames(packet, len(b"before"))
    assert packed is not None
    wanted = b"".join(frame_add(KEY, body, RECOVERY_ADD | HIGH_PRIORITY) for body in stored[cut])
    assert frame_copies(KEY, packed[cut]) == wanted
    assert frame_copies(KEY, stored[cut]) == wanted


@pytest.mark.parametrize("sizes", [[10] * 6, [10, 20, 5, 5, 300, 1]])
@pytest.mark.parametrize("txns", [(), tuple(bytes([number]) for number in range(6))])
def test_a_run_in_two_parts_is_the_run(sizes: list[int], txns: tuple[bytes, ...]) -> None:
    data, _, _ = frame_adds(Digest(DigestType.CRC32C, b""), b"k" * 20, 7, 3, 2, 0, [b"x" * size for size in sizes])
    _, (run,) = scan_adds(b"before" + data + b"behind", 6, 1 << 20)
    run = replace(run, context=run.context._replace(txns=txns))
    for count in range(1, 6):
        head, tail = run.split(count)
        assert head.chunk[head.start : head.end] + tail.chunk[tail.start : tail.end] == data
        assert (head.first, head.count, tail.first, tail.count) == (3, count, 3 + count, 6 - count)
        assert head.context.txns + tail.context.txns == txns
        assert len(head.context.txns) == (count if txns else 0)
        assert head.lac == tail.lac == run.lac
        assert scan_adds(head.chunk, head.start, 1 << 20)[1][0].last >= head.last
