"""Adds against a real bookie: acknowledged when durable, refused with the right code, key and fence first."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.support.bookie_kit import KEY, OTHER_KEY, HeldDisk, add, add_frames, batch, code_of, running, stored
from tests.support.polling import until

from buckram.core.wire.messages import Force, Read
from buckram.errors import Code

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])


@PROTOCOLS
async def test_an_entry_comes_back_as_it_was_sent(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        reply = await wire.call(add(1, 0))
        assert (reply.code, reply.ledger_id, reply.entry_id) == (Code.OK, 1, 0)
        assert (await wire.call(Read(1, 0))).body == stored(1, 0)


async def test_acknowledgements_of_many_runs_come_joined_and_complete(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        wire.writer.write(add_frames(1, 0, 300) + add_frames(2, 0, 200) + add_frames(1, 300, 100))
        got = [await wire.frame() for _ in range(600)]
        acks = sorted(struct.unpack(">iqq", packet[4:]) for packet in got)
        assert acks == [(0, 1, entry) for entry in range(400)] + [(0, 2, entry) for entry in range(200)]


@PROTOCOLS
async def test_no_answer_before_the_sync(tmp_path: Path, protocol: int) -> None:
    disk = HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire = await kit.wire(protocol)
        assert (await wire.call(add(1, 0))).code is Code.OK
        disk.holding = True
        wire.send(add(1, 1))
        await until(lambda: disk.waiting > 0)
        assert await wire.silent()
        # Readable before it is durable: inserted first, acknowledged later.
        reader = await kit.wire(protocol)
        assert (await reader.call(Read(1, 1))).body == stored(1, 1)
        disk.release()
        assert (await wire.reply()).code is Code.OK


async def test_deferred_sync_and_force(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire = await kit.wire(3)
        assert (await wire.call(add(1, 0))).code is Code.OK
        disk.holding = True
        # This store answers a deferred add when it is durable, too; nothing relies on that, but force must wait.
        wire.send(add(1, 1, deferred=True))
        await until(lambda: disk.waiting > 0)
        other = await kit.wire(3)
        other.send(Force(1))
        assert await other.silent()
        disk.release()
        assert (await other.reply()).code is Code.OK
        assert (await wire.reply()).code is Code.OK


async def test_deferred_sync_does_not_apply_to_recovery_adds(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire = await kit.wire(3)
        assert (await wire.call(add(1, 0))).code is Code.OK
        disk.holding = True
        wire.send(add(1, 1, deferred=True, recovery=True))
        await until(lambda: disk.waiting > 0)
        assert await wire.silent()
        disk.release()
        assert (await wire.reply()).code is Code.OK


@PROTOCOLS
@pytest.mark.parametrize("recovery", [False, True])
async def test_a_wrong_key_changes_nothing(tmp_path: Path, protocol: int, recovery: bool) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        await wire.call(add(1, 0))
        before = kit.store.ledger(1)
        assert (await wire.call(add(1, 1, OTHER_KEY, recovery=recovery))).code is Code.UNAUTHORIZED
        assert (await wire.call(Read(1, 1))).code is Code.NO_ENTRY
        assert kit.store.ledger(1) == before
        assert kit.store.entries(1) == [(0, 1)]


async def test_a_run_of_the_wrong_key_gets_one_answer_per_entry(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        await wire.call(add(1, 0))
        wire.writer.write(add_frames(1, 1, 5, OTHER_KEY))
        answers = [struct.unpack(">iqq", (await wire.frame())[4:]) for _ in range(5)]
        assert answers == [(102, 1, entry) for entry in range(1, 6)]


@PROTOCOLS
async def test_the_same_entry_twice_is_fine(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        assert (await wire.call(add(1, 0))).code is Code.OK
        assert (await wire.call(add(1, 0))).code is Code.OK
        assert kit.store.entries(1) == [(0, 1)]


@PROTOCOLS
async def test_ids_may_come_in_any_order_with_gaps(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        for entry in (5, 3, 9):
            assert (await wire.call(add(1, entry))).code is Code.OK
        assert kit.store.entries(1) == [(3, 1), (5, 1), (9, 1)]
        assert (await wire.call(Read(1, -1))).body == stored(1, 9)


async def test_after_a_failed_sync_nothing_is_acknowledged_and_the_bookie_stops(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire = await kit.wire()
        await wire.call(add(1, 0))
        disk.holding = True
        wire.send(add(1, 1))
        await until(lambda: disk.waiting > 0)
        disk.release(OSError(5, "the device is gone"))
        answer = await wire.reader.read(1 << 16)
        assert answer == b"" or code_of(answer[4:]) == 101
        await until(kit.bookie.failed.done)
        # Nobody finds it any more, and nothing more is answered.
        await until(lambda: not kit.bookie.server.sessions)
        with pytest.raises(OSError):  # noqa: PT011  # refused or reset, both are right
            await (await kit.wire()).call(Read(1, 0))


@PROTOCOLS
async def test_high_entry_ids_survive(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        entry = 2**31 + 5
        assert (await wire.call(add(2**40, entry))).code is Code.OK
        assert (await wire.call(Read(2**40, entry))).body == stored(2**40, entry)


async def test_large_entries_up_to_the_frame_limit(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        payload = bytes(5 * 1024 * 1024 - 256)
        assert (await wire.call(add(1, 0, payload=payload))).code is Code.OK
        assert (await wire.call(Read(1, 0))).body == stored(1, 0, payload=payload)
        assert (await wire.call(batch(1, 0))).bodies == [stored(1, 0, payload=payload)]


async def test_everything_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        tree, info = kit.metadata, kit.bookie.info
        wire = await kit.wire()
        wire.writer.write(add_frames(1, 0, 100))
        for _ in range(100):
            await wire.frame()
    async with running(tmp_path, metadata=tree) as kit:
        assert kit.bookie.info is not None
        assert info is not None
        assert kit.bookie.info.bookie_id == info.bookie_id
        assert kit.bookie.info.incarnation == info.incarnation
        wire = await kit.wire()
        for entry in (0, 50, 99):
            assert (await wire.call(Read(1, entry))).body == stored(1, entry)
        assert (await wire.call(add(1, 100, OTHER_KEY))).code is Code.UNAUTHORIZED
        assert (await wire.call(add(1, 100, KEY))).code is Code.OK
