"""Long polls against a real bookie, and the waiting room alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.bookie_kit import DIGEST, KEY, FlakyMetadata, HeldDisk, Wire, add, memory_metadata, running, stored
from tests.support.polling import until

from buckram.bookie.service.connections.long_poll import LacProof, LongPolls, Waiter, Woken
from buckram.core.wire.adds import frame_adds, scan_adds
from buckram.core.wire.messages import Read, WriteLac
from buckram.errors import Code


class Noon:
    def wall_us(self) -> int:
        return 1_700_000_000_000_000


def poll(ledger: int, above: int, timeout_ms: int | None = 30_000, entry: int = -1, piggyback: bool = True) -> Read:
    return Read(ledger, entry, previous_lac=above, timeout_ms=timeout_ms, piggyback=piggyback)


def write_lac(ledger: int, lac: int) -> WriteLac:
    return WriteLac(ledger, lac, KEY, DIGEST.seal_lac(ledger, lac))


async def fill(wire: Wire, count: int) -> None:
    for entry in range(count):
        assert (await wire.call(add(1, entry))).code is Code.OK


async def test_a_lac_that_is_there_already_is_answered_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        await fill(wire, 3)
        reply = await wire.call(poll(1, 0))
        assert (reply.code, reply.entry_id, reply.body, reply.max_lac) == (Code.OK, 1, stored(1, 1), 1)
        assert reply.lac_update_ms is None  # nobody waited


async def test_a_ledger_whose_first_add_waits_for_metadata_is_polled(tmp_path: Path) -> None:
    """Apache's bookies know it from there on; "no such ledger" ends readers beside a bookie that is down."""
    metadata = FlakyMetadata(await memory_metadata())
    async with running(tmp_path, metadata=metadata) as kit:
        wire, writer = await kit.wire(3), await kit.wire(2)
        metadata.gate.clear()
        writer.send(add(1, 0))
        await until(lambda: 1 in kit.bookie.service.admission.waiting)
        wire.send(poll(1, -1))
        assert await wire.silent()
        metadata.gate.set()
        assert (await writer.reply()).code is Code.OK
        assert (await writer.call(add(1, 1, lac=0))).code is Code.OK
        reply = await wire.reply()
        assert (reply.code, reply.entry_id, reply.body, reply.max_lac) == (Code.OK, 0, stored(1, 0), 0)


async def test_also_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await fill(await kit.wire(3), 3)
        metadata = kit.metadata
    async with running(tmp_path, metadata=metadata) as kit:
        reply = await (await kit.wire(3)).call(poll(1, 0))
        assert (reply.entry_id, reply.max_lac) == (1, 1)


async def test_an_add_wakes_the_poll_and_brings_the_entry(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire, writer = await kit.wire(3), await kit.wire(2)
        await fill(writer, 2)
        wire.send(poll(1, 0))
        await until(lambda: kit.bookie.service.polls.count == 1)
        # An add whose LAC is not above the mark leaves it waiting; the next one does wake it.
        await writer.call(add(1, 2, lac=0))
        assert await wire.silent()
        await writer.call(add(1, 3, lac=2))
        reply = await wire.reply()
        assert (reply.entry_id, reply.body, reply.max_lac) == (1, stored(1, 1), 2)
        assert reply.lac_update_ms is not None


async def test_a_lac_is_sent_before_the_entry_that_carried_it_is_synced(tmp_path: Path) -> None:
    """The poll promises the LAC, which was acknowledged elsewhere; the entry is its proof, and its add still waits."""
    disk = HeldDisk(tmp_path)
    async with running(tmp_path, disk=disk) as kit:
        wire, writer = await kit.wire(3), await kit.wire(2)
        await fill(writer, 2)
        wire.send(poll(1, 0, piggyback=False))
        await until(lambda: kit.bookie.service.polls.count == 1)
        disk.holding = True
        writer.send(add(1, 2, lac=1))
        reply = await wire.reply()
        assert (reply.code, reply.body, reply.max_lac) == (Code.OK, stored(1, 2, 1), 1)
        assert await writer.silent()
        disk.release()
        assert (await writer.reply()).code is Code.OK


@pytest.mark.parametrize("sizes", [(5,), (5, 5), (5, 9, 7), (9, 5), (5, 5, 5, 5, 5), (5, 5, 9, 5, 5, 7)])
def test_the_proof_of_a_run_is_its_first_entry_that_is_one_or_of_many_the_last(sizes: tuple[int, ...]) -> None:
    payloads = [bytes(size) for size in sizes]
    frames = [frame_adds(DIGEST, KEY, 7, 3 + n, 2 + n, 0, [payload])[0] for n, payload in enumerate(payloads)]
    _, (run,) = scan_adds(b"".join(frames), 0, 1 << 20)
    last = len(sizes) - 1
    for above in range(1, 2 + len(sizes)):
        wanted = max(above - 1, 0) if len(sizes) <= 4 else last
        assert run.proof(above) == (frames[wanted][28:] if wanted <= last and above < 2 + last else None)


def test_a_stale_entry_proves_nothing() -> None:
    fresh, _, _ = frame_adds(DIGEST, KEY, 7, 3, 9, 0, [b"a"])
    stale, _, _ = frame_adds(DIGEST, KEY, 7, 4, 2, 0, [b"b"])
    _, (run,) = scan_adds(fresh + stale, 0, 1 << 20)
    assert run.lac == 9
    assert run.proof(5) == fresh[28:]
    assert run.proof(9) is None
    many = [frame_adds(DIGEST, KEY, 7, 3 + n, 9 - n, 0, [b"c"])[0] for n in range(5)]
    _, (run,) = scan_adds(b"".join(many), 0, 1 << 20)
    assert run.proof(5) is None


async def test_an_explicit_lac_wakes_it_and_a_lower_one_does_not(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire, writer = await kit.wire(3), await kit.wire(3)
        await fill(writer, 3)
        wire.send(poll(1, 1))
        await until(lambda: kit.bookie.service.polls.count == 1)
        await writer.call(write_lac(1, 1))
        assert await wire.silent()
        await writer.call(write_lac(1, 2))
        reply = await wire.reply()
        assert (reply.entry_id, reply.body, reply.max_lac) == (2, stored(1, 2), 2)


async def test_an_entry_that_is_stored_elsewhere_gives_the_lac_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        await wire.call(add(1, 0))
        await wire.call(add(1, 5))
        reply = await wire.call(poll(1, 1))
        assert (reply.code, reply.entry_id, reply.body, reply.max_lac) == (Code.OK, -1, None, 4)


async def test_the_time_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        await fill(wire, 2)
        reply = await wire.call(poll(1, 7, timeout_ms=30))
        assert (reply.code, reply.entry_id, reply.body, reply.max_lac) == (Code.OK, -1, None, 0)
        reply = await wire.call(poll(1, 7, timeout_ms=None))
        assert (reply.code, reply.entry_id, reply.max_lac) == (Code.OK, -1, 0)


async def test_fence_and_deletion_wake_it(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire, other = await kit.wire(3), await kit.wire(3)
        await fill(wire, 2)
        wire.send(poll(1, 5))
        await until(lambda: kit.bookie.service.polls.count == 1)
        await other.call(Read(1, -1, fence=True, master_key=KEY))
        assert (await wire.reply()).entry_id == -1
        wire.send(poll(1, 5))
        await until(lambda: kit.bookie.service.polls.count == 1)
        kit.store.delete_ledger(1)
        kit.bookie.service.ledger_deleted(1)
        assert (await wire.reply()).code is Code.NO_LEDGER


async def test_codes(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        await fill(wire, 2)
        assert (await wire.call(poll(9, 0))).code is Code.NO_LEDGER
        assert (await wire.call(poll(1, 0, entry=1))).code is Code.BAD_REQUEST
        await wire.call(Read(4, -1, fence=True, master_key=KEY))
        assert (await wire.call(poll(4, -1, timeout_ms=5))).code is Code.NO_ENTRY
        reply = await wire.call(poll(1, -1, entry=1, piggyback=False))
        assert (reply.body, reply.max_lac, reply.entry_id) == (stored(1, 1), 0, 1)


async def test_a_poll_of_a_lost_connection_is_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        wire = await kit.wire(3)
        await fill(wire, 1)
        for _ in range(10):
            wire.send(poll(1, 5))
        await until(lambda: kit.bookie.service.polls.count == 10)
        await wire.close()
        await until(lambda: kit.bookie.service.polls.count == 0)
        assert kit.bookie.service.polls.waiting == {}


async def test_too_many(tmp_path: Path) -> None:
    async with running(tmp_path, max_long_polls=3) as kit:
        wire = await kit.wire(3)
        await fill(wire, 1)
        for _ in range(3):
            wire.send(poll(1, 5))
        assert (await wire.call(poll(1, 5))).code is Code.TOO_MANY_REQUESTS


async def test_every_waiter_is_called_once() -> None:
    polls = LongPolls(Noon(), 100)
    called: list[tuple[int, Woken, int | None]] = []

    def note(waiter: Waiter, why: Woken, at_ms: int | None, proof: LacProof | None) -> None:
        called.append((waiter.above, why, at_ms))

    for above in range(4):
        polls.wait(1, above, 60.0, note)
    polls.lac_advanced(1, 2)  # wakes those waiting above 0 and 1
    polls.lac_advanced(1, 2)
    assert called == [(0, Woken.ADVANCED, 1_700_000_000_000), (1, Woken.ADVANCED, 1_700_000_000_000)]
    polls.state_changed(1)
    polls.lac_advanced(1, 9)
    assert len(called) == 2  # who fences is in the middle of it
    await asyncio.sleep(0)
    assert [(above, why) for above, why, _ in called[2:]] == [(2, Woken.STATE_CHANGED), (3, Woken.STATE_CHANGED)]
    assert (polls.count, polls.waiting) == (0, {})


async def test_a_waiter_cancelled_on_its_way_is_not_called() -> None:
    polls = LongPolls(Noon(), 100)
    called: list[int] = []
    waiter = polls.wait(1, 0, 60.0, lambda *woken: called.append(1))
    assert waiter is not None
    polls.state_changed(1)
    polls.cancel(waiter)
    await asyncio.sleep(0)
    assert (called, polls.count) == ([], 0)
    second: list[Waiter] = []
    polls.wait(1, 0, 60.0, lambda *woken: polls.cancel(second[0]))
    waiter = polls.wait(1, 0, 60.0, lambda *woken: called.append(2))
    assert waiter is not None
    second.append(waiter)
    polls.lac_advanced(1, 1)  # the first hangs up on the second
    assert (called, polls.count) == ([], 0)
