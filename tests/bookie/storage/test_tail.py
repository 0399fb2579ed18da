"""The end of the log: an unfinished write is its end, anything shorter than was acknowledged is a loss.

`crashed` leaves what a kill leaves; damage comes on top of it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random

import pytest
from tests.bookie.storage.test_corruption import crashed, flip, stop
from tests.support.clock import pass_time
from tests.support.store_kit import (
    KEY,
    NullStats,
    add,
    durable,
    open_store,
    read,
    reopened,
    settle,
    small_config,
    stored,
)

from buckram.bookie.storage.log.log_position import Position, WitnessedPosition
from buckram.bookie.storage.log.tail_page import NAME as TAIL
from buckram.bookie.storage.log.tail_page import TailPage, new_page, read_mark
from buckram.bookie.storage.store import Store, StoreError
from buckram.core.storage.segment_format import SECTOR
from buckram.errors import InvalidArgument
from buckram.runtime.disk.memory import MemoryDisk
from buckram.seams import PAGE_BYTES


async def killed(disk: MemoryDisk, entries: int = 3) -> tuple[str, int, int]:
    """A store with so many acknowledged entries of ledger 1, one block each: file, begin and end of its last block."""
    store = open_store(disk)
    for entry in range(entries - 1):
        add(store, 1, entry, [b"x" * 700])
        await durable(store)
    before = store.position
    add(store, 1, entries - 1, [b"x" * 700])
    await durable(store)
    name = store._state.segments[-1].name
    await stop(store)
    return name, before.offset, store.position.offset


async def unknown(store: Store, *wanted: tuple[int, int]) -> bool:
    return all(isinstance(one, StoreError) and one.limbo for one in await read(store, *wanted))


@pytest.mark.parametrize("where", ["header", "payload", "whole", "zeros", "two"])
async def test_a_damaged_last_block_that_was_acknowledged_is_a_loss(where: str) -> None:
    disk = MemoryDisk()
    name, begin, end = await killed(disk)
    disk = crashed(disk)
    if where == "header":
        flip(disk, name, begin + 2)
    elif where == "payload":
        flip(disk, name, begin + 300)
    else:
        content = disk.model.inode(name).content
        start = begin - (end - begin if where == "two" else 0)
        content[start:end] = bytes(end - start) if where == "zeros" else b"\x55" * (end - start)
    store = open_store(disk)
    assert store.limbo
    assert store.loss == 1
    assert (await read(store, (1, 0)))[0] == stored(1, 0, -1, b"x" * 700)
    assert await unknown(store, (1, 2), (1, 99), (77, 0))
    # Nothing is lost a second time: the log goes on in another file, however often it starts.
    for _ in range(2):
        add(store, 2, 0, [b"more"])
        await durable(store)
        await stop(store)
        disk = crashed(disk)
        store = open_store(disk)
        assert (store.limbo, store.loss) == (True, 1)
    await store.close()


async def test_a_shortened_active_file_is_a_loss_and_not_a_shorter_log() -> None:
    for keep_page in (True, False):
        disk = MemoryDisk()
        name, begin, _ = await killed(disk)
        disk = crashed(disk)
        del disk.model.inode(name).content[begin:]
        if not keep_page:
            # After a loss of power the page may be as old as the start: the made size says it.
            disk.model.inode(TAIL).content[:] = new_page(open_salt(disk), 1, Position(1, 0), 0)
        store = open_store(disk)
        assert (store.limbo, store.loss) == (True, 1)
        assert await unknown(store, (1, 2))
        await settle(store)
        store = await reopened(store, disk)
        assert (store.limbo, store.loss) == (True, 1)
        await store.close()


def open_salt(disk: MemoryDisk) -> int:
    from buckram.bookie.storage.superblock import read_superblock

    found = read_superblock(disk)
    assert found is not None
    return found.salt


async def test_a_torn_block_behind_what_was_acknowledged_is_no_loss() -> None:
    disk = MemoryDisk()
    name, _, end = await killed(disk)
    disk = crashed(disk)
    content = disk.model.inode(name).content
    content[end : end + 512] = content[:512]  # any header at all
    store = open_store(disk)
    assert not store.limbo
    assert await read(store, (1, 2), (1, 3)) == [stored(1, 2, -1, b"x" * 700), None]
    await store.close()


async def test_another_good_block_in_the_place_of_the_last_one_is_a_loss() -> None:
    first, second = MemoryDisk(), MemoryDisk()
    for disk, payload in ((first, b"a"), (second, b"b")):
        store = open_store(disk)
        add(store, 1, 0, [payload])
        await durable(store)
        await stop(store)
    disk = crashed(first)
    name = "log-00000001"
    disk.model.inode(name).content[:] = crashed(second).model.inode(name).content
    store = open_store(disk)
    assert store.limbo
    await store.close()


async def test_a_page_that_is_gone_or_damaged_is_a_loss_unless_the_stop_was_orderly() -> None:
    for orderly in (True, False):
        for damage in ("gone", "damaged"):
            disk = MemoryDisk()
            store = open_store(disk)
            add(store, 1, 0, [b"x"])
            await durable(store)
            await (store.close() if orderly else stop(store))
            disk = crashed(disk)
            if damage == "gone":
                disk.remove(TAIL)
            else:
                disk.model.inode(TAIL).content[:] = b"\xff" * PAGE_BYTES
            store = open_store(disk)
            assert store.limbo is not orderly
            store = await reopened(store, disk)
            assert store.loss == (0 if orderly else 1)
            await store.close()


async def test_a_page_that_was_being_written_falls_back_to_the_block_before() -> None:
    page = bytearray(new_page(7, 4, Position(3, 512), 11))
    mark = read_mark(page, 7)
    assert mark is not None
    writer = TailPage(memoryview(page), 7, mark)
    writer.write(3, 1024, 12)
    whole = bytes(page)
    writer.write(3, 2048, 13)
    for slot, (before, after) in itertools.product((0, SECTOR), ((page, whole), (whole, page))):
        for length in range(0, 100, 3):
            torn = bytearray(before)
            torn[slot : slot + length] = after[slot : slot + length]
            found = read_mark(torn, 7)
            assert found is not None
            assert found.end in (Position(3, 1024), Position(3, 2048))
            assert found.checksum == (12 if found.end.offset == 1024 else 13)
    assert read_mark(page, 8) is None  # another store's
    writer.write(5, 512, 14)
    writer.write(6, 512, 15)
    found = read_mark(page, 7)
    assert found is not None
    assert found.earlier == (Position(5, 512), Position(3, 2048))


async def test_the_end_of_the_log_file_before_the_newest_is_known() -> None:
    """Its footer was not written yet, and its last block was lost without a trace."""
    disk = MemoryDisk()
    store = open_store(disk)
    store._maintenance._pass = _nothing  # type: ignore[method-assign]  # the footer is never written
    entry = 0
    await settle(store)
    while store.position.seq < 2:
        add(store, 1, entry, [bytes(3000)])
        await durable(store)
        if store._state.spare is None:
            await store._maintenance._next_file()
        entry += 1
    first = store._state.segments[0]
    end = first.log_end
    await stop(store)
    disk = crashed(disk)
    disk.model.inode(first.name).content[end - 3584 : end] = bytes(3584)
    store = open_store(disk)
    assert store.limbo
    await store.close()


async def _nothing() -> None:
    pass


# -- a witness outside


def claim_of(store: Store) -> WitnessedPosition:
    return WitnessedPosition(store.incarnation, store.starts, store.position)


def open_with(disk: MemoryDisk, claim: WitnessedPosition) -> Store:
    return Store.open(disk, small_config(), NullStats(), random.Random(1), witness=claim)


async def test_a_directory_restored_from_a_copy_is_in_limbo_for_what_came_since() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    add(store, 1, 0, [b"old"])
    await durable(store)
    copy = crashed(disk)
    add(store, 1, 1, [b"new"])
    await durable(store)
    claim = claim_of(store)
    await stop(store)
    store = open_with(copy, claim)
    assert store.limbo
    assert await unknown(store, (1, 1), (5, 0))
    assert store.position > claim.position
    assert store.starts > claim.starts
    # The witness is told; a start with what it says then finds nothing new.
    claim = claim_of(store)
    await store.close()
    store = open_with(copy, claim)
    assert store.loss == 1
    await store.close()


async def test_a_directory_of_an_earlier_start_is_in_limbo_though_its_log_is_as_long() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    await store.close()
    store = open_with(disk, WitnessedPosition(store.incarnation, 5, Position(0, 0)))
    assert (store.limbo, store.starts) == (True, 6)
    await store.close()


async def test_a_claim_of_another_incarnation_or_one_that_is_met_says_nothing() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for entry in range(100):
        add(store, 1, entry, [bytes(3000)])
        await durable(store)
        await settle(store, 3)
    claim = claim_of(store)
    await settle(store)
    store.delete_ledger(1)
    await durable(store)
    assert await store.compact() > 0
    await stop(store)
    disk = crashed(disk)
    store = open_with(disk, claim)
    assert not store.limbo
    await store.close()
    store = open_with(disk, WitnessedPosition("another", 99, Position(99, 0)))
    assert not store.limbo
    await store.close()


async def test_starts_are_counted_before_anything_is_served() -> None:
    disk = MemoryDisk()
    for number in range(1, 4):
        store = open_store(disk)
        assert store.starts == number
        await stop(store)
        disk = MemoryDisk(disk.model.worst_case())


# -- losses are numbered


async def test_a_second_loss_is_another_number_and_only_the_newest_is_cleared() -> None:
    disk = MemoryDisk()
    name, begin, _ = await killed(disk)
    disk = crashed(disk)
    flip(disk, name, begin + 2)
    store = open_store(disk)
    assert store.loss == 1
    await settle(store)
    await stop(store)
    disk = crashed(disk)
    disk.remove(name)
    store = open_store(disk)
    assert store.loss == 2
    for wrong in (1, 3):
        with pytest.raises(InvalidArgument, match="is not the newest, that is 2"):
            store.clear_limbo(wrong)
    assert store.limbo
    store.clear_limbo(2)
    assert not store.limbo
    await settle(store)
    store = await reopened(store, disk)
    assert (store.limbo, store.loss) == (False, 2)
    await store.close()


# -- an idle log


async def test_an_idle_log_is_closed_by_an_empty_block_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.log.group_commit.IDLE_S", 0.02)
    disk = MemoryDisk()
    store = open_store(disk)
    add(store, 1, 0, [b"x"])
    await durable(store)
    end = store.position
    name = store._state.segments[-1].name
    await pass_time(0.1)
    assert store.position == Position(end.seq, end.offset + 512)
    assert store.stats()["commits"] == 1
    await pass_time(0.1)
    assert store.position.offset == end.offset + 512
    await stop(store)
    # Now the device alone tells: without the page, damage to the last entry is a bad block before a good one.
    disk = crashed(disk)
    flip(disk, name, end.offset - 10 - 512 + 40)
    disk.model.inode(TAIL).content[:] = new_page(open_salt(disk), 1, Position(1, 0), 0)
    store = open_store(disk)
    assert store.limbo
    await store.close()


async def test_a_store_that_closes_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.log.group_commit.IDLE_S", 0.02)
    store = open_store()
    store.put_ledger(1, KEY)
    await durable(store)
    await store.close()
    end = store.position
    await pass_time(0.05)
    assert store.position == end


async def test_what_was_lost_is_said(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    name, begin, end = await killed(disk)
    disk = crashed(disk)
    flip(disk, name, begin + 2)
    with caplog.at_level(logging.ERROR):
        store = open_store(disk)
    assert f"loss 1): log file {name} ends at {begin}, it was durable up to {end}" in caplog.text
    await store.close()


# -- opening and committing


async def test_more_damage_in_a_file_whose_loss_was_counted_is_a_new_loss() -> None:
    disk = MemoryDisk()
    name, _, _ = await killed(disk, 6)
    disk = crashed(disk)
    flip(disk, name, 2500)
    store = open_store(disk)
    assert store.loss == 1
    await stop(store)  # before the file got its footer
    disk = crashed(disk)
    store = open_store(disk)
    assert store.loss == 1
    await stop(store)
    disk = crashed(disk)
    flip(disk, name, 700)
    store = open_store(disk)
    assert store.loss == 2
    await store.close()


async def test_what_a_start_found_is_durable_before_it_is_served() -> None:
    """The power fails after a start that found a block which only the operating system had."""
    disk = MemoryDisk()
    store = open_store(disk)
    add(store, 1, 0, [b"first"])
    await durable(store)
    name = store._state.segments[-1].name
    add(store, 1, 1, [b"second"])
    await durable(store)
    await stop(store)
    disk = crashed(disk)
    disk.model.inode(name).content[512:1024] = bytes(512)
    disk.model.inode(name).pending.append((512, _block_of(store)))
    disk.model.inode(TAIL).content[:] = new_page(open_salt(disk), 1, Position(1, 0), 0)
    store = open_store(disk)
    assert await read(store, (1, 1)) == [stored(1, 1, -1, b"second")]
    await stop(store)
    store = open_store(MemoryDisk(disk.model.worst_case()))
    assert await read(store, (1, 1)) == [stored(1, 1, -1, b"second")]
    assert not store.limbo
    await store.close()


def _block_of(store: Store) -> bytes:
    """The second block as the ring of memory has it."""
    return b"".join(map(bytes, store._log.ring.parts(512, 512)))


async def test_one_block_is_in_flight_at_a_time() -> None:
    class Slow(MemoryDisk):
        under_way = most = 0

        def write(self, writes, done, *, sync=True):  # type: ignore[no-untyped-def]  # as in MemoryDisk
            self.under_way += 1
            self.most = max(self.most, self.under_way)

            def later() -> None:
                self.under_way -= 1
                MemoryDisk.write(self, writes, done, sync=sync)

            asyncio.get_running_loop().call_later(0.002, later)

    disk = Slow()
    store = open_store(disk)
    for entry in range(20):
        add(store, 1, entry, [bytes(100)])
        await pass_time(0.0005)
    await durable(store)
    assert disk.most == 1
    await store.close()
