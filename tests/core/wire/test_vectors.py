"""Every byte format against vectors that Apache's own classes produced."""

from __future__ import annotations

from pathlib import Path

import pytest

from buckram.core.entries.entry import Digest, mac_key, master_key
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.adds import HIGH_PRIORITY, RECOVERY_ADD, AddRun, ack_frames, frame_add, frame_adds
from buckram.core.wire.availability import EntryList, encode_runs
from buckram.core.wire.messages import (
    OP_ADD,
    OP_AUTH,
    OP_BATCH_READ,
    OP_READ,
    Add,
    AddReply,
    Auth,
    AuthReply,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    ErrorReply,
    Force,
    ForceReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
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
from buckram.core.wire.server_protocol import Incoming, Ready, ServerProtocol
from buckram.errors import Code
from buckram.types import DigestType, Entry

pytestmark = pytest.mark.usefixtures("twin")

LINES = [line.split("\t") for line in (Path(__file__).parent / "wire_vectors.txt").read_text().splitlines()]
VECTORS = {line[0]: bytes.fromhex(line[1]) for line in LINES if len(line) == 2}
LEDGER, ENTRY, LAC, LENGTH, PASSWORD, DATA = 0x1234, 5, 4, 1000, b"secret", b"hello bookkeeper"
KEY = master_key(PASSWORD)
KINDS = {"crc32": DigestType.CRC32, "hmac": DigestType.MAC, "crc32c": DigestType.CRC32C, "dummy": DigestType.DUMMY}
STORED = VECTORS["entry.crc32c"]
LAC_PACKET = VECTORS["lac.crc32c"]

V2_REQUESTS: dict[str, Request] = {
    "v2.add": Add(LEDGER, ENTRY, KEY, STORED),
    "v2.add.recovery": Add(LEDGER, ENTRY, KEY, STORED, recovery=True, high_priority=True),
    "v2.read": Read(LEDGER, ENTRY),
    "v2.read.lac": Read(LEDGER, -1),
    "v2.read.fence": Read(LEDGER, -1, True, KEY),
    "v2.read.recovery": Read(LEDGER, ENTRY, True, KEY, True),
    "v2.batchread": BatchRead(LEDGER, ENTRY, 10, 5242880),
    "v2.batchread.fence": BatchRead(LEDGER, ENTRY, 10, 5242880, True, KEY, True),
    "v2.auth": Auth("sasl", b"\1\2\3"),
}
V2_REPLIES: dict[str, tuple[int, Reply]] = {
    "v2.add.resp.ok": (OP_ADD, AddReply(Code.OK, LEDGER, ENTRY)),
    "v2.add.resp.fenced": (OP_ADD, AddReply(Code.FENCED, LEDGER, ENTRY)),
    "v2.read.resp.ok": (OP_READ, ReadReply(Code.OK, LEDGER, ENTRY, STORED)),
    "v2.read.resp.noentry": (OP_READ, ReadReply(Code.NO_ENTRY, LEDGER, ENTRY)),
    "v2.read.lac.resp.ok": (OP_READ, ReadReply(Code.OK, LEDGER, -1, STORED)),
    "v2.batchread.resp.ok": (OP_BATCH_READ, BatchReadReply(Code.OK, LEDGER, ENTRY, [VECTORS["entry.dummy"]] * 2)),
    "v2.batchread.resp.noledger": (OP_BATCH_READ, BatchReadReply(Code.NO_LEDGER, LEDGER, ENTRY, [])),
    "v2.auth.resp.disabled": (OP_AUTH, AuthReply(Code.OK, "AuthDisabledPlugin", b"")),
}
V3_REQUESTS: dict[str, tuple[int, Request]] = {
    "v3.add": (1, Add(LEDGER, ENTRY, KEY, STORED)),
    "v3.add.recovery": (2, Add(LEDGER, ENTRY, KEY, STORED, recovery=True, high_priority=True)),
    "v3.add.deferredsync": (3, Add(LEDGER, ENTRY, KEY, STORED, deferred_sync=True)),
    "v3.read": (4, Read(LEDGER, ENTRY)),
    "v3.read.fence": (5, Read(LEDGER, -1, True, KEY)),
    "v3.read.longpoll": (6, Read(LEDGER, -1, previous_lac=LAC, timeout_ms=1000, piggyback=True)),
    "v3.auth": (7, Auth("sasl", b"\1\2\3")),
    "v3.starttls": (8, StartTls()),
    "v3.writelac": (9, WriteLac(LEDGER, LAC, KEY, LAC_PACKET)),
    "v3.readlac": (10, ReadLac(LEDGER)),
    "v3.force": (11, Force(LEDGER)),
    "v3.bookieinfo": (12, GetBookieInfo()),
    "v3.listentries": (13, ListEntries(LEDGER)),
}
V3_REPLIES: dict[str, tuple[int, Reply]] = {
    "v3.add.resp.ok": (1, AddReply(Code.OK, LEDGER, ENTRY)),
    "v3.add.resp.fenced": (1, AddReply(Code.FENCED, LEDGER, ENTRY)),
    "v3.read.resp.ok": (4, ReadReply(Code.OK, LEDGER, ENTRY, STORED, LAC)),
    "v3.read.longpoll.resp.entry": (6, ReadReply(Code.OK, LEDGER, ENTRY, STORED, ENTRY, 1700000000000)),
    "v3.read.longpoll.resp.timeout": (6, ReadReply(Code.OK, LEDGER, -1, None, LAC)),
    "v3.read.resp.noentry": (4, ReadReply(Code.NO_ENTRY, LEDGER, ENTRY)),
    "v3.auth.resp.disabled": (7, AuthReply(Code.OK, "AuthDisabledPlugin", b"")),
    "v3.unauthenticated.resp": (1, ErrorReply(Code.UNAUTHORIZED)),
    "v3.starttls.resp.ok": (8, StartTlsReply(Code.OK)),
    "v3.starttls.resp.notconfigured": (8, ErrorReply(Code.BAD_REQUEST)),
    "v3.writelac.resp.ok": (9, WriteLacReply(Code.OK, LEDGER)),
    "v3.readlac.resp.ok": (10, ReadLacReply(Code.OK, LEDGER, LAC_PACKET, STORED)),
    "v3.force.resp.ok": (11, ForceReply(Code.OK, LEDGER)),
    "v3.bookieinfo.resp.ok": (12, BookieInfoReply(Code.OK, 10**12, 5 * 10**11)),
    "v3.listentries.resp.ok": (13, ListEntriesReply(Code.OK, LEDGER, encode_runs([(0, 3)]))),
}


def test_no_vector_is_left_out() -> None:
    used = {*V2_REQUESTS, *V2_REPLIES, *V3_REQUESTS, *V3_REPLIES}
    rest = {name for name in VECTORS if name.startswith(("v2.", "v3.")) and not name.endswith(".4.18")} - used
    assert len(VECTORS) == 64
    assert rest == set()


def test_keys() -> None:
    assert master_key(b"") == VECTORS["masterkey.empty"]
    assert VECTORS["masterkey.secret"] == KEY
    assert mac_key(b"") == VECTORS["mackey.empty"]
    assert mac_key(PASSWORD) == VECTORS["mackey.secret"]


@pytest.mark.parametrize("name", KINDS)
def test_digests(name: str) -> None:
    digest = Digest(KINDS[name], PASSWORD)
    stored = VECTORS[f"entry.{name}"]
    assert digest.seal(LEDGER, ENTRY, LAC, LENGTH, DATA) == stored
    assert digest.open(LEDGER, ENTRY, stored) == Entry(LEDGER, ENTRY, DATA, LAC, LENGTH)
    assert digest.seal_lac(LEDGER, LAC) == VECTORS[f"lac.{name}"]
    assert digest.open_lac(LEDGER, VECTORS[f"lac.{name}"]) == LAC
    frames, acks, length = frame_adds(digest, KEY, LEDGER, ENTRY, LAC, LENGTH - len(DATA), [DATA])
    assert frames == frame_add(KEY, stored)
    assert length == LENGTH
    assert acks == VECTORS["v2.add.resp.ok"]


def test_first_entry_of_a_ledger() -> None:
    assert Digest(DigestType.CRC32C, PASSWORD).seal(LEDGER, 0, -1, 16, DATA) == VECTORS["entry.first.crc32c"]


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (DigestType.CRC32, "000000007b996a85"),
        (DigestType.CRC32C, "6c7050f5"),
        (DigestType.MAC, "4318f6abddeb9111c7060e7f8046785cce815336"),
    ],
)
def test_digest_of_a_large_payload(kind: DigestType, digest: str) -> None:
    data = bytes((31 * i + 7) % 256 for i in range(100_000))
    stored = Digest(kind, b"").seal(99, 7, 6, 123456789, data)
    assert stored[32 : -len(data)].hex() == digest


@pytest.mark.parametrize("name", V2_REQUESTS)
def test_v2_requests(name: str) -> None:
    request = V2_REQUESTS[name]
    assert wire_v2.encode_request(request, 77) == VECTORS[name]
    decoded, context = wire_v2.decode_request(VECTORS[name][4:])
    assert decoded == request
    assert context.txn == (77 if isinstance(request, BatchRead) else 0)


@pytest.mark.parametrize("name", V2_REPLIES)
def test_v2_replies(name: str) -> None:
    operation, reply = V2_REPLIES[name]
    entry = getattr(reply, "entry_id", -1)
    assert wire_v2.encode_reply(ReplyContext(2, 2, operation, LEDGER, entry, 77), reply) == VECTORS[name]
    assert wire_v2.decode_reply(VECTORS[name][4:]) == (reply, operation, 77 if operation == OP_BATCH_READ else 0)


def test_v2_acks_of_a_run() -> None:
    assert ack_frames(LEDGER, ENTRY, 1) == VECTORS["v2.add.resp.ok"]
    assert ack_frames(LEDGER, ENTRY, 1, Code.FENCED) == VECTORS["v2.add.resp.fenced"]


@pytest.mark.parametrize("name", V3_REQUESTS)
def test_v3_requests(name: str) -> None:
    txn, request = V3_REQUESTS[name]
    assert wire_v3.encode_request(request, txn) == VECTORS[name]
    for variant in (name, f"{name}.4.18"):
        if variant in VECTORS:
            decoded = wire_v3.decode_request(VECTORS[variant][4:])
            assert decoded is not None
            assert decoded[0] == request
            assert decoded[1].txn == txn


@pytest.mark.parametrize("name", V3_REPLIES)
def test_v3_replies(name: str) -> None:
    txn, reply = V3_REPLIES[name]
    request = next((n for n, (t, _) in V3_REQUESTS.items() if t == txn), "")
    operation = wire_v3.operation_of(V3_REQUESTS[request][1])
    context = ReplyContext(3, 3, operation, LEDGER, ENTRY, txn)
    assert wire_v3.encode_reply(context, reply) == VECTORS[name]
    assert wire_v3.decode_reply(VECTORS[name][4:]) == (reply, operation, txn)


def test_a_server_takes_every_request_vector() -> None:
    """Each on a connection of its own, whole and byte by byte."""
    for name in [*V2_REQUESTS, *V3_REQUESTS, *(n for n in VECTORS if n.endswith(".4.18"))]:
        frame = VECTORS[name]
        whole = ServerProtocol(5 << 20).feed(frame)
        server = ServerProtocol(5 << 20)
        pieces = [item for byte in frame for item in server.feed(bytes([byte]))]
        assert pieces == whole, name
        assert len(whole) == 1, name
        base = name.removesuffix(".4.18")
        request = V2_REQUESTS.get(base) or V3_REQUESTS[base][1]
        item = whole[0]
        if isinstance(request, Add):
            assert isinstance(item, AddRun)
            assert (item.ledger_id, item.first, item.count, item.lac) == (LEDGER, ENTRY, 1, LAC)
            assert item.master_key == KEY
            assert item.recovery is request.recovery
            assert item.high_priority is request.high_priority
            assert item.deferred_sync is request.deferred_sync
            flags = (RECOVERY_ADD if request.recovery else 0) | (HIGH_PRIORITY if request.high_priority else 0)
            assert item.chunk[item.start : item.end] == frame_add(KEY, STORED, flags)
        elif isinstance(request, Auth):
            assert item == Ready(VECTORS[base[:2] + ".auth.resp.disabled"])
        elif isinstance(request, StartTls):
            assert item == Ready(VECTORS["v3.starttls.resp.notconfigured"])
        else:
            assert isinstance(item, Incoming)
            assert item.request == request


def test_availability() -> None:
    assert encode_runs([]) == VECTORS["availability.empty"]
    assert encode_runs([(0, 3), (5, 1), (7, 2)]) == VECTORS["availability.0-2,5,7-8"]
    assert encode_runs([(0, 1), (3, 1), (6, 1), (9, 1)]) == VECTORS["availability.0,3,6,9"]
    found = EntryList.decode(VECTORS["availability.0-2,5,7-8"])
    assert [entry for entry in range(12) if entry in found] == [0, 1, 2, 5, 7, 8]
    assert list(found.runs()) == [(0, 3), (5, 1), (7, 2)]
