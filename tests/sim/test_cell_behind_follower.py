"""The compare-and-set loop of a ledger's record, from a session on a ZooKeeper server that lies behind."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from buckram.client.shared.metadata_cell import MetadataCell
from buckram.core.ledgers.metadata import created, ensemble_changed
from buckram.core.ledgers.metadata_codec import parse, serialise
from buckram.errors import MetadataUnavailable
from buckram.sim.engine.loop import SimLoop
from buckram.sim.engine.network import Fabric
from buckram.sim.engine.stores import ZooKeeperStores
from buckram.sim.engine.trace import Trace
from buckram.sim.engine.zookeeper import SimZkSession
from buckram.types import LedgerMetadata

LAG_S = 2.0


class World:
    """`cell` is that of a client whose session lags; `rival` changes the record at the leader, at once."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.loop = SimLoop(rng, Trace())
        self.stores = ZooKeeperStores("hierarchical", Fabric(self.loop, rng), rng, LAG_S)
        self.stores.server.spurious_watches = 0.0
        self.changes = 0

    async def prepare(self) -> None:
        store, self.session = self.stores.open(self.loop.world, random.Random(1))
        await store.initialise()
        first = await store.create_ledger(1, created(3, 3, 2, ("a", "b", "c")))
        self.path = self.stores.layout.ledger(1)
        self.cell = MetadataCell(store, 1, first)

    def rival(self) -> None:
        """Somebody else writes the record."""
        server = self.stores.server
        found = server.peek(self.path)
        assert found is not None
        self.changes += 1
        now = replace(parse(found.value), custom_metadata={"rival": str(self.changes).encode()})
        server.commit(lambda tree: tree.set(self.path, serialise(now), -1))


def play(story: Callable[[World], Awaitable[None]]) -> None:
    """With a seed that gives the client a session on the follower."""
    for seed in range(20):
        world = World(seed)

        async def main(world: World = world) -> bool:
            await world.prepare()
            assert isinstance(world.session, SimZkSession)
            if not world.session._lagging:
                return False
            await story(world)
            return True

        try:
            if world.loop.run_until_complete(main()):
                return
        finally:
            world.loop.close()
    raise AssertionError("no session was given to the follower")


def replaces_b(metadata: LedgerMetadata) -> LedgerMetadata:
    members = [("e" if member == "b" else member) for member in metadata.last_fragment.ensemble]
    return ensemble_changed(metadata, 0, tuple(members))


def test_one_conflict_behind_a_follower_costs_one_more_attempt() -> None:
    async def story(world: World) -> None:
        for _ in range(5):
            world.rival()
        asked = 0

        def change(metadata: LedgerMetadata) -> LedgerMetadata:
            nonlocal asked
            asked += 1
            return replaces_b(metadata)

        done = await world.cell.update(change, within_s=10.0)
        assert done.last_fragment.ensemble == ("a", "e", "c")
        assert done.custom_metadata["rival"] == b"5", "the record that it changed was the newest"
        assert asked == 2

    play(story)


def test_conflicts_without_end_behind_a_follower_are_paused_and_end() -> None:
    """Somebody is faster each time: the attempts become fewer, and their end is an error within the patience."""

    async def story(world: World) -> None:
        asked, began = 0, world.loop.time()

        def change(metadata: LedgerMetadata) -> LedgerMetadata:
            nonlocal asked
            asked += 1
            world.rival()
            return replaces_b(metadata)

        with pytest.raises(MetadataUnavailable, match="conflicts"):
            await world.cell.update(change, within_s=10.0)
        assert 5 <= asked <= 20
        assert world.loop.time() - began < 12.0

    play(story)


@pytest.mark.parametrize("rivals", [1, 3])
def test_rivals_that_stop_let_it_through(rivals: int) -> None:
    async def story(world: World) -> None:
        left = rivals

        def change(metadata: LedgerMetadata) -> LedgerMetadata:
            nonlocal left
            if left:
                left -= 1
                world.rival()
            return replaces_b(metadata)

        done = await world.cell.update(change, within_s=10.0)
        assert done.last_fragment.ensemble == ("a", "e", "c")
        assert done.custom_metadata["rival"] == str(rivals).encode()

    play(story)
