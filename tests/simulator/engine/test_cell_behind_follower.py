"""The compare-and-set loop of a ledger's metadata, from a session on a ZooKeeper follower that lags."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.core.ledgers.metadata import created, ensemble_changed
from buckram.core.ledgers.metadata_codec import parse, serialise
from buckram.errors import MetadataUnavailable
from buckram.types import LedgerMetadata
from simulator.engine.loop import SimLoop
from simulator.engine.network import Fabric
from simulator.engine.stores import ZooKeeperStores
from simulator.engine.trace import Trace
from simulator.engine.zookeeper import SimZkSession

LAG_S = 2.0


class World:
    """A client whose session lags (`cell`), and a rival that changes the metadata on the leader."""

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

    def change_by_rival(self) -> None:
        """Another client writes the metadata."""
        server = self.stores.server
        found = server.peek(self.path)
        assert found is not None
        self.changes += 1
        now = replace(parse(found.value), custom_metadata={"rival": str(self.changes).encode()})
        server.commit(lambda tree: tree.set(self.path, serialise(now), -1))


def play(scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run it with the first seed that gives the client a session on the follower."""
    for seed in range(20):
        world = World(seed)

        async def main(world: World = world) -> bool:
            await world.prepare()
            assert isinstance(world.session, SimZkSession)
            if not world.session._lagging:
                return False
            await scenario(world)
            return True

        try:
            if world.loop.run_until_complete(main()):
                return
        finally:
            world.loop.close()
    raise AssertionError("no session was given to the follower")


def replace_b(metadata: LedgerMetadata) -> LedgerMetadata:
    members = [("e" if member == "b" else member) for member in metadata.last_fragment.ensemble]
    return ensemble_changed(metadata, 0, tuple(members))


def test_conflict_behind_a_follower_costs_one_more_attempt() -> None:
    async def scenario(world: World) -> None:
        for _ in range(5):
            world.change_by_rival()
        attempts = 0

        def change(metadata: LedgerMetadata) -> LedgerMetadata:
            nonlocal attempts
            attempts += 1
            return replace_b(metadata)

        done = await world.cell.update(change, within_s=10.0)
        assert done.last_fragment.ensemble == ("a", "e", "c")
        assert done.custom_metadata["rival"] == b"5", "it changed the newest metadata"
        assert attempts == 2

    play(scenario)


def test_endless_conflicts_back_off_and_fail_in_time() -> None:
    """A rival is faster each time: the attempts slow down and end with an error within the time-out."""

    async def scenario(world: World) -> None:
        attempts, began = 0, world.loop.time()

        def change(metadata: LedgerMetadata) -> LedgerMetadata:
            nonlocal attempts
            attempts += 1
            world.change_by_rival()
            return replace_b(metadata)

        with pytest.raises(MetadataUnavailable, match="conflicts"):
            await world.cell.update(change, within_s=10.0)
        assert 5 <= attempts <= 20
        assert world.loop.time() - began < 12.0

    play(scenario)


@pytest.mark.parametrize("rivals", [1, 3])
def test_update_succeeds_when_the_rivals_stop(rivals: int) -> None:
    async def scenario(world: World) -> None:
        left = rivals

        def change(metadata: LedgerMetadata) -> LedgerMetadata:
            nonlocal left
            if left:
                left -= 1
                world.change_by_rival()
            return replace_b(metadata)

        done = await world.cell.update(change, within_s=10.0)
        assert done.last_fragment.ensemble == ("a", "e", "c")
        assert done.custom_metadata["rival"] == str(rivals).encode()

    play(scenario)
