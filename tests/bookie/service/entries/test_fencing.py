"""Fencing: key first, bit before look-up, no answer of any kind before the fence is durable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.bookie_kit import KEY, OTHER_KEY, HeldDisk, Wire, add, batch, running, stored
from tests.support.polling import until

from buckram.core.wire.messages import Read
from buckram.errors import Code

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])
KINDS = [(2, "read"), (3, "read"), (2, "batch")]


def fencing(kind: str, ledger: int, entry: int, key: bytes | None = KEY) -> Any:
    if kind == "batch":
        return batch(ledger, entry, fence=True, master_key=key)
    return Read(ledger, entry, fence=True, master_key=key)


@pytest.mark.parametrize(("protocol", "kind"), KINDS)
@pytest.mark.parametrize("entry", [0, 7])
async def test_no_answer_before_the_fence_is_durable(tmp_path: Path, protocol: int, kind: str, entry: int) -> None:
    disk = HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire, other = await kit.wire(protocol), await kit.wire(protocol)
        assert (await wire.call(add(1, 0))).code is Code.OK
        disk.holding = True
        wire.send(fencing(kind, 1, entry))
        await until(lambda: disk.waiting > 0)
        assert await wire.silent()
        # A second fencing read whose fence is set but not synced waits as well, the negative one too.
        other.send(fencing(kind, 1, entry))
        assert await other.silent()
        disk.release()
        expected = Code.OK if entry == 0 else Code.NO_ENTRY
        assert (await wire.reply()).code is expected
        assert (await other.reply()).code is expected


@PROTOCOLS
async def test_an_unknown_ledger_is_created_fenced_and_durable(tmp_path: Path, protocol: int) -> None:
    disk = HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire = await kit.wire(protocol)
        disk.holding = True
        wire.send(fencing("read", 9, -1))
        await until(lambda: disk.waiting > 0)
        assert await wire.silent()
        disk.release()
        assert (await wire.reply()).code is Code.NO_ENTRY
        assert (await wire.call(add(9, 0))).code is Code.FENCED
        metadata = kit.metadata
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire(protocol)
        assert (await wire.call(add(9, 0))).code is Code.FENCED
        assert (await wire.call(add(9, 0, OTHER_KEY))).code is Code.UNAUTHORIZED


@PROTOCOLS
async def test_a_fence_stops_normal_adds_and_nothing_else(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        await wire.call(add(1, 0))
        reply = await wire.call(fencing("read", 1, -1))
        assert (reply.code, reply.entry_id, reply.body) == (Code.OK, -1, stored(1, 0))
        assert (await wire.call(add(1, 1))).code is Code.FENCED
        assert (await wire.call(add(1, 1, high=True))).code is Code.FENCED
        assert (await wire.call(add(1, 1, recovery=True))).code is Code.OK
        assert (await wire.call(Read(1, 1))).body == stored(1, 1)
        assert (await wire.call(fencing("read", 1, 1))).body == stored(1, 1)


async def test_a_fencing_read_carries_no_lac(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        await wire.call(add(1, 3))
        assert (await wire.call(Read(1, 3))).max_lac == 2
        assert (await wire.call(fencing("read", 1, 3))).max_lac is None


@PROTOCOLS
async def test_a_wrong_key_fences_nothing(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        await wire.call(add(1, 0))
        assert (await wire.call(fencing("read", 1, 0, OTHER_KEY))).code is Code.UNAUTHORIZED
        assert not kit.store.ledger(1).fenced
        assert (await wire.call(add(1, 1))).code is Code.OK


async def test_without_a_key_nothing_is_fenced(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        await wire.call(add(1, 0))
        assert (await wire.call(Read(1, 0, fence=True))).code is Code.UNAUTHORIZED
        assert (await wire.call(Read(5, 0, fence=True))).code is Code.UNAUTHORIZED
        assert kit.store.ledger(5) is None
        assert (await wire.call(add(1, 1))).code is Code.OK


async def test_a_fence_that_cannot_be_synced_is_an_io_error_at_most(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire = await kit.wire()
        disk.holding = True
        wire.send(fencing("read", 1, -1))
        await until(lambda: disk.waiting > 0)
        disk.release(OSError(5, "the device is gone"))
        answer = await wire.reader.read(1 << 16)
        assert answer == b"" or int.from_bytes(answer[8:12], "big") == 101
        await until(kit.bookie.failed.done)


@PROTOCOLS
async def test_adds_and_fence_in_one_chunk_are_ordered(tmp_path: Path, protocol: int) -> None:
    """What was inserted before the fence is seen by the fencing read; what comes after it is refused."""
    async with running(tmp_path) as kit:
        wire: Wire = await kit.wire(protocol)
        await wire.call(add(1, 0))
        for entry in (1, 2):
            wire.send(add(1, entry))
        wire.send(fencing("read", 1, -1))
        wire.send(add(1, 3))
        replies = [await wire.reply() for _ in range(4)]
        by_kind = {type(reply).__name__: [] for reply in replies}
        for reply in replies:
            by_kind[type(reply).__name__].append(reply)
        assert by_kind["ReadReply"][0].body == stored(1, 2)
        assert sorted((reply.entry_id, reply.code) for reply in by_kind["AddReply"]) == [
            (1, Code.OK),
            (2, Code.OK),
            (3, Code.FENCED),
        ]


@PROTOCOLS
async def test_a_deleted_ledger_stays_closed_to_writers(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(protocol)
        await wire.call(add(1, 0))
        kit.store.delete_ledger(1)
        assert (await wire.call(add(1, 1))).code is Code.FENCED
        assert (await wire.call(fencing("read", 1, -1))).code is Code.NO_LEDGER
        assert (await wire.call(Read(1, 0))).code is Code.NO_LEDGER
        metadata = kit.metadata
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire(protocol)
        assert (await wire.call(add(1, 1))).code is Code.FENCED


async def test_repair_may_bring_a_copy_back_after_deletion(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire()
        await wire.call(add(1, 0))
        kit.store.delete_ledger(1)
        assert (await wire.call(add(1, 4, recovery=True))).code is Code.OK
        assert (await wire.call(Read(1, 4))).body == stored(1, 4)
        assert (await wire.call(Read(1, 0))).code is Code.NO_ENTRY
        assert (await wire.call(add(1, 5))).code is Code.FENCED
