"""Adds of the protobuf wire in bulk: the same runs and answers as message by message."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from buckram.core.entries.entry import Digest
from buckram.core.wire import adds_v3
from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.core.wire import server_protocol as protocol
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.adds import AddContext, AddRun
from buckram.core.wire.adds_v3 import scan_v3_adds
from buckram.core.wire.messages import Add, AddReply
from buckram.core.wire.protobuf import varint
from buckram.core.wire.server_protocol import OP_ADD, ReplyContext, ServerProtocol, encode_add_replies
from buckram.errors import Code
from buckram.types import DigestType

LIMIT = 1 << 20
KEYS = (bytes(20), bytes(range(20)))
DIGEST = Digest(DigestType.CRC32C, b"")
EDGES = [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 2**31, 2**62]


def request(ledger: int, entry: int, lac: int, size: int, key: bytes = KEYS[0], *, recovery: bool = False) -> Add:
    return Add(ledger, entry, key, DIGEST.seal(ledger, entry, lac, 7, bytes(size)), recovery)


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[Add, int]]:
    found: list[tuple[Add, int]] = []
    entry = draw(st.sampled_from(EDGES))
    for _ in range(draw(st.integers(1, 12))):
        entry = draw(st.sampled_from([entry + 1, entry + 1, entry + 1, entry, draw(st.sampled_from(EDGES))]))
        one = request(
            draw(st.sampled_from([1, 1, 1, 300, 2**40])), entry, draw(st.integers(-1, entry)),
            draw(st.sampled_from([0, 5, 5, 90, 20_000])), draw(st.sampled_from([KEYS[0], KEYS[0], KEYS[1]])),
            recovery=draw(st.integers(0, 9)) == 0,
        )  # fmt: skip
        found.append((one, draw(st.sampled_from([*EDGES, 2**63, 2**64 - 1]))))
    return found


def run_of(server: ServerProtocol, data: bytes, cuts: list[int]) -> list[AddRun]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    items = [item for a, b in itertools.pairwise(edges) for item in server.feed(data[a:b])]
    assert all(isinstance(item, AddRun) for item in items), items
    return [item for item in items if isinstance(item, AddRun)]


def entries(runs: list[AddRun]) -> list[tuple[object, ...]]:
    """What the runs say, however they are cut."""
    found: list[tuple[object, ...]] = []
    for run in runs:
        assert run.end - run.start == len(run.chunk)
        offset = 0
        for n in range(run.count):
            end = offset + 4 + int.from_bytes(run.chunk[offset : offset + 4], "big")
            found.append((run.ledger_id, run.first + n, run.chunk[offset:end], run.context.txns[n], run.flags))
            assert not run.stride or end - offset == run.stride
            offset = end
        assert offset == run.end
    return found


@given(streams(), st.lists(st.integers(0, 1 << 20), max_size=3))
def test_it_finds_what_the_general_way_finds(stream: list[tuple[Add, int]], cuts: list[int]) -> None:
    data = b"".join(wire_v3.encode_request(one, txn) for one, txn in stream)
    fast = run_of(ServerProtocol(LIMIT), data, cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "scan_v3_adds", lambda buffer, offset, *_: (offset, []))
        slow = run_of(ServerProtocol(LIMIT), data, cuts)
    assert entries(fast) == entries(slow)
    if not cuts:
        assert fast == slow


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Many frames that hardly differ, in ledgers that take turns, with a byte or two changed somewhere."""
    first, txn = draw(st.sampled_from([0, 100, 16_300, 2_097_000])), draw(st.sampled_from([1, 100, 16_300, 2_097_000]))
    size, step, turns = draw(st.sampled_from([5, 90, 1024])), draw(st.integers(1, 3)), draw(st.sampled_from([7, 300]))
    lacs = draw(st.lists(st.integers(-1, 9), min_size=1, max_size=5))
    frames = [
        wire_v3.encode_request(request(1 + n // turns % 2, first + n, lacs[n % len(lacs)], size), txn + step * n)
        for n in range(draw(st.integers(2, 300)))
    ]
    data = bytearray(b"".join(frames))
    for _ in range(draw(st.integers(0, 2))):
        # Before the body most of the time: that is where the shape is.
        at = draw(st.integers(0, len(frames) - 1)) * len(frames[0]) + draw(st.integers(4, 90))
        data[at % len(data)] = draw(st.integers(0, 255))
    return bytes(data)


def said(server: ServerProtocol, data: bytes) -> list[tuple[object, ...]]:
    """What it makes of the data, entry by entry, whatever the runs."""
    found: list[tuple[object, ...]] = []
    for item in server.feed(data):
        if isinstance(item, AddRun):
            assert not item.stride or item.stride * item.count == item.end
            found += [(*one, item.lac if item.count == 1 else None) for one in entries([item])]
        else:
            found.append((item,))
    return found


def numbered(found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Without LACs, transaction ids as numbers: some are given back as they came, though a byte longer than need be."""
    number = adds_v3.number_of
    return [
        tuple(number(part) if place == 3 and isinstance(part, bytes) else part for place, part in enumerate(one[:-1]))
        for one in found
    ]


LONG_TXN = [
    bytes.fromhex("00000052") + b"\n\x08\x08\x03\x10\x02\x18" + txn + b"\xaa\x06E\x08\x01\x10" + number
    + b"\x1a\x14" + bytes(20) + b'")' + bytes(7) + b"\x01" + bytes(7) + number + bytes(15) + b"\x07" + bytes(9)
    for txn, number in ((b"\xe8\xfe\x00", b"\x00"), (b"\xe9\xfe\x7f", b"\x01"))
]  # fmt: skip


@given(rows())
@example(b"".join(LONG_TXN))
def test_rows_of_frames_are_taken_as_one_by_one(data: bytes) -> None:
    fast, again = said(ServerProtocol(LIMIT), data), ServerProtocol(LIMIT).feed(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adds_v3, "_take_alike", lambda chunk, run, places, most: places[-1])
        assert again == ServerProtocol(LIMIT).feed(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "scan_v3_adds", lambda buffer, offset, *_: (offset, []))
        assert numbered(fast) == numbered(said(ServerProtocol(LIMIT), data))


@given(
    st.sampled_from([0, 1, 100, 16_300, 2_097_000, 2**62]), st.sampled_from([1, 100, 16_300, 2_097_000, 2**63]),
    st.integers(1, 3), st.integers(1, 300),
)  # fmt: skip
def test_the_answers_to_long_runs(first: int, txn: int, step: int, count: int) -> None:
    txns = [txn + step * n for n in range(count)]
    run = AddRun(b"", 0, 0, 300, first, count, KEYS[0], 0, -1, 0, AddContext(3, 3, tuple(map(varint, txns))))
    assert encode_add_replies(run, Code.OK) == b"".join(
        wire_v3.encode_reply(ReplyContext(3, 3, OP_ADD, 300, entry, number), AddReply(Code.OK, 300, entry))
        for entry, number in enumerate(txns, first)
    )


@given(streams(), st.sampled_from([Code.OK, Code.FENCED, Code.IO_ERROR, Code.TOO_MANY_REQUESTS, Code.READ_ONLY]))
def test_the_answers_are_those_of_protobuf(stream: list[tuple[Add, int]], code: Code) -> None:
    for run in run_of(ServerProtocol(LIMIT), b"".join(wire_v3.encode_request(*one) for one in stream), []):
        txns = [pb.BKPacketHeader.FromString(b"\x08\x03\x10\x02\x18" + txn).txnId for txn in run.context.txns]
        assert encode_add_replies(run, code) == b"".join(
            wire_v3.encode_reply(
                ReplyContext(3, 3, OP_ADD, run.ledger_id, entry, txn), AddReply(code, run.ledger_id, entry)
            )
            for entry, txn in enumerate(txns, run.first)
        )


@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 20))
def test_a_changed_byte_is_left_to_the_general_way_or_changes_a_value(at: int, byte: int, spare: int) -> None:
    """Never an error, never a frame beyond the chunk, never ids that differ from those in the stored entry."""
    data = bytearray(wire_v3.encode_request(request(300, 20_000, 5, 30), 77) + bytes(spare))
    data[at % len(data)] = byte
    offset, runs = scan_v3_adds(bytes(data), 0, LIMIT)
    assert offset <= len(data)
    for run in runs:
        stored = run.chunk[28:]
        assert (run.ledger_id, run.first) == (int.from_bytes(stored[:8], "big"), int.from_bytes(stored[8:16], "big"))
        whole = pb.Request.FromString(bytes(data[4:offset]))
        assert (whole.addRequest.ledgerId, whole.addRequest.entryId) == (run.ledger_id, run.first)
        assert whole.addRequest.body == stored


def test_what_has_more_fields_is_not_of_the_usual_shape() -> None:
    message = pb.Request.FromString(wire_v3.encode_request(request(1, 2, 1, 9), 5)[4:])
    message.addRequest.writeFlags = 1
    data = message.SerializeToString()
    assert scan_v3_adds(len(data).to_bytes(4, "big") + data, 0, LIMIT) == (0, [])


@pytest.mark.parametrize(("room", "taken"), [(-1, 0), (0, 1)])
def test_a_frame_at_the_limit(room: int, taken: int) -> None:
    data = wire_v3.encode_request(request(1, 2, 1, 9), 5)
    _, runs = scan_v3_adds(data, 0, len(data) + room)
    assert len(runs) == taken
