"""Pulls on the wire: what is encoded comes back, and whatever else comes is refused or closes the connection."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.client_protocol import ClientProtocol
from buckram.core.wire.frames import frame
from buckram.core.wire.located import FileExtent, Located
from buckram.core.wire.messages import OP_PULL, BadPacket, Pull, PullReply, RefusedRequest, ReplyContext
from buckram.core.wire.pulls import MAX_PULL_BYTES
from buckram.core.wire.server_protocol import Close, Incoming, Named, Ready, ServerProtocol, encode_error
from buckram.errors import Code, InvalidArgument
from buckram.types import DigestType

KEY = bytes(range(20))
EXTENTS = [FileExtent("log-1", 4096, 900, 0, 5, 3), FileExtent("log-2", 0, 400, 1, 8, 1)]
PULL = Pull(7, 5, 4, KEY, DigestType.CRC32C, "bookie-ü:3181", Located("/data", "boot 1 2", EXTENTS))
I64 = st.integers(0, 2**63 - 1)


def decoded(packet: bytes) -> Pull | RefusedRequest:
    request, context = wire_v2.decode_request(packet)
    assert context[:3] == (2, 2, OP_PULL)
    assert isinstance(request, Pull | RefusedRequest)
    return request


@settings(deadline=None, max_examples=100)
@given(I64, st.integers(0, 2**62), I64, st.text(min_size=1, max_size=40), st.text(max_size=40), st.data())
def test_requests_come_back(ledger: int, first: int, number: int, source: str, to: str, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 1000), min_size=1, max_size=5))
    extents, after = [], first
    for count in counts:
        extents.append(FileExtent(to, data.draw(I64), data.draw(st.integers(0, 1 << 18)), 3, after, count))
        after += count
    kind = data.draw(st.sampled_from(list(DigestType)))
    source = source.encode(errors="replace").decode()
    request = Pull(ledger, first, sum(counts), KEY, kind, source, Located(to, to[::-1], extents))
    found, context = wire_v2.decode_request(wire_v2.encode_request(request, number)[4:])
    assert found == request
    assert context == ReplyContext(2, 2, OP_PULL, ledger, first, number)
    assert request.size == sum(extent.length for extent in extents)


@pytest.mark.parametrize("code", [Code.OK, Code.NO_ENTRY, Code.BAD_REQUEST, Code.READ_ONLY])
def test_replies_come_back(code: Code) -> None:
    reply = PullReply(code, 7, 5, 2**31 - 1, 2**40)
    context = ReplyContext(2, 2, OP_PULL, 7, 5, 99)
    packet = wire_v2.encode_reply(context, reply)
    assert wire_v2.decode_reply(packet[4:]) == (reply, OP_PULL, 99)
    assert wire_v2.decode_reply(b"xx" + packet[4:] + b"yy", 2, len(packet) - 2) == (reply, OP_PULL, 99)
    assert wire_v2.decode_reply(encode_error(context, code)[4:]) == (PullReply(code, 7, 5), OP_PULL, 99)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(PULL, count=0),
        replace(PULL, count=-1),
        replace(PULL, count=3),
        replace(PULL, count=5),
        replace(PULL, entry_id=4),
        replace(PULL, entry_id=-1),
        replace(PULL, ledger_id=-1),
        replace(PULL, source=""),
        replace(PULL, located=Located("/data", "boot", [EXTENTS[0]._replace(entries=4, length=MAX_PULL_BYTES + 1)])),
        replace(PULL, located=Located("/data", "boot", [EXTENTS[0], EXTENTS[1]._replace(first=9)])),
        replace(PULL, located=Located("/data", "boot", [*EXTENTS, EXTENTS[1]._replace(first=9, entries=0)])),
    ],
)  # fmt: skip
def test_places_that_are_not_those_of_the_entries_are_refused(wrong: Pull) -> None:
    assert decoded(wire_v2.encode_request(wrong, 1)[4:]) == RefusedRequest(Code.BAD_REQUEST)


def test_numbers_and_texts_that_are_none_are_refused() -> None:
    packet = wire_v2.encode_request(PULL, 1)[4:]
    kind = packet.index(KEY) - 2
    assert decoded(packet[:kind] + struct.pack(">H", 77) + packet[kind + 2 :]) == RefusedRequest(Code.BAD_REQUEST)
    assert decoded(packet.replace("ü".encode(), b"\xff\xff")) == RefusedRequest(Code.BAD_REQUEST)
    at = packet.index(b"{")
    for places in (b"", b"{}", b"[]", b"\xff", b"[" * 100_000, json.dumps({"directory": 1}).encode()):
        assert decoded(packet[:at] + places) == RefusedRequest(Code.BAD_REQUEST)
    with pytest.raises(BadPacket, match="50"):
        wire_v2.decode_request(packet[:50])
    for wrong in (replace(PULL, master_key=b"short"), replace(PULL, source="x" * 70_000)):
        with pytest.raises(InvalidArgument):
            wire_v2.encode_request(wrong)
    with pytest.raises(InvalidArgument, match="use protocol 2"):
        wire_v3.encode_request(PULL, 1)


def test_a_connection_takes_requests_and_refuses_what_does_not_fit() -> None:
    client, server = ClientProtocol(2, 1 << 20), ServerProtocol(1 << 20)
    client.names_ledgers = True
    _, data = client.request(replace(PULL, birth=bytes(16)), "token", 1.0)
    named, incoming = server.feed(data)
    assert named == Named(7, bytes(16))
    assert isinstance(incoming, Incoming)
    assert incoming.request == PULL
    (ready,) = server.feed(wire_v2.encode_request(replace(PULL, count=9), 8))
    assert isinstance(ready, Ready)
    assert wire_v2.decode_reply(ready.data[4:]) == (PullReply(Code.BAD_REQUEST, 7, 5), OP_PULL, 8)
    received = client.feed(wire_v2.encode_reply(incoming.context, PullReply(Code.OK, 7, 5, 4, 1300)))
    assert received.answers == [("token", PullReply(Code.OK, 7, 5, 4, 1300))]
    (closed,) = ServerProtocol(1 << 20).feed(frame(wire_v2.encode_request(PULL, 8)[4:50]))
    assert isinstance(closed, Close)


def test_answers_that_are_none_end_the_connection() -> None:
    packet = wire_v2.encode_reply(ReplyContext(2, 2, OP_PULL, 7, 5, 1), PullReply(Code.OK, 7, 5, 4, 1300))[4:]
    for wrong in (
        packet[:-1],
        packet + b"\0",
        packet[:32] + struct.pack(">i", -1) + packet[36:],
        packet[:-8] + b"\xff" * 8,
    ):
        with pytest.raises(BadPacket):
            wire_v2.decode_reply(wrong)


def test_damaged_requests_are_answered_or_end_the_connection() -> None:
    rng = random.Random(3)
    packet = wire_v2.encode_request(PULL, 1)
    for _ in range(3000):
        damaged = bytearray(packet)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(8, len(packet))] = rng.randrange(256)
        (item,) = ServerProtocol(1 << 20).feed(bytes(damaged))
        assert isinstance(item, Incoming | Ready)
        if isinstance(item, Incoming):
            assert isinstance(item.request, Pull)
            assert item.request.size <= MAX_PULL_BYTES
