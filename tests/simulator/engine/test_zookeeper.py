"""The simulated ZooKeeper: what a session sees under faults, and what really happened on the server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from buckram.errors import MetadataUnavailable
from buckram.metadata.zookeeper.keys import ZooKeeperKeys
from simulator.engine.loop import SimLoop
from simulator.engine.metadata import HOST
from simulator.engine.network import Fabric
from simulator.engine.trace import Trace
from simulator.engine.zk_connection import FabricConnection
from simulator.engine.zk_tree import ZkTree
from simulator.engine.zookeeper import SimZkSession, SimZooKeeper


class World:
    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.loop = SimLoop(rng, Trace())
        self.fabric = Fabric(self.loop, rng)
        self.server = SimZooKeeper(rng, lambda: int(self.loop.time() * 1000))
        self.server.spurious_watches = 0.0
        self.process = self.loop.process("c")
        self.zk = self.open()

    def open(self, name: str = "") -> SimZkSession:
        process = self.loop.process(name) if name else self.process
        return process.context.run(SimZkSession, self.server, FabricConnection(self.fabric, process))


def play(scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    world = World(seed)

    async def main() -> None:
        await scenario(world)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()


@pytest.mark.parametrize(("when", "applied"), [("before", False), ("after", True)])
def test_lost_request_and_lost_reply_look_the_same(when: str, applied: bool) -> None:
    async def scenario(world: World) -> None:
        world.server.lose_next(when, "c", "/a")
        with pytest.raises(MetadataUnavailable):
            await world.zk.create("/a", b"1")
        assert (await world.zk.exists("/a") is not None) is applied
        assert world.zk.operations.syncs == 2

    play(scenario)


def test_reads_on_a_broken_connection_are_sent_again_in_order() -> None:
    async def scenario(world: World) -> None:
        await world.zk.create("/a", b"0")
        world.server.lose_next("after", "c", "/a")
        changed, read, later = await asyncio.gather(
            world.zk.set("/a", b"1", 0), world.zk.get("/a"), world.zk.create("/b"), return_exceptions=True
        )
        assert isinstance(changed, MetadataUnavailable)
        assert not isinstance(read, BaseException)
        assert read[0] == b"1"
        assert isinstance(later, MetadataUnavailable)

    play(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_read_after_a_lost_reply_is_final(seed: int) -> None:
    """This is why reading again settles a doubt: no earlier request takes effect after that read."""

    async def scenario(world: World) -> None:
        outcomes = {True: 0, False: 0}
        for number in range(40):
            world.server.lose_before, world.server.lose_after = 0.2, 0.2
            if number % 7 == 0:
                world.fabric.block("c", HOST)
                world.loop.call_later(6.0, world.fabric.heal)
            try:
                await world.zk.create(f"/n{number}")
            except MetadataUnavailable:
                world.server.lose_before = world.server.lose_after = 0.0
                try:
                    there = await world.zk.exists(f"/n{number}") is not None
                except MetadataUnavailable:
                    continue
                await asyncio.sleep(10)
                assert (world.server.peek(f"/n{number}") is not None) is there
                outcomes[there] += 1
        assert min(outcomes.values()) > 0

    play(scenario, seed)


def test_expiry_deletes_ephemerals_and_a_new_session_serves() -> None:
    async def scenario(world: World) -> None:
        events: list[str] = []
        world.zk.on_session_lost(lambda: events.append("lost"))
        await world.zk.create("/e", b"", ephemeral=True)
        await world.zk.get("/e", lambda: events.append("watch"))
        before = world.zk.session_id
        world.zk.expire()
        assert world.server.peek("/e") is None
        await asyncio.sleep(1)
        assert sorted(events) == ["lost", "watch"]
        assert world.zk.session_id not in (0, before)
        await world.zk.create("/e", b"", ephemeral=True)

    play(scenario)


def test_unavailable_server_fails_operations_and_keeps_sessions() -> None:
    async def scenario(world: World) -> None:
        world.server.expire_after_silence = 0.0
        await world.zk.create("/e", b"", ephemeral=True)
        world.server.down = True
        began = world.loop.time()
        for attempt in (world.zk.get("/e"), world.zk.create("/f")):
            with pytest.raises(MetadataUnavailable, match="sim:2181"):
                await attempt
        assert world.loop.time() - began < 2 * world.server.timeout_s + 0.1
        world.server.down = False
        await asyncio.sleep(2)
        assert await world.zk.exists("/e") is not None
        assert await world.zk.exists("/f") is None

    play(scenario)


def test_session_of_a_dead_process_expires() -> None:
    async def scenario(world: World) -> None:
        other = world.open("d")
        await world.process.spawn(world.zk.create("/e", b"", ephemeral=True))
        deleted = asyncio.Event()
        await other.exists("/e", deleted.set)
        world.process.crash()
        async with asyncio.timeout(10):
            await deleted.wait()
        assert world.server.peek("/e") is None

    play(scenario)


def test_watches_report_creation_change_and_deletion() -> None:
    async def scenario(world: World) -> None:
        other, events = world.open("d"), list[str]()
        for path in ("/a", "/a/b"):
            assert await world.zk.exists(path, lambda path=path: events.append(f"{path} created")) is None
        await other.create("/a")
        await other.create("/a/b")
        await asyncio.sleep(1)
        assert sorted(events) == ["/a created", "/a/b created"]
        events.clear()
        await world.zk.get("/a", lambda: events.append("value"))
        await world.zk.children("/a", lambda: events.append("children"))
        await other.delete("/a/b", 0)
        await asyncio.sleep(1)
        assert events == ["children"]
        await world.zk.children("/a", lambda: events.append("deleted"))
        await other.delete("/a", 0)
        await asyncio.sleep(1)
        assert sorted(events) == ["children", "deleted", "value"]

    play(scenario)


def test_sequence_numbers_wrap_as_in_java() -> None:
    tree = ZkTree()
    session = tree.open_session(lambda path, change: None)
    tree.set_sequence("/", 2**31 - 1)
    assert tree.create("/ID-", b"", session, sequence=True) == "/ID-2147483647"
    assert tree.create("/ID-", b"", session, sequence=True) == "/ID--2147483648"


def test_production_store_runs_on_it_unmodified() -> None:
    async def scenario(world: World) -> None:
        keys = ZooKeeperKeys(world.zk)
        world.server.lose_before = world.server.lose_after = 0.1
        created = 0
        for number in range(60):
            try:
                await keys.create(f"/deep/{number % 5}/{number}", b"")
            except MetadataUnavailable:
                continue
            created += 1
        assert created > 20
        world.server.lose_before = world.server.lose_after = 0.0
        assert sum([len(await keys.children(f"/deep/{part}")) for part in range(5)]) >= created

    play(scenario)
