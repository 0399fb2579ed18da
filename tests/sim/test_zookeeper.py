"""Faults of the simulated ZooKeeper: what a session sees, what really happened, and that seeds decide all of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from buckram.errors import MetadataUnavailable
from buckram.metadata.zookeeper.keys import ZooKeeperKeys
from buckram.sim.engine.loop import SimLoop
from buckram.sim.engine.metadata import HOST
from buckram.sim.engine.network import Fabric
from buckram.sim.engine.trace import Trace
from buckram.sim.engine.zk_line import FabricLine
from buckram.sim.engine.zk_tree import ZkTree
from buckram.sim.engine.zookeeper import SimZkSession, SimZooKeeper
from buckram.sim.ledgers.life import run_life
from buckram.sim.ledgers.plan import make_plan


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
        return process.context.run(SimZkSession, self.server, FabricLine(self.fabric, process))


def play(story: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    world = World(seed)

    async def main() -> None:
        await story(world)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()


@pytest.mark.parametrize(("when", "applied"), [("before", False), ("after", True)])
def test_a_lost_answer_looks_the_same_whether_applied_or_not(when: str, applied: bool) -> None:
    async def story(world: World) -> None:
        world.server.lose_next(when, "c", "/a")
        with pytest.raises(MetadataUnavailable):
            await world.zk.create("/a", b"1")
        assert (await world.zk.exists("/a") is not None) is applied
        assert world.zk.operations.syncs == 2

    play(story)


def test_reads_on_a_broken_connection_are_sent_again_and_keep_their_place() -> None:
    async def story(world: World) -> None:
        await world.zk.create("/a", b"0")
        world.server.lose_next("after", "c", "/a")
        changed, read, later = await asyncio.gather(
            world.zk.set("/a", b"1", 0), world.zk.get("/a"), world.zk.create("/b"), return_exceptions=True
        )
        assert isinstance(changed, MetadataUnavailable)
        assert not isinstance(read, BaseException)
        assert read[0] == b"1"
        assert isinstance(later, MetadataUnavailable)

    play(story)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_read_after_a_loss_is_final(seed: int) -> None:
    """The reason why reading again is enough: nothing of before happens after it."""

    async def story(world: World) -> None:
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

    play(story, seed)


def test_expiry_ends_ephemerals_fires_watches_and_a_new_session_serves() -> None:
    async def story(world: World) -> None:
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

    play(story)


def test_a_server_that_is_away_fails_operations_in_time_and_keeps_sessions() -> None:
    async def story(world: World) -> None:
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

    play(story)


def test_a_dead_process_loses_its_session_after_a_while() -> None:
    async def story(world: World) -> None:
        other = world.open("d")
        await world.process.spawn(world.zk.create("/e", b"", ephemeral=True))
        gone = asyncio.Event()
        await other.exists("/e", gone.set)
        world.process.crash()
        async with asyncio.timeout(10):
            await gone.wait()
        assert world.server.peek("/e") is None

    play(story)


def test_watches_tell_of_births_changes_and_deaths() -> None:
    async def story(world: World) -> None:
        other, told = world.open("d"), list[str]()
        for path in ("/a", "/a/b"):
            assert await world.zk.exists(path, lambda path=path: told.append(f"{path} born")) is None
        await other.create("/a")
        await other.create("/a/b")
        await asyncio.sleep(1)
        assert sorted(told) == ["/a born", "/a/b born"]
        told.clear()
        await world.zk.get("/a", lambda: told.append("value"))
        await world.zk.children("/a", lambda: told.append("children"))
        await other.delete("/a/b", 0)
        await asyncio.sleep(1)
        assert told == ["children"]
        await world.zk.children("/a", lambda: told.append("gone"))
        await other.delete("/a", 0)
        await asyncio.sleep(1)
        assert sorted(told) == ["children", "gone", "value"]

    play(story)


def test_sequence_numbers_wrap_as_javas_do() -> None:
    tree = ZkTree()
    session = tree.open_session(lambda path, change: None)
    tree.set_sequence("/", 2**31 - 1)
    assert tree.create("/ID-", b"", session, sequence=True) == "/ID-2147483647"
    assert tree.create("/ID-", b"", session, sequence=True) == "/ID--2147483648"


def test_keys_live_on_it_unmodified() -> None:
    async def story(world: World) -> None:
        keys = ZooKeeperKeys(world.zk)
        world.server.lose_before = world.server.lose_after = 0.1
        made = 0
        for number in range(60):
            try:
                await keys.create(f"/deep/{number % 5}/{number}", b"")
            except MetadataUnavailable:
                continue
            made += 1
        assert made > 20
        world.server.lose_before = world.server.lose_after = 0.0
        assert sum([len(await keys.children(f"/deep/{part}")) for part in range(5)]) >= made

    play(story)


def test_a_third_of_the_lives_is_on_zookeeper_and_seeds_decide_them() -> None:
    kinds = [make_plan(seed).metadata for seed in range(600)]
    assert 0.25 < sum(kind != "memory" for kind in kinds) / len(kinds) < 0.42
    seed = next(seed for seed, kind in enumerate(kinds) if kind == "zk+longhierarchical")
    first, again = run_life(seed), run_life(seed)
    assert first.trace_hash == again.trace_hash
    assert first.violations == []
