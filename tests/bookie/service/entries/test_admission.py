"""The metadata check before the first acknowledgement of a normal add for a ledger new to the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import bookie_kit
from tests.support.bookie_kit import DIGEST, KEY, OTHER_KEY, FlakyMetadata, Kit, add, memory_metadata
from tests.support.polling import until

from buckram.core.wire.messages import Read, WriteLac
from buckram.errors import ClusterNotInitialised, Code, MetadataUnavailable, NoSuchLedger
from buckram.metadata.maintain.checkup import examine
from buckram.metadata.tree.store import TreeStore
from buckram.types import LedgerState


def running(path: Path, **options: Any) -> contextlib.AbstractAsyncContextManager[Kit]:
    """A bookie as people run it."""
    return bookie_kit.running(path, **{"admission": "known", **options})


class LaggingMetadata(FlakyMetadata):
    """A server that hears of ledgers only when it is told to catch up, and `deaf` times not even then."""

    def __init__(self, inner: TreeStore, deaf: int = 0) -> None:
        super().__init__(inner)
        self.deaf, self.current = deaf, False

    async def sync(self) -> None:
        await self._inner.sync()
        self.current = self.deaf <= 0
        self.deaf -= 1

    async def read_ledger(self, ledger_id: int, watch: Callable[[], None] | None = None) -> Any:
        if not self.current:
            self.reads += 1
            raise NoSuchLedger(ledger_id)
        self.current = False
        return await super().read_ledger(ledger_id, watch)


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
async def test_an_open_ledger_is_accepted(tmp_path: Path, protocol: int) -> None:
    async with running(tmp_path) as kit:
        await kit.ledger(1)
        wire = await kit.wire(protocol)
        assert (await wire.call(add(1, 0))).code is Code.OK


@PROTOCOLS
async def test_a_ledger_that_metadata_does_not_know_is_fenced_durably(tmp_path: Path, protocol: int) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire(protocol)
        assert (await wire.call(add(1, 0))).code is Code.FENCED
        assert metadata.reads == 2  # absence is looked at twice
        assert kit.store.ledger(1).fenced
        assert kit.store.entries(1) == []
        assert (await wire.call(Read(1, 0))).code is Code.NO_ENTRY
    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire(protocol)
        assert kit.store.ledger(1).fenced
        assert (await wire.call(add(1, 0))).code is Code.FENCED


async def test_the_refusal_of_an_unknown_ledger_waits_for_its_fence(tmp_path: Path) -> None:
    disk = bookie_kit.HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire = await kit.wire()
        disk.holding = True
        wire.send(add(1, 0))
        await until(lambda: disk.waiting > 0)
        assert await wire.silent()
        disk.release()
        assert (await wire.reply()).code is Code.FENCED


@pytest.mark.parametrize("deaf", [0, 1])
async def test_a_server_that_lags_does_not_fence_a_ledger_just_made(tmp_path: Path, deaf: int) -> None:
    """Its absence counts only after a sync, and only when it was seen twice."""
    metadata = LaggingMetadata(await memory_metadata(), deaf)
    async with running(tmp_path, metadata=metadata) as kit:
        await kit.ledger(1)
        wire = await kit.wire()
        assert (await wire.call(add(1, 0))).code is Code.OK
        assert metadata.reads == 1 + deaf


async def test_a_cluster_that_is_gone_is_no_proof_of_absence(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())

    async def gone() -> str:
        raise ClusterNotInitialised("memory:test")

    async with running(tmp_path, metadata=metadata) as kit:
        wire = await kit.wire()
        metadata.instance_id = gone  # type: ignore[attr-defined]  # the rest goes to the real one
        assert (await wire.call(add(1, 0))).code is Code.IO_ERROR
        assert kit.store.ledger(1) is None


async def test_any_admission_takes_a_ledger_that_metadata_does_not_know(tmp_path: Path) -> None:
    """For tests that write to bookies directly; `cluster check` tells of it."""
    async with running(tmp_path, admission="any") as kit:
        wire = await kit.wire()
        assert (await wire.call(add(2, 0))).code is Code.OK
        problems = [one for one in (await examine(kit.metadata)).problems if one.bookie == kit.id]
        assert [(one.state, one.values) for one in problems] == [("open-admission", {"admission": "any"})]
    async with running(tmp_path / "known") as kit:
        assert not (await examine(kit.metadata)).problems


async def test_admitted_ledgers_go_on_while_new_ones_wait(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=0.2) as kit:
        await kit.ledger(1)
        wire = await kit.wire(3)
        assert (await wire.call(add(1, 0))).code is Code.OK
        metadata.error = MetadataUnavailable("partitioned")
        assert (await wire.call(add(1, 1))).code is Code.OK
        assert (await wire.call(add(2, 0))).code is Code.TOO_MANY_REQUESTS
        assert (await wire.call(add(3, 0, recovery=True))).code is Code.OK
        assert (await wire.call(Read(4, -1, fence=True, master_key=KEY))).code is Code.NO_ENTRY
        assert (await wire.call(WriteLac(5, 0, KEY, DIGEST.seal_lac(5, 0)))).code is Code.OK
        assert kit.store.ledger(2) is None


async def test_one_look_per_ledger(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await kit.ledger(1)
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
        await kit.ledger(1)
        metadata.error = MetadataUnavailable("partitioned")
        wire, other = await kit.wire(protocol), await kit.wire(protocol)
        for entry in range(3):
            wire.send(add(1, entry))
        assert await wire.silent()
        # Everything that promises nothing new goes on meanwhile, also for this ledger.
        assert (await other.call(Read(1, 0))).code is Code.NO_ENTRY
        assert (await other.call(add(1, 9, recovery=True))).code is Code.OK
        assert await wire.silent()
        metadata.error = None
        assert [(await wire.reply()).entry_id for _ in range(3)] == [0, 1, 2]
        assert kit.store.entries(1) == [(0, 3), (9, 1)]


async def test_later_when_the_store_stays_away(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=0.2) as kit:
        await kit.ledger(1)
        metadata.error = MetadataUnavailable("partitioned")
        wire = await kit.wire()
        assert (await wire.call(add(1, 0))).code is Code.TOO_MANY_REQUESTS
        assert kit.store.ledger(1) is None
        metadata.error = None
        assert (await wire.call(add(1, 0))).code is Code.OK


@PROTOCOLS
async def test_a_ledger_whose_first_add_waits_is_known(tmp_path: Path, protocol: int) -> None:
    """Who reads what was not confirmed yet hears that there is no such entry, not that there is no such ledger."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        await kit.ledger(1)
        metadata.gate.clear()
        writer, reader = await kit.wire(protocol), await kit.wire(protocol)
        assert (await reader.call(Read(1, 0))).code is Code.NO_LEDGER
        writer.send(add(1, 0))
        await until(lambda: metadata.reads == 1)
        assert (await reader.call(Read(1, 0))).code is Code.NO_ENTRY
        metadata.gate.set()
        assert (await writer.reply()).code is Code.OK
        assert (await reader.call(Read(1, 0))).code is Code.OK


async def test_a_hanging_store_is_later_too(tmp_path: Path) -> None:
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata, admission_timeout_s=0.2) as kit:
        metadata.gate.clear()
        wire = await kit.wire()
        assert (await wire.call(add(1, 0))).code is Code.TOO_MANY_REQUESTS
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
