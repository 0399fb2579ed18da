"""Group commit while a block is on its way to the disk: nothing overtakes it, nobody hears too early or never."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence

from tests.support.polling import until
from tests.support.store_kit import add, open_store, read, settle, small_config

from buckram.bookie.storage.store import Store
from buckram.runtime.disk.memory import MemoryDisk
from buckram.seams import Write

Done = Callable[[OSError | None], None]


class Slow(MemoryDisk):
    """Writes of the log wait until the test lets them go on, as they do while a device syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Sequence[Write], Done]] = []

    def write(self, writes: Sequence[Write], done: Done, *, sync: bool = True) -> None:
        self.waiting.append((writes, done))

    def go_on(self, error: OSError | None = None) -> None:
        writes, done = self.waiting.pop(0)
        if error is None:
            self.write_now(writes)
        done(error)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Told:
    """Who of those that wait has heard, and what."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.said: dict[str, OSError | None] = {}

    def wait(self, name: str) -> None:
        def done(error: OSError | None) -> None:
            assert name not in self.said, f"{name} hears twice"
            self.said[name] = error

        self._store.after_durable(done)


async def end(store: Store, disk: Slow) -> None:
    closing = asyncio.ensure_future(store.close())
    while not closing.done():
        await turns()
        while disk.waiting:
            disk.go_on()
    await closing


async def test_one_block_at_a_time_is_on_its_way_and_an_answer_waits_for_its_own() -> None:
    disk = Slow()
    store, names = open_store(disk), [chr(ord("a") + n) for n in range(8)]
    told = Told(store)
    for entry, name in enumerate(names):
        add(store, 1, entry, [bytes(5000)])  # some of them fill a block by themselves
        told.wait(name)
        await turns()
        assert len(disk.waiting) == 1
    assert told.said == {}
    heard = 0
    while disk.waiting:
        written = sum(map(len, disk.waiting[0][0][0].buffers))
        disk.go_on()
        assert list(told.said) == names[: len(told.said)]
        assert 0 < len(told.said) - heard <= max(1, written // 5000), "nobody hears for another's block"
        heard = len(told.said)
        await turns()
        assert len(disk.waiting) <= 1
    assert list(told.said) == names
    await end(store, disk)


async def test_what_is_on_its_way_is_not_read_from_the_file() -> None:
    disk = Slow()
    store = open_store(disk)
    add(store, 1, 0, [b"on its way"])
    await turns()
    segment = store._log.segment
    assert segment is not None
    assert not store._log.written(segment, segment.log_end)
    assert [found[32:] for found in await read(store, (1, 0)) if isinstance(found, bytes)] == [b"on its way"]
    disk.go_on()
    assert store._log.written(segment, segment.log_end)
    await end(store, disk)


async def test_a_failed_write_is_reported_to_all_later_waiters() -> None:
    disk = Slow()
    store = open_store(disk)
    told = Told(store)
    for entry, name in enumerate(("on its way", "closed", "closed too", "open")):
        add(store, 1, entry, [bytes(9000)])
        told.wait(name)
        if not entry:
            await turns()
    error = OSError(errno.EIO, "gone")
    disk.go_on(error)
    assert told.said == dict.fromkeys(("on its way", "closed", "closed too", "open"), error)
    told.wait("later")
    assert told.said["later"] is error
    await store.close()


async def test_a_store_that_found_space_again_takes_adds() -> None:
    disk = Slow()
    store = open_store(disk)
    told = Told(store)
    add(store, 1, 0, [b"x"])
    told.wait("x")
    await turns()
    disk.go_on(OSError(errno.ENOSPC, "full"))
    assert store._log.full
    assert told.said == {}
    await until(lambda: bool(disk.waiting), "it does not try again by its timer", 5.0)
    disk.go_on()
    assert told.said == {"x": None}
    assert not store._log.full
    await settle(store, 5)
    await end(store, disk)


async def test_the_log_goes_on_in_a_new_file_without_leaving_anybody_behind() -> None:
    disk = Slow()
    store = open_store(disk, small_config(segment_bytes=64 << 10))
    told = Told(store)
    for entry in range(40):
        add(store, 1, entry, [bytes(4000)])
        told.wait(str(entry))
        await turns()
        if entry % 3 == 0 and disk.waiting:
            disk.go_on()
            await turns()
    await end(store, disk)
    assert list(told.said) == [str(entry) for entry in range(40)]
    assert set(told.said.values()) == {None}


async def test_a_file_has_its_footer_when_all_its_blocks_are_on_the_device() -> None:
    disk = Slow()
    store = open_store(disk, small_config(segment_bytes=64 << 10))
    first, entry = store._log.segment, 0
    assert first is not None
    while store._log.segment is first:
        add(store, 1, entry, [bytes(4000)])
        entry += 1
        await turns()
        assert entry < 100, "the log does not go on in a new file"
    for _ in range(20):
        await turns()
    assert len(disk.waiting) == 1, "no block of the full file is on the device"
    assert first.footer is None
    while first.footer is None:
        assert disk.waiting
        disk.go_on()
        await turns()
    assert store._log.written(first, first.log_end)
    await end(store, disk)


async def blocks_of(bulk: Callable[[int], bool]) -> list[int]:
    """Bytes of the blocks that twelve runs of 9,000 bytes go to that arrive in one turn, behind one on its way."""
    disk = Slow()
    store = open_store(disk, small_config(segment_bytes=1 << 20))
    add(store, 1, 0, [b"on its way"])
    await turns()
    for entry in range(1, 13):
        add(store, 1, entry, [bytes(9000)], bulk=bulk(entry))
    disk.go_on()
    sizes = []
    while disk.waiting or store._log.pending_bytes:
        await turns()
        sizes.append(sum(map(len, disk.waiting[0][0][0].buffers)))
        disk.go_on()
    await end(store, disk)
    return sizes


async def test_copies_go_in_larger_blocks_than_what_somebody_waits_for() -> None:
    whole = 12 * (9000 + 60)
    ordinary, copies, mixed = await blocks_of(lambda _: False), await blocks_of(lambda _: True), await blocks_of(_odd)
    assert max(ordinary) <= 16 << 10
    assert 48 << 10 < max(copies) <= 64 << 10
    assert sum(copies) >= whole
    assert len(copies) * 3 <= len(ordinary)
    assert len(copies) < len(mixed) < len(ordinary), "an add that finds the block larger may join it, and no more"


def _odd(entry: int) -> bool:
    return entry % 2 == 1
