"""Arbitrary and damaged frames: only documented outcomes, and never more memory than a frame and a chunk.

A fixed number of frames by default; `make soak` runs more than a million.
"""

from __future__ import annotations

import contextlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.soak import soak

from buckram.core.entries.entry import Digest, entry_ids, master_key
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.adds import AddRun, walk_frames
from buckram.core.wire.client_protocol import ClientProtocol
from buckram.core.wire.frames import frame
from buckram.core.wire.located import FileExtent, Located
from buckram.core.wire.messages import (
    OP_BATCH_READ,
    Add,
    AddReply,
    Auth,
    AuthReply,
    BadPacket,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    Force,
    ForceReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    LocatedReply,
    Read,
    ReadLac,
    ReadLacReply,
    ReadReply,
    Reply,
    ReplyContext,
    Request,
    StartTls,
    StartTlsReply,
    WriteLac,
    WriteLacReply,
)
from buckram.core.wire.server_protocol import (
    AuthStep,
    BeginTls,
    Close,
    Incoming,
    Ready,
    ServerProtocol,
    StrangersKeyPacket,
    encode_add_replies,
    encode_error,
)
from buckram.errors import Code
from buckram.types import DigestType

FRAMES = soak(1_050_000, 100_000)
LIMIT = 2000
I64 = st.integers(0, 2**63 - 1)
ENTRY = st.integers(-1, 2**63 - 1)
KEYS = st.binary(min_size=20, max_size=20)
BYTES = st.binary(max_size=80)
CODES = st.sampled_from(list(Code))
DIGEST = Digest(DigestType.CRC32C, b"")


@st.composite
def add_requests(draw: st.DrawFn) -> Add:
    ledger, entry = draw(I64), draw(I64)
    body = DIGEST.seal(ledger, entry, draw(ENTRY), draw(I64), draw(BYTES))
    recovery = draw(st.booleans())
    return Add(ledger, entry, draw(KEYS), body, recovery, draw(st.booleans()), draw(st.booleans()) and not recovery)


@st.composite
def lac_writes(draw: st.DrawFn) -> WriteLac:
    ledger, lac = draw(I64), draw(ENTRY)
    return WriteLac(ledger, lac, draw(KEYS), DIGEST.seal_lac(ledger, lac))


# Of a named tuple `builds` would make up the fields that are left out.
FENCES = st.tuples(I64, ENTRY, st.just(True), KEYS, st.booleans()).map(lambda fields: Read(*fields))
PLAIN_READS = st.tuples(I64, ENTRY, st.booleans()).map(lambda drawn: Read(*drawn[:2], high_priority=drawn[2]))
POLLS = st.fixed_dictionaries(
    {
        "ledger_id": I64,
        "entry_id": ENTRY,
        "previous_lac": ENTRY,
        "timeout_ms": st.none() | st.integers(0, 10**6),
        "piggyback": st.booleans(),
    }
).map(lambda fields: Read(**fields))
BATCHES = st.builds(
    BatchRead,
    I64,
    I64,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    KEYS,
)
AUTHS = st.builds(Auth, st.text(max_size=20), BYTES)
V3_REQUESTS: st.SearchStrategy[Request] = st.one_of(
    add_requests(),
    lac_writes(),
    FENCES,
    PLAIN_READS,
    POLLS,
    AUTHS,
    st.builds(ReadLac, I64),
    st.builds(Force, I64),
    st.builds(ListEntries, I64),
    st.builds(GetBookieInfo, st.integers(0, 3)),
    st.just(StartTls()),
)
V3_REPLIES: st.SearchStrategy[tuple[int, Reply]] = st.one_of(
    st.tuples(st.just(2), st.builds(AddReply, CODES, I64, I64)),
    st.tuples(
        st.just(1),
        st.builds(
            ReadReply,
            CODES,
            I64,
            ENTRY,
            st.none() | BYTES,
            st.none() | ENTRY,
            st.none() | st.integers(0, 2**62),
        ),
    ),
    st.tuples(st.just(6), st.builds(WriteLacReply, CODES, I64)),
    st.tuples(st.just(7), st.builds(ReadLacReply, CODES, I64, st.none() | BYTES, st.none() | BYTES)),
    st.tuples(st.just(10), st.builds(ForceReply, CODES, I64)),
    st.tuples(st.just(8), st.builds(BookieInfoReply, CODES, st.none() | I64, st.none() | I64)),
    st.tuples(st.just(11), st.builds(ListEntriesReply, st.just(Code.OK), I64, BYTES)),
    st.tuples(st.just(5), st.builds(AuthReply, st.just(Code.OK), st.text(max_size=20), BYTES)),
    st.tuples(st.just(9), st.builds(StartTlsReply, st.just(Code.OK))),
)


@given(V3_REQUESTS, st.integers(0, 2**64 - 1))
def test_v3_requests_come_back(request: Request, txn: int) -> None:
    decoded = wire_v3.decode_request(wire_v3.encode_request(request, txn)[4:])
    assert decoded is not None
    assert decoded[0] == request
    assert decoded[1].txn == txn


@given(V3_REPLIES, st.integers(0, 2**64 - 1))
def test_v3_replies_come_back(reply: tuple[int, Reply], txn: int) -> None:
    operation, value = reply
    ids = getattr(value, "ledger_id", -1), getattr(value, "entry_id", -1)
    context = ReplyContext(3, 3, operation, *ids, txn)
    assert wire_v3.decode_reply(wire_v3.encode_reply(context, value)[4:]) == (value, operation, txn)


@given(st.one_of(add_requests().filter(lambda a: not a.deferred_sync), FENCES, PLAIN_READS, AUTHS, BATCHES))
def test_v2_requests_come_back(request: Request) -> None:
    if isinstance(request, BatchRead) and not request.fence:
        request = BatchRead(request.ledger_id, request.entry_id, request.max_count, request.max_bytes)
    assert wire_v2.decode_request(wire_v2.encode_request(request, 5)[4:])[0] == request


@given(I64, I64, st.lists(BYTES, max_size=5))
def test_v2_batch_replies_come_back(ledger: int, entry: int, bodies: list[bytes]) -> None:
    context = ReplyContext(2, 2, OP_BATCH_READ, ledger, entry, 3)
    reply = BatchReadReply(Code.OK, ledger, entry, bodies)
    assert wire_v2.decode_reply(wire_v2.encode_reply(context, reply)[4:]) == (reply, OP_BATCH_READ, 3)


@given(I64, I64, st.lists(st.tuples(st.text(max_size=9), I64, I64, I64, I64, I64), min_size=1, max_size=5), st.text())
def test_v2_places_come_back(
    ledger: int, entry: int, extents: list[tuple[str, int, int, int, int, int]], to: str
) -> None:
    context = ReplyContext(2, 2, OP_BATCH_READ, ledger, entry, 3)
    located = Located(to, to[::-1], [FileExtent(*extent) for extent in extents])
    reply = LocatedReply(Code.OK, ledger, entry, located)
    packet = wire_v2.located_reply(context, located)
    assert wire_v2.decode_reply(packet[4:]) == (reply, OP_BATCH_READ, 3)


@given(st.one_of(
    st.binary(max_size=200), st.just(b"[" * 100_000), st.just(b'{"directory":"","identity":"","extents":[]}'),
    st.just(b'{"directory":"d","identity":"i","extents":[["log",9223372036854775808,1,0,0,1]]}'),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner)
                 | st.dictionaries(st.sampled_from(("directory", "identity", "extents")), inner)).map(
                     lambda value: json.dumps(value).encode()),
))  # fmt: skip
def test_an_answer_that_names_no_places_is_malformed(document: bytes) -> None:
    context = ReplyContext(2, 2, OP_BATCH_READ, 1, 5, 3)
    located = Located("d", "i", [FileExtent("log", 0, 1, 0, 5, 1)])
    packet = wire_v2.located_reply(context, located)[4:]
    whole = located.pack()
    assert packet.endswith(whole)
    with pytest.raises(BadPacket):
        wire_v2.decode_reply(packet[: -len(whole)] + document)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_no_v2_packet_parses_as_v3(rest: bytes) -> None:
    for version in range(8):
        assert wire_v3.decode_request(bytes([version]) + rest) is None


def specimens() -> list[bytes]:
    key = master_key(b"")
    requests: list[Request] = [
        Add(1, 0, key, DIGEST.seal(1, 0, -1, 5, b"hello")),
        Add(1, 1, key, DIGEST.seal(1, 1, 0, 10, b"world"), True, True),
        Read(1, 0),
        Read(1, -1, True, key, True),
        Auth("sasl", b"token"),
    ]
    v2 = [wire_v2.encode_request(request) for request in requests]
    v2 += [wire_v2.encode_request(BatchRead(1, 0, 10, 10_000, True, key), 8)]
    requests += [
        Read(1, -1, previous_lac=4, timeout_ms=9, piggyback=True),
        WriteLac(1, 4, key, DIGEST.seal_lac(1, 4)),
        ReadLac(1),
        Force(1),
        GetBookieInfo(),
        ListEntries(1),
        StartTls(),
        Add(1, 2, key, DIGEST.seal(1, 2, 0, 10, b""), deferred_sync=True),
    ]
    return v2 + [wire_v3.encode_request(request, 7) for request in requests]


def damaged(rng: random.Random, good: list[bytes]) -> bytes:
    """One frame: sometimes whole, mostly with a few bytes changed, cut, doubled or invented."""
    kind = rng.random()
    data = bytearray(rng.choice(good))
    if kind < 0.15:
        return bytes(data)
    if kind < 0.30:
        return frame(rng.randbytes(rng.choice([0, 1, 4, 20, 40, 64, 200])))
    if kind < 0.40:
        return frame(bytes([rng.choice([0, 1, 2, 3, 10]), rng.randrange(9)]) + rng.randbytes(rng.randrange(80)))
    if kind < 0.44:
        return rng.randbytes(rng.randrange(1, 60))
    start = 4 if rng.random() < 0.9 else 0
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(start, len(data))
        data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if rng.random() < 0.3:
        cut = rng.randrange(4, len(data) + 1)
        data = bytearray(frame(bytes(data[4:cut])))
    return bytes(data)


def test_a_server_survives_any_bytes() -> None:
    rng = random.Random(20240501)
    outcomes: dict[type, int] = {AddRun: 0, Incoming: 0, Ready: 0, Close: 0}
    good, frames = specimens(), 0
    while frames < FRAMES:
        server = ServerProtocol(LIMIT, max_run_bytes=300)
        pieces = [damaged(rng, good) for _ in range(rng.choice([1, 2, 5, 10]))]
        frames += len(pieces)
        stream = b"".join(pieces)
        step = rng.choice([1, 13, 100, len(stream)]) if rng.random() < 0.3 else len(stream)
        closed = False
        for i in range(0, len(stream), step):
            chunk = stream[i : i + step]
            items = server.feed(chunk)
            assert server.pending_bytes < LIMIT + len(chunk)
            assert not (closed and items)
            for item in items:
                outcomes[type(item)] = outcomes.get(type(item), 0) + 1
                assert not closed
                if isinstance(item, AddRun):
                    stored = [entry_ids(body)[:2] for _, _, body in walk_frames(item.chunk, item.start, item.end)]
                    assert stored == [(item.ledger_id, item.first + k) for k in range(item.count)]
                    assert item.first >= 0
                    assert item.ledger_id >= 0
                    assert len(item.master_key) == 20
                    assert encode_add_replies(item, Code.IO_ERROR)
                elif isinstance(item, Incoming):
                    assert encode_error(item.context, Code.IO_ERROR)
                closed = isinstance(item, Close)
    assert min(outcomes[kind] for kind in (AddRun, Incoming, Ready, Close)) > FRAMES // 100, outcomes


class Password:
    """A login that takes one word."""

    plugin = "password"

    def step(self, payload: bytes) -> AuthStep:
        return AuthStep(b"", done=True) if payload == b"right" else AuthStep(None, failed=True)


@pytest.mark.parametrize("tls", [False, True])
def test_nothing_of_an_unknown_peer_gets_through(tls: bool) -> None:
    """Before the login, and before TLS where that is needed, whatever arrives is answered or ends the connection."""
    rng = random.Random(20261125)
    login = wire_v3.encode_request(Auth("password", b"right"), 9)
    good, let_in, closed = [*specimens(), wire_v2.name_ledger(1, b"b" * 16), frame(b"\x02\x43\0\0" + bytes(9))], 0, 0
    good.append(wire_v2.trace_add(1, 2, b"t" * 24))
    for _ in range(FRAMES // 50):
        server = ServerProtocol(LIMIT, auth=Password(), offers_tls=True, needs_tls=tls)
        pieces = [damaged(rng, good) for _ in range(rng.randrange(5))]
        if tls:
            pieces.insert(rng.randrange(len(pieces) + 1), login)  # which counts for nothing in clear
        items = server.feed(b"".join(pieces))
        assert all(isinstance(item, Ready | Close | BeginTls | StrangersKeyPacket) for item in items), items
        assert not server.authenticated
        if items and not isinstance(items[-1], Ready):
            closed += 1
            continue
        if tls:
            server.secured()
        answers = server.feed(login)
        if server.authenticated and isinstance(answers[-1], Ready):
            let_in += 1
            server.feed(b"".join(damaged(rng, good) for _ in range(3)))
    assert let_in > FRAMES // 500
    assert closed > FRAMES // 500


def test_an_unknown_peer_has_64_kilobytes() -> None:
    server = ServerProtocol(1 << 20, auth=Password())
    request = wire_v3.encode_request(Read(1, 1), 1)
    given = 0
    while not (items := server.feed(request * 100)) or not isinstance(items[-1], Close):
        given += 100 * len(request)
    assert 60_000 < given <= 65536
    with_large_frames = ServerProtocol(1 << 20, auth=Password())
    (ended,) = with_large_frames.feed((70_000).to_bytes(4))
    assert isinstance(ended, Close)
    server = ServerProtocol(1 << 20, auth=Password())
    server.feed(wire_v3.encode_request(Auth("password", b"right"), 9))
    assert server.feed((70_000).to_bytes(4)) == []


def test_a_client_survives_any_bytes() -> None:
    rng = random.Random(20240502)
    frames = 0
    replies = [
        wire_v2.encode_reply(ReplyContext(2, 2, 1, 1, 0), ReadReply(Code.OK, 1, 0, b"x" * 50)),
        wire_v2.encode_reply(ReplyContext(2, 2, 2, 1, 0), AddReply(Code.FENCED, 1, 0)),
        wire_v2.encode_reply(ReplyContext(2, 2, 12, 1, 0, 2), BatchReadReply(Code.OK, 1, 0, [b"a" * 9] * 2)),
        wire_v2.located_reply(ReplyContext(2, 2, 12, 1, 0, 2), Located("d", "i", [FileExtent("log", 0, 99, 0, 0, 2)])),
        wire_v3.encode_reply(ReplyContext(3, 3, 1, 1, 0, 1), ReadReply(Code.OK, 1, 0, b"x" * 50, 3, 4)),
        wire_v3.encode_reply(ReplyContext(3, 3, 7, 1, -1, 2), ReadLacReply(Code.OK, 1, b"y" * 20, b"x" * 50)),
    ]
    errors = answers = 0
    while frames < FRAMES // 4:
        version = rng.choice([2, 3])
        client = ClientProtocol(version, LIMIT)
        asked: list[object] = ["read", "other"]
        client.request(Read(1, 0), "read", 9.0)
        client.request(BatchRead(1, 0, 2, 100) if version == 2 else ReadLac(1), "other", 9.0)
        pieces = [damaged(rng, replies) for _ in range(rng.choice([1, 2, 5]))]
        frames += len(pieces)
        received = client.feed(b"".join(pieces))
        errors += received.error is not None
        answers += len(received.answers)
        left = client.give_up().tokens
        assert sorted(str(t) for t in [*left, *(token for token, _ in received.answers)]) == sorted(map(str, asked))
    assert errors > 100
    assert answers > 100


@pytest.mark.parametrize("decode", [wire_v2.decode_reply, wire_v3.decode_reply])
@given(packet=st.binary(max_size=120))
@settings(max_examples=200)
def test_decoding_an_answer_fails_in_one_way_only(decode: object, packet: bytes) -> None:
    assert callable(decode)
    with contextlib.suppress(BadPacket):
        decode(packet)
