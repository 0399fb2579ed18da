"""What compaction copies: the single entry of a ledger, and of two copies of an entry the newer one."""

from __future__ import annotations

from tests.support.store_kit import add, durable, open_store, read, reopened, settle, stored

from buckram.bookie.storage.store import Store
from buckram.runtime.disk.memory import MemoryDisk

DEAD, LONE, TWICE = 1, 50, 60


async def filled(store: Store, rounds: int, extra: dict[int, tuple[int, int, bytes]], first: int = 0) -> None:
    """Rounds of a ledger that is going to be deleted; `extra`: round -> (ledger, entry, payload) among them."""
    for number in range(rounds):
        add(store, DEAD, first + number, [bytes(1500)])
        if number in extra:
            ledger, entry, payload = extra[number]
            add(store, ledger, entry, [payload])
        await durable(store)
        await settle(store, 3)
    await settle(store)
    assert store.stats()["sealed_segments"] >= 2


async def compacted(store: Store) -> None:
    store.delete_ledger(DEAD)
    await settle(store)
    assert await store.compact() > 0
    await settle(store)
    assert any(not segment.has_states for segment in store._state.segments), "something was rewritten"


async def test_a_ledger_that_has_one_entry_in_a_file_keeps_it() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    await filled(store, 150, {5: (LONE, 0, b"lone"), 60: (LONE + 1, 7, b"another")})
    await compacted(store)
    for _ in range(2):
        assert await read(store, (LONE, 0), (LONE + 1, 7)) == [
            stored(LONE, 0, -1, b"lone"), stored(LONE + 1, 7, -1, b"another"),
        ]  # fmt: skip
        store = await reopened(store, disk)
    await store.close()


async def test_an_older_copy_does_not_come_behind_a_file_that_stays() -> None:
    """The files at both ends are mostly dead, those between are not, and the newer copy is in one of these."""
    disk = MemoryDisk()
    store = open_store(disk)
    await filled(store, 100, {5: (TWICE, 0, b"older")})
    for entry in range(100):
        add(store, LONE, entry, [bytes(1500)])
        if entry == 50:
            add(store, TWICE, 0, [b"newer"])
        await durable(store)
        await settle(store, 3)
    await filled(store, 100, {5: (LONE + 1, 0, b"behind")}, first=100)
    await compacted(store)
    for _ in range(2):
        assert await read(store, (TWICE, 0), (LONE + 1, 0)) == [
            stored(TWICE, 0, -1, b"newer"), stored(LONE + 1, 0, -1, b"behind"),
        ]  # fmt: skip
        store = await reopened(store, disk)
    await store.close()


async def test_of_two_copies_of_an_entry_the_newer_one_stays() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    await filled(store, 150, {5: (TWICE, 0, b"older"), 60: (TWICE, 0, b"newer"), 62: (TWICE, 1, b"next")})
    assert await read(store, (TWICE, 0)) == [stored(TWICE, 0, -1, b"newer")]
    await compacted(store)
    for _ in range(2):
        assert await read(store, (TWICE, 0), (TWICE, 1)) == [
            stored(TWICE, 0, -1, b"newer"), stored(TWICE, 1, -1, b"next"),
        ]  # fmt: skip
        store = await reopened(store, disk)
    await store.close()
