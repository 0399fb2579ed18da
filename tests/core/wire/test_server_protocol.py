"""The bookie's end of a connection: detection, sticky versions, authentication, everything that is refused."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire import bookkeeper_pb2 as pb
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.adds import AddRun, ack_frames, frame_add
from buckram.core.wire.frames import frame
from buckram.core.wire.messages import (
    OP_ADD,
    OP_FORCE,
    OP_LIST_ENTRIES,
    OP_READ,
    OP_READ_LAC,
    OP_WRITE_LAC,
    Add,
    AddReply,
    Auth,
    AuthReply,
    BatchRead,
    BatchReadReply,
    ErrorReply,
    Force,
    ForceReply,
    ListEntries,
    ListEntriesReply,
    Read,
    ReadLac,
    ReadLacReply,
    ReadReply,
    RefusedRequest,
    Reply,
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
    Item,
    LoginWaits,
    Ready,
    ServerProtocol,
    Traced,
    encode_add_replies,
    encode_error,
    encode_reply,
)
from buckram.errors import Code
from buckram.types import DigestType

pytestmark = pytest.mark.usefixtures("twin")

LIMIT = 5 * 1024 * 1024
DIGEST = Digest(DigestType.CRC32C, b"")
KEY = master_key(b"")


def feed(*packets: str | bytes) -> list[Item]:
    server = ServerProtocol(LIMIT)
    return server.feed(b"".join(frame(bytes.fromhex(p) if isinstance(p, str) else p) for p in packets))


def add(ledger: int, entry: int, **options: bool) -> Add:
    return Add(ledger, entry, KEY, DIGEST.seal(ledger, entry, entry - 1, 1, b"x"), **options)


def v3_reply(item: Item) -> Reply:
    assert isinstance(item, Ready)
    return wire_v3.decode_reply(item.data[4:])[0]


@pytest.mark.parametrize(
    "packet",
    [
        "0a06080310631801",  # v3 with operation 99, then v2 "opcode 6"
        "0a0408031001",  # v3 header without a transaction id
        "0a06080410011801a2060508b4241005",  # v3 with version 4
        "0a06080310021801aa060508b4241005",  # ADD without key and body
        "0209000000000000000000010000000000000002",  # v2 opcode 9
        "0202000100000000000000010000000000000002",  # fencing read without a key
        "0207000100000000000000010000000000000002" + "00" * 20,  # fencing batch read without a key
        "02010000" + "00" * 35,  # v2 ADD with 15 bytes of entry
        "020200000000000000000001",  # v2 READ that is too short
        "0204000000000000000000010000000000000002",  # v2 READ_LAC: a reserved number
        "000200000000000000000001",  # version 0 with other bits set
        "02030000ffff",  # v2 AUTH without an AuthMessage
        "0203000000",
        "02",
        "",
    ],
)
def test_packets_that_close(packet: str) -> None:
    items = feed(packet)
    assert [type(item) for item in items] == [Close]


def test_v3_version_2_is_answered_bad_version() -> None:
    (item,) = feed("0a06080210011801a2060508b4241005")
    assert v3_reply(item) == ReadReply(Code.BAD_VERSION, 0x1234, 5)


@pytest.mark.parametrize("operation", [3, 4, 12])
def test_unimplemented_v3_operations_get_an_envelope(operation: int) -> None:
    (item,) = feed(f"0a06080310{operation:02x}1801")
    assert isinstance(item, Ready)
    assert item.data == frame(bytes.fromhex(f"0a06080310{operation:02x}1801109403"))


def test_v3_without_its_sub_message() -> None:
    (item,) = feed("0a06080310011801")
    assert v3_reply(item) == ErrorReply(Code.BAD_REQUEST)


@pytest.mark.parametrize(
    "packet",
    [
        "0a06080310011801a2060808b4241005a00603",  # unknown flag 3
        "0a06080310011801a2060508b4241005b20903010203",  # unknown field 150
    ],
)
def test_what_is_unknown_and_optional_is_ignored(packet: str) -> None:
    (item,) = feed(packet)
    assert isinstance(item, Incoming)
    assert item.request == Read(0x1234, 5)


def test_v2_version_3_is_answered_bad_version() -> None:
    ids = "00000000000000010000000000000002"
    assert feed("03020000" + ids) == [Ready(bytes.fromhex("000000180302000000000067" + ids))]
    assert feed("03010000" + "00" * 20 + ids) == [Ready(bytes.fromhex("000000180301000000000067" + ids))]
    batch = feed("03070000" + ids + "00" * 7 + "09" + "00" * 12)
    assert batch == [Ready(bytes.fromhex("000000200307000000000067" + ids + "00" * 7 + "09"))]


def test_versions_0_and_1_are_answered_in_their_form() -> None:
    (item,) = feed("0000000200000000000000010000000000000002")
    assert isinstance(item, Incoming)
    assert item.request == Read(1, 2)
    assert encode_error(item.context, Code.NO_ENTRY)[4:12].hex() == "0000000200000002"
    stored = DIGEST.seal(1, 2, 1, 3, b"x")
    for head, version in (("00000001", 0), ("01010000", 1)):
        (run,) = feed(bytes.fromhex(head) + KEY + stored)
        assert isinstance(run, AddRun)
        assert run.chunk == frame_add(KEY, stored)
        assert encode_add_replies(run)[4:12].hex() == head + "00000000"
        assert len(encode_add_replies(run)) == 28
        assert run.context.version == version


def test_a_version_1_fencing_read_has_no_key() -> None:
    (item,) = feed("0102000100000000000000010000000000000002")
    assert isinstance(item, Incoming)
    assert item.request == Read(1, 2, fence=True)


@pytest.mark.parametrize("size", [16, 23])
def test_an_add_without_room_for_its_lac(size: int) -> None:
    stored = struct.pack(">qqq", 1, 2, 3)[:size]
    assert feed(b"\2\1\0\0" + KEY + stored) == [Ready(ack_frames(1, 2, 1, Code.BAD_REQUEST))]
    (item,) = feed(wire_v3.encode_request(Add(1, 2, KEY, stored), 9)[4:])
    assert v3_reply(item) == AddReply(Code.BAD_REQUEST, 1, 2)


@pytest.mark.parametrize(
    "request_",
    [
        Add(1, 2, KEY, DIGEST.seal(1, 3, 1, 1, b"")),  # another entry inside
        Add(1, 2, KEY, DIGEST.seal(2, 2, 1, 1, b"")),  # another ledger inside
        Add(1, -5, KEY, DIGEST.seal(1, -5, 1, 1, b"")),
        Add(-1, 5, KEY, DIGEST.seal(-1, 5, 1, 1, b"")),
        Add(1, 2, KEY[:19], DIGEST.seal(1, 2, 1, 1, b"")),
        Read(1, -2),
        Read(-1, 2),
        Read(1, 2, fence=True, master_key=KEY + b"x"),
        WriteLac(1, 3, KEY, b"x" * 15),
        WriteLac(1, 3, KEY, DIGEST.seal_lac(2, 3)),
        WriteLac(1, 3, b"", DIGEST.seal_lac(1, 3)),
        ReadLac(-1),
        Force(-1),
        ListEntries(-3),
    ],
)
def test_bad_v3_requests_get_their_sub_message(request_: Request) -> None:
    (item,) = feed(wire_v3.encode_request(request_, 9)[4:])
    reply = v3_reply(item)
    assert reply.code is Code.BAD_REQUEST
    assert not isinstance(reply, ErrorReply)
    assert getattr(reply, "ledger_id") == getattr(request_, "ledger_id")  # noqa: B009 - the union has others


def test_a_negative_entry_id_in_a_v2_add() -> None:
    stored = DIGEST.seal(1, -4096, 3, 1, b"x")
    assert feed(b"\2\1\0\0" + KEY + stored) == [Ready(ack_frames(1, -4096, 1, Code.BAD_REQUEST))]
    assert [type(i) for i in feed(wire_v2.encode_request(BatchRead(1, -1, 1, 1))[4:])] == [Ready]


def test_the_lac_of_a_write_lac_is_the_sealed_one() -> None:
    packet = DIGEST.seal_lac(1, 8)
    (item,) = feed(wire_v3.encode_request(WriteLac(1, 3, KEY, packet), 9)[4:])
    assert isinstance(item, Incoming)
    assert item.request == WriteLac(1, 8, KEY, packet)


def test_the_version_sticks() -> None:
    v3, v2 = wire_v3.encode_request(Read(1, 2), 9), wire_v2.encode_request(Read(1, 3))
    server = ServerProtocol(LIMIT)
    items = server.feed(v3 + v3 + v2 + v2)
    assert [item.context.protocol for item in items if isinstance(item, Incoming)] == [3, 3, 2, 2]
    assert [type(item) for item in server.feed(v3)] == [Close]
    assert server.feed(v2) == []


def test_every_header_length_of_v3_closes_a_v2_connection() -> None:
    for size in range(64):
        server = ServerProtocol(LIMIT)
        server.feed(wire_v2.encode_request(Read(1, 3)))
        packet = bytes([0x0A, size]) + bytes(size)
        got = server.feed(frame(packet))
        # Read as a v2 packet of version 10: some lengths equal an opcode, and are refused by their version instead.
        assert [type(item) for item in got] in ([Close], [Ready]), size


def test_v3_adds_become_runs_in_the_stored_form() -> None:
    requests = [add(1, 0), add(1, 1), add(1, 2), add(1, 4), add(2, 5), add(2, 6, recovery=True, high_priority=True)]
    requests.append(add(2, 7, deferred_sync=True))
    items = feed(*(wire_v3.encode_request(one, 70 + i)[4:] for i, one in enumerate(requests)))
    runs = [item for item in items if isinstance(item, AddRun)]
    assert [(r.ledger_id, r.first, r.count, r.context.txns) for r in runs] == [
        (1, 0, 3, (b"F", b"G", b"H")),
        (1, 4, 1, (b"I",)),
        (2, 5, 1, (b"J",)),
        (2, 6, 1, (b"K",)),
        (2, 7, 1, (b"L",)),
    ]
    assert runs[0].chunk == b"".join(frame_add(KEY, one.body) for one in requests[:3])
    assert (runs[0].lac, runs[0].stride, runs[3].flags, runs[4].deferred_sync) == (1, 65, 6, True)
    stream = encode_add_replies(runs[0], Code.FENCED)
    replies = []
    while stream:
        size = 4 + int.from_bytes(stream[:4], "big")
        replies.append(wire_v3.decode_reply(stream[4:size]))
        stream = stream[size:]
    assert replies == [(AddReply(Code.FENCED, 1, i), OP_ADD, 70 + i) for i in range(3)]


def test_adds_and_other_requests_keep_their_order() -> None:
    stream = b"".join(
        (
            wire_v3.encode_request(add(1, 0), 1),
            wire_v3.encode_request(Force(1), 2),
            wire_v3.encode_request(add(1, 1), 3),
            wire_v2.encode_request(add(1, 2)),
            wire_v2.encode_request(Read(1, 2)),
            wire_v2.encode_request(add(1, 3)),
        )
    )
    for step in (1, 7, 50, len(stream)):
        server = ServerProtocol(LIMIT)
        items = [item for i in range(0, len(stream), step) for item in server.feed(stream[i : i + step])]
        order = [i.first if isinstance(i, AddRun) else "x" for i in items]
        assert order == [0, "x", 1, 2, "x", 3]
        assert len(server.feed(b"")) == 0


READ_FRAMES = st.builds(
    lambda size, header, ids, key: struct.pack(">IIqq", size, header, *ids) + key[: max(0, size - 20)],
    st.sampled_from((20, 20, 20, 20, 40)),
    st.sampled_from((0x02020000, 0x02020000, 0x02020001, 0x02020004, 0x01020000, 0x00000002, 0x03020000)),
    st.tuples(st.integers(-2, 5), st.integers(-2, 5)),
    st.just(KEY),
)


@given(st.lists(READ_FRAMES, max_size=12), st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_reads_that_come_together_are_what_each_of_them_is_alone(frames: list[bytes], steps: list[int]) -> None:
    expected: list[Item] = []
    for one in frames:
        try:
            request, context = wire_v2.decode_request(one[4:])
        except wire_v2.BadPacket as error:
            expected.append(Close(str(error)))
            break
        refused = isinstance(request, RefusedRequest)
        expected.append(Ready(encode_error(context, request.code)) if refused else Incoming(request, context))
    server, stream, items = ServerProtocol(LIMIT), b"".join(frames), list[Item]()
    for step in itertools.cycle(steps):
        items += server.feed(stream[:step])
        stream = stream[step:]
        if not stream:
            break
    assert items == expected


def test_deferred_sync_is_ignored_for_recovery() -> None:
    message = pb.Request.FromString(wire_v3.encode_request(add(1, 0, recovery=True), 1)[4:])
    message.addRequest.writeFlags = 3
    (run,) = feed(message.SerializeToString())
    assert isinstance(run, AddRun)
    assert run.deferred_sync is False


@pytest.mark.parametrize("value", [LIMIT - 3, 2**32 - 1])
def test_a_frame_over_the_limit_closes_at_its_prefix(value: int) -> None:
    good = wire_v2.encode_request(add(1, 0))
    items = ServerProtocol(LIMIT).feed(good + struct.pack(">I", value))
    assert [type(item) for item in items] == [AddRun, Close]
    assert ServerProtocol(LIMIT).feed(struct.pack(">I", LIMIT - 4)) == []


def test_what_came_before_a_bad_packet_is_still_served() -> None:
    items = feed(wire_v3.encode_request(add(1, 0), 1)[4:], b"\2\x09\0\0")
    assert [type(item) for item in items] == [AddRun, Close]


class Secret:
    """Wants two right tokens."""

    plugin = "secret"

    def __init__(self) -> None:
        self.steps = 0

    def step(self, payload: bytes) -> AuthStep:
        self.steps += 1
        if payload != b"token%d" % self.steps:
            return AuthStep(None, failed=True)
        return AuthStep(b"next", False) if self.steps == 1 else AuthStep(None, True)


def v3(request: Request, txn: int = 1) -> bytes:
    return wire_v3.encode_request(request, txn)


def test_before_authentication_v3() -> None:
    server = ServerProtocol(LIMIT, auth=Secret())
    for request in (add(1, 0), Read(1, 0), ReadLac(1), Auth("other", b"")):
        (item,) = server.feed(v3(request))
        assert v3_reply(item) == ErrorReply(Code.UNAUTHORIZED)
    (item,) = server.feed(v3(StartTls()))
    assert v3_reply(item) == ErrorReply(Code.BAD_REQUEST)
    (item,) = server.feed(v3(Auth("secret", b"token1")))
    assert v3_reply(item) == AuthReply(Code.OK, "secret", b"next")
    assert not server.authenticated
    assert server.feed(v3(Auth("secret", b"token2"))) == []
    assert server.authenticated
    assert [type(item) for item in server.feed(v3(add(1, 0)))] == [AddRun]


def test_before_authentication_v2() -> None:
    server = ServerProtocol(LIMIT, auth=Secret())
    refused = Ready(ack_frames(1, 5, 1, Code.UNAUTHORIZED), "a request before the login")
    assert server.feed(wire_v2.encode_request(add(1, 5))) == [refused]
    (item,) = server.feed(wire_v2.encode_request(Read(1, 5)))
    assert isinstance(item, Ready)
    assert item.data == wire_v2.encode_request(Read(1, 5))[:3] + b"\x18\2\2\0\0" + struct.pack(">iqq", 102, 1, 5)
    (item,) = server.feed(wire_v2.encode_request(Auth("secret", b"token1")))
    assert isinstance(item, Ready)
    assert wire_v2.decode_reply(item.data[4:])[0] == AuthReply(Code.OK, "secret", b"next")
    server.feed(wire_v2.encode_request(Auth("secret", b"token2")))
    assert [type(item) for item in server.feed(wire_v2.encode_request(add(1, 0)))] == [AddRun]


def test_failed_authentication() -> None:
    items = ServerProtocol(LIMIT, auth=Secret()).feed(v3(Auth("secret", b"wrong")) + v3(Read(1, 1)))
    assert v3_reply(items[0]) == ErrorReply(Code.UNAUTHORIZED)
    assert [type(item) for item in items] == [Ready, Close]
    for request in (Auth("secret", b"wrong"), Auth("other", b""), BatchRead(1, 1, 1, 1)):
        items = ServerProtocol(LIMIT, auth=Secret()).feed(wire_v2.encode_request(request))
        assert [type(item) for item in items] == [Close]


def test_a_plugin_name_that_is_no_text() -> None:
    packet = v3(Auth("secret", b""))[4:].replace(b"secret", b"\xff" * 6)
    (item,) = feed(packet)
    assert v3_reply(item) == ErrorReply(Code.BAD_REQUEST)
    packet = wire_v2.encode_request(Auth("secret", b""))[4:].replace(b"secret", b"\xff" * 6)
    assert [type(item) for item in feed(packet)] == [Close]


def test_starttls_without_its_message_before_authentication() -> None:
    message = bytes.fromhex("0a06080310091808")
    (item,) = ServerProtocol(LIMIT, auth=Secret()).feed(frame(message))
    assert v3_reply(item) == ErrorReply(Code.UNAUTHORIZED)


def test_replies_made_by_the_dispatcher_copy_the_priority() -> None:
    message = pb.Request.FromString(bytes.fromhex("0a060803100c1801"))
    message.header.priority = 100
    (item,) = feed(message.SerializeToString())
    assert isinstance(item, Ready)
    assert pb.Response.FromString(item.data[4:]).header.priority == 100


def test_code_507_goes_out_as_101_on_v2() -> None:
    (item,) = feed(wire_v2.encode_request(Read(1, 2))[4:])
    assert isinstance(item, Incoming)
    assert struct.unpack_from(">i", encode_error(item.context, Code.UNKNOWN_LEDGER_STATE), 8) == (101,)


@pytest.mark.parametrize(
    ("request_", "reply", "operation"),
    [
        (Read(1, 2), ReadReply(Code.NO_ENTRY, 1, 2), OP_READ),
        (ReadLac(1), ReadLacReply(Code.NO_ENTRY, 1), OP_READ_LAC),
        (WriteLac(1, 3, KEY, DIGEST.seal_lac(1, 3)), WriteLacReply(Code.NO_ENTRY, 1), OP_WRITE_LAC),
        (Force(1), ForceReply(Code.NO_ENTRY, 1), OP_FORCE),
        (ListEntries(1), ListEntriesReply(Code.NO_ENTRY, 1), OP_LIST_ENTRIES),
    ],
)
def test_errors_carry_their_sub_message(request_: Request, reply: Reply, operation: int) -> None:
    (item,) = feed(v3(request_, 2**64 - 1)[4:])
    assert isinstance(item, Incoming)
    assert wire_v3.decode_reply(encode_error(item.context, Code.NO_ENTRY)[4:]) == (reply, operation, 2**64 - 1)
    assert encode_reply(item.context, reply) == encode_error(item.context, Code.NO_ENTRY)


def test_a_v2_batch_reply_names_its_request_also_in_errors() -> None:
    (item,) = feed(wire_v2.encode_request(BatchRead(1, 2, 10, 1000), 55)[4:])
    assert isinstance(item, Incoming)
    data = encode_reply(item.context, BatchReadReply(Code.OK, 1, 2, [b"a" * 40, b"b" * 50]))
    assert wire_v2.decode_reply(data[4:])[0] == BatchReadReply(Code.OK, 1, 2, [b"a" * 40, b"b" * 50])
    assert wire_v2.decode_reply(encode_error(item.context, Code.IO_ERROR)[4:])[2] == 55


class OneWord:
    """A login that takes any word."""

    plugin = "word"

    def step(self, payload: bytes) -> AuthStep:
        return AuthStep(b"", done=True)


@pytest.mark.parametrize("needs_login", [True, False])
def test_start_tls_is_the_first_request_or_none(needs_login: bool) -> None:
    """Whoever stands between a client and the bookie could log in, or ask, before the client's START_TLS arrives."""
    start = wire_v3.encode_request(StartTls(), 2)
    before = wire_v3.encode_request(Auth("word", b"mine") if needs_login else ReadLac(1), 1)

    def server() -> ServerProtocol:
        return ServerProtocol(LIMIT, auth=OneWord() if needs_login else None, offers_tls=True)

    for chunks in ((before + start,), (before, start)):
        protocol = server()
        items = [item for chunk in chunks for item in protocol.feed(chunk)]
        assert isinstance(items[-1], Close)
        assert "START_TLS" in items[-1].reason
    answer, begin = server().feed(start + b"\x16\x03\x01")
    assert v3_reply(answer) == StartTlsReply(Code.OK)
    assert begin == BeginTls(b"\x16\x03\x01")


def test_a_packet_says_that_the_add_behind_it_is_traced() -> None:
    context = bytes(range(24))
    packet = wire_v2.trace_add(7, 3, context)
    add = frame_add(KEY, DIGEST.seal(7, 3, 2, 5, b"hello"))
    first, second = ServerProtocol(LIMIT).feed(packet + add)
    assert first == Traced(7, 3, context)
    assert isinstance(second, AddRun)
    assert (second.ledger_id, second.first) == (7, 3)
    below = wire_v2.trace_add(-1, 3, context), wire_v2.trace_add(7, -1, context)
    for bad in (frame(packet[4:-1]), frame(packet[4:] + b"x"), *below):
        (closed,) = ServerProtocol(LIMIT).feed(bad)
        assert isinstance(closed, Close)
        assert "TRACED_ADD" in closed.reason


class Later:
    """A login that has to be looked up once."""

    plugin = "later"

    def __init__(self) -> None:
        self.asked = 0

    def step(self, payload: bytes) -> AuthStep:
        self.asked += 1
        return AuthStep(None, waits=True) if self.asked == 1 else AuthStep(b"", done=True)


def test_what_comes_behind_a_login_that_waits_is_taken_after_it_in_its_order() -> None:
    server = ServerProtocol(LIMIT, auth=Later())
    login = wire_v2.encode_request(Auth("later", b"word"))
    reads = b"".join(wire_v2.encode_request(Read(7, entry)) for entry in range(3))
    assert server.feed(login + reads[:30]) == [LoginWaits(b"word")]
    assert server.feed(reads[30:50]) == []
    assert server.pending_bytes == 50
    answer, *found = server.answer_login()
    assert isinstance(answer, Ready)
    assert [one.request for one in found if isinstance(one, Incoming)] == [Read(7, 0), Read(7, 1)]
    assert [one.request for one in server.feed(reads[50:]) if isinstance(one, Incoming)] == [Read(7, 2)]
    assert server.answer_login() == []


def test_behind_a_login_that_waits_no_more_may_come_than_before_any_other() -> None:
    server = ServerProtocol(LIMIT, auth=Later())
    assert server.feed(wire_v2.encode_request(Auth("later", b"word"))) == [LoginWaits(b"word")]
    (item,) = [one for _ in range(70) for one in server.feed(bytes(1000))]
    assert isinstance(item, Close)
    assert server.answer_login() == []
