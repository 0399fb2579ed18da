"""Faults in front of the metadata store: what the process sees and what really happened."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from buckram.errors import MetadataUnavailable
from buckram.seams import KeyValue
from buckram.sim.engine.loop import SimLoop
from buckram.sim.engine.metadata import HOST, MetadataServer, SimKeys
from buckram.sim.engine.network import Fabric
from buckram.sim.engine.trace import Trace


class World:
    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.loop = SimLoop(rng, Trace())
        self.fabric = Fabric(self.loop, rng)
        self.server = MetadataServer(self.fabric, rng)
        self.server.spurious_watches = 0.0
        self.process = self.loop.process("c")
        self.keys = SimKeys(self.server, self.process)


def play(story: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    world = World(seed)

    async def main() -> None:
        await story(world)

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()


@pytest.mark.parametrize(("when", "applied"), [("before", False), ("after", True)])
def test_a_lost_reply_looks_the_same_whether_applied_or_not(when: str, applied: bool) -> None:
    async def story(world: World) -> None:
        world.server.lose_next(when, "c", "/a")
        with pytest.raises(MetadataUnavailable):
            await world.keys.create("/a", b"1")
        assert (world.server.peek("/a") is not None) == applied

    play(story)


def test_a_cut_link_times_out_and_the_request_may_still_arrive() -> None:
    async def story(world: World) -> None:
        world.fabric.block("c", HOST)
        with pytest.raises(MetadataUnavailable):
            await world.keys.create("/a", b"1")
        world.fabric.heal()
        await asyncio.sleep(1)
        assert world.server.peek("/a") == KeyValue(b"1", 0)

    play(story)


def test_expiry_ends_ephemerals_fires_watches_and_a_new_session_serves() -> None:
    async def story(world: World) -> None:
        events: list[str] = []
        world.keys.on_session_lost(lambda: events.append("lost"))
        await world.keys.create("/e", b"", ephemeral=True)
        await world.keys.get("/e", lambda: events.append("watch"))
        world.keys.expire()
        assert world.server.peek("/e") is None
        await asyncio.sleep(1)
        assert sorted(events) == ["lost", "watch"]
        assert await world.keys.create("/e", b"", ephemeral=True) == 0

    play(story)


def test_a_dead_process_loses_its_session_after_a_while() -> None:
    async def story(world: World) -> None:
        await world.process.spawn(world.keys.create("/e", b"", ephemeral=True))
        world.process.crash()
        await asyncio.sleep(10)
        assert world.server.peek("/e") is None

    play(story)


def test_a_version_that_was_never_read_is_noticed() -> None:
    class Seen:
        def __init__(self) -> None:
            self.unread: list[int] = []

        def key_changed(self, who: str, key: str, old: KeyValue | None, new: KeyValue | None) -> None: ...
        def key_conflict(self, who: str, key: str) -> None: ...
        def reply_lost(self, who: str, key: str) -> None: ...
        def unread_version(self, who: str, key: str, version: int) -> None:
            self.unread.append(version)

    async def story(world: World) -> None:
        seen = Seen()
        world.server.observers.append(seen)
        assert await world.keys.create("/a", b"1") == 0
        assert await world.keys.set("/a", b"2", 0) == 1
        other = SimKeys(world.server, world.loop.process("d"))
        await other.set("/a", b"3", 1)
        assert seen.unread == [1]

    play(story)
