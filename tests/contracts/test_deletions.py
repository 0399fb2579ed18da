"""Deletions are recorded with the removal, in one step, on every key store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.contracts.conftest import Cluster

from buckram.core.ledgers.deletions import (
    BUCKET,
    Deleted,
    bucket_of,
    decode_deleted,
    deletions_folder,
    deletions_key,
    told_folder,
)
from buckram.core.ledgers.metadata import created
from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import InvalidArgument, LedgerExists, LedgerIdUsed, NoSuchKey, NoSuchLedger, VersionConflict
from buckram.metadata.maintain.acceptance import compare, tell
from buckram.metadata.maintain.backup import set_history
from buckram.metadata.tree.removals import AT_ONCE, removal_steps
from buckram.metadata.tree.store import TreeStore
from buckram.types import CheckVersion, Create, Delete, KeyOp, LedgerMetadata, SetValue


def new_ledger(token: int = 7) -> LedgerMetadata:
    return created(3, 3, 2, ["a:1", "b:1", "c:1"], creator_token=token)


async def recorded(store: TreeStore) -> list[int]:
    """All ids whose deletion is recorded."""
    folder, found = deletions_folder(store.own), []
    for name in await store.keys.children(folder):
        key = f"{folder}/{name}"
        kept = decode_deleted(key, (await store.keys.get(key)).value)
        found += [int(name) * BUCKET + one for first, last in kept.intervals() for one in range(first, last + 1)]
    return found


async def delete(store: TreeStore, ledger_id: int) -> None:
    await store.delete_ledger(ledger_id, (await store.read_ledger(ledger_id)).version)


async def test_a_deletion_is_recorded_with_the_removal(cluster: Cluster) -> None:
    store = await cluster.store()
    for ledger_id in (3, 4, BUCKET - 1, BUCKET):
        await store.create_ledger(ledger_id, new_ledger())
    for ledger_id in (4, BUCKET, BUCKET - 1):
        await delete(store, ledger_id)
    assert await recorded(store) == [4, BUCKET - 1, BUCKET]
    assert await store.list_ledgers() == [3]


async def test_what_was_not_removed_is_not_recorded(cluster: Cluster) -> None:
    store = await cluster.store()
    made = await store.create_ledger(3, new_ledger())
    with pytest.raises(NoSuchLedger):
        await store.delete_ledger(4, 0)
    await store.write_ledger(3, new_ledger(), made.version)
    with pytest.raises(VersionConflict):
        await store.delete_ledger(3, made.version)
    assert await recorded(store) == []


async def test_many_deletions_at_once_by_several_processes(cluster: Cluster) -> None:
    """Those that wait together share steps, and one that fails fails alone."""
    stores = [await cluster.store(seed) for seed in range(3)]
    for ledger_id in range(60):
        await stores[0].create_ledger(ledger_id, new_ledger())
    jobs = [stores[one % 3].delete_ledger(one, 0) for one in range(50)]
    jobs += [stores[0].delete_ledger(55, 1), stores[1].delete_ledger(70, 0), stores[0].delete_ledger(3, 0)]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    wrong = [one for one in results if one is not None]
    assert sorted(type(one).__name__ for one in wrong) == ["NoSuchLedger", "NoSuchLedger", "VersionConflict"], wrong
    assert await recorded(stores[1]) == list(range(50))
    assert await stores[2].list_ledgers() == list(range(50, 60))


async def many_ledgers(store: TreeStore, ids: list[int]) -> list[KeyOp]:
    """Make ledgers with these ids; the operations that delete them."""
    keys = [await store.ledger_key(one) for one in ids]
    for start in range(0, len(keys), 30):
        await store.keys.multi([Create(one, serialise(new_ledger())) for one in keys[start : start + 30]])
    return [Delete(one, 0) for one in keys]


async def test_a_change_that_deletes_more_than_the_store_takes_in_one_step_is_done_in_several(cluster: Cluster) -> None:
    """63 deletions fit into a transaction of etcd, which takes 128 conditions, but not with a mark for each bucket."""
    store = await cluster.store()
    for count in (63, 90):
        ids = [bucket * BUCKET + count * 100 + one // 3 for one in range(count) for bucket in (one % 3,)]
        ops = await many_ledgers(store, ids)
        await store.ledgers.remove_with(ops, ids)
        assert set(ids) <= set(await recorded(store))
        assert await store.list_ledgers() == []


async def test_a_change_of_other_things_is_done_in_one_step_or_not_at_all(cluster: Cluster) -> None:
    store = await cluster.store()
    ids = [bucket * BUCKET + one for bucket in range(3) for one in range(22)]
    ops = await many_ledgers(store, ids)
    await store.keys.create("/other", b"")
    mixed = [*ops, SetValue("/other", b"1", 0)]
    if cluster.backend.name == "etcd":
        with pytest.raises(InvalidArgument, match=r"limited to 128.*do less in one multi"):
            await store.ledgers.remove_with(mixed, ids)
        assert await recorded(store) == []
        assert await store.list_ledgers() == ids
        assert (await store.keys.get("/other")).version == 0
    with pytest.raises(VersionConflict):
        await store.ledgers.remove_with([*ops[:20], SetValue("/other", b"1", 3)], ids[:20])
    assert await recorded(store) == []
    await store.ledgers.remove_with([*ops[:20], SetValue("/other", b"1", 0)], ids[:20])
    assert await recorded(store) == ids[:20]
    assert (await store.keys.get("/other")).value == b"1"


@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 1, 500])
def test_steps_of_removals_are_bounded_and_of_one_bucket(count: int) -> None:
    ids = [one * BUCKET // 40 for one in range(count)]
    steps = removal_steps([Delete(f"/{one}", 0) for one in ids], ids)
    assert sorted(one for _, some in steps for one in some) == ids
    for ops, some in steps:
        assert [op.key for op in ops] == [f"/{one}" for one in some]
        assert 0 < len(some) <= AT_ONCE
        assert len({bucket_of(one) for one in some}) == 1
    together: list[KeyOp] = [Delete(f"/{one}", 0) for one in ids]
    assert removal_steps([*together, CheckVersion("/other", 0)], ids) == []
    assert removal_steps([*together[1:], CheckVersion("/other", 0)], ids) == []


async def test_a_cancelled_deletion_leaves_the_others_to_their_own_fate(cluster: Cluster) -> None:
    store = await cluster.store()
    for ledger_id in range(8):
        await store.create_ledger(ledger_id, new_ledger())
    jobs = [asyncio.ensure_future(store.delete_ledger(one, 0)) for one in range(8)]
    await asyncio.sleep(0)
    jobs[0].cancel()
    jobs[5].cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    left = await store.list_ledgers()
    for one, job in enumerate(jobs):
        if not job.cancelled() and job.exception() is None:
            assert one not in left
    assert sorted([*left, *await recorded(store)]) == list(range(8)), "recorded and removed are one step"
    for one in left:
        await delete(store, one)
    assert await recorded(store) == list(range(8))


async def test_nothing_is_made_under_a_recorded_id(cluster: Cluster) -> None:
    """Neither by who chooses it, nor by who was given it and tries again, nor from what bookies hold (salvage)."""
    store, other = await cluster.store(), await cluster.store(2)
    given = await store.allocate_ledger_id()
    await store.create_ledger(given, new_ledger())
    await delete(other, given)
    for one in (store, other):
        with pytest.raises(LedgerIdUsed):
            await one.create_ledger(given, new_ledger())
        with pytest.raises(LedgerIdUsed):
            await one.ledgers.create(given, serialise(new_ledger()), chosen=False)
    assert await store.list_ledgers() == []


async def test_a_creation_and_the_deletion_of_its_id_do_not_both_win(cluster: Cluster) -> None:
    """The repeated creation of an id whose ledger is being deleted: it exists and is not recorded, or the reverse."""
    store, other = await cluster.store(), await cluster.store(2)
    for ledger_id in range(6):
        await store.create_ledger(ledger_id, new_ledger())
        again = [other.ledgers.create(ledger_id, serialise(new_ledger()), chosen=False) for _ in range(2)]
        results = await asyncio.gather(store.delete_ledger(ledger_id, 0), *again, return_exceptions=True)
        assert results[0] is None, results
        assert all(isinstance(one, LedgerExists) or type(one).__name__ == "KeyExists" for one in results[1:]), results
    assert await store.list_ledgers() == []
    assert await recorded(store) == list(range(6))


async def test_ids_without_a_record_may_be_made(cluster: Cluster) -> None:
    store = await cluster.store()
    for ledger_id in (3, 5):
        await store.create_ledger(ledger_id, new_ledger())
        await delete(store, ledger_id)
    await store.ledgers.create(4, serialise(new_ledger()), chosen=False)
    await store.ledgers.create(BUCKET + 3, serialise(new_ledger()), chosen=False)
    assert await store.list_ledgers() == [4, BUCKET + 3]


async def test_a_cluster_without_records_has_no_key_for_them(cluster: Cluster) -> None:
    """They begin with the first deletion, so a cluster of an older release needs nothing."""
    store = await cluster.store()
    await store.create_ledger(await store.allocate_ledger_id(), new_ledger())
    with pytest.raises(NoSuchKey):
        await store.keys.get(deletions_key(store.own, 0))
    assert await recorded(store) == []
    assert decode_deleted("", b"") == Deleted()


async def test_what_bookies_saw_deleted_since_is_compared_with_what_came_back(cluster: Cluster) -> None:
    """A ledger that the backup itself has as deleted and made again stays; so does one that nobody saw deleted."""
    store = await cluster.store()
    for ledger_id in (3, 4, 5, BUCKET - 1, BUCKET):
        await store.create_ledger(ledger_id, new_ledger())
    await delete(store, 4)
    await store.keys.create(await store.ledger_key(4), serialise(new_ledger()))  # Apache's clients look at no record
    await asyncio.gather(
        tell(store, {0: Deleted().and_these([4, 5, 9]), 1: Deleted().and_these([BUCKET + 7])}),
        tell(store, {0: Deleted().and_these([5, BUCKET - 1])}),
    )
    await tell(store, {0: Deleted().and_these([5])})
    assert await store.list_ledgers() == [3, 4, 5, BUCKET - 1, BUCKET], "telling removes nothing"
    assert await compare(store) == [5, BUCKET - 1]
    assert await store.list_ledgers() == [3, 4, BUCKET]
    assert await recorded(store) == [4, 5, 9, BUCKET - 1, BUCKET + 7]
    with pytest.raises(LedgerIdUsed):
        await store.create_ledger(9, new_ledger())
    assert await compare(store) == []
    assert await store.keys.children(told_folder(store.own)) == []


async def test_an_id_that_was_allocated_before_a_restore_is_looked_up(cluster: Cluster) -> None:
    """Somebody else may have made a ledger with it, and deleted that, in the history that counts now."""
    store, other = await cluster.store(), await cluster.store(1)
    now = await other.begin_history()
    first, second, third = [await store.allocate_ledger_id() for _ in range(3)]
    await store.create_ledger(first, new_ledger())
    await set_history(other, replace(now, restore="another"))
    await other.ledgers.raise_next_id(third)
    await tell(other, {bucket_of(second): Deleted().and_these([second])})
    await compare(other)
    with pytest.raises(LedgerIdUsed):
        await store.create_ledger(second, new_ledger())
    assert (await store.create_ledger(third, new_ledger())).metadata == new_ledger()
    fresh = await store.allocate_ledger_id()
    assert fresh > third, "of a block that was taken before"
    await store.create_ledger(fresh, new_ledger())
    assert set(await other.list_ledgers()) == {first, third, fresh}
