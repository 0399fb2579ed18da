"""Older copies of a directory and of the metadata, foreign bookies at an address, and sessions that read old state."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from buckram.client.write.writer import Writer
from buckram.cluster import Client
from buckram.errors import MetadataUnavailable, NoSuchKey
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.seams import Write
from buckram.types import DigestType
from simulator.engine.damage import flip_some_byte
from simulator.engine.disk import Device, SimDisk
from simulator.engine.foreign import ForeignBookies
from simulator.engine.world import World
from simulator.engine.zookeeper import SimZkSession, SimZooKeeper


async def create_ledger(client: Client, shape: tuple[int, int, int]) -> Writer:
    return await client.create(ensemble=shape, digest=DigestType.CRC32C)


def run(world: World, coro: Coroutine[Any, Any, None]) -> None:
    world.loop.run_until_complete(coro)
    world.close()


def test_directory_is_restored_to_an_older_copy() -> None:
    world = World(1)
    device = Device(world.loop, random.Random(1), "b1")
    disk = SimDisk(device, world.loop.process("b1"))
    disk.write_now([Write(disk.open("log", create=True), 0, [b"old"])], sync=False)
    image = device.snapshot()
    disk.write_now([Write(disk.open("log"), 0, [b"new"])])
    disk.open("more", create=True)
    device.restore(image)
    assert device.model.names() == ["log"]
    assert device.model.inode("log").read(0, 3) == b"old"
    assert device.model.worst_case().inode("log").read(0, 3) == b"old", "what a copy contains is synced"
    world.close()


@pytest.mark.parametrize("kind", ["memory", "zk+hierarchical"])
def test_metadata_is_restored_to_an_older_copy(kind: str) -> None:
    world = World(1, metadata=kind)

    async def scenario() -> None:
        process = world.process("w1")
        store = world.store(process, random.Random(1))

        async def inside() -> None:
            await store.initialise()
            root = world.stores.layout.root
            keys = store.keys
            await keys.create(f"{root}/one", b"1")
            image = world.metadata.snapshot()
            await keys.set(f"{root}/one", b"2", 0)
            await keys.create(f"{root}/two", b"2")
            await keys.create(f"{root}/mine", b"", ephemeral=True)
            lost: list[int] = []
            keys.on_session_lost(lambda: lost.append(1))
            world.restore_metadata(image)
            for _ in range(20):
                try:
                    kept = await keys.get(f"{root}/one")
                    break
                except MetadataUnavailable:
                    continue
            assert (kept.value, kept.version) == (b"1", 0)
            for missing in ("two", "mine"):
                with pytest.raises(NoSuchKey):
                    await keys.get(f"{root}/{missing}")
            assert lost == [1]
            assert await keys.set(f"{root}/one", b"3", 0) == 1

        await world.join(process, inside())

    run(world, scenario())


def test_replies_of_foreign_bookies_are_no_claims() -> None:
    """Bookies of another cluster listen at both addresses: the judge counts none of their acknowledgements."""
    world = World(1)

    async def scenario() -> None:
        await world.store(world.loop.world, world.rng).initialise()
        machines = [world.add_machine(name) for name in ("b1", "b2")]
        for machine in machines:
            assert await world.boot(machine)
        client = await world.client("w1")
        writer = await world.join(world.processes["w1"], create_ledger(client, (2, 2, 2)))
        foreign = ForeignBookies(world)
        for machine in machines:
            await foreign.take(machine)
        try:
            await world.join(world.processes["w1"], writer.append(b"x"))
        except Exception as error:
            world.trace.note("w1", repr(error))
        claims = world.judge.facts.ledger(writer.ledger_id).claims
        assert not [name for held in claims.values() for name in held if name in ("b1", "b2")]
        for machine in machines:
            foreign.leave(machine)
            assert await world.boot(machine)

    run(world, scenario())


def test_new_bookie_at_the_address_of_an_old_one() -> None:
    world = World(1)

    async def scenario() -> None:
        await world.store(world.loop.world, world.rng).initialise()
        old = world.add_machine("b1")
        assert await world.boot(old)
        old.away = True
        world.crash(old, power=False)
        new = world.add_machine("b2", host="b1")
        assert await world.boot(new)
        await asyncio.sleep(world.metadata.session_timeout_s + 1.0)
        client = await world.client("w1")
        writer = await world.join(world.processes["w1"], create_ledger(client, (1, 1, 1)))
        assert await world.join(world.processes["w1"], writer.append(b"x")) == 0
        assert writer.metadata.last_fragment.ensemble == ("b2",)
        assert list(world.judge.facts.ledger(writer.ledger_id).claims[0]) == ["b2"]

    run(world, scenario())


def world_with_a_lagging_follower() -> World:
    world = World(1, metadata="zk+hierarchical")
    assert isinstance(world.metadata, SimZooKeeper)
    loop = world.loop
    world.metadata.lag(2.0, lambda delay_s, go: loop.call_later(delay_s, go, context=loop.world.context))
    assert world.metadata.follower is not None
    world.metadata.follower._rng = random.Random(3)
    return world


def test_session_on_a_follower_reads_old_state_until_it_syncs() -> None:
    world = world_with_a_lagging_follower()

    async def scenario() -> None:
        writer = world.process("w1")
        first, session = world.stores.open(writer, random.Random(1))
        assert isinstance(session, SimZkSession)
        session._lagging = False
        await world.join(writer, first.initialise())
        stale = 0
        for n in range(12):
            reader = world.process(f"r{n}")
            second, _ = world.stores.open(reader, random.Random(1))
            assert isinstance(second, ZooKeeperStore)
            key = f"/ledgers/key{n}"

            async def reads_stale_state(store: ZooKeeperStore = second, key: str = key) -> bool:
                await store.keys.sync()
                await world.join(writer, first.keys.create(key, b"1"))
                try:
                    await store.keys.get(key)
                except NoSuchKey:
                    await store.keys.sync()
                    await store.keys.get(key)
                    return True
                return False

            stale += await world.join(reader, reads_stale_state())
        assert 0 < stale < 12, "some sessions are on the follower, others on the leader"
        assert world.report.reached["metadata read that lags behind"] == stale

    run(world, scenario())


def test_limbo_without_known_damage_violates_i16() -> None:
    """The test damages the disk without recording it in the facts."""
    world = World(1)

    async def scenario() -> None:
        await world.store(world.loop.world, world.rng).initialise()
        machine = world.add_machine("b1")
        assert await world.boot(machine)
        client = await world.client("w1")
        writer = await world.join(world.processes["w1"], create_ledger(client, (1, 1, 1)))
        for _ in range(3):
            await world.join(world.processes["w1"], writer.append(b"x" * 100))
        world.crash(machine, power=False)
        assert await world.boot(machine)
        assert [violation.invariant for violation in world.report.violations] == []
        world.crash(machine, power=False)
        assert flip_some_byte(machine.device, random.Random(1))
        assert await world.boot(machine)
        assert [violation.invariant for violation in world.report.violations] == ["I16"]

    run(world, scenario())
