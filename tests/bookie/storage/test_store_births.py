"""What a store remembers of which ledger an id stands for."""

from __future__ import annotations

import pytest
from tests.support.store_kit import KEY, add, durable, open_store, read, reopened, settle, stored

from buckram.bookie.storage.store import Store
from buckram.errors import InvalidArgument
from buckram.runtime.disk.memory import MemoryDisk
from buckram.types import NO_BIRTH

A, B = b"a" * 16, b"b" * 16
OTHER_KEY = b"o" * 20


def birth(store: Store, ledger: int) -> bytes:
    record = store.ledger(ledger)
    assert record is not None
    return record.birth


async def test_a_birth_is_given_learned_once_and_kept_over_starts_and_deletions() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    store.put_ledger(1, KEY, birth=A)
    store.put_ledger(2, KEY)
    assert (birth(store, 1), birth(store, 2)) == (A, NO_BIRTH)
    store.learn_birth(2, B)
    store.learn_birth(2, B)
    with pytest.raises(InvalidArgument, match="another ledger"):
        store.learn_birth(2, A)
    with pytest.raises(InvalidArgument, match="another ledger"):
        store.put_ledger(1, KEY, birth=B)
    with pytest.raises(InvalidArgument, match="16 bytes, not 3"):
        store.put_ledger(3, KEY, birth=b"abc")
    store.delete_ledger(1)
    await durable(store)
    store = await reopened(store, disk)
    assert (birth(store, 1), birth(store, 2)) == (A, B)
    assert store.ledger(3) is None
    store.put_ledger(1, KEY, admitted=False, birth=A)  # a repair brings it back
    record = store.ledger(1)
    assert record is not None
    assert record.fenced
    assert birth(store, 1) == A
    await store.close()


@pytest.mark.parametrize("deleted", [False, True])
async def test_another_ledger_under_the_id_begins_empty_and_unfenced(deleted: bool) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    store.put_ledger(1, KEY, birth=A)
    add(store, 1, 0, [b"old"] * 3)
    store.set_explicit_lac(1, 2, b"p" * 20)
    store.fence(1)
    if deleted:
        store.delete_ledger(1)
    with pytest.raises(InvalidArgument, match="here already"):
        store.reborn(1, KEY, A)
    store.reborn(1, OTHER_KEY, B)
    add(store, 1, 1, [b"new"])
    await durable(store)
    for _ in range(3):
        record = store.ledger(1)
        assert record is not None
        assert (record.fenced, record.tombstone, record.admitted) == (False, False, True)
        assert (record.master_key, record.birth, record.explicit_lac) == (OTHER_KEY, B, None)
        assert (record.lac, record.last) == (-1, 1)
        assert await read(store, (1, 0), (1, 1), (1, 2)) == [None, stored(1, 1, -1, b"new"), None]
        store = await reopened(store, disk)
    await store.close()


async def test_what_an_older_ledger_left_in_sealed_files_is_dead() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for entry in range(60):
        add(store, 1, entry, [bytes(4000)])
        await durable(store)
        await settle(store, 3)
    await settle(store)
    assert store.stats()["sealed_segments"] > 1
    store.reborn(1, KEY, B)
    add(store, 1, 5, [b"new"])
    await settle(store)
    for step in range(3):
        assert store.entries(1) == [(5, 1)]
        if step == 0:
            assert await store.compact() > 0
        store = await reopened(store, disk)
    await store.close()
