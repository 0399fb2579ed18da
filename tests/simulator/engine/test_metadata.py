"""The simulated metadata store: what a client sees under faults, and what really happened in the store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from buckram.errors import MetadataUnavailable
from buckram.types import KeyValue
from simulator.engine.loop import SimLoop
from simulator.engine.metadata import HOST, MetadataServer, SimKeys
from simulator.engine.network import Fabric
from simulator.engine.trace import Trace


class World:
    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.loop = SimLoop(rng, Trace())
        self.fabric = Fabric(self.loop, rng)
        self.server = MetadataServer(self.fabric, rng)
        self.server.spurious_watches = 0.0
        self.process = self.loop.process("c")
        self.keys = SimKeys(self.server, self.process)


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
            await world.keys.create("/a", b"1")
        assert (world.server.peek("/a") is not None) == applied

    play(scenario)


def test_request_over_a_blocked_link_may_arrive_later() -> None:
    async def scenario(world: World) -> None:
        world.fabric.block("c", HOST)
        with pytest.raises(MetadataUnavailable):
            await world.keys.create("/a", b"1")
        world.fabric.heal()
        await asyncio.sleep(1)
        assert world.server.peek("/a") == KeyValue(b"1", 0)

    play(scenario)


def test_expiry_deletes_ephemerals_and_a_new_session_serves() -> None:
    async def scenario(world: World) -> None:
        events: list[str] = []
        world.keys.on_session_lost(lambda: events.append("lost"))
        await world.keys.create("/e", b"", ephemeral=True)
        await world.keys.get("/e", lambda: events.append("watch"))
        world.keys.expire()
        assert world.server.peek("/e") is None
        await asyncio.sleep(1)
        assert sorted(events) == ["lost", "watch"]
        assert await world.keys.create("/e", b"", ephemeral=True) == 0

    play(scenario)


def test_session_of_a_dead_process_expires() -> None:
    async def scenario(world: World) -> None:
        await world.process.spawn(world.keys.create("/e", b"", ephemeral=True))
        world.process.crash()
        await asyncio.sleep(10)
        assert world.server.peek("/e") is None

    play(scenario)


class Observer:
    def __init__(self) -> None:
        self.unread: list[int] = []

    def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None: ...
    def key_conflict(self, who: str, key: str) -> None: ...
    def reply_lost(self, who: str, key: str) -> None: ...
    def unread_version(self, who: str, key: str, version: int) -> None:
        self.unread.append(version)


@pytest.mark.parametrize("seed", range(10))
def test_a_late_reply_makes_no_process_forget_a_version(seed: int) -> None:
    async def scenario(world: World) -> None:
        observer = Observer()
        world.server.observers.append(observer)
        world.server.late_chance, world.server.late_s = 1.0, 1.5
        made = asyncio.ensure_future(world.keys.create("/a", b"1"))
        await asyncio.sleep(1.6)  # it has arrived, and its reply is late
        world.server.late_chance = 0.0
        assert await world.keys.set("/a", b"2", (await world.keys.get("/a")).version) == 1
        assert await made == 0
        assert await world.keys.set("/a", b"3", 1) == 2
        assert observer.unread == []

    play(scenario, seed)


def test_version_that_was_never_read_is_reported() -> None:
    async def scenario(world: World) -> None:
        observer = Observer()
        world.server.observers.append(observer)
        assert await world.keys.create("/a", b"1") == 0
        assert await world.keys.set("/a", b"2", 0) == 1
        other = SimKeys(world.server, world.loop.process("d"))
        await other.set("/a", b"3", 1)
        assert observer.unread == [1]

    play(scenario)
