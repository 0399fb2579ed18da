"""The client's end of a connection: which answer belongs to which request, and what is never confused."""

from __future__ import annotations

import pytest

from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.adds import ack_frames, cut_frames, frame_adds
from buckram.core.wire.client_protocol import MAX_ABANDONED, ClientProtocol, Conflict
from buckram.core.wire.messages import (
    OP_ADD,
    OP_BATCH_READ,
    OP_READ,
    Add,
    AddReply,
    BatchRead,
    BatchReadReply,
    Force,
    ForceReply,
    GetBookieInfo,
    Read,
    ReadReply,
    ReplyContext,
)
from buckram.core.wire.server_protocol import Incoming, ServerProtocol, encode_add_replies
from buckram.errors import BuckramError, Code, InvalidArgument
from buckram.types import DigestType, Slot

pytestmark = pytest.mark.usefixtures("twin")

LIMIT = 5 * 1024 * 1024
KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32C, b"")


class Sink:
    name: tuple[int, bytes] | None = None

    def acked(self, slot: Slot, bookie_id: str, first: int, last: int) -> None:
        raise AssertionError("events only")

    def add_failed(self, slot: Slot, bookie_id: str, first: int, last: int, error: BuckramError) -> None:
        raise AssertionError("events only")


def v2_read(ledger: int, entry: int, body: bytes | None = b"e" * 40, code: Code = Code.OK) -> bytes:
    return wire_v2.encode_reply(ReplyContext(2, 2, OP_READ, ledger, entry), ReadReply(code, ledger, entry, body))


def test_equal_v2_reads_are_interchangeable() -> None:
    client = ClientProtocol(2, LIMIT)
    for token in "ab":
        client.request(Read(1, 5), token, 9.0)
    assert [token for token, _ in client.feed(v2_read(1, 5)).answers] == ["a"]
    assert not client.idle
    assert client.feed(v2_read(1, 5, None, Code.NO_ENTRY)).answers == [("b", ReadReply(Code.NO_ENTRY, 1, 5))]
    assert client.idle


def test_a_fencing_read_never_shares_its_key_with_a_plain_one() -> None:
    client = ClientProtocol(2, LIMIT)
    key, _ = client.request(Read(1, 5), "plain", 9.0)
    with pytest.raises(Conflict):
        client.request(Read(1, 5, True, KEY), "fence", 9.0)
    client.request(Read(1, 6, True, KEY), "another entry", 9.0)
    # The caller gives up; the answer may still come and must not pass for the fencing one.
    client.forget(key, "plain")
    with pytest.raises(Conflict):
        client.request(Read(1, 5, True, KEY), "fence", 9.0)
    assert client.feed(v2_read(1, 5)).answers == []
    client.request(Read(1, 5, True, KEY), "fence", 9.0)
    assert [token for token, _ in client.feed(v2_read(1, 5)).answers] == ["fence"]
    with pytest.raises(Conflict):
        client.request(Read(1, 6, True, b"k" * 20), "another key", 9.0)


def test_a_timed_out_read_blocks_a_fencing_one_too() -> None:
    client = ClientProtocol(2, LIMIT)
    client.request(Read(1, 5), "plain", 1.0)
    assert client.expire(1.0).tokens == ["plain"]
    with pytest.raises(Conflict):
        client.request(Read(1, 5, True, KEY), "fence", 9.0)
    client.request(Read(1, 5), "again", 9.0)
    assert [token for token, _ in client.feed(v2_read(1, 5) * 2).answers] == ["again"]
    client.request(Read(1, 5, True, KEY), "fence", 9.0)


def test_on_v3_nothing_conflicts() -> None:
    client = ClientProtocol(3, LIMIT)
    client.request(Read(1, 5), "plain", 1.0)
    client.expire(1.0)
    client.request(Read(1, 5, True, KEY), "fence", 9.0)
    late = wire_v3.encode_reply(ReplyContext(3, 3, OP_READ, 1, 5, 1), ReadReply(Code.OK, 1, 5, b"old"))
    assert client.feed(late).answers == []
    answer = wire_v3.encode_reply(ReplyContext(3, 3, OP_READ, 1, 5, 2), ReadReply(Code.OK, 1, 5, b"new"))
    assert client.feed(answer).answers == [("fence", ReadReply(Code.OK, 1, 5, b"new"))]


def test_v3_answers_match_by_operation_too() -> None:
    client = ClientProtocol(3, LIMIT)
    client.request(Force(1), "force", 9.0)
    wrong = wire_v3.encode_reply(ReplyContext(3, 3, OP_READ, 1, 5, 1), ReadReply(Code.OK, 1, 5, b"x"))
    assert client.feed(wrong).answers == []
    assert client.give_up().tokens == ["force"]


def test_batch_reads_match_by_request_id() -> None:
    client = ClientProtocol(2, LIMIT)
    for token in "ab":
        client.request(BatchRead(1, 5, 2, 100), token, 9.0)
    reply = BatchReadReply(Code.OK, 1, 5, [b"x" * 32])
    data = wire_v2.encode_reply(ReplyContext(2, 2, OP_BATCH_READ, 1, 5, 2), reply)
    assert client.feed(data).answers == [("b", reply)]


def test_an_envelope_becomes_the_reply_of_the_operation() -> None:
    client = ClientProtocol(3, LIMIT)
    client.request(Force(7), "force", 9.0)
    data = bytes.fromhex("0000000b0a060803100a180110f603")
    assert client.feed(data).answers == [("force", ForceReply(Code.UNAUTHORIZED, 7))]


def test_ok_without_the_entry_is_no_ok() -> None:
    client = ClientProtocol(3, LIMIT)
    client.request(Read(7, 3), "read", 9.0)
    client.request(Read(7, -1, previous_lac=3), "poll", 9.0)
    frames = [wire_v3.encode_reply(ReplyContext(3, 3, OP_READ, 7, 3, txn), ReadReply(Code.OK, 7, 3)) for txn in (1, 2)]
    assert client.feed(b"".join(frames)).answers == [
        ("read", ReadReply(Code.IO_ERROR, 7, 3)),
        ("poll", ReadReply(Code.OK, 7, 3)),
    ]


@pytest.mark.parametrize("version", [2, 3])
def test_a_lane_against_a_real_server_end(version: int) -> None:
    client, server, sink = ClientProtocol(version, LIMIT), ServerProtocol(LIMIT), Sink()
    frames, acks, _ = frame_adds(DIGEST, KEY, 7, 0, -1, 0, [b"%d" % i for i in range(20)])
    runs = [(sink, 1, 0, 9), (sink, 2, 10, 19)]
    sent = client.adds(frames, acks, runs, 9.0)
    client.request(Read(7, 3), "read", 9.0)
    answers = b""
    for run in server.feed(sent):
        assert not isinstance(run, Incoming)
        answers += encode_add_replies(run)  # type: ignore[arg-type]  # only adds were sent
    received = [client.feed(answers[i : i + 33]) for i in range(0, len(answers), 33)]
    events = [event for one in received for event in one.acks]
    assert all(event[4] is Code.OK for event in events)
    said = [(slot, entry) for _, slot, first, last, _, _ in events for entry in range(first, last + 1)]
    assert said == [(1, e) for e in range(10)] + [(2, e) for e in range(10, 20)]
    assert client.give_up().tokens == ["read"]
    assert client.idle


def test_v3_lane_errors_and_timeouts() -> None:
    client, sink = ClientProtocol(3, LIMIT), Sink()
    frames, acks, _ = frame_adds(DIGEST, KEY, 7, 0, -1, 0, [b"x"] * 3, 2)
    data = client.adds(frames, acks, [(sink, 1, 0, 2)], 2.0)
    request = wire_v3.decode_request(data[4 : 4 + int.from_bytes(data[:4], "big")])
    assert request is not None
    assert request[0] == Add(7, 0, KEY, cut_frames(frames)[0][28:], recovery=True, high_priority=True)
    reply = wire_v3.encode_reply(ReplyContext(3, 3, OP_ADD, 7, 1, 2), AddReply(Code.FENCED, 7, 1))
    assert client.feed(reply).acks == [(sink, 1, 1, 1, Code.FENCED, 7)]
    assert client.expire(1.9).acks == []
    assert client.expire(2.0).acks == [(sink, 1, 0, 0, None, 7), (sink, 1, 2, 2, None, 7)]
    assert client.idle


def test_deferred_sync_travels_only_on_v3() -> None:
    client = ClientProtocol(3, LIMIT)
    frames, acks, _ = frame_adds(DIGEST, KEY, 7, 0, -1, 0, [b"x"])
    decoded = wire_v3.decode_request(client.adds(frames, acks, [(Sink(), 0, 0, 0)], 2.0, True)[4:])
    assert decoded is not None
    assert isinstance(decoded[0], Add)
    assert decoded[0].deferred_sync


def test_answers_before_bad_bytes_are_not_lost() -> None:
    client, sink = ClientProtocol(2, LIMIT), Sink()
    client.adds(b"", ack_frames(7, 0, 2), [(sink, 0, 0, 1)], 9.0)
    client.request(Read(7, 1), "read", 9.0)
    received = client.feed(ack_frames(7, 0, 1) + v2_read(7, 1) + b"\xff\xff\xff\xff")
    assert received.acks == [(sink, 0, 0, 0, Code.OK, -1)]
    assert [token for token, _ in received.answers] == ["read"]
    assert received.error is not None
    assert "limit" in received.error


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (2, b"\0\0\0\4\2\x09\0\0"),
        (2, bytes(4)),
        (2, b"\0\0\0\6\2\2\0\0\0\0"),
        (3, b"\0\0\0\2\xff\xff"),
        (3, bytes(4)),
    ],
)
def test_undecodable_answers(version: int, data: bytes) -> None:
    assert ClientProtocol(version, LIMIT).feed(data).error is not None


def test_too_many_lost_answers_are_noticed() -> None:
    client = ClientProtocol(2, LIMIT)
    for entry in range(MAX_ABANDONED + 1):
        client.request(Read(1, entry), entry, 1.0)
    assert not client.overgrown
    assert len(client.expire(1.0).tokens) == MAX_ABANDONED + 1
    assert client.overgrown
    client.feed(v2_read(1, 0))
    assert not client.overgrown


def test_requests_that_the_wire_lacks() -> None:
    for version, request in ((3, BatchRead(1, 1, 1, 1)), (2, Force(1)), (2, GetBookieInfo())):
        with pytest.raises(InvalidArgument, match="protocol"):
            ClientProtocol(version, LIMIT).request(request, "x", 1.0)
    for version in (2, 3):
        with pytest.raises(InvalidArgument, match="64 bits"):
            ClientProtocol(version, LIMIT).request(Read(2**63, 1), "x", 1.0)
    with pytest.raises(InvalidArgument, match="long poll"):
        ClientProtocol(2, LIMIT).request(Read(1, -1, previous_lac=3), "x", 1.0)


@pytest.mark.parametrize("version", [2, 3])
def test_an_add_has_time_while_those_before_it_are_answered(version: int) -> None:
    """A bookie that holds adds back answers them in their order; one that skips an add has lost it."""
    client, sink = ClientProtocol(version, LIMIT), Sink()
    bookie = ServerProtocol(LIMIT)
    answers = []
    for entry in range(4):
        data, acks, _ = frame_adds(DIGEST, KEY, 7, entry, entry - 1, entry, [b"x"])
        sent = client.adds(data, acks, [(sink, Slot(0), entry, entry)], 5.0 + entry / 10)
        answers += [encode_add_replies(item) for item in bookie.feed(sent)]  # type: ignore[arg-type]
    assert client.feed(answers[0]).acks
    assert client.expire(6.0, 5.0).acks == []
    assert client.feed(answers[1]).acks
    assert client.expire(10.0, 5.0).acks == []
    assert client.feed(answers[3]).acks
    overdue = client.expire(10.5, 5.0).acks
    assert [(event[2], event[3], event[4]) for event in overdue] == [(2, 2, None)]
    assert client.idle


def test_an_add_is_given_up_when_nothing_is_answered_any_more() -> None:
    client, sink = ClientProtocol(2, LIMIT), Sink()
    data, acks, _ = frame_adds(DIGEST, KEY, 7, 0, -1, 0, [b"x"] * 3)
    client.adds(data, acks, [(sink, Slot(0), 0, 2)], 5.0)
    assert client.feed(acks[:28]).acks
    assert client.expire(5.5, 5.0).acks == []
    overdue = client.expire(10.6, 5.0).acks
    assert [(event[2], event[3], event[4]) for event in overdue] == [(1, 2, None)]
