"""Which code every operation answers in every condition (docs/reference/protocol.md, result codes), on both wires."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest
from tests.support.bookie_kit import (
    DIGEST,
    KEY,
    OTHER_KEY,
    STORE,
    HeldDisk,
    Kit,
    Wire,
    add,
    batch,
    code_of,
    running,
    seen,
    stored,
)
from tests.support.polling import until

from buckram.bookie.storage.upkeep import maintenance
from buckram.core.wire import v2 as wire_v2
from buckram.core.wire import v3 as wire_v3
from buckram.core.wire.availability import EntryList
from buckram.core.wire.messages import (
    ErrorReply,
    Force,
    GetBookieInfo,
    ListEntries,
    Read,
    ReadLac,
    StartTls,
    WriteLac,
)
from buckram.errors import Code

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])


def write_lac(ledger: int, lac: int, key: bytes = KEY) -> WriteLac:
    return WriteLac(ledger, lac, key, DIGEST.seal_lac(ledger, lac))


async def with_entries(kit: Kit, protocol: int, count: int = 3) -> Wire:
    wire = await kit.wire(protocol)
    for entry in range(count):
        assert (await wire.call(add(1, entry))).code is Code.OK
    return wire


# -- READ


@PROTOCOLS
async def test_read_of_unknown_things(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, protocol)
        assert (await wire.call(Read(2, 0))).code is Code.NO_LEDGER
        assert (await wire.call(Read(2, -1))).code is Code.NO_LEDGER
        assert (await wire.call(Read(1, 3))).code is Code.NO_ENTRY
        assert kit.store.ledger(2) is None


@PROTOCOLS
async def test_entry_minus_one_is_the_last_stored_and_echoes_minus_one(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, protocol)
        reply = await wire.call(Read(1, -1))
        assert (reply.entry_id, reply.body) == (-1, stored(1, 2))


async def test_v3_reads_carry_the_known_lac(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 3)
        assert (await wire.call(Read(1, 0))).max_lac == 1
        await wire.call(write_lac(1, 2))
        assert (await wire.call(Read(1, 0))).max_lac == 2
        # The known LAC never goes down, the packet that READ_LAC gives is the newest.
        await wire.call(write_lac(1, 0))
        assert (await wire.call(Read(1, 0))).max_lac == 2
        assert DIGEST.open_lac(1, (await wire.call(ReadLac(1))).lac_body) == 0


@PROTOCOLS
async def test_reads_are_not_ordered_by_key_or_pipelining(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, protocol, 20)
        for entry in range(20):
            wire.send(Read(1, entry))
        bodies = {(await wire.reply()).body for _ in range(20)}
        assert bodies == {stored(1, entry) for entry in range(20)}


# -- BATCH_READ


async def test_batch_reads_are_cut_by_count_and_size(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 2, 10)
        size = len(stored(1, 0)) + 4
        assert (await wire.call(batch(1, 2, 3))).bodies == [stored(1, entry) for entry in (2, 3, 4)]
        assert len((await wire.call(batch(1, 0, 0))).bodies) == 10
        assert len((await wire.call(batch(1, 0, -1))).bodies) == 10
        # Never more than fits; fewer is legal, the reader asks again.
        assert 1 <= len((await wire.call(batch(1, 0, 0, 36 + 4 * size))).bodies) <= 4
        assert 1 <= len((await wire.call(batch(1, 0, 0, 36 + 4 * size - 1))).bodies) <= 3
        assert 1 <= len((await wire.call(batch(1, 0, 0, 36 + 2 * size - 1))).bodies) <= 1
        for tiny in (0, -1, 1):
            assert (await wire.call(batch(1, 5, 0, tiny))).bodies == [stored(1, 5)]


async def test_a_batch_read_gives_the_prefix_before_a_gap(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 2, 3)
        await wire.call(add(1, 5))
        assert (await wire.call(batch(1, 1))).bodies == [stored(1, 1), stored(1, 2)]
        assert (await wire.call(batch(1, 3))).code is Code.NO_ENTRY
        assert (await wire.call(batch(4, 0))).code is Code.NO_LEDGER


@pytest.mark.parametrize("sizes", [[20] * 300, [0, 5000, 20, 20, 70], [60_000] * 9], ids=["equal", "mixed", "large"])
async def test_a_framed_batch_read_gives_the_same_entries(tmp_path: Path, sizes: list[int]) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(2)
        payloads = [bytes([entry % 251]) * size for entry, size in enumerate(sizes)]
        for entry, payload in enumerate(payloads):
            assert (await wire.call(add(1, entry, payload=payload))).code is Code.OK
        whole = [stored(1, entry, payload=payload) for entry, payload in enumerate(payloads)]
        for first in (0, 1, len(sizes) - 1):
            for count in (0, 1, 2):
                ask = batch(1, first, count, master_key=KEY, framed=True)
                reply = await wire.call(ask)
                assert reply.bodies == (await wire.call(batch(1, first, count))).bodies
                assert reply.bodies == whole[first:][: count or len(whole)][: len(reply.bodies)]
                assert reply.bodies
        assert (await wire.call(batch(1, len(sizes), master_key=KEY, framed=True))).code is Code.NO_ENTRY
        assert (await wire.call(batch(9, 0, master_key=KEY, framed=True))).code is Code.NO_LEDGER


@pytest.mark.parametrize(("key", "flag"), [(KEY, True), (OTHER_KEY, False)], ids=["its key", "another key"])
async def test_frames_hold_the_master_key_and_go_only_to_who_has_it(tmp_path: Path, key: bytes, flag: bool) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 2, 3)
        wire.send(batch(1, 0, master_key=key, framed=True))
        packet = await wire.frame()
        assert bool(struct.unpack_from(">I", packet)[0] & wire_v2.FRAMED) is flag
        assert (KEY in packet) is flag
        assert wire_v2.decode_reply(packet)[0].bodies == [stored(1, entry) for entry in range(3)]  # type: ignore[union-attr]


async def test_a_batch_read_is_bounded_by_the_bookie(tmp_path: Path) -> None:
    size = len(stored(1, 0)) + 4
    async with running(tmp_path, max_batch_read_bytes=36 + 2 * size) as kit:
        wire = await with_entries(kit, 2, 5)
        assert len((await wire.call(batch(1, 0, 0, 1 << 30))).bodies) <= 2


async def test_a_batch_error_has_the_request_id(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        wire.writer.write(struct.pack(">IIqqqiq", 40, 0x02070000, 4660, 5, 77, 10, 5 << 20))
        assert (await wire.frame()).hex() == "020700000000000100000000000012340000000000000005000000000000004d"


# -- WRITE_LAC, READ_LAC


async def test_an_explicit_lac_comes_back_byte_for_byte(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 3)
        assert (await wire.call(write_lac(1, 2))).code is Code.OK
        reply = await wire.call(ReadLac(1))
        assert (reply.code, reply.lac_body, reply.last_entry_body) == (Code.OK, DIGEST.seal_lac(1, 2), stored(1, 2))
        metadata = kit.metadata
    async with running(tmp_path, metadata=metadata) as kit:
        reply = await (await kit.wire(3)).call(ReadLac(1))
        assert reply.lac_body == DIGEST.seal_lac(1, 2)


async def test_write_lac_codes(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 3)
        assert (await wire.call(write_lac(1, 1, OTHER_KEY))).code is Code.UNAUTHORIZED
        assert (await wire.call(ReadLac(1))).lac_body is None
        await wire.call(Read(1, 0, fence=True, master_key=KEY))
        assert (await wire.call(write_lac(1, 1))).code is Code.OK  # fenced: still accepted
        assert (await wire.call(write_lac(5, 1))).code is Code.OK  # unknown: created with the key
        assert (await wire.call(write_lac(5, 1, OTHER_KEY))).code is Code.UNAUTHORIZED
        kit.store.delete_ledger(1)
        assert (await wire.call(write_lac(1, 1))).code is Code.NO_LEDGER
        body = DIGEST.seal_lac(1, 1)
        assert (await wire.call(WriteLac(2, 1, KEY, body))).code is Code.BAD_REQUEST  # another ledger inside
        assert (await wire.call(WriteLac(1, 1, KEY, body[:12]))).code is Code.BAD_REQUEST
        assert (await wire.call(WriteLac(1, 1, KEY, body + bytes(1000)))).code is Code.BAD_REQUEST


async def test_read_lac_codes(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 3)
        assert (await wire.call(ReadLac(1))).code is Code.OK
        assert (await wire.call(ReadLac(2))).code is Code.NO_ENTRY  # a missing ledger, as Apache has it
        await wire.call(write_lac(3, 4))
        reply = await wire.call(ReadLac(3))
        assert (reply.code, reply.lac_body, reply.last_entry_body) == (Code.OK, DIGEST.seal_lac(3, 4), None)
        await wire.call(Read(4, -1, fence=True, master_key=KEY))
        assert (await wire.call(ReadLac(4))).code is Code.NO_ENTRY
        kit.store.delete_ledger(1)
        assert (await wire.call(ReadLac(1))).code is Code.NO_ENTRY


# -- the others


async def test_force_is_ok_for_every_ledger(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 3)
        assert (await wire.call(Force(1))).code is Code.OK
        assert (await wire.call(Force(99))).code is Code.OK


async def test_bookie_info_gives_what_was_asked(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        both, total, free = [await wire.call(GetBookieInfo(asked)) for asked in (3, 1, 2)]
        assert both.total_bytes > both.free_bytes > 0
        assert (total.total_bytes, total.free_bytes) == (both.total_bytes, None)
        assert free.total_bytes is None
        assert free.free_bytes is not None


async def test_list_of_entries(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await with_entries(kit, 3)
        for entry in (5, 7, 8):
            await wire.call(add(1, entry))
        reply = await wire.call(ListEntries(1))
        assert list(EntryList.decode(reply.availability).runs()) == [(0, 3), (5, 1), (7, 2)]
        assert (await wire.call(ListEntries(2))).code is Code.NO_LEDGER
        await wire.call(Read(4, -1, fence=True, master_key=KEY))
        assert (await wire.call(ListEntries(4))).availability == bytes(64)
        kit.store.delete_ledger(1)
        assert (await wire.call(ListEntries(1))).code is Code.NO_LEDGER


async def test_start_tls_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        wire.writer.write(bytes.fromhex("0000000b0a06080310091808d20600"))
        assert (await wire.frame()).hex() == "0a06080310091808109403"
        assert (await wire.call(StartTls())).code is Code.BAD_REQUEST
        assert (await wire.call(Read(1, 0))).code is Code.NO_LEDGER


async def test_auth_is_answered_by_the_disabled_plugin(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        wire.writer.write(bytes.fromhex("000000160a06080310051807b2060b0a047361736c1203010203"))
        assert (await wire.frame()).hex() == ("0a060803100518071000b206160a124175746844697361626c6564506c7567696e1200")
        other = await kit.wire(2)
        other.writer.write(bytes.fromhex("0000000f020300000a047361736c1203010203"))
        assert (await other.frame()).hex() == "020300000a124175746844697361626c6564506c7567696e1200"


async def test_operations_that_do_not_exist(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        for operation in (3, 4, 12):
            wire.writer.write(bytes.fromhex("00000008" + f"0a06080310{operation:02x}1801"))
            reply, _, txn = wire_v3.decode_reply(await wire.frame())
            assert (reply, txn) == (ErrorReply(Code.BAD_REQUEST), 1)


async def test_wrong_versions(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(2)
        wire.writer.write(bytes.fromhex("00000014" + "0302000000000000000000010000000000000002"))
        assert (await wire.frame()).hex() == "030200000000006700000000000000010000000000000002"
        wire = await kit.wire(3)
        wire.writer.write(bytes.fromhex("00000010" + "0a06080210011801a2060508b4241005"))
        assert (await wire.reply()).code is Code.BAD_VERSION


async def test_version_zero_requests_get_version_zero_answers(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(2)
        wire.writer.write(bytes.fromhex("00000014" + "0000000200000000000000010000000000000002"))
        assert (await wire.frame()).hex() == "000000020000000100000000000000010000000000000002"


@PROTOCOLS
async def test_bad_adds(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        assert (await wire.call(add(1, -5))).code is Code.BAD_REQUEST
        assert kit.store.ledger(1) is None
    if protocol == 2:
        async with running(tmp_path / "other") as kit:
            wire = await kit.wire(2)
            short = struct.pack(">I20sqq", 0x02010000, KEY, 1, 0)
            wire.writer.write(struct.pack(">I", len(short)) + short)
            assert code_of(await wire.frame()) == 100


# -- read-only


@PROTOCOLS
async def test_a_read_only_bookie(tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "POLL_S", 0.02)
    disk = HeldDisk(tmp_path)
    config = dataclasses.replace(STORE, reserved_bytes=64 << 20, writable_again_bytes=65 << 20)
    async with running(tmp_path, disk=disk, store=config) as kit:
        wire, extra = await with_entries(kit, protocol), await kit.wire(3)
        disk.free_bytes = 40 << 20  # half of the reserve is there for recovery
        await until(lambda: not kit.store.is_writable)
        await seen(kit.metadata, readonly=[kit.id])
        assert (await wire.call(add(1, 3))).code is Code.READ_ONLY
        assert (await wire.call(add(1, 3, OTHER_KEY))).code is Code.READ_ONLY
        assert (await wire.call(Read(1, 0))).body == stored(1, 0)
        assert (await extra.call(write_lac(1, 2))).code is Code.READ_ONLY
        assert (await extra.call(ReadLac(1))).code is Code.OK
        assert (await extra.call(Force(1))).code is Code.OK
        assert (await extra.call(GetBookieInfo())).code is Code.OK
        assert (await extra.call(ListEntries(1))).code is Code.OK
        assert (await wire.call(Read(1, -1, fence=True, master_key=KEY))).body == stored(1, 2)
        assert (await wire.call(add(1, 3, recovery=True))).code is Code.OK
        disk.free_bytes = None
        await until(lambda: bool(kit.store.is_writable))
        assert (await wire.call(add(2, 0))).code is Code.OK
        await seen(kit.metadata, writable=[kit.id])
