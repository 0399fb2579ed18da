"""The compare-and-set loop of one ledger's record against a store that loses replies. Real store, faults in front."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from tests.client.write.test_ensemble_change import FlakyStore

from buckram.client.shared.ledger_metadata import LedgerFollower, MetadataCell
from buckram.core.ledgers.metadata import created, ensemble_changed
from buckram.errors import MetadataUnavailable
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.process.tasks import TaskScope
from buckram.types import LedgerMetadata, Versioned


async def test_doubt_ends_with_a_newer_record_not_with_a_refused_write() -> None:
    """A refused write says only that the record is another one now; which one is known after it was read."""
    real = TreeStore(MemoryKeys(MemoryTree()), "memory:test", random.Random(1))
    await real.initialise()
    store = FlakyStore(real)
    cell = MetadataCell(store, 1, await real.create_ledger(1, created(3, 3, 2, ("a", "b", "c"))))

    def replace_a(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if "a" not in metadata.last_fragment.ensemble:
            return None
        store.away_for_reads = True  # from the first look on: nothing can be read again
        return ensemble_changed(metadata, 0, ("d", "b", "c"))

    store.plan = ["after"]
    with pytest.raises(MetadataUnavailable):
        await cell.update(replace_a, within_s=0.05)
    assert cell.in_doubt
    assert (await real.read_ledger(1)).metadata.last_fragment.ensemble[0] == "d", "it was applied"
    with pytest.raises(MetadataUnavailable):
        await cell.settle(within_s=0.05)  # refused, and then no answer
    assert cell.metadata.last_fragment.ensemble[0] == "a"
    assert cell.in_doubt, "what is known of the record is out of date"
    store.away_for_reads = False
    assert (await cell.settle(within_s=0.5)).last_fragment.ensemble[0] == "d"
    assert not cell.in_doubt
    await real.close()


class LaggingStore:
    """A server that shows each ledger as it was when it was first read there, `deaf` syncs long."""

    def __init__(self, store: TreeStore, deaf: int) -> None:
        self._store, self.deaf = store, deaf
        self.shown: dict[int, Versioned] = {}
        self.reads = self.writes = self.syncs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def sync(self) -> None:
        self.syncs += 1
        if self.syncs > self.deaf:
            self.shown.clear()

    async def read_ledger(self, ledger_id: int, watch: Any = None) -> Versioned:
        self.reads += 1
        if ledger_id not in self.shown:
            self.shown[ledger_id] = await self._store.read_ledger(ledger_id, watch)
        return self.shown[ledger_id]

    async def write_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        self.writes += 1
        return await self._store.write_ledger(ledger_id, metadata, version)


async def behind(deaf: int) -> tuple[LaggingStore, MetadataCell]:
    """A cell whose server has not heard of the newest change."""
    real = TreeStore(MemoryKeys(MemoryTree()), "memory:test", random.Random(1))
    await real.initialise()
    first = await real.create_ledger(1, created(3, 3, 2, ("a", "b", "c")))
    store = LaggingStore(real, deaf)
    cell = MetadataCell(store, 1, await store.read_ledger(1))  # type: ignore[arg-type]  # the rest goes to the real one
    await real.write_ledger(1, ensemble_changed(first.metadata, 0, ("d", "b", "c")), first.version)
    return store, cell


def replaces_b(metadata: LedgerMetadata) -> LedgerMetadata:
    members = [("e" if member == "b" else member) for member in metadata.last_fragment.ensemble]
    return ensemble_changed(metadata, 0, tuple(members))


async def test_after_a_conflict_the_record_is_read_after_a_sync() -> None:
    """A follower that lies behind would show the refused version for as long as it does."""
    store, cell = await behind(0)
    assert (await cell.update(replaces_b, within_s=5.0)).last_fragment.ensemble == ("d", "e", "c")
    assert (store.writes, store.reads, store.syncs) == (2, 2, 1)


async def test_conflicts_that_repeat_are_paused_and_end() -> None:
    """Also where not even a sync helps: a few attempts, not as many as the store can answer, and then an error."""
    store, cell = await behind(1_000_000)
    with pytest.raises(MetadataUnavailable, match="ledger 1"):
        await cell.update(replaces_b, within_s=0.5)
    assert 3 <= store.writes <= 8


async def test_a_server_that_lags_does_not_take_a_follower_back() -> None:
    store = TreeStore(MemoryKeys(MemoryTree()), "memory:lags", random.Random(1))
    await store.initialise()
    ledger = await store.allocate_ledger_id()
    old = await store.create_ledger(ledger, created(3, 3, 2, ("a", "b", "c")))
    newer = Versioned(replace(old.metadata, custom_metadata={"a": b"change"}), old.version + 1)
    async with TaskScope("test") as scope:
        follower = LedgerFollower(store, ledger, newer, scope)
        changed = follower.changes()
        assert await follower.refresh() == newer.metadata
        assert (follower.version, changed.is_set()) == (newer.version, False)
