"""Explicit LACs as packets: they come back however they are cut, and whatever else comes ends the connection."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buckram.core.entries.entry import Digest
from buckram.core.wire.acks import AckSink
from buckram.core.wire.adds import ack_frames
from buckram.core.wire.client_protocol import ClientProtocol
from buckram.core.wire.lacs import LAC_HEADER, encode_lac, encode_lac_reply, take_lac_replies, take_lacs
from buckram.core.wire.messages import OP_WRITE_LAC, Read, ReplyContext, WriteLac
from buckram.core.wire.server_protocol import Close, Incoming, Item, Named, Ready, ServerProtocol
from buckram.errors import BuckramError, Code
from buckram.types import DigestType, Slot

KEY = bytes(range(20))
BIRTH = bytes(range(16))
DIGESTS = [Digest(kind, b"secret") for kind in DigestType]
IDS = st.tuples(st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1), st.sampled_from(DIGESTS))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(marks)]


def told(server: ServerProtocol, chunks: list[bytes]) -> list[Item]:
    return [item for chunk in chunks for item in server.feed(chunk)]


@settings(deadline=None, max_examples=150)
@given(st.lists(IDS, min_size=1, max_size=8), st.lists(st.integers(0, 10_000), max_size=6))
def test_requests_come_back_however_they_are_cut(lacs: list[tuple[int, int, Digest]], places: list[int]) -> None:
    frames = [encode_lac(KEY, digest.seal_lac(ledger, lac)) for ledger, lac, digest in lacs]
    items = told(ServerProtocol(1 << 20), cut(b"".join(frames), places))
    assert items == [
        Incoming(
            WriteLac(ledger, lac, KEY, digest.seal_lac(ledger, lac)), ReplyContext(2, 2, OP_WRITE_LAC, ledger, lac)
        )
        for ledger, lac, digest in lacs
    ]


@settings(deadline=None, max_examples=150)
@given(st.lists(IDS, min_size=1, max_size=8), st.lists(st.integers(0, 10_000), max_size=6))
def test_replies_come_back_however_they_are_cut(lacs: list[tuple[int, int, Digest]], places: list[int]) -> None:
    client = ClientProtocol(2, 1 << 20)
    client.lacs([(None, b"")])
    code = Code.OK if len(lacs) % 2 else Code.UNAUTHORIZED
    replies = [encode_lac_reply(ReplyContext(2, 2, OP_WRITE_LAC, ledger, lac), code) for ledger, lac, _ in lacs]
    found = []
    for chunk in cut(b"".join(replies), places):
        received = client.feed(chunk)
        assert received.error is None
        found += received.lacs
    assert found == [(ledger, lac, code) for ledger, lac, _ in lacs]


def test_replies_between_those_to_adds_and_reads_cost_none_of_them() -> None:
    class Sink(AckSink):
        name: tuple[int, bytes] | None = None

        def acked(self, slot: int, bookie: str, first: int, last: int) -> None: ...

        def add_failed(self, slot: int, bookie: str, first: int, last: int, error: BuckramError) -> None: ...

    sink, client = Sink(), ClientProtocol(2, 1 << 20)
    acks = ack_frames(7, 0, 2, Code.OK, 2)
    client.adds(b"frames", acks, [(sink, Slot(0), 0, 1)], 1e9)
    client.lacs([(None, b"")])
    client.request(Read(9, 4), "token", 1e9)
    lac = encode_lac_reply(ReplyContext(2, 2, OP_WRITE_LAC, 5, 3), Code.OK)
    read = struct.pack(">IIiqq", 24, 2 << 24 | 2 << 16, Code.NO_ENTRY.v2, 9, 4)
    middle = len(acks) // 2
    received = client.feed(lac + acks[:middle] + lac + lac + acks[middle:] + read + lac)
    assert [row[0] for row in received.lacs] == [5] * 4
    assert sum(last - first + 1 for _, _, first, last, _, _ in received.acks) == 2
    assert [(token, reply.code) for token, reply in received.answers] == [("token", Code.NO_ENTRY)]
    assert client.idle


def test_the_birth_goes_ahead_once_where_the_bookie_knows_births() -> None:
    client = ClientProtocol(2, 1 << 20)
    frame = encode_lac(KEY, DIGESTS[0].seal_lac(7, 3))
    assert client.lacs([((7, BIRTH), frame)]) == frame
    client.names_ledgers = True
    items = told(ServerProtocol(1 << 20), [client.lacs([((7, BIRTH), frame)] * 2)])
    assert [type(item) for item in items] == [Named, Incoming, Incoming]
    assert items[0] == Named(7, BIRTH)


@pytest.mark.parametrize(
    "packet",
    [
        struct.pack(">I20sqq", LAC_HEADER, KEY, -1, 3),
        struct.pack(">I20sqq", LAC_HEADER, KEY, 7, -2),
        struct.pack(">I20sq", LAC_HEADER, KEY, 7),
        struct.pack(">I20sqq", LAC_HEADER, KEY, 7, 3) + bytes(21),
        struct.pack(">I20sqq", LAC_HEADER | 1, KEY, 7, 3),
    ],
)
def test_anything_else_ends_the_connection(packet: bytes) -> None:
    frame = struct.pack(">I", len(packet)) + packet
    assert take_lacs(frame, 0) == (0, [])
    items = told(ServerProtocol(1 << 20), [frame])
    assert isinstance(items[-1], Close)


def test_a_peer_that_is_not_known_may_not_send_one() -> None:
    class Login:
        plugin = "token"

    server = ServerProtocol(1 << 20, auth=Login())  # type: ignore[arg-type]
    items = told(server, [encode_lac(KEY, DIGESTS[0].seal_lac(7, 3))])
    assert [type(item) for item in items] == [Close]


def test_a_reply_that_is_none_ends_the_connection() -> None:
    client = ClientProtocol(2, 1 << 20)
    reply = encode_lac_reply(ReplyContext(2, 2, OP_WRITE_LAC, 5, 3), Code.OK)
    assert client.feed(reply).error is not None  # none was sent
    client = ClientProtocol(2, 1 << 20)
    client.lacs([(None, b"")])
    assert client.feed(struct.pack(">I", 25) + reply[4:] + b"x").error is not None
    assert take_lac_replies(reply[:-1], 0, []) == 0
    assert not [item for item in told(ServerProtocol(1 << 20), [reply]) if isinstance(item, Ready)]
