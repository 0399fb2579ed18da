"""The metadata check before the first acknowledgement of a normal add for a ledger new to the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.bookie_kit import DIGEST, KEY, OTHER_KEY, FlakyMetadata, add, memory_metadata, running, until

from buckram.core.messages import Read, WriteLac
from buckram.errors import Code, MetadataUnavailable
from buckram.types import LedgerState

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])


@PROTOCOLS
@pytest.mark.parametrize("state", [LedgerState.CLOSED, LedgerState.IN_RECOVERY])
async def test_a_ledger_that_is_not_open_is_fenced_durably(tmp_path: Path, protocol: int, state: LedgerState) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(1, state)
        wire = await kit.wire(protocol)
        assert (await wire.call(add(1, 1))).code is Code.FENCED
        assert kit.store.ledger(1).fenced
        assert kit.store.entries(1) == []
        assert (await wire.call(add(1, 0))).code is Code.FENCED
        assert (await wire.call(add(1, 0, recovery=True))).code is Code.OK


@PROTOCOLS
async def test_a_copy_that_the_quorum_did_not_wait_for_is_taken(tmp_path: Path, protocol: int) -> None:
    """The writer sealed the ledger before this bookie had looked at its metadata."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await kit.ledger(1, LedgerState.CLOSED, last=2)
        metadata.gate.clear()
        wire, intruder = await kit.wire(protocol), await kit.wire(protocol)
        for entry in range(2):
            wire.send(add(1, entry))
        await until(lambda: metadata.reads == 1)
        intruder.send(add(1, 2, OTHER_KEY))
        assert await wire.silent()
        metadata.gate.set()
        assert [(await wire.reply()).code for _ in range(2)] == [Code.OK] * 2
        assert (await intruder.reply()).code is Code.UNAUTHORIZED
        assert (await wire.call(add(1, 2))).code is Code.OK  # it was not yet here when the others were decided
        assert kit.store.entries(1) == [(0, 3)]
        assert (await wire.call(add(1, 3))).code is Code.FENCED
        assert (await wire.call(add(1, 2))).code is Code.FENCED


async def test_a_fence_that_came_first_holds_for_a_closed_ledger_too(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(1, LedgerState.CLOSED, last=2)
        wire = await kit.wire()
        assert (await wire.call(Read(1, 0, fence=True, master_key=KEY))).code is Code.NO_ENTRY
        assert (await wire.call(add(1, 0))).code is Code.FENCED


@PROTOCOLS
async def test_open_and_absent_ledgers_are_accepted(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(1)
        wire = await kit.wire(protocol)
        assert (await wire.call(add(1, 0))).code is Code.OK
        assert (await wire.call(add(2, 0))).code is Code.OK


async def test_one_look_per_ledger(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire()
        for entry in range(5):
            assert (await wire.call(add(1, entry))).code is Code.OK
        assert metadata.reads == 1


async def test_the_password_in_metadata_decides_whose_key_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(1)
        intruder, writer = await kit.wire(), await kit.wire()
        assert (await intruder.call(add(1, 0, OTHER_KEY))).code is Code.UNAUTHORIZED
        assert kit.store.ledger(1) is None
        assert (await writer.call(add(1, 0))).code is Code.OK
        assert (await intruder.call(add(1, 1, OTHER_KEY))).code is Code.UNAUTHORIZED


async def test_a_wrong_key_does_not_fence_a_closed_ledger(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(1, LedgerState.CLOSED)
        wire = await kit.wire()
        assert (await wire.call(add(1, 0, OTHER_KEY))).code is Code.UNAUTHORIZED
        assert kit.store.ledger(1) is None


async def test_adds_behind_a_wrong_key_are_judged_on_their_own(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await kit.ledger(1)
        metadata.gate.clear()
        intruder, writer = await kit.wire(), await kit.wire()
        intruder.send(add(1, 0, OTHER_KEY))
        await until(lambda: metadata.reads == 1)
        writer.send(add(1, 0))
        assert await writer.silent()
        metadata.gate.set()
        assert (await intruder.reply()).code is Code.UNAUTHORIZED
        assert (await writer.reply()).code is Code.OK


@PROTOCOLS
async def test_adds_wait_in_order_while_the_store_is_unreachable(tmp_path: Path, protocol: int) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        metadata.error = MetadataUnavailable("partitioned")
        wire, other = await kit.wire(protocol), await kit.wire(protocol)
        for entry in range(3):
            wire.send(add(1, entry))
        assert await wire.silent()
        # Everything that promises nothing new goes on meanwhile, also for this ledger.
        assert (await other.call(Read(1, 0))).code is Code.NO_LEDGER
        assert (await other.call(add(1, 9, recovery=True))).code is Code.OK
        assert await wire.silent()
        metadata.error = None
        assert [(await wire.reply()).entry_id for _ in range(3)] == [0, 1, 2]
        assert kit.store.entries(1) == [(0, 3), (9, 1)]


async def test_an_answer_of_io_error_when_the_store_stays_away(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=0.2) as kit:
        metadata.error = MetadataUnavailable("partitioned")
        wire = await kit.wire()
        assert (await wire.call(add(1, 0))).code is Code.IO_ERROR
        assert kit.store.ledger(1) is None
        metadata.error = None
        assert (await wire.call(add(1, 0))).code is Code.OK


async def test_a_hanging_store_is_an_io_error_too(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=0.2) as kit:
        metadata.gate.clear()
        wire = await kit.wire()
        assert (await wire.call(add(1, 0))).code is Code.IO_ERROR
        metadata.gate.set()


async def test_a_fence_that_arrives_during_the_check_wins(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await kit.ledger(1)
        metadata.gate.clear()
        writer, recoverer = await kit.wire(), await kit.wire()
        writer.send(add(1, 0))
        await until(lambda: metadata.reads == 1)
        assert (await recoverer.call(Read(1, -1, fence=True, master_key=KEY))).code is Code.NO_ENTRY
        metadata.gate.set()
        assert (await writer.reply()).code is Code.FENCED
        assert kit.store.entries(1) == []


@pytest.mark.parametrize("first", ["recovery add", "explicit lac"])
async def test_what_needs_no_admission_does_not_replace_it(tmp_path: Path, first: str) -> None:
    """A copy by repair, or a LAC, makes the ledger known here; a stale writer is still checked against metadata."""
    async with running(tmp_path) as kit:
        await kit.ledger(1, LedgerState.CLOSED)
        wire = await kit.wire(3)
        if first == "recovery add":
            assert (await wire.call(add(1, 0, recovery=True))).code is Code.OK
        else:
            assert (await wire.call(WriteLac(1, 0, KEY, DIGEST.seal_lac(1, 0)))).code is Code.OK
        metadata = kit.metadata
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire(3)
        assert (await wire.call(add(1, 1))).code is Code.FENCED


async def test_a_connection_that_goes_while_its_add_waits_leaves_nothing(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        metadata.gate.clear()
        wire = await kit.wire()
        wire.send(add(1, 0))
        await until(lambda: metadata.reads == 1)
        await wire.close()
        await until(lambda: not kit.bookie.server.sessions)
        metadata.gate.set()
        await asyncio.sleep(0)
        await until(lambda: kit.bookie.server.budget.total == 0)


async def test_stopping_while_adds_wait_leaves_no_task(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    before = len(asyncio.all_tasks())
    async with running(tmp_path, metadata=metadata) as kit:
        metadata.gate.clear()
        wire = await kit.wire()
        wire.send(add(1, 0))
        await until(lambda: metadata.reads == 1)
    assert len(asyncio.all_tasks()) == before
