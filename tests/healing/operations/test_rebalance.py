"""Bookies are added and space is evened out, with real bookies in this process; or it is said why not."""

from __future__ import annotations

import asyncio

import pytest
from tests.healing.test_leaving import ignore, leaving, whole
from tests.healing.test_lost_bookie import members, tree, write

from buckram.client.cluster.store_history import unguarded
from buckram.core.healing.operator_requests import OperatorRequest
from buckram.errors import InvalidArgument
from buckram.healing.operations import rebalance as rebalance_module
from buckram.healing.operations.decommission import DecommissionProgress
from buckram.healing.operations.dependency_check import OperationRefused, ledgers_naming
from buckram.healing.operations.rebalance import rebalance
from buckram.metadata.records.operator_requests import change_wish
from buckram.metadata.tree.memory import MemoryKeys
from buckram.testing import cluster


async def test_new_bookies_get_their_share_and_every_copy_is_good() -> None:
    async with leaving(3) as (c, client):
        ledgers = [await write(client, 200) for _ in range(20)]
        await c.add()
        await c.add()
        planned = await rebalance(client, ignore, dry_run=True)
        assert sum(planned.before.values()) == sum(planned.after.values()) == 3 * 20 * 200 * 1000
        for ledger in ledgers:
            assert len((await client.services.store.read_ledger(ledger)).metadata.fragments[0].ensemble) == 3
        seen: list[DecommissionProgress] = []
        found = await rebalance(client, seen.append)
        assert (found.even, found.failed) == (True, {})
        assert found.entries == 200 * len(found.moves) > 0
        assert seen[-1].done == seen[-1].total > 0
        assert max(found.after.values()) <= 1.1 * sum(found.after.values()) / 5
        assert await whole(client, *ledgers)
        for bookie, held in found.after.items():
            assert held == 200 * 1000 * len(await ledgers_naming(client.services.store, bookie))
        again = await rebalance(client, ignore)
        assert (again.even, again.moves) == (True, [])


async def test_a_bookie_that_leaves_takes_no_part() -> None:
    async with leaving(3) as (c, client):
        ledgers = [await write(client, 50) for _ in range(6)]
        await c.add()
        await c.add()
        store = client.services.store
        names = sorted((await store.bookies()).writable)
        held = {name: await ledgers_naming(store, name) for name in names}
        gone = next(name for name in names if not held[name])
        await change_wish(store, gone, lambda wish: OperatorRequest(leave=True))
        found = await rebalance(client, ignore)
        assert gone not in found.after
        assert await ledgers_naming(store, gone) == {}
        assert await whole(client, *ledgers)


async def test_a_move_does_not_begin_under_a_lock_that_went_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leaving(3) as (c, _), c.client() as client, c.client() as other:
        ledgers = [await write(client, 50) for _ in range(12)]
        await c.add()
        await c.add()
        keys, theirs = unguarded(client.services.store).keys, tree(other)
        assert isinstance(keys, MemoryKeys)
        told, create, taken = asyncio.Event(), keys.create, list[int]()
        keys.on_session_lost(told.set)

        async def create_and_lose(key: str, value: bytes, *, ephemeral: bool = False) -> int:
            """The answer to the first lock comes when its session has ended, and a replicator has the ledger."""
            version = await create(key, value, ephemeral=ephemeral)
            locked = [one for one in ledgers if theirs.paths.lock(one) == key]
            if locked and not taken:
                taken.extend(locked)
                keys.tree.expire(keys.session)
                await told.wait()
                assert await theirs.lock(locked[0])
            return version

        monkeypatch.setattr(keys, "create", create_and_lose)
        monkeypatch.setattr(rebalance_module, "_AT_ONCE", 1)  # no other request meets the end of the session
        before = {one: await members(client, one) for one in ledgers}
        found = await rebalance(client, ignore)
        assert list(found.failed) == taken
        assert "session" in found.failed[taken[0]]
        assert await members(client, taken[0]) == before[taken[0]]
        assert await theirs.lock_holder(taken[0]) == "test", "the lock is somebody else's"
        assert {move.ledger for move in found.moves} <= set(ledgers) - set(taken)
        assert found.moves


async def test_what_cannot_be_is_refused_with_the_reason() -> None:
    async with leaving(3) as (_c, client):
        for within in (0.0, 2.0):
            with pytest.raises(InvalidArgument, match="needs 1% to 100%"):
                await rebalance(client, ignore, within=within)
        await tree(client).enable(False)
        with pytest.raises(OperationRefused, match="autorecovery is disabled"):
            await rebalance(client, ignore)
        await tree(client).enable(True)
        key = f"{client.services.store.own}/healing/rebalance"
        await client.services.store.keys.create(key, b"", ephemeral=True)
        with pytest.raises(OperationRefused, match="another process rebalances this cluster already"):
            await rebalance(client, ignore)
    async with cluster(bookies=1) as c, c.client() as alone:
        with pytest.raises(OperationRefused, match="two are needed"):
            await rebalance(alone, ignore)
