"""The compare-and-set loop of one ledger's record against a store that loses replies. Real store, faults in front."""

from __future__ import annotations

import random

import pytest
from tests.unit.test_writer_changes import FlakyStore

from buckram.client.metadata_cell import MetadataCell
from buckram.core.metadata import created, ensemble_changed
from buckram.errors import MetadataUnavailable
from buckram.metadata.memory import MemoryKeys, MemoryTree
from buckram.metadata.store import TreeStore
from buckram.types import LedgerMetadata


async def test_a_doubt_ends_when_the_newer_record_was_seen_not_when_a_write_was_refused() -> None:
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
        await cell.update(replace_a, patience_s=0.05)
    assert cell.in_doubt
    assert (await real.read_ledger(1)).metadata.last_fragment.ensemble[0] == "d", "it was applied"
    with pytest.raises(MetadataUnavailable):
        await cell.settle(patience_s=0.05)  # refused, and then no answer
    assert cell.metadata.last_fragment.ensemble[0] == "a"
    assert cell.in_doubt, "what is known of the record is out of date"
    store.away_for_reads = False
    assert (await cell.settle(patience_s=0.5)).last_fragment.ensemble[0] == "d"
    assert not cell.in_doubt
    await real.close()
